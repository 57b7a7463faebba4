//! The queueing delay of a path: its round trips now, compared with its least one.

use anabranch_wire::{Span, Time};

/// Samples in one half of the recent minimum: single late acknowledgements are no queue.
const SAMPLES: u8 = 4;
/// The least round trip is forgotten after one to two of these, if it is to be forgotten.
const PERIOD: Span = Span::from_secs(60);

/// Round trips of a path. Zero stands for no sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delay {
    /// The least round trip.
    base: Span,
    /// The least round trips of the current period and of the one before.
    periods: [Option<Span>; 2],
    period_since: Time,
    /// The least of the latest samples: of the current few, and of those before.
    latest: [Span; 2],
    samples: u8,
    /// The last two samples.
    last: [Span; 2],
}

impl Delay {
    pub(super) fn new() -> Self {
        Self { base: Span::MAX, latest: [Span::MAX; 2], ..Self::default() }
    }

    /// Handles a round-trip sample. A least round trip older than [`PERIOD`] is forgotten unless `keeps`.
    pub(super) fn on_sample(&mut self, now: Time, sample: Span, keeps: bool) {
        if self.samples == SAMPLES {
            (self.latest, self.samples) = ([Span::MAX, self.latest[0]], 0);
        }
        self.last = [sample, self.last[0]];
        self.latest[0] = self.latest[0].min(sample);
        self.samples += 1;
        if now.since(self.period_since) >= PERIOD {
            self.periods = [None, self.periods[0]];
            self.period_since = now;
            if let (Some(least), false) = (self.periods[1], keeps) {
                self.base = least;
            }
        }
        self.periods[0] = Some(self.periods[0].map_or(sample, |least| least.min(sample)));
        self.base = self.base.min(sample);
    }

    /// The least round trip: the path without a queue.
    pub(super) fn base(&self) -> Span {
        self.base
    }

    /// The least of the last four to eight round trips.
    pub(super) fn now(&self) -> Span {
        self.latest[0].min(self.latest[1])
    }

    /// The queueing delay before a loss that was just found.
    pub(super) fn queue_at_loss(&self) -> Span {
        self.last[0].min(self.last[1]).saturating_sub(self.base)
    }

    /// The current queueing delay.
    pub(super) fn queue(&self) -> Span {
        self.now().saturating_sub(self.base)
    }
}
