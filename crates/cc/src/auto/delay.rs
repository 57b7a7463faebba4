//! The queueing delay of a path: its round trips now, compared with its least one.

use anabranch_wire::{Span, Time};

/// Samples in one half of the recent minimum: single late acknowledgements are no queue.
const SAMPLES: u8 = 4;
/// A round trip is at least this long.
const LEAST: Span = Span::from_micros(10);
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
    last_at: Time,
    /// The next sample returns over another path.
    returns_elsewhere: bool,
    /// When the return path last changed.
    moved_at: Option<Time>,
}

impl Delay {
    pub(super) fn new() -> Self {
        Self { base: Span::MAX, latest: [Span::MAX; 2], ..Self::default() }
    }

    /// Handles a change of the path that returns acknowledgements, before its first sample.
    pub(super) fn on_return_path_changed(&mut self) {
        self.returns_elsewhere = true;
    }

    /// Starts anew with the first sample over another return path. If the last sample is recent, the queue is still the same,
    /// so the difference of the two samples is that of the return paths.
    fn move_to(&mut self, now: Time, sample: Span) {
        let is_known = self.base != Span::MAX && now.since(self.last_at) < self.last[0];
        let moved = || (self.base + sample).saturating_sub(self.last[0]).clamp(LEAST.min(sample), sample);
        let base = if is_known { moved() } else { sample };
        let periods = [Some(base), None];
        *self = Self { base, periods, period_since: now, moved_at: Some(now), ..Self::new() };
    }

    /// Whether the round trips may still show the queue from before a change of the return path.
    pub(super) fn shows_old_queue(&self, now: Time) -> bool {
        self.moved_at.is_some_and(|moved| now.since(moved) <= self.now() * 2)
    }

    /// Handles a round-trip sample. A least round trip older than [`PERIOD`] is forgotten unless `keeps`.
    pub(super) fn on_sample(&mut self, now: Time, sample: Span, keeps: bool) {
        if self.returns_elsewhere {
            self.move_to(now, sample);
        }
        if self.samples == SAMPLES {
            (self.latest, self.samples) = ([Span::MAX, self.latest[0]], 0);
        }
        (self.last, self.last_at) = ([sample, self.last[0]], now);
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
