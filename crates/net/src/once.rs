//! Remembers INITs whose data were taken: another copy may be a replay.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use anabranch_secure::InitId;

/// The INITs. An old one is forgotten when many others have come since.
pub(crate) struct Once {
    most: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    all: HashSet<InitId>,
    in_order: VecDeque<InitId>,
}

impl Once {
    /// Remembers so many.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, known: Mutex::default() }
    }

    /// True the first time for an INIT; never if none are remembered.
    pub(crate) fn is_first(&self, id: InitId) -> bool {
        let mut known = self.known.lock().expect("no panic while held");
        let is_first = self.most > 0 && known.all.insert(id);
        if is_first {
            known.in_order.push_back(id);
        }
        if known.in_order.len() > self.most
            && let Some(oldest) = known.in_order.pop_front()
        {
            known.all.remove(&oldest);
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use anabranch_secure::INIT_BODY_LEN;

    use super::*;

    #[test]
    fn an_init_is_the_first_once_until_as_many_others_came() {
        const MOST: usize = 100;
        let id = |number: usize| {
            let mut body = vec![0; INIT_BODY_LEN];
            body[0] = 1;
            body[100..108].copy_from_slice(&number.to_be_bytes());
            InitId::of(&body).expect("it has the shape")
        };
        let once = Once::new(MOST);
        assert!((0..MOST).all(|number| once.is_first(id(number))));
        assert!(!once.is_first(id(0)) && once.is_first(id(MOST)));
        assert!(once.is_first(id(0)) && !once.is_first(id(2)));
        assert_eq!(once.known.lock().unwrap().all.len(), MOST);
        assert!(!Once::new(0).is_first(id(0)));
    }
}
