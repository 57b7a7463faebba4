//! How far a transfer is, readable at any time from any thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Counters that a transfer keeps up to date; clones share them.
///
/// Give one to [`send`](crate::send) or [`receive`](crate::receive) and read [`Progress::snapshot`] as
/// often as the screen is redrawn. Each call needs one of its own.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    bytes_resumed: AtomicU64,
    files_done: AtomicU64,
    files_total: AtomicU64,
    current: Mutex<String>,
}

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Bytes verified and written (receiver) or handed to the connection (sender), resumed ones included.
    pub bytes_done: u64,
    /// Bytes of all files of known length.
    pub bytes_total: u64,
    /// Of `bytes_done`, those that were on the receiver's disk already.
    pub bytes_resumed: u64,
    /// Files finished.
    pub files_done: u64,
    /// Files in the share.
    pub files_total: u64,
    /// The file being worked on, made printable.
    pub current: String,
}

impl Progress {
    /// Counters at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The counters now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            bytes_done: read(&self.0.bytes_done),
            bytes_total: read(&self.0.bytes_total),
            bytes_resumed: read(&self.0.bytes_resumed),
            files_done: read(&self.0.files_done),
            files_total: read(&self.0.files_total),
            current: self.0.current.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    pub(crate) fn set_totals(&self, (files, bytes): (u64, u64)) {
        self.0.files_total.store(files, Ordering::Relaxed);
        self.0.bytes_total.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_current(&self, name: String) {
        *self.0.current.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.0.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_resumed(&self, bytes: u64) {
        self.0.bytes_resumed.fetch_add(bytes, Ordering::Relaxed);
        self.add_bytes(bytes);
    }

    pub(crate) fn add_file(&self) {
        self.0.files_done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Turns snapshots into a rate and a time to go, over a sliding window of five seconds.
#[derive(Debug, Default)]
pub struct Meter {
    samples: VecDeque<(Instant, u64)>,
}

/// A [`Meter`]'s answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Bytes a second that crossed the connection; what was resumed does not count.
    pub bytes_per_second: f64,
    /// Time until `bytes_total`, when anything moves.
    pub remaining: Option<Duration>,
}

impl Meter {
    const WINDOW: Duration = Duration::from_secs(5);

    /// A meter that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what the counters said at `now`; call it at most some tens of times a second.
    pub fn update(&mut self, now: Instant, snapshot: &Snapshot) -> Pace {
        let moved = snapshot.bytes_done.saturating_sub(snapshot.bytes_resumed);
        self.samples.push_back((now, moved));
        while self.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= Self::WINDOW) {
            self.samples.pop_front();
        }
        let (since, before) = self.samples.front().copied().unwrap_or((now, moved));
        let seconds = now.duration_since(since).as_secs_f64();
        let bytes_per_second =
            if seconds > 0.0 { moved.saturating_sub(before) as f64 / seconds } else { 0.0 };
        let left = snapshot.bytes_total.saturating_sub(snapshot.bytes_done) as f64;
        let remaining = (bytes_per_second > 0.0).then(|| left / bytes_per_second);
        Pace {
            bytes_per_second,
            remaining: remaining.and_then(|left| Duration::try_from_secs_f64(left).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_counts_what_crossed_the_connection_only() {
        let (mut meter, start) = (Meter::new(), Instant::now());
        let at = |done, resumed| Snapshot {
            bytes_done: done,
            bytes_resumed: resumed,
            bytes_total: 10_000,
            ..Snapshot::default()
        };
        meter.update(start, &at(0, 0));
        let pace = meter.update(start + Duration::from_secs(2), &at(6000, 4000));
        assert_eq!(pace, Pace { bytes_per_second: 1000.0, remaining: Some(Duration::from_secs(4)) });
    }

    #[test]
    fn old_samples_leave_the_window() {
        let (mut meter, start) = (Meter::new(), Instant::now());
        let at = |done| Snapshot { bytes_done: done, bytes_total: 100, ..Snapshot::default() };
        for second in 0..20_u64 {
            meter.update(start + Duration::from_secs(second), &at(if second < 5 { 10 * second } else { 50 }));
        }
        let pace = meter.update(start + Duration::from_secs(20), &at(50));
        assert_eq!(pace, Pace { bytes_per_second: 0.0, remaining: None });
        assert!(meter.samples.len() < 8);
    }
}
