//! How long a datagram had waited in the socket when it was read, by the system's receive time stamps.
//!
//! The stamps are of the wall clock, which may be set. Then its distance to the monotonic clock changes between two
//! readings, and the stamps of the second one are not used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anabranch_wire::Span;

/// The longest wait that is believed.
const LONGEST: Duration = Duration::from_millis(500);
/// A larger change of the distance means that the wall clock was set.
const STEP: Duration = Duration::from_millis(2);

/// The distance of the two clocks at the last reading.
#[derive(Debug)]
pub(super) struct Waits {
    start: Instant,
    distance: AtomicU64,
}

/// The wall clock, if it was not set since the last reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading(Option<Duration>);

impl Waits {
    pub(super) fn new() -> Self {
        let waits = Self { start: Instant::now(), distance: AtomicU64::new(0) };
        waits.reading();
        waits
    }

    /// Reads the clocks.
    pub(super) fn reading(&self) -> Reading {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.note(wall, self.start.elapsed())
    }

    fn note(&self, wall: Duration, passed: Duration) -> Reading {
        let distance = u64::try_from(wall.saturating_sub(passed).as_nanos()).unwrap_or(u64::MAX);
        let before = self.distance.swap(distance, Ordering::Relaxed);
        Reading((Duration::from_nanos(before.abs_diff(distance)) < STEP).then_some(wall))
    }
}

impl Reading {
    /// The time since a stamp; zero if it is unknown.
    pub(super) fn since(self, stamp: Option<Duration>) -> Span {
        let waited = self.0.zip(stamp).and_then(|(wall, stamp)| wall.checked_sub(stamp));
        let waited = waited.filter(|waited| *waited <= LONGEST).unwrap_or_default();
        Span::from_nanos(u64::try_from(waited.as_nanos()).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_makes_no_wait() {
        let (waits, ms) = (Waits::new(), Duration::from_millis);
        waits.note(ms(5_000), ms(0));
        let reading = waits.note(ms(5_100), ms(100));
        assert_eq!(reading.since(Some(ms(5_060))), Span::from_millis(40));
        assert_eq!(reading.since(Some(ms(5_200))), Span::ZERO, "from the future");
        assert_eq!(reading.since(Some(ms(4_000))), Span::ZERO, "too long ago");
        assert_eq!(reading.since(None), Span::ZERO);
        assert_eq!(waits.note(ms(5_400), ms(200)).since(Some(ms(5_150))), Span::ZERO, "set by 0.2 s");
        assert_eq!(waits.note(ms(5_500), ms(300)).since(Some(ms(5_450))), Span::from_millis(50));
    }
}
