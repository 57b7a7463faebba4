//! Shared bottlenecks from the shape of delays (RFC 8382).
//!
//! Delays are summed over intervals of [`INTERVAL`]. From the last [`INTERVALS`] of them each path gets four statistics
//! that do not depend on its base delay (§3.2):
//!
//! - *skewness*: how much more often delays lie below their long mean than above it. A queue that is mostly
//!   full makes it small or negative: that is what tells a bottleneck;
//! - *variability*: the mean distance of delays from the mean of the interval before;
//! - *oscillation*: how often the interval's mean crosses the long mean by a margin;
//! - *loss*, over [`LOSS_INTERVALS`].
//!
//! Two paths share when both are bottlenecked and the statistics agree within the limits of §3.3 that group paths. A path
//! without a bottleneck, or without a full history, leaves it undecided.

use std::collections::VecDeque;

use anabranch_wire::{PathId, Span, Time};

use super::{DelaySample, SharedCongestion, Verdict};

/// T: delays are summed over so long.
const INTERVAL: Span = Span::from_millis(350);
/// M: intervals behind skewness, variability and oscillation.
const INTERVALS: usize = 30;
/// N: intervals behind the loss rate.
const LOSS_INTERVALS: usize = 50;
/// c_s and c_h: a path is bottlenecked with a skewness below the first, or the second once it is.
const SKEW_BOTTLENECK: (f64, f64) = (0.1, 0.3);
/// p_l: so much loss means a bottleneck by itself, and is compared.
const LOSS_HIGH: f64 = 0.05;
/// p_v: a crossing has to go this share of the variability beyond the mean.
const CROSSING: f64 = 0.7;
/// p_f, p_s, p_mad, p_d: the largest differences within a group.
const LIKE_OSCILLATION: f64 = 0.1;
const LIKE_SKEW: f64 = 0.15;
const LIKE_VARIABILITY: f64 = 0.1;
const LIKE_LOSS: f64 = 0.1;

/// Sums over one interval.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    samples: f64,
    delay_sum: f64,
    /// Samples below the long mean less those above it.
    skew: f64,
    /// Distances from the mean of the interval before.
    deviation: f64,
    lost: f64,
}

impl Interval {
    fn mean(&self) -> f64 {
        self.delay_sum / self.samples.max(1.0)
    }
}

/// The statistics of a path that is watched for long enough.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Statistics {
    skew: f64,
    variability: f64,
    oscillation: f64,
    loss: f64,
    bottleneck: bool,
}

#[derive(Clone, Debug)]
struct Watch {
    path: PathId,
    /// The oldest first; none of them is empty of samples.
    past: VecDeque<Interval>,
    current: Interval,
    ends_at: Time,
    /// The mean over the last intervals, in seconds.
    long: Option<f64>,
    statistics: Option<Statistics>,
}

/// RFC 8382's detector.
#[derive(Clone, Debug, Default)]
pub struct DelayStatistics {
    paths: Vec<Watch>,
}

impl Watch {
    fn new(path: PathId) -> Self {
        let ends_at = Time::ZERO;
        Self {
            path,
            past: VecDeque::new(),
            current: Interval::default(),
            ends_at,
            long: None,
            statistics: None,
        }
    }

    /// The mean over the last intervals, in seconds.
    fn long_mean(&self) -> Option<f64> {
        let recent = self.past.iter().rev().take(INTERVALS);
        let (count, sum) = recent.fold((0.0, 0.0), |(count, sum), one| (count + 1.0, sum + one.mean()));
        (count > 0.0).then(|| sum / count)
    }

    fn on_delay(&mut self, sample: &DelaySample) {
        if sample.now >= self.ends_at {
            self.end_interval();
            self.ends_at = sample.now + INTERVAL;
        }
        let delay = sample.delay.as_secs_f64();
        if let (Some(long), Some(last)) = (self.long, self.past.back()) {
            self.current.skew += if delay < long { 1.0 } else { 0.0 };
            self.current.skew -= if delay > long { 1.0 } else { 0.0 };
            self.current.deviation += (delay - last.mean()).abs();
        }
        self.current.samples += 1.0;
        self.current.delay_sum += delay;
    }

    fn end_interval(&mut self) {
        let ended = std::mem::take(&mut self.current);
        if ended.samples == 0.0 {
            return;
        }
        if self.past.len() == LOSS_INTERVALS {
            self.past.pop_front();
        }
        self.past.push_back(ended);
        self.long = self.long_mean();
        self.statistics = self.measure();
    }

    fn measure(&self) -> Option<Statistics> {
        // The first intervals had no mean to be compared with.
        if self.past.len() <= INTERVALS {
            return None;
        }
        let recent = || self.past.iter().rev().take(INTERVALS);
        let sum = |of: fn(&Interval) -> f64| recent().map(of).sum::<f64>();
        let samples = sum(|one| one.samples);
        let skew = sum(|one| one.skew) / samples;
        let variability = sum(|one| one.deviation) / samples;
        let oscillation = self.crossings(variability)? / INTERVALS as f64;
        let (lost, arrived) =
            self.past.iter().fold((0.0, 0.0), |(lost, got), one| (lost + one.lost, got + one.samples));
        let loss = lost / (lost + arrived).max(1.0);
        let was = self.statistics.is_some_and(|known| known.bottleneck);
        let limit = if was { SKEW_BOTTLENECK.1 } else { SKEW_BOTTLENECK.0 };
        let bottleneck = skew < limit || loss > LOSS_HIGH;
        Some(Statistics { skew, variability, oscillation, loss, bottleneck })
    }

    /// How often the intervals' means crossed the long mean from well on one side to well on the other.
    fn crossings(&self, variability: f64) -> Option<f64> {
        let long = self.long_mean()?;
        let margin = CROSSING * variability;
        let (mut side, mut count) = (0_i8, 0.0);
        for one in self.past.iter().rev().take(INTERVALS).rev() {
            let now = match one.mean() - long {
                above if above > margin => 1,
                below if below < -margin => -1,
                _ => side,
            };
            count += if side != 0 && now != side { 1.0 } else { 0.0 };
            side = now;
        }
        Some(count)
    }
}

fn alike(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() <= share * a.max(b)
}

impl DelayStatistics {
    fn watch(&mut self, path: PathId) -> &mut Watch {
        let index = self.paths.iter().position(|known| known.path == path).unwrap_or_else(|| {
            self.paths.push(Watch::new(path));
            self.paths.len() - 1
        });
        &mut self.paths[index]
    }

    fn statistics(&self, path: PathId) -> Option<&Statistics> {
        self.paths.iter().find(|known| known.path == path)?.statistics.as_ref()
    }
}

impl SharedCongestion for DelayStatistics {
    fn on_congestion(&mut self, _: Time, _: PathId) {}

    fn on_delay(&mut self, path: PathId, sample: &DelaySample) {
        self.watch(path).on_delay(sample);
    }

    fn on_lost(&mut self, path: PathId, packets: u64) {
        self.watch(path).current.lost += packets as f64;
    }

    fn on_rtt(&mut self, _: Time, _: PathId, _: Span) {}

    fn forget(&mut self, path: PathId) {
        self.paths.retain(|known| known.path != path);
    }

    fn verdict(&self, _: Time, a: PathId, b: PathId) -> Verdict {
        let (Some(a), Some(b)) = (self.statistics(a), self.statistics(b)) else { return Verdict::Undecided };
        if !(a.bottleneck && b.bottleneck) {
            return Verdict::Undecided;
        }
        let lossy = a.loss > LOSS_HIGH || b.loss > LOSS_HIGH;
        let same = (a.oscillation - b.oscillation).abs() <= LIKE_OSCILLATION
            && alike(a.variability, b.variability, LIKE_VARIABILITY)
            && (a.skew - b.skew).abs() <= LIKE_SKEW
            && (!lossy || alike(a.loss, b.loss, LIKE_LOSS));
        if same { Verdict::Shared } else { Verdict::Separate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(2);

    /// A queue in milliseconds: a saw that rises in `period` seconds to `top` and stays there a while.
    fn saw(seconds: f64, period: f64, top: f64) -> f64 {
        let phase = (seconds / period).fract();
        if phase < 0.4 { top * phase / 0.4 } else { top }
    }

    fn verdict_of(a: impl Fn(f64) -> f64, b: impl Fn(f64) -> f64) -> Verdict {
        let mut detector = DelayStatistics::default();
        for step in 0..4000_u32 {
            let seconds = f64::from(step) * 0.005;
            let now = Time::ZERO + Span::from_secs_f64(seconds);
            for (path, ms) in [(A, a(seconds)), (B, b(seconds))] {
                detector.on_delay(path, &DelaySample { now, delay: Span::from_secs_f64(ms / 1e3) });
            }
        }
        detector.verdict(Time::ZERO, A, B)
    }

    #[test]
    fn one_queue_seen_over_two_base_delays_is_shared() {
        let queue = |seconds| saw(seconds, 3.0, 40.0);
        assert_eq!(verdict_of(|s| 20.0 + queue(s), |s| 90.0 + queue(s - 0.03)), Verdict::Shared);
    }

    #[test]
    fn queues_of_different_height_or_rhythm_are_separate() {
        let queue = |seconds| saw(seconds, 3.0, 40.0);
        assert_eq!(verdict_of(queue, |s| saw(s, 3.0, 80.0)), Verdict::Separate);
        assert_eq!(verdict_of(queue, |s| saw(s, 0.9, 40.0)), Verdict::Separate);
    }

    #[test]
    fn an_empty_queue_leaves_it_undecided() {
        // Mostly empty, with short peaks: most delays lie below the mean.
        let idle = |seconds: f64| if (seconds / 2.0).fract() < 0.1 { 10.0 } else { 0.0 };
        assert_eq!(verdict_of(idle, |s| saw(s, 3.0, 40.0)), Verdict::Undecided);
    }

    #[test]
    fn the_history_is_bounded() {
        let mut detector = DelayStatistics::default();
        for second in 0..1000 {
            let now = Time::ZERO + Span::from_secs(second);
            detector.on_delay(A, &DelaySample { now, delay: Span::from_millis(second % 7) });
        }
        assert_eq!(detector.paths[0].past.len(), LOSS_INTERVALS);
        detector.forget(A);
        assert!(detector.paths.is_empty());
    }
}
