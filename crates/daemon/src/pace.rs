//! Limits the rate of a key's requests over all its sessions. Requests above the rate stay unread, until the sender's
//! window is full.
//!
//! A request costs its sender little. It costs a relay a route lookup or a signature check, and a controller a transaction of
//! its store, whether it is granted or not, and anyone may send one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use anabranch_net::PublicKey;

/// How many requests a key may make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaceLimits {
    /// Requests at once.
    pub burst: u32,
    /// Time until one more is admitted.
    pub every: Duration,
}

/// The pace of each key that has a session.
pub(crate) struct Paces {
    limits: PaceLimits,
    of_keys: Mutex<BTreeMap<PublicKey, Weak<Mutex<Pace>>>>,
}

impl Paces {
    /// Without any key yet.
    pub(crate) fn new(limits: PaceLimits) -> Self {
        Self { limits, of_keys: Mutex::default() }
    }

    /// The pace of a key, which all its sessions share.
    pub(crate) fn of(&self, key: PublicKey, now: Instant) -> SharedPace {
        // No statement under these locks can leave the data inconsistent.
        let mut paces = self.of_keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pace) = paces.get(&key).and_then(Weak::upgrade) {
            return SharedPace(pace);
        }
        paces.retain(|_, pace| pace.strong_count() > 0);
        let pace = Arc::new(Mutex::new(Pace { limits: self.limits, due: now }));
        paces.insert(key, Arc::downgrade(&pace));
        SharedPace(pace)
    }
}

/// The pace of one key, in one of its sessions.
pub(crate) struct SharedPace(Arc<Mutex<Pace>>);

impl SharedPace {
    /// Admits a request that counts as `cost` requests.
    ///
    /// # Errors
    /// When to try again.
    pub(crate) fn take(&self, cost: u32, now: Instant) -> Result<(), Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(cost, now)
    }
}

struct Pace {
    limits: PaceLimits,
    /// When all requests so far would have been made at an even pace.
    due: Instant,
}

impl Pace {
    fn take(&mut self, cost: u32, now: Instant) -> Result<(), Instant> {
        let PaceLimits { burst, every } = self.limits;
        let due = self.due.max(now) + every * cost;
        let from = due - every * burst;
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

    const LIMITS: PaceLimits = PaceLimits { burst: 64, every: Duration::from_millis(125) };

    fn key(byte: u8) -> PublicKey {
        anabranch_net::NodeKey::from_random([byte; 32]).public()
    }

    #[test]
    fn sixty_four_requests_are_admitted_at_once_and_then_eight_a_second() {
        let begin = Instant::now();
        let (paces, every) = (Paces::new(LIMITS), LIMITS.every);
        let pace = paces.of(key(1), begin);
        let taken = |now| (0..).take_while(|_| pace.take(1, now).is_ok()).count();
        assert_eq!(taken(begin), 64);
        assert_eq!(pace.take(1, begin), Err(begin + every));
        assert_eq!(taken(begin + every * 2), 2);
        assert_eq!(taken(begin + every * 1_000), 64, "no more is saved up");
    }

    #[test]
    fn a_costly_request_counts_for_several() {
        let begin = Instant::now();
        let paces = Paces::new(LIMITS);
        let pace = paces.of(key(1), begin);
        let taken = (0..).take_while(|_| pace.take(8, begin).is_ok()).count();
        assert_eq!(taken, 8);
        assert_eq!(pace.take(8, begin), Err(begin + LIMITS.every * 8));
    }

    #[test]
    fn all_sessions_of_a_key_share_its_pace_and_nothing_is_kept_of_keys_without_a_session() {
        let (paces, begin) = (Paces::new(LIMITS), Instant::now());
        let sessions: Vec<_> = (0..10).map(|_| paces.of(key(1), begin)).collect();
        let taken = sessions.iter().cycle().take_while(|pace| pace.take(1, begin).is_ok()).count();
        assert_eq!(taken, 64);
        assert!(paces.of(key(2), begin).take(1, begin).is_ok(), "another key has its own");
        drop(sessions);
        for byte in 3..100 {
            paces.of(key(byte), begin);
        }
        assert_eq!(paces.of_keys.lock().unwrap().len(), 1, "that of the last");
    }
}
