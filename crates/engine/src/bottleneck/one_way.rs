//! One-way delays from the arrival times in acknowledgements, with two unsynchronised clocks.
//!
//! The sender knows by its own clock when a packet was sent, and by the receiver's when it arrived. The difference is the
//! delay, plus the *offset* of the clocks, plus their *skew*, the gain of one on the other (RFC 8382 §5.2). Detectors ignore
//! a constant, so three steps suffice:
//!
//! 1. **Rounds.** Arrival times start again every 2^30 µs. The difference is taken modulo that, as close as possible to the
//!    previous one of the path: only a change of nine minutes would be mistaken.
//! 2. **Offset.** The first packet of a path is assumed to have taken half of the shortest round trip; all others are
//!    relative to it. This base stays, so that only delays move the result.
//! 3. **Skew.** The shortest delay of each [`BUCKET`] contains the least queueing, and skew is the slope of these minima
//!    over two minutes. It is equal on all paths, because there are only two clocks. So slopes between minima at least
//!    [`APART`] buckets apart are pooled over the paths. Queues distort some slopes, so no line is fitted: the estimate is
//!    the value closest to zero between the first and the ninth tenth of the slopes (compare Zhang et al., INFOCOM 2002,
//!    which RFC 8382 §5.2 names). It is corrected gradually, because a step would look like a queue.
//!
//! A packet's *wait* in queues is its delay beyond the shortest of the last [`RECENT`] buckets and the current one.

use std::collections::VecDeque;

use anabranch_wire::{ArrivalTime, PathId, Span, Time};

/// The shortest delay of each such period is stored.
const BUCKET: Span = Span::from_secs(4);
/// Stored buckets for each path.
const BUCKETS: usize = 32;
/// Least distance, in buckets, of the minima for a slope.
const APART: usize = 16;
/// Waits are measured from the shortest of this many buckets and the current one: clocks drift less than a queue in them.
const RECENT: usize = 2;
/// Largest possible skew: a thousandth is ten times that of crystals.
const MOST_SKEW: f64 = 1e-3;
/// A round, in nanoseconds.
const ROUND: i64 = ArrivalTime::ROUND.as_nanos() as i64;

/// The one-way journey of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneWay {
    /// Time from its departure to its arrival. Only changes are meaningful.
    pub delay: Span,
    /// How much longer than the recent shortest.
    pub waited: Span,
    /// True for the first packet of a path.
    pub is_first: bool,
}

/// The packets of one path, in nanoseconds.
#[derive(Clone, Debug)]
struct PathDelays {
    path: PathId,
    /// Arrival minus departure of the previous packet, including rounds.
    last: i64,
    /// The correction for the offset of the clocks.
    base: i64,
    /// The correction for their skew up to `last_at`.
    skewed: f64,
    last_at: Time,
    /// The shortest delays of past buckets, oldest first, with their times.
    minima: VecDeque<(Time, i64)>,
    /// The least of the last [`RECENT`] of them.
    recent: i64,
    /// That of the current bucket, and when the bucket ends.
    current: (Time, i64),
    ends_at: Time,
}

impl PathDelays {
    fn new(path: PathId, sent_at: Time, (took, likely): (i64, Span)) -> Self {
        Self {
            path,
            last: took,
            base: took.saturating_sub(likely.as_nanos() as i64),
            skewed: 0.0,
            last_at: sent_at,
            minima: VecDeque::new(),
            recent: i64::MAX,
            current: (sent_at, took),
            ends_at: sent_at + BUCKET,
        }
    }

    /// Records a packet; true when a bucket is complete.
    fn note(&mut self, sent_at: Time, took: i64) -> bool {
        let is_full = sent_at >= self.ends_at;
        if is_full {
            if self.minima.len() == BUCKETS {
                self.minima.pop_front();
            }
            self.minima.push_back(self.current);
            let recent = self.minima.iter().rev().take(RECENT).map(|(_, shortest)| *shortest);
            self.recent = recent.fold(i64::MAX, i64::min);
            self.ends_at = sent_at + BUCKET;
        }
        if is_full || took < self.current.1 {
            self.current = (sent_at, took);
        }
        is_full
    }

    /// How much longer this was than the recent shortest.
    fn waited(&self, took: i64) -> Span {
        let shortest = self.recent.min(self.current.1);
        Span::from_nanos(u64::try_from(took.saturating_sub(shortest)).unwrap_or(0))
    }

    /// The slopes between minima that are far enough apart, after enough time.
    fn slopes(&self) -> impl Iterator<Item = f64> {
        let pairs = self.minima.iter().skip(APART).enumerate().filter(|_| self.minima.len() == BUCKETS);
        pairs.flat_map(|(count, (later, high))| {
            let earlier = self.minima.iter().take(count + 1);
            earlier.map(move |(at, low)| {
                high.saturating_sub(*low) as f64 / later.since(*at).as_nanos().max(1) as f64
            })
        })
    }
}

/// The smallest change with the same arrival time modulo a round; usually `change` itself.
fn change_in_rounds(change: i64) -> i64 {
    if (-ROUND / 2..ROUND / 2).contains(&change) {
        return change;
    }
    let change = change.rem_euclid(ROUND);
    if change >= ROUND / 2 { change - ROUND } else { change }
}

/// The clocks' skew, and the delays of all paths.
#[derive(Clone, Debug, Default)]
pub struct OneWayDelays {
    paths: Vec<PathDelays>,
    /// The gain of the receiver's clock on the sender's, in seconds a second.
    skew: f64,
}

impl OneWayDelays {
    /// Computes the journey of a packet sent at `sent_at` from its arrival by the receiver's clock. `likely` is the assumed
    /// delay of a path's first packet.
    pub fn measure(&mut self, path: PathId, (sent_at, likely): (Time, Span), arrived: ArrivalTime) -> OneWay {
        let difference = arrived.since(sent_at).as_nanos() as i64;
        let Some(index) = self.paths.iter().position(|known| known.path == path) else {
            self.paths.push(PathDelays::new(path, sent_at, (difference, likely)));
            return OneWay { delay: likely, waited: Span::ZERO, is_first: true };
        };
        let skew = self.skew;
        let delays = &mut self.paths[index];
        let took = delays.last.saturating_add(change_in_rounds(difference.wrapping_sub(delays.last)));
        delays.skewed += skew * sent_at.since(delays.last_at).as_nanos() as f64;
        (delays.last, delays.last_at) = (took, delays.last_at.max(sent_at));
        let delay = took.saturating_sub(delays.base).saturating_sub(delays.skewed as i64);
        let delay = Span::from_nanos(u64::try_from(delay).unwrap_or(0));
        let is_full = delays.note(sent_at, took);
        let waited = delays.waited(took);
        if is_full {
            self.learn_skew();
        }
        OneWay { delay, waited, is_first: false }
    }

    /// True when packets of the path were measured.
    pub fn knows(&self, path: PathId) -> bool {
        self.paths.iter().any(|known| known.path == path)
    }

    /// The estimated gain of the receiver's clock on the sender's, in seconds a second.
    pub fn skew(&self) -> f64 {
        self.skew
    }

    pub fn forget(&mut self, path: PathId) {
        self.paths.retain(|known| known.path != path);
    }

    fn learn_skew(&mut self) {
        let mut slopes: Vec<f64> = self.paths.iter().flat_map(PathDelays::slopes).collect();
        if slopes.is_empty() {
            return;
        }
        slopes.sort_by(f64::total_cmp);
        let last = slopes.len() - 1;
        let (low, high) = (slopes[last / 10], slopes[last - last / 10]);
        self.skew = 0.0_f64.clamp(low, high).clamp(-MOST_SKEW, MOST_SKEW);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId(0);

    /// The delays computed over 400 s in milliseconds, when the receiver's clock is ahead by `offset` and gains `gain`.
    fn measured(offset: Span, gain: f64, queue: impl Fn(f64) -> f64) -> (Vec<f64>, f64) {
        let mut delays = OneWayDelays::default();
        let all = (0..40_000_u64).map(|step| {
            let sent_at = Time::ZERO + Span::from_millis(10 * step);
            let seconds = sent_at.as_secs_f64();
            let took = Span::from_secs_f64((20.0 + queue(seconds)) / 1e3);
            let gained = Span::from_secs_f64((seconds + 1.0) * (1.0 + gain * 1e-6));
            let arrived = ArrivalTime::of(Time::ZERO + gained + took + offset);
            delays.measure(A, (sent_at, Span::from_millis(20)), arrived).delay.as_millis_f64()
        });
        (all.collect(), delays.skew())
    }

    /// A queue that fills to 40 ms in `period` seconds and is emptied at once.
    fn saw(seconds: f64, period: f64) -> f64 {
        40.0 * (seconds / period).fract()
    }

    #[test]
    fn delays_do_not_depend_on_the_receivers_clock_and_its_rounds() {
        let queue = |seconds| saw(seconds, 3.0);
        let (plain, skew) = measured(Span::ZERO, 0.0, queue);
        assert!((plain[299] - plain[0] - 40.0).abs() < 0.5, "{} {}", plain[0], plain[299]);
        assert_eq!(skew, 0.0);
        let (ahead, _) = measured(Span::from_secs(900), 0.0, queue);
        for (a, b) in plain.iter().zip(&ahead) {
            assert!((a - b).abs() < 0.002, "{a} {b}");
        }
    }

    #[test]
    fn a_clock_that_gains_is_corrected_without_a_step() {
        for gain in [300.0, -300.0] {
            let (delays, skew) = measured(Span::from_secs(5), gain, |seconds| saw(seconds, 3.0));
            assert!((skew * 1e6 - gain).abs() < 20.0, "{skew}");
            // In half a minute at the end the clocks drift apart by 9 ms.
            let mean = |at: usize| delays[at * 100..(at + 3) * 100].iter().sum::<f64>() / 300.0;
            assert!((mean(396) - mean(366)).abs() < 1.0, "{} {}", mean(366), mean(396));
            let jump = delays.windows(2).filter(|pair| (pair[1] - pair[0]) > 1.0);
            assert_eq!(jump.count(), 0);
        }
    }

    #[test]
    fn long_waves_of_a_queue_are_not_mistaken_for_skew() {
        for period in [15.0, 40.0, 100.0] {
            let (_, skew) = measured(Span::ZERO, 0.0, |seconds| 10.0 + saw(seconds, period));
            assert!(skew.abs() < 50e-6, "{period} s: {skew}");
        }
    }

    #[test]
    fn memory_is_bounded_and_no_reported_time_does_harm() {
        let mut delays = OneWayDelays::default();
        for step in 0..10_000_u64 {
            let sent_at = Time::ZERO + Span::from_secs(step);
            let lie = ArrivalTime::from_micros(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            delays.measure(A, (sent_at, Span::from_millis(10)), lie);
        }
        assert!(delays.paths[0].minima.len() == BUCKETS && delays.skew().abs() <= MOST_SKEW);
        assert!(delays.knows(A));
        delays.forget(A);
        assert!(!delays.knows(A));
    }

    #[test]
    fn a_wait_is_the_queueing_beyond_the_shortest_delay_of_the_last_seconds() {
        let mut delays = OneWayDelays::default();
        let mut waited = |ms: u64, took: u64| {
            let sent_at = Time::ZERO + Span::from_millis(ms);
            let arrived = ArrivalTime::of(sent_at + Span::from_millis(took) + Span::from_secs(77));
            delays.measure(A, (sent_at, Span::from_millis(20)), arrived).waited.as_millis_f64()
        };
        assert_eq!((waited(0, 50), waited(10, 65), waited(20, 48), waited(30, 50)), (0.0, 15.0, 0.0, 2.0));
        // The path becomes longer: after three buckets that is the base.
        let longer: Vec<f64> = (1..4).map(|step| waited(4_500 * step, 80)).collect();
        assert_eq!(longer, [32.0, 32.0, 0.0]);
    }
}
