//! The emulation's clock: model time that runs with real time, and wall-clock receive stamps made part of it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_wire::{Span, Time};

/// A stamp older than this is not believed: the wall clock was set meanwhile.
const OLDEST_STAMP: Duration = Duration::from_secs(1);

/// Counts from the moment it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// A reading of both clocks at once, to place a batch of stamps with.
    pub(crate) fn read(&self) -> Reading {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Reading { now: self.now(), wall }
    }
}

/// The same moment on the emulation's clock and on the wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    now: Time,
    wall: Duration,
}

impl Reading {
    /// When a packet came that the kernel stamped so; the moment of the reading when it has no stamp, or an
    /// absurd one.
    pub(crate) fn time_of(&self, stamp: Option<Duration>) -> Time {
        let age = stamp.and_then(|stamp| self.wall.checked_sub(stamp)).filter(|age| *age < OLDEST_STAMP);
        let age = age.map_or(0, |age| u64::try_from(age.as_nanos()).unwrap_or(0));
        self.now - Span::from_nanos(age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_placed_by_its_age_and_an_absurd_one_is_not_believed() {
        let reading =
            Reading { now: Time::from_nanos(5_000_000_000), wall: Duration::from_secs(1_700_000_000) };
        let stamp = |before: i64| {
            let nanos = i128::from(1_700_000_000_000_000_000_i64) - i128::from(before);
            Some(Duration::from_nanos(u64::try_from(nanos).unwrap()))
        };
        assert_eq!(reading.time_of(stamp(1_000)).as_nanos(), 4_999_999_000);
        assert_eq!(reading.time_of(None), reading.now);
        assert_eq!(reading.time_of(stamp(-50)), reading.now);
        assert_eq!(reading.time_of(stamp(2_000_000_000)), reading.now);
    }
}
