//! The emulation's clock: model time that runs with real time, and conversion of wall-clock receive stamps.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_wire::{Span, Time};

/// An older stamp is ignored: the wall clock was set meanwhile.
const OLDEST_STAMP: Duration = Duration::from_secs(1);

/// Counts from its creation.
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

    /// Reads both clocks at once, to convert a batch of stamps.
    pub(crate) fn read(&self) -> Reading {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Reading { now: self.now(), wall }
    }
}

/// The same time on the emulation's clock and on the wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    now: Time,
    wall: Duration,
}

impl Reading {
    /// The arrival of a packet with this kernel time stamp; the time of the reading when the stamp is missing or absurd.
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
    fn a_stamp_is_converted_by_its_age_and_an_absurd_one_is_ignored() {
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
