//! Finds shared bottlenecks from delays that rise and fall together.
//!
//! The mean delay of each path is computed over intervals of [`INTERVAL`] that begin at the same times for all. Two paths
//! that queue in the same place see the same waves, whatever their own delays: the correlation of their last [`INTERVALS`]
//! means is high. Waves of separate queues are similar only by chance. A queue's sawtooth lasts many intervals, so these
//! are far from independent: hence the wide gap between [`SHARED`] and [`SEPARATE`], in which nothing is decided.
//!
//! A common steady increase is no wave: the peer's clock may gain on ours, which shows in one-way delays. So a straight
//! line is subtracted from each path's means before they are compared.
//!
//! A path without a queue shows only the noise of its access, and decides nothing: its delays vary by less than [`FLAT`] of
//! their mean.

use std::collections::VecDeque;

use anabranch_wire::{PathId, Span, Time};

use super::{DelaySample, SharedCongestion, Verdict};

/// The length of an interval: more than a lag between two paths.
const INTERVAL: Span = Span::from_millis(250);
/// Intervals compared, and how many of them both paths must have at least.
const INTERVALS: usize = 48;
const LEAST: usize = 32;
/// Correlations from which on paths share, and up to which they do not.
const SHARED: f64 = 0.9;
const SEPARATE: f64 = 0.6;
/// A smaller standard deviation, as a share of the mean, is no wave.
const FLAT: f64 = 0.02;

/// The mean delays of one path, in seconds, with the numbers of their intervals.
#[derive(Clone, Debug)]
struct Wave {
    path: PathId,
    past: VecDeque<(u64, f64)>,
    /// The current interval: its number, the sum of delays and their count.
    current: (u64, f64, f64),
}

/// The detector.
#[derive(Clone, Debug, Default)]
pub struct DelayWaves {
    waves: Vec<Wave>,
}

impl Wave {
    fn on_delay(&mut self, sample: &DelaySample) {
        let number = sample.now.as_nanos() / INTERVAL.as_nanos();
        let (known, sum, count) = self.current;
        if number > known {
            if count > 0.0 {
                if self.past.len() == INTERVALS {
                    self.past.pop_front();
                }
                self.past.push_back((known, sum / count));
            }
            self.current = (number, 0.0, 0.0);
        }
        self.current.1 += sample.delay.as_secs_f64();
        self.current.2 += 1.0;
    }
}

impl DelayWaves {
    /// The correlation of two paths' delays over the last intervals that both have; `None` while there are too few, or if a
    /// path has no queue.
    pub fn correlation(&self, now: Time, a: PathId, b: PathId) -> Option<f64> {
        let find = |path| self.waves.iter().find(|wave| wave.path == path);
        let (a, b) = (find(a)?, find(b)?);
        let oldest = (now.as_nanos() / INTERVAL.as_nanos()).saturating_sub(INTERVALS as u64);
        let mut others = b.past.iter().peekable();
        let mut sums = Sums::default();
        for (number, x) in a.past.iter().filter(|(number, _)| *number >= oldest) {
            while others.next_if(|(other, _)| other < number).is_some() {}
            let Some((_, y)) = others.next_if(|(other, _)| other == number) else { continue };
            sums.add([(number - oldest) as f64, *x, *y]);
        }
        if sums.count < LEAST as f64 {
            return None;
        }
        let residual = |i, j| {
            sums.covariance(i, j) - sums.covariance(0, i) * sums.covariance(0, j) / sums.covariance(0, 0)
        };
        let (of_a, of_b) = (residual(1, 1), residual(2, 2));
        let flat = |variance: f64, mean: f64| variance <= (FLAT * mean) * (FLAT * mean);
        if flat(of_a, sums.mean(1)) || flat(of_b, sums.mean(2)) {
            return None;
        }
        Some(residual(1, 2) / libm::sqrt(of_a * of_b))
    }
}

/// Sums over intervals of their numbers and of both paths' means, and of the products of these.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: f64,
    of: [f64; 3],
    products: [[f64; 3]; 3],
}

impl Sums {
    fn add(&mut self, values: [f64; 3]) {
        self.count += 1.0;
        for (i, x) in values.iter().enumerate() {
            self.of[i] += x;
            for (j, y) in values.iter().enumerate().skip(i) {
                self.products[i][j] += x * y;
            }
        }
    }

    fn mean(&self, i: usize) -> f64 {
        self.of[i] / self.count
    }

    /// The covariance of two of them, the first not after the second.
    fn covariance(&self, i: usize, j: usize) -> f64 {
        self.products[i][j] / self.count - self.mean(i) * self.mean(j)
    }
}

impl SharedCongestion for DelayWaves {
    fn on_congestion(&mut self, _: Time, _: PathId) {}

    fn on_delay(&mut self, path: PathId, sample: &DelaySample) {
        match self.waves.iter_mut().find(|wave| wave.path == path) {
            Some(wave) => wave.on_delay(sample),
            None => {
                let mut wave = Wave { path, past: VecDeque::new(), current: (0, 0.0, 0.0) };
                wave.on_delay(sample);
                self.waves.push(wave);
            }
        }
    }

    fn on_lost(&mut self, _: PathId, _: u64) {}

    fn on_rtt(&mut self, _: Time, _: PathId, _: Span) {}

    fn forget(&mut self, path: PathId) {
        self.waves.retain(|wave| wave.path != path);
    }

    fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict {
        match self.correlation(now, a, b) {
            Some(correlation) if correlation >= SHARED => Verdict::Shared,
            Some(correlation) if correlation <= SEPARATE => Verdict::Separate,
            _ => Verdict::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(2);

    /// Feeds two paths for 20 s with queues that rise for these many seconds and fall at once.
    fn verdict(periods: (f64, f64), base: (f64, f64)) -> Verdict {
        let mut waves = DelayWaves::default();
        let mut now = Time::ZERO;
        for step in 0..2000 {
            now = Time::ZERO + Span::from_millis(10 * step);
            let at = now.as_secs_f64();
            for (path, period, base) in [(A, periods.0, base.0), (B, periods.1, base.1)] {
                let delay = Span::from_secs_f64(base + 0.05 * (at / period).fract());
                waves.on_delay(path, &DelaySample { now, delay });
            }
        }
        waves.verdict(now, A, B)
    }

    #[test]
    fn delays_that_rise_and_fall_together_show_a_shared_queue() {
        assert_eq!(verdict((3.0, 3.0), (0.02, 0.11)), Verdict::Shared);
    }

    #[test]
    fn queues_that_fill_at_different_rates_are_separate() {
        assert_eq!(verdict((3.0, 4.1), (0.02, 0.02)), Verdict::Separate);
    }

    #[test]
    fn a_clock_that_gains_a_ten_thousandth_makes_no_wave() {
        let mut waves = DelayWaves::default();
        let mut noise = 1_u32;
        for step in 0..2000_u64 {
            let now = Time::ZERO + Span::from_millis(10 * step);
            for path in [A, B] {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let delay = 0.015 + 1e-4 * now.as_secs_f64() + 5e-4 * f64::from(noise >> 16) / 65_536.0;
                waves.on_delay(path, &DelaySample { now, delay: Span::from_secs_f64(delay) });
            }
            assert_ne!(waves.verdict(now, A, B), Verdict::Shared, "{now:?}");
        }
    }

    #[test]
    fn a_path_without_a_queue_decides_nothing() {
        assert_eq!(verdict((3.0, 1e9), (0.02, 0.02)), Verdict::Undecided);
    }
}
