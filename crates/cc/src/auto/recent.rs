//! The largest or least value of the recent past.

use anabranch_wire::{Span, Time};

/// Values are forgotten after one to two of these.
const PERIOD: Span = Span::from_secs(10);

/// The largest value of the last 10 to 20 s.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Largest {
    now: f64,
    before: f64,
    since: Time,
}

impl Largest {
    pub(super) fn add(&mut self, now: Time, value: f64) {
        let age = now.since(self.since);
        if age >= PERIOD {
            self.before = if age < PERIOD * 2 { self.now } else { 0.0 };
            (self.now, self.since) = (0.0, now);
        }
        self.now = self.now.max(value);
    }

    pub(super) fn get(&self) -> f64 {
        self.now.max(self.before)
    }

    /// Forgets all larger values.
    pub(super) fn limit(&mut self, most: f64) {
        (self.now, self.before) = (self.now.min(most), self.before.min(most));
    }
}
