//! When to reopen a path through a relay after it was lost or did not open.

use anabranch_wire::{Span, Time};

/// Pause after the first failure; it doubles with each.
const FIRST_PAUSE: Span = Span::from_millis(250);
const LONGEST_PAUSE: Span = Span::from_secs(15);

/// The pauses of one relay candidate.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    pause: Span,
}

impl Default for Retry {
    fn default() -> Self {
        Self { pause: FIRST_PAUSE }
    }
}

impl Retry {
    /// An attempt has failed; `worked` if its path was open. Returns when to try again.
    pub fn on_failed(&mut self, now: Time, worked: bool) -> Time {
        if worked {
            self.pause = FIRST_PAUSE;
        }
        let at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        at
    }

    /// Something about the relay has changed: it may be tried at once, and pauses start short again.
    pub fn on_news(&mut self) {
        self.pause = FIRST_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_a_path_works_or_something_changes() {
        let mut retry = Retry::default();
        let mut pause = |worked| retry.on_failed(Time::ZERO, worked).as_secs_f64();
        let pauses: Vec<f64> = (0..8).map(|_| pause(false)).collect();
        assert_eq!(pauses, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]);
        assert_eq!((pause(true), pause(false)), (0.25, 0.5));
        retry.on_news();
        assert_eq!(retry.on_failed(Time::ZERO, false).as_secs_f64(), 0.25);
    }
}
