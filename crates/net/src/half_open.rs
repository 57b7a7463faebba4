//! Places of sessions that were answered and that their clients have not confirmed yet.
//!
//! They are few ([`Limits::half_open`](crate::Limits::half_open)). When all are taken, whoever has most of them, counted by source, gives
//! up its oldest, so that one who never confirms shuts out nobody else.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::session::inner::SessionInner;
use crate::source::{source, who_makes_room};

/// See the module's documentation.
pub(crate) struct HalfOpen {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// By age.
    places: BTreeMap<u64, (IpAddr, Weak<SessionInner>)>,
    next: u64,
}

/// A place, given back when it is dropped.
pub(crate) struct Hold {
    table: Arc<HalfOpen>,
    number: u64,
}

impl HalfOpen {
    /// A table of so many places.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// A place for a session with `remote`, and the session that has lost its own for it.
    /// `None` when all are taken and nobody has more of them.
    pub(crate) fn take(self: &Arc<Self>, remote: IpAddr) -> Option<(Hold, Option<Arc<SessionInner>>)> {
        let own = source(remote);
        let mut taken = self.taken();
        let mut loser = None;
        if taken.places.len() >= self.most {
            let rich = who_makes_room(own, taken.places.values().map(|(holder, _)| *holder))?;
            let oldest = taken.places.iter().find(|(_, (holder, _))| *holder == rich)?;
            let number = *oldest.0;
            loser = taken.places.remove(&number).and_then(|(_, session)| session.upgrade());
        }
        let number = taken.next;
        taken.next += 1;
        taken.places.insert(number, (own, Weak::new()));
        Some((Hold { table: self.clone(), number }, loser))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().expect("no panic while held")
    }
}

impl Hold {
    /// Tells whose it is.
    pub(crate) fn belongs_to(&self, session: &Arc<SessionInner>) {
        if let Some((_, holder)) = self.table.taken().places.get_mut(&self.number) {
            *holder = Arc::downgrade(session);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.table.taken().places.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(table: &Arc<HalfOpen>, address: &str) -> Option<Hold> {
        table.take(address.parse().unwrap()).map(|(place, _)| place)
    }

    fn held(table: &Arc<HalfOpen>, address: &str) -> usize {
        let address: IpAddr = address.parse().unwrap();
        table.taken().places.values().filter(|(holder, _)| *holder == address).count()
    }

    #[test]
    fn who_has_most_gives_up_its_oldest_for_others_and_gets_no_more() {
        let table = Arc::new(HalfOpen::new(4));
        let hoard: Vec<_> = (0..4).map(|_| take(&table, "192.0.2.1").unwrap()).collect();
        assert!(take(&table, "192.0.2.1").is_none());
        let others: Vec<_> = (0..2).map(|_| take(&table, "192.0.2.2").unwrap()).collect();
        assert_eq!((held(&table, "192.0.2.1"), held(&table, "192.0.2.2")), (2, 2));
        assert!(table.taken().places.contains_key(&hoard[3].number), "the oldest go");
        assert!(take(&table, "192.0.2.2").is_none(), "two who have as many share");
        drop((hoard, others));
        assert!(table.taken().places.is_empty());
    }

    #[test]
    fn places_given_back_are_free() {
        let table = Arc::new(HalfOpen::new(1));
        let place = take(&table, "192.0.2.1").unwrap();
        assert!(take(&table, "192.0.2.2").is_none(), "nobody has more");
        drop(place);
        assert!(take(&table, "192.0.2.2").is_some());
    }
}
