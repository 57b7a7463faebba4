//! Bounds of one key, or of all holders of one ticket together: connections, a rate, and bytes.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::message::Outcome;

/// So much may pass at once before the rate counts.
const BURST: Duration = Duration::from_millis(50);
/// Name look-ups of one account at the same time.
const MOST_LOOKUPS: usize = 32;
/// Refused connections of one account that are reported in a second.
const MOST_REFUSALS: u32 = 10;

/// Bounds for each account.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections and associations at the same time.
    pub connections: usize,
    /// Bits a second in both directions together.
    pub rate: Option<NonZeroU64>,
    /// Bytes in both directions together, from the start of the exit.
    pub bytes: Option<u64>,
}

/// The use that one key or ticket makes of an exit.
#[derive(Debug)]
pub struct Account {
    limits: Limits,
    room: Arc<Semaphore>,
    pub(crate) lookups: Arc<Semaphore>,
    used: AtomicU64,
    pace: Mutex<Option<Pace>>,
    refusals: Mutex<Refusals>,
}

impl Account {
    /// An account that has used nothing.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            room: Arc::new(Semaphore::new(limits.connections)),
            lookups: Arc::new(Semaphore::new(MOST_LOOKUPS)),
            used: AtomicU64::new(0),
            pace: Mutex::new(limits.rate.map(Pace::new)),
            refusals: Mutex::default(),
        })
    }

    /// Takes room for one connection until the permit is dropped.
    pub fn enter(&self) -> Result<OwnedSemaphorePermit, Outcome> {
        if self.is_used_up() {
            return Err(Outcome::UsedUp);
        }
        self.room.clone().try_acquire_owned().map_err(|_| Outcome::Busy)
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.limits.connections - self.room.available_permits()
    }

    /// Bytes used.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether a connection is to be reported: then how many that were refused before were not.
    pub(crate) fn report(&self, now: Instant, is_refused: bool) -> Option<u64> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.report(now, is_refused)
    }

    fn is_used_up(&self) -> bool {
        self.limits.bytes.is_some_and(|most| self.used() >= most)
    }

    /// Counts bytes and returns how long to wait before more; `None` when no more may pass.
    pub(crate) fn count(&self, bytes: usize) -> Option<Duration> {
        self.used.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.is_used_up() {
            return None;
        }
        if self.limits.rate.is_none() {
            return Some(Duration::ZERO);
        }
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.as_mut().map_or(Some(Duration::ZERO), |pace| Some(pace.pass(Instant::now(), bytes)))
    }

    /// Counts bytes and waits until the rate allows more; false when no more may pass.
    pub(crate) async fn spend(&self, bytes: usize) -> bool {
        match self.count(bytes) {
            None => false,
            Some(Duration::ZERO) => true,
            Some(pause) => {
                sleep(pause).await;
                true
            }
        }
    }
}

/// Refused connections, which cost a client nothing, so that it could fill a log with them.
#[derive(Debug, Default)]
struct Refusals {
    /// When the current second began.
    since: Option<Instant>,
    /// Reported in it.
    reported: u32,
    /// Not reported, and not counted in a report yet.
    left_out: u64,
}

impl Refusals {
    fn report(&mut self, now: Instant, is_refused: bool) -> Option<u64> {
        if is_refused {
            if self.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
                (self.since, self.reported) = (Some(now), 0);
            }
            if self.reported >= MOST_REFUSALS {
                self.left_out += 1;
                return None;
            }
            self.reported += 1;
        }
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Spreads bytes in time at a rate.
#[derive(Debug)]
struct Pace {
    bits_per_second: NonZeroU64,
    /// When all bytes so far have passed at the rate.
    free: Option<Instant>,
}

impl Pace {
    fn new(bits_per_second: NonZeroU64) -> Self {
        Self { bits_per_second, free: None }
    }

    /// Lets bytes pass; returns how long the next ones have to wait.
    fn pass(&mut self, now: Instant, bytes: usize) -> Duration {
        let took = Duration::from_secs_f64(bytes as f64 * 8.0 / self.bits_per_second.get() as f64);
        let free = self.free.map_or(now, |free| free.max(now)) + took;
        self.free = Some(free);
        (free - now).saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_at_the_rate_after_a_burst() {
        let mut pace = Pace::new(NonZeroU64::new(8_000_000).unwrap());
        let start = Instant::now();
        let (mut now, mut passed) = (start, 0);
        while now < start + Duration::from_secs(10) {
            passed += 10_000;
            now += pace.pass(now, 10_000);
            if pace.free == Some(now) {
                now += Duration::from_millis(1);
            }
        }
        assert!((10_000_000..10_100_000).contains(&passed), "{passed}");
        // A pause gives no credit beyond the burst.
        now += Duration::from_secs(100);
        assert_eq!(pace.pass(now, 50_000), Duration::ZERO);
        assert!(pace.pass(now, 50_000) >= Duration::from_millis(50));
    }

    #[test]
    fn of_very_many_refused_connections_ten_a_second_are_reported_and_the_others_counted() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let reported = (0..1_000).filter_map(|_| refusals.report(start, true)).collect::<Vec<_>>();
        assert_eq!(reported, [0; 10]);
        assert_eq!(refusals.report(start, false), Some(990));
        assert_eq!(refusals.report(start, true), None);
        assert_eq!(refusals.report(start + Duration::from_secs(1), true), Some(1));
    }

    #[test]
    fn room_and_bytes_run_out() {
        let account = Account::new(Limits { connections: 2, rate: None, bytes: Some(100) });
        let first = account.enter().unwrap();
        let _second = account.enter().unwrap();
        assert_eq!(account.enter().unwrap_err(), Outcome::Busy);
        assert_eq!(account.connections(), 2);
        drop(first);
        assert!(account.enter().is_ok());
        assert_eq!(account.count(99), Some(Duration::ZERO));
        assert_eq!(account.count(1), None);
        assert_eq!(account.enter().unwrap_err(), Outcome::UsedUp);
    }
}
