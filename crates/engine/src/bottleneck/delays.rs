//! Shared bottlenecks from the shape of one-way delays (RFC 8382).
//!
//! Delays are summed over intervals T of [`INTERVAL`], which begin at the same times for all paths. At the end of each
//! interval a path has four estimates that do not depend on its base delay (§3.2):
//!
//! - *skewness*: how much more often delays lie below their long mean than above it. A queue that is mostly full makes it
//!   small or negative. This, with some hysteresis, or a high loss indicates a bottleneck (§3.3.1 step 1);
//! - *variability*: the mean distance of delays from the mean of the interval before;
//! - *oscillation*: how often the interval's mean crosses the long mean by a margin;
//! - *loss*.
//!
//! Skewness and variability cover the last M intervals, of which the oldest third counts less and less (§4.1); oscillation
//! and loss cover the last N. Variability and oscillation use only intervals in which the path had a bottleneck (§4.2),
//! because without a queue they are noise.
//!
//! After every interval, two paths with bottlenecks match if their estimates agree within the limits of §3.3.1. Nothing is
//! decided before a path was watched for 2·M intervals (§3.3.2), nor from unstable results. Paths *share* if they matched
//! in nine of ten of the last M intervals in which both had bottlenecks, and are *separate* if they matched in one of ten.
//! Any other share is undecided, as is a path without a bottleneck.
//!
//! This method does not check whether delays rise at the same times, only whether their statistics agree: it takes two
//! separate bottlenecks of similar rate, buffer and load for one.

use std::collections::VecDeque;

use anabranch_wire::{PathId, Span, Time};

use super::{DelaySample, SharedCongestion, Verdict};

/// T: the length of an interval.
const INTERVAL: Span = Span::from_millis(350);
/// N: intervals for oscillation and loss.
const LONG: usize = 50;
/// M: intervals for skewness and variability.
const SHORT: usize = 30;
/// F: how many of them count in full.
const FLAT: usize = 20;
/// c_s and c_h: skewness below which a path has a bottleneck, and below which it keeps it.
const SKEW_BOTTLENECK: (f64, f64) = (0.1, 0.3);
/// p_l: a higher loss means a bottleneck by itself, and is compared.
const LOSS_HIGH: f64 = 0.05;
/// p_v: a crossing must exceed the mean by this share of the variability.
const CROSSING: f64 = 0.7;
/// p_f, p_s, p_mad, p_d: the differences within a group are smaller.
const LIKE_OSCILLATION: f64 = 0.1;
const LIKE_SKEW: f64 = 0.15;
const LIKE_VARIABILITY: f64 = 0.1;
const LIKE_LOSS: f64 = 0.1;
/// Paths share, or are separate, if they match in this many of ten intervals.
const STABLE: (u32, u32) = (9, 1);

/// Sums over one interval, delays in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    samples: f64,
    delay_sum: f64,
    /// Samples below the long mean minus those above it.
    skew: f64,
    /// Distances from the mean of the interval before.
    deviation: f64,
    lost: f64,
    /// Whether the path had a bottleneck at its end.
    bottleneck: bool,
    /// Whether its mean crossed the long mean.
    crossed: bool,
}

impl Interval {
    fn mean(&self) -> f64 {
        self.delay_sum / self.samples
    }
}

/// The estimates of a path after an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Estimates {
    skew: f64,
    variability: f64,
    oscillation: f64,
    loss: f64,
    bottleneck: bool,
}

#[derive(Clone, Debug)]
struct Watch {
    path: PathId,
    /// The oldest first; each has samples.
    past: VecDeque<Interval>,
    current: Interval,
    ends_at: Time,
    /// The mean over the last M intervals, in seconds.
    long: f64,
    /// The side of the long mean on which the last significant mean was: -1, 1, or 0 before the first.
    side: i8,
    /// Intervals since the start.
    watched: usize,
    estimates: Estimates,
}

/// The results for two paths in the last M intervals, one bit each, the latest lowest.
#[derive(Clone, Copy, Debug)]
struct Pair {
    paths: (PathId, PathId),
    at: Time,
    /// Both had bottlenecks.
    compared: u32,
    /// And they matched.
    together: u32,
}

/// RFC 8382's detector.
#[derive(Clone, Debug, Default)]
pub struct DelayStatistics {
    paths: Vec<Watch>,
    pairs: Vec<Pair>,
}

/// The weight of the interval `age` before the last: full up to F, then less and less (RFC 8382 §4.1).
fn weight(age: usize) -> f64 {
    if age < FLAT { 1.0 } else { (SHORT - age) as f64 / (SHORT - FLAT + 1) as f64 }
}

impl Watch {
    fn new(path: PathId) -> Self {
        Self {
            path,
            past: VecDeque::new(),
            current: Interval::default(),
            ends_at: Time::ZERO,
            long: 0.0,
            side: 0,
            watched: 0,
            estimates: Estimates::default(),
        }
    }

    /// Adds a sample; true when it began another interval.
    fn on_delay(&mut self, sample: &DelaySample) -> bool {
        let begins = sample.now >= self.ends_at;
        if begins {
            if sample.now.since(self.ends_at) > INTERVAL * SHORT as u64 {
                *self = Self::new(self.path);
            }
            self.end_interval();
            let number = sample.now.as_nanos() / INTERVAL.as_nanos();
            self.ends_at = Time::ZERO + INTERVAL * (number + 1);
        }
        let delay = sample.delay.as_secs_f64();
        if let Some(last) = self.past.back() {
            self.current.skew += if delay < self.long { 1.0 } else { 0.0 };
            self.current.skew -= if delay > self.long { 1.0 } else { 0.0 };
            self.current.deviation += (delay - last.mean()).abs();
        }
        self.current.samples += 1.0;
        self.current.delay_sum += delay;
        begins
    }

    fn end_interval(&mut self) {
        let ended = std::mem::take(&mut self.current);
        if ended.samples == 0.0 {
            return;
        }
        if self.past.len() == LONG {
            self.past.pop_front();
        }
        self.past.push_back(ended);
        self.watched += 1;
        self.measure();
        let recent = || self.past.iter().rev().take(SHORT);
        self.long = recent().map(Interval::mean).sum::<f64>() / recent().count() as f64;
    }

    /// Updates the estimates, with the long mean before the last interval.
    fn measure(&mut self) {
        let skew = self.weighed(|one| one.skew) / self.weighed(|one| one.samples);
        let sum = |of: fn(&Interval) -> f64| self.past.iter().map(of).sum::<f64>();
        let loss = sum(|one| one.lost) / sum(|one| one.lost + one.samples);
        let limit = if self.estimates.bottleneck { SKEW_BOTTLENECK.1 } else { SKEW_BOTTLENECK.0 };
        let bottleneck = self.watched > 1 && (skew < limit || loss > LOSS_HIGH);
        if let Some(last) = self.past.back_mut() {
            last.bottleneck = bottleneck;
        }
        let valid = |one: &Interval, value: f64| if one.bottleneck { value } else { 0.0 };
        let samples = self.weighed(|one| valid(one, one.samples));
        let variability = self.weighed(|one| valid(one, one.deviation)) / samples.max(f64::MIN_POSITIVE);
        let crossed = self.crosses(variability) && bottleneck;
        if let Some(last) = self.past.back_mut() {
            last.crossed = crossed;
        }
        let crossings = self.past.iter().filter(|one| one.crossed).count();
        let oscillation = crossings as f64 / LONG as f64;
        self.estimates = Estimates { skew, variability, oscillation, loss, bottleneck };
    }

    /// A sum over the last M intervals, weighted.
    fn weighed(&self, of: impl Fn(&Interval) -> f64) -> f64 {
        let recent = self.past.iter().rev().take(SHORT).enumerate();
        recent.map(|(age, one)| weight(age) * of(one)).sum()
    }

    /// True when the last interval's mean is clearly on one side of the long mean, and the previous clear one on the other.
    fn crosses(&mut self, variability: f64) -> bool {
        let above = self.past.back().map_or(0.0, Interval::mean) - self.long;
        let margin = CROSSING * variability;
        let side = if above > margin {
            1
        } else if above < -margin {
            -1
        } else {
            return false;
        };
        let before = std::mem::replace(&mut self.side, side);
        before != 0 && before != side
    }
}

impl Estimates {
    /// True when both match (RFC 8382 §3.3.1 steps 2 to 5).
    fn is_like(&self, other: &Self) -> bool {
        let lossy = self.loss > LOSS_HIGH || other.loss > LOSS_HIGH;
        (self.oscillation - other.oscillation).abs() < LIKE_OSCILLATION
            && alike(self.variability, other.variability, LIKE_VARIABILITY)
            && (self.skew - other.skew).abs() < LIKE_SKEW
            && (!lossy || alike(self.loss, other.loss, LIKE_LOSS))
    }
}

/// True when two values differ by less than a share of the larger.
fn alike(a: f64, b: f64, share: f64) -> bool {
    (a - b).abs() < share * a.max(b)
}

impl DelayStatistics {
    fn watch(&mut self, path: PathId) -> &mut Watch {
        let index = self.paths.iter().position(|known| known.path == path).unwrap_or_else(|| {
            self.paths.push(Watch::new(path));
            self.paths.len() - 1
        });
        &mut self.paths[index]
    }

    /// Compares a path with those of higher ids after one of its intervals.
    fn compare(&mut self, now: Time, path: PathId) {
        let Some(one) = self.paths.iter().find(|known| known.path == path && known.watched > SHORT) else {
            return;
        };
        for other in self.paths.iter().filter(|known| known.path > path && known.watched > SHORT) {
            let paths = (path, other.path);
            let index = self.pairs.iter().position(|pair| pair.paths == paths).unwrap_or_else(|| {
                self.pairs.push(Pair { paths, at: now, compared: 0, together: 0 });
                self.pairs.len() - 1
            });
            let pair = &mut self.pairs[index];
            let compared = one.estimates.bottleneck && other.estimates.bottleneck;
            let together = compared && one.estimates.is_like(&other.estimates);
            let all = (1 << SHORT) - 1;
            pair.compared = (pair.compared << 1 | u32::from(compared)) & all;
            pair.together = (pair.together << 1 | u32::from(together)) & all;
            pair.at = now;
        }
    }
}

impl SharedCongestion for DelayStatistics {
    fn on_congestion(&mut self, _: Time, _: PathId) {}

    fn on_delay(&mut self, path: PathId, sample: &DelaySample) {
        if self.watch(path).on_delay(sample) {
            self.compare(sample.now, path);
        }
    }

    fn on_lost(&mut self, path: PathId, packets: u64) {
        self.watch(path).current.lost += packets as f64;
    }

    fn on_rtt(&mut self, _: Time, _: PathId, _: Span) {}

    fn forget(&mut self, path: PathId) {
        self.paths.retain(|known| known.path != path);
        self.pairs.retain(|pair| pair.paths.0 != path && pair.paths.1 != path);
    }

    fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict {
        let paths = (a.min(b), a.max(b));
        let ripe = |path| self.paths.iter().any(|known| known.path == path && known.watched >= 2 * SHORT);
        let Some(pair) = self.pairs.iter().find(|pair| pair.paths == paths) else {
            return Verdict::Undecided;
        };
        let compared = pair.compared.count_ones();
        let is_old = now.since(pair.at) > INTERVAL * SHORT as u64;
        if is_old || !ripe(a) || !ripe(b) || compared < SHORT as u32 / 2 {
            return Verdict::Undecided;
        }
        match pair.together.count_ones() * 10 {
            together if together >= compared * STABLE.0 => Verdict::Shared,
            together if together <= compared * STABLE.1 => Verdict::Separate,
            _ => Verdict::Undecided,
        }
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

    /// The verdicts on two paths after each second, when their delays in milliseconds are these functions of time.
    fn verdicts(seconds: u32, a: impl Fn(f64) -> f64, b: impl Fn(f64) -> f64) -> Vec<Verdict> {
        let mut detector = DelayStatistics::default();
        let mut told = Vec::new();
        for step in 0..seconds * 200 {
            let at = f64::from(step) * 0.005;
            let now = Time::ZERO + Span::from_secs_f64(at);
            for (path, ms) in [(A, a(at)), (B, b(at))] {
                detector.on_delay(path, &DelaySample { now, delay: Span::from_secs_f64(ms / 1e3) });
            }
            if step % 200 == 199 {
                told.push(detector.verdict(now, A, B));
            }
        }
        told
    }

    fn last_verdict(a: impl Fn(f64) -> f64, b: impl Fn(f64) -> f64) -> Verdict {
        verdicts(40, a, b)[39]
    }

    #[test]
    fn one_queue_seen_over_two_base_delays_is_shared_after_twice_m_intervals() {
        let queue = |seconds| saw(seconds, 3.0, 40.0);
        let told = verdicts(60, |s| 20.0 + queue(s), |s| 90.0 + queue(s - 0.03));
        let first = told.iter().position(|verdict| *verdict == Verdict::Shared).expect("it shares");
        assert!((20..=23).contains(&first), "{told:?}");
        assert!(told[..first].iter().all(|verdict| *verdict == Verdict::Undecided), "{told:?}");
        assert!(!told.contains(&Verdict::Separate), "{told:?}");
    }

    #[test]
    fn queues_of_different_height_or_rhythm_are_separate() {
        let queue = |seconds| saw(seconds, 3.0, 40.0);
        assert_eq!(last_verdict(queue, |s| saw(s, 3.0, 80.0)), Verdict::Separate);
        assert_eq!(last_verdict(queue, |s| saw(s, 0.9, 40.0)), Verdict::Separate);
    }

    #[test]
    fn queues_with_equal_statistics_are_taken_for_one_whenever_they_rise() {
        let queue = |seconds| saw(seconds, 1.1, 40.0);
        assert_eq!(last_verdict(queue, |s| queue(s + 0.6)), Verdict::Shared);
    }

    #[test]
    fn an_empty_queue_leaves_it_undecided() {
        // Mostly empty, with short peaks: most delays lie below the mean.
        let idle = |seconds: f64| if (seconds / 2.0).fract() < 0.1 { 10.0 } else { 0.0 };
        assert_eq!(last_verdict(idle, |s| saw(s, 3.0, 40.0)), Verdict::Undecided);
    }

    #[test]
    fn after_a_pause_watching_starts_again() {
        let mut detector = DelayStatistics::default();
        let feed = |detector: &mut DelayStatistics, from: f64, seconds: f64| {
            let mut at = from;
            while at < from + seconds {
                let now = Time::ZERO + Span::from_secs_f64(at);
                let delay = Span::from_secs_f64(saw(at, 3.0, 40.0) / 1e3);
                [A, B].iter().for_each(|path| detector.on_delay(*path, &DelaySample { now, delay }));
                at += 0.005;
            }
            detector.verdict(Time::ZERO + Span::from_secs_f64(at), A, B)
        };
        assert_eq!(feed(&mut detector, 0.0, 30.0), Verdict::Shared);
        assert_eq!(feed(&mut detector, 60.0, 5.0), Verdict::Undecided);
        assert_eq!(feed(&mut detector, 65.0, 25.0), Verdict::Shared);
        assert_eq!(detector.verdict(Time::ZERO + Span::from_secs(120), A, B), Verdict::Undecided);
    }

    #[test]
    fn the_oldest_intervals_count_less_and_less() {
        assert_eq!((weight(0), weight(FLAT - 1), weight(FLAT)), (1.0, 1.0, 10.0 / 11.0));
        assert_eq!(weight(SHORT - 1), 1.0 / 11.0);
    }

    #[test]
    fn the_history_is_bounded() {
        let mut detector = DelayStatistics::default();
        for second in 0..1000 {
            let now = Time::ZERO + Span::from_secs(second);
            [A, B].iter().for_each(|path| {
                detector.on_delay(*path, &DelaySample { now, delay: Span::from_millis(second % 7) });
            });
        }
        assert_eq!((detector.paths[0].past.len(), detector.pairs.len()), (LONG, 1));
        detector.forget(A);
        assert_eq!((detector.paths.len(), detector.pairs.len()), (1, 0));
    }
}
