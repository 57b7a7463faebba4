//! Limits the rate of a key's requests over all its sessions, also those that follow each other. Requests above the rate
//! stay unread, until the sender's window is full. Sources have paces of the same kind.
//!
//! A request costs its sender little. It costs a relay a route lookup or a signature check, and a controller a transaction of
//! its store, whether it is granted or not, and anyone may send one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_net::PublicKey;

/// How many requests a key or source may make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaceLimits {
    /// Requests at once.
    pub burst: u32,
    /// Time until one more is admitted.
    pub every: Duration,
}

/// At a relay: a client needs a few for each path.
pub(crate) const OF_A_RELAY: PaceLimits = PaceLimits { burst: 64, every: Duration::from_millis(125) };
/// At a controller: a relay makes one each two seconds, a client a few an hour.
pub(crate) const OF_A_CONTROLLER: PaceLimits = PaceLimits { burst: 128, every: Duration::from_millis(62) };

/// Fewest keys before those that are not needed any more are looked for.
const FEWEST: usize = 64;

/// The pace of each key that has a session, or had one so recently that its burst is not full again.
pub(crate) struct Paces<K = PublicKey> {
    limits: PaceLimits,
    of_keys: Mutex<Known<K>>,
}

struct Known<K> {
    paces: BTreeMap<K, Arc<Mutex<Pace>>>,
    /// With so many keys, those that are not needed any more are dropped.
    sweep_at: usize,
}

impl<K: Ord> Paces<K> {
    /// Without any key yet.
    pub(crate) fn new(limits: PaceLimits) -> Self {
        Self { limits, of_keys: Mutex::new(Known { paces: BTreeMap::new(), sweep_at: 0 }) }
    }

    /// The pace of a key, which all its sessions share.
    pub(crate) fn of(&self, key: K, now: Instant) -> SharedPace {
        // No statement under these locks can leave the data inconsistent.
        let mut known = self.of_keys.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { paces, sweep_at } = &mut *known;
        if let Some(pace) = paces.get(&key) {
            return SharedPace(pace.clone());
        }
        if paces.len() >= *sweep_at {
            paces.retain(|_, pace| Arc::strong_count(pace) > 1 || !Pace::of(pace).is_full(now));
            *sweep_at = (paces.len() * 2).max(FEWEST);
        }
        let pace = Arc::new(Mutex::new(Pace { limits: self.limits, due: now }));
        paces.insert(key, pace.clone());
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
        Pace::of(&self.0).take(cost, now)
    }
}

struct Pace {
    limits: PaceLimits,
    /// When all requests so far would have been made at an even pace.
    due: Instant,
}

impl Pace {
    fn of(shared: &Mutex<Self>) -> MutexGuard<'_, Self> {
        shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is like a new one.
    fn is_full(&self, now: Instant) -> bool {
        self.due <= now
    }

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

    fn key(byte: u8) -> PublicKey {
        anabranch_net::NodeKey::from_random([byte; 32]).public()
    }

    #[test]
    fn sixty_four_requests_are_admitted_at_once_and_then_eight_a_second() {
        let begin = Instant::now();
        for (limits, at_once, in_a_second) in [(OF_A_RELAY, 64, 8), (OF_A_CONTROLLER, 128, 16)] {
            let pace = Paces::new(limits).of(key(1), begin);
            let taken = |now| (0..).take_while(|_| pace.take(1, now).is_ok()).count();
            assert_eq!(taken(begin), at_once);
            assert_eq!(taken(begin + Duration::from_secs(1)), in_a_second);
        }
        let (paces, every) = (Paces::new(OF_A_RELAY), OF_A_RELAY.every);
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
        let paces = Paces::new(OF_A_RELAY);
        let pace = paces.of(key(1), begin);
        let taken = (0..).take_while(|_| pace.take(8, begin).is_ok()).count();
        assert_eq!(taken, 8);
        assert_eq!(pace.take(8, begin), Err(begin + OF_A_RELAY.every * 8));
    }

    #[test]
    fn all_sessions_of_a_key_share_its_pace_also_those_that_follow_each_other() {
        let (paces, begin) = (Paces::new(OF_A_RELAY), Instant::now());
        let sessions: Vec<_> = (0..10).map(|_| paces.of(key(1), begin)).collect();
        let taken = sessions.iter().cycle().take_while(|pace| pace.take(1, begin).is_ok()).count();
        assert_eq!(taken, 64);
        assert!(paces.of(key(2), begin).take(1, begin).is_ok(), "another key has its own");
        drop(sessions);
        for _ in 0..100 {
            assert!(paces.of(key(1), begin).take(1, begin).is_err(), "a session that comes again");
        }
        let later = begin + OF_A_RELAY.every * 3;
        let taken = (0..100).filter(|_| paces.of(key(1), later).take(1, later).is_ok()).count();
        assert_eq!(taken, 3);
    }

    #[test]
    fn nothing_is_kept_of_keys_without_a_session_whose_burst_is_full_again() {
        let (paces, begin) = (Paces::new(OF_A_RELAY), Instant::now());
        let _stays = paces.of(key(1), begin);
        for byte in 2..=255 {
            let now = begin + OF_A_RELAY.every * 64 * u32::from(byte);
            assert!(paces.of(key(byte), now).take(64, now).is_ok());
        }
        let known = paces.of_keys.lock().unwrap();
        assert!(known.paces.len() <= FEWEST && known.paces.contains_key(&key(1)), "{}", known.paces.len());
    }
}
