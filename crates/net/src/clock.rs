//! The operating system's clock as the engine's [`Time`].

use std::time::{Duration, Instant};

use anabranch_wire::Time;

/// Counts [`Time`] from its creation. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that shows [`Time::ZERO`] now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The instant at which the clock will show `time`; far in the future for [`Time::NEVER`].
    pub fn instant(&self, time: Time) -> Instant {
        const FAR: Duration = Duration::from_secs(86_400 * 365);
        self.start + Duration::from_nanos(time.as_nanos()).min(self.start.elapsed() + FAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_clock_is_the_instant_it_was_taken_at() {
        let clock = Clock::start();
        let (before, time, after) = (Instant::now(), clock.now(), Instant::now());
        let instant = clock.instant(time);
        assert!(before <= instant + Duration::from_micros(1) && instant <= after);
    }

    #[test]
    fn never_is_far_away_and_does_not_overflow() {
        assert!(Clock::start().instant(Time::NEVER) > Instant::now() + Duration::from_secs(86_400));
    }
}
