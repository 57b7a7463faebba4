//! Measures a transfer: its rate over the last seconds, and the time left.
//!
//! The total rate is never higher than the sum of the paths: bytes that waited for earlier ones become content all at
//! once.

use std::collections::VecDeque;

use anabranch_wire::{Rate, Span};

use super::snapshot::{Outlook, PathLine, PathState, ProgressSnapshot, Total};

/// The time over which rates are measured.
const WINDOW: Span = Span::from_secs(5);
/// The shortest time from which a rate is computed.
const SHORTEST: Span = Span::from_millis(400);
/// Longer estimates are meaningless and not shown.
const ETA_MAX_S: f64 = 30.0 * 86_400.0;
/// After this long without a byte the display shows a stall instead of the time left, and a path has no rate.
pub(super) const STALL: Span = Span::from_secs(3);

/// When the span of the rates at this moment begins.
pub(super) fn window_before(at: Span) -> Span {
    at.saturating_sub(WINDOW)
}

/// The pace of one transfer.
#[derive(Default)]
pub struct Pace {
    meter: Meter,
    /// The rate of all bytes that are done, also of holes, which are not sent.
    advance: Meter,
    /// The bytes done and moved at the last change, and the time of that change.
    changed: Option<(Span, [u64; 2])>,
}

impl Pace {
    /// Takes the next snapshot and returns the values to show.
    pub fn total(&mut self, snapshot: &ProgressSnapshot) -> Total {
        self.begin_anew_after_silence(snapshot);
        let is_open = |path: &PathLine| {
            !matches!(path.state, PathState::Validating | PathState::Closing | PathState::Closed)
        };
        let moved = if snapshot.paths.iter().any(is_open) {
            self.meter.sample(snapshot.elapsed, snapshot.bytes_moved)
        } else {
            // The rates of the next paths begin anew, and so does the total.
            self.meter = Meter::default();
            None
        };
        let of_paths =
            snapshot.paths.iter().map(|path| as_shown(Rate::from_mbit(path.rate_mbit_s)).as_bits());
        let most: u64 = of_paths.sum();
        let rate = moved.map(|rate| rate.min(Rate::from_bits(most - most % last_digit(most))));
        let arrived = snapshot.bytes_done.saturating_sub(snapshot.bytes_resumed);
        let advance = self.advance.sample(snapshot.elapsed, arrived);
        let outlook = self.outlook(snapshot, if arrived > snapshot.bytes_moved { advance } else { rate });
        let is_idle = matches!(outlook, Outlook::Stalled(_) | Outlook::Waiting | Outlook::Comparing);
        let rate = rate.filter(|rate| !is_idle && *rate > Rate::ZERO);
        Total { bytes_done: snapshot.bytes_done, bytes_total: snapshot.bytes_total, rate, outlook }
    }

    /// Measures from now on when bytes come again after a stall: the time of one end's pause says nothing about the rate.
    fn begin_anew_after_silence(&mut self, snapshot: &ProgressSnapshot) {
        let Some((since, before)) = self.changed else { return };
        if before != bytes_of(snapshot) && snapshot.elapsed.saturating_sub(since) >= STALL {
            self.meter.begin_anew(snapshot.elapsed);
            self.advance.begin_anew(snapshot.elapsed);
        }
    }

    fn outlook(&mut self, snapshot: &ProgressSnapshot, rate: Option<Rate>) -> Outlook {
        let bytes = bytes_of(snapshot);
        let since = match self.changed {
            Some((since, before)) if before == bytes => since,
            _ => snapshot.elapsed,
        };
        self.changed = Some((since, bytes));
        let silent = snapshot.elapsed.saturating_sub(since);
        let left = snapshot.bytes_total.map(|total| total.saturating_sub(snapshot.bytes_done));
        let eta_s = |left: u64| Some(left as f64 / rate?.as_bytes_f64()).filter(|eta| *eta < ETA_MAX_S);
        match left {
            _ if snapshot.waiting => Outlook::Waiting,
            Some(0) => Outlook::Unknown,
            _ if silent >= STALL => Outlook::Stalled(silent.as_secs_f64()),
            _ if snapshot.bytes_resumed > 0 && snapshot.bytes_moved == 0 => Outlook::Comparing,
            Some(left) => eta_s(left).map_or(Outlook::Unknown, Outlook::Left),
            None => Outlook::Unknown,
        }
    }
}

/// The bytes done and moved.
fn bytes_of(snapshot: &ProgressSnapshot) -> [u64; 2] {
    [snapshot.bytes_done, snapshot.bytes_moved]
}

/// A rate with the digits that a display shows. Otherwise a total could exceed the sum of rounded rates.
fn as_shown(rate: Rate) -> Rate {
    let digit = last_digit(rate.as_bits());
    // A rate in the middle is not rounded up: the display may round it down.
    Rate::from_bits((rate.as_bits() + digit / 2 - 1) / digit * digit)
}

/// The value of the last digit that a display shows of so many bits a second.
fn last_digit(bits: u64) -> u64 {
    match bits {
        1_000_000_000.. => 10_000_000,
        1_000_000.. => 100_000,
        _ => 100,
    }
}

/// The rate over the last [`WINDOW`].
///
/// Measuring starts with the first byte, and restarts when the total falls, as after a new connection.
#[derive(Default)]
pub struct Meter {
    /// Totals of the last seconds, the oldest first.
    samples: VecDeque<(Span, u64)>,
    counts_from_zero: bool,
}

impl Meter {
    /// A meter for bytes that began at zero at this moment. Time before the first byte counts, too.
    pub fn from_zero(at: Span) -> Self {
        Self { samples: VecDeque::from([(at, 0)]), counts_from_zero: true }
    }

    /// Forgets all samples but the last one, and that too if it is not recent.
    pub fn begin_anew(&mut self, at: Span) {
        let last = self.samples.back().copied().filter(|(since, _)| at.saturating_sub(*since) < SHORTEST);
        *self = Self { samples: last.into_iter().collect(), counts_from_zero: false };
    }

    /// Takes the current total and returns the rate; `None` until enough time has passed.
    pub fn sample(&mut self, at: Span, bytes: u64) -> Option<Rate> {
        match self.samples.back() {
            Some((_, last)) if bytes < *last => self.samples.clear(),
            Some((last, _)) if at <= *last => return self.rate(),
            _ => {}
        }
        if bytes == 0 && !self.counts_from_zero {
            // Time before the first byte does not count.
            self.samples.clear();
        }
        self.samples.push_back((at, bytes));
        while self.samples.get(1).is_some_and(|(second, _)| at.saturating_sub(*second) >= WINDOW) {
            self.samples.pop_front();
        }
        self.rate()
    }

    fn rate(&self) -> Option<Rate> {
        let ((from, first), (to, last)) = self.samples.front().zip(self.samples.back())?;
        // Until the next sample, no byte had come.
        let from = if self.counts_from_zero && *first == 0 { (*from).max(window_before(*to)) } else { *from };
        let lasted = to.saturating_sub(from);
        (lasted >= SHORTEST).then(|| Rate::from_bytes_in(last - first, lasted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_path_there_is_no_rate_and_with_the_next_one_it_begins_anew() {
        let path = |state| PathLine {
            label: "wlan0".into(),
            rate_mbit_s: 80.0,
            rtt_ms: None,
            loss: None,
            share: None,
            state,
            why: None,
        };
        let mut pace = Pace::default();
        let mut rate = |tenths: u64, bytes, states: &[PathState]| {
            let snapshot = ProgressSnapshot {
                elapsed: Span::from_millis(100 * tenths),
                bytes_done: bytes,
                bytes_resumed: 0,
                bytes_moved: bytes,
                bytes_total: Some(100_000_000),
                waiting: false,
                paths: states.iter().copied().map(path).collect(),
                receivers: Vec::new(),
            };
            pace.total(&snapshot).rate
        };
        for tenths in 1..=20 {
            rate(tenths, tenths * 1_000_000, &[PathState::Active]);
        }
        for (tenths, states) in
            [(21, &[][..]), (22, &[PathState::Closing][..]), (59, &[PathState::Validating][..])]
        {
            assert_eq!(rate(tenths, 20_000_000, states), None, "{states:?}");
        }
        for more in 0..=4 {
            let shown = rate(60 + more, (20 + more) * 1_000_000, &[PathState::Active]);
            assert_eq!(shown, (more == 4).then_some(Rate::from_mbit(80.0)), "{more}");
        }
    }
}
