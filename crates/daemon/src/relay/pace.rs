//! How fast a session may ask: what comes faster waits, unread, until its sender's window is full.
//!
//! A request costs little to make, and the relay a turn of the core, a look at the routes or the check of a signature, whether it is granted
//! or not, and strangers may ask, too. Who uses a relay makes a few for each path.

use std::time::{Duration, Instant};

use anabranch_overlay::relay::Request;

/// Requests that may be made at once.
const AT_ONCE: u32 = 64;
/// Then it takes so long until one more.
const EVERY: Duration = Duration::from_millis(125);
/// For how many a grant counts, whose signature is checked.
const OF_A_GRANT: u32 = 8;

/// The pace of one session.
pub(super) struct Pace {
    /// When all so far would have been made, one at a time.
    due: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now }
    }

    /// Takes a request, or tells when to come again with it.
    pub(super) fn take(&mut self, request: &Request, now: Instant) -> Result<(), Instant> {
        let count = if matches!(request, Request::Show { .. }) { OF_A_GRANT } else { 1 };
        let due = self.due.max(now) + EVERY * count;
        let from = due - EVERY * AT_ONCE;
        if from > now {
            return Err(from);
        }
        self.due = due;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_may_be_made_at_once_and_then_one_after_the_other() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let request = Request::Hello { version: 1 };
        let taken = |pace: &mut Pace, now| (0..).take_while(|_| pace.take(&request, now).is_ok()).count();
        assert_eq!(taken(&mut pace, begin), AT_ONCE as usize);
        assert_eq!(pace.take(&request, begin), Err(begin + EVERY));
        assert_eq!(taken(&mut pace, begin + EVERY * 2), 2);
        assert_eq!(taken(&mut pace, begin + EVERY * 1_000), AT_ONCE as usize, "no more is saved up");
    }

    #[test]
    fn a_grant_counts_for_several() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let show = Request::Show { grant: Vec::new() };
        let taken = (0..).take_while(|_| pace.take(&show, begin).is_ok()).count();
        assert_eq!(taken as u32, AT_ONCE / OF_A_GRANT);
        assert_eq!(pace.take(&show, begin), Err(begin + EVERY * OF_A_GRANT));
    }
}
