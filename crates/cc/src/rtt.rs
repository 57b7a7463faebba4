//! Round-trip time: mean, deviation, recent minimum, and the timeouts computed from them.
//!
//! The smoothing is RFC 6298 §2's (1/8 for the mean, 1/4 for the deviation, the deviation first), which MPTCP asks for
//! too [P2]. The peer's reported delay is subtracted by RFC 9002 §5.3, never below the recent minimum. One estimator
//! belongs to one pair of forward path and path of the acks.

use anabranch_wire::{Span, Time};

/// Half of the window of the minimum, which covers the current half and the one before.
const MIN_HALF_WINDOW: Span = Span::from_secs(5);
/// Samples are clamped to these bounds: a hostile or broken clock must not break the arithmetic.
const LEAST_SAMPLE: Span = Span::from_nanos(1_000);
const LARGEST_SAMPLE: Span = Span::from_secs(3_600);
/// By how much an idle path's round trip may vary.
const JITTER: Span = Span::from_micros(500);
/// How long the sample after a pause limits the guess for an idle path.
const GUESS: Span = Span::from_secs(1);
/// The timer granularity of RFC 9002 §6.1.2.
const PTO_GRANULARITY: Span = Span::from_millis(1);

/// The bounds of a retransmission timeout (RFC 6298 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoBounds {
    /// Never shorter than this: 200 ms in Linux, 1 s in RFC 6298.
    pub min: Span,
    /// Never longer than this.
    pub max: Span,
    /// The least margin above the smoothed round-trip time (`G` in RFC 6298).
    pub granularity: Span,
}

impl Default for RtoBounds {
    /// Linux's bounds: 200 ms to 120 s with a millisecond's granularity.
    fn default() -> Self {
        Self { min: Span::from_millis(200), max: Span::from_secs(120), granularity: Span::from_millis(1) }
    }
}

/// Estimates a round-trip time from its samples.
#[derive(Clone, Debug)]
pub struct RttEstimator {
    smoothed: Span,
    variance: Span,
    latest: Span,
    /// As `smoothed`, but the first sample after a gap longer than itself lowers it at once.
    recent: Span,
    /// That sample, and when it came.
    resumed: (Span, Time),
    sampled_at: Time,
    samples: u8,
    min_now: Span,
    min_before: Span,
    half_started: Time,
}

impl RttEstimator {
    /// An estimator that returns `initial`, and half of it as deviation, until its first sample (RFC 9002 §6.2.2).
    pub fn new(initial: Span) -> Self {
        let initial = bounded(initial);
        Self {
            smoothed: initial,
            variance: initial / 2,
            latest: initial,
            recent: initial,
            resumed: (Span::ZERO, Time::ZERO),
            sampled_at: Time::ZERO,
            samples: 0,
            min_now: initial,
            min_before: initial,
            half_started: Time::ZERO,
        }
    }

    /// Adds a sample; `ack_delay` is how long the peer says it delayed the ack, zero when unknown.
    pub fn update(&mut self, now: Time, sample: Span, ack_delay: Span) {
        let sample = bounded(sample);
        self.latest = sample;
        self.samples = self.samples.saturating_add(1);
        let gap = now.since(std::mem::replace(&mut self.sampled_at, now));
        if self.samples == 1 {
            (self.smoothed, self.recent) = (sample, sample);
            self.variance = sample / 2;
            (self.min_now, self.min_before, self.half_started) = (sample, sample, now);
            return;
        }
        self.update_min(now, sample);
        let adjusted =
            if sample >= self.min() + ack_delay { sample.saturating_sub(ack_delay) } else { sample };
        let deviation = self.smoothed.saturating_sub(adjusted).max(adjusted.saturating_sub(self.smoothed));
        self.variance = (self.variance * 3 + deviation) / 4;
        self.smoothed = (self.smoothed * 7 + adjusted) / 8;
        if gap > self.recent {
            self.resumed = (adjusted, now);
        }
        self.recent = match gap > self.recent && adjusted < self.recent {
            true => adjusted,
            false => (self.recent * 7 + adjusted) / 8,
        };
    }

    fn update_min(&mut self, now: Time, sample: Span) {
        let age = now.since(self.half_started);
        if age < MIN_HALF_WINDOW {
            self.min_now = self.min_now.min(sample);
            return;
        }
        self.min_before = if age < MIN_HALF_WINDOW * 2 { self.min_now } else { sample };
        self.min_now = sample;
        self.half_started = now;
    }

    /// The smoothed round-trip time.
    pub fn smoothed(&self) -> Span {
        self.smoothed
    }

    /// The round trip of a packet that leaves now, where nothing is in flight: a queue that stood at the last sample
    /// drains at most as fast as time passes. A path that filled once is thus tried again as soon as it may be fast, and
    /// the next sample corrects the guess. The guess stays a little above the minimum, or an idle path would always look
    /// better than one in use. A queue of others does not drain: for a while, the guess stays above what the last one led
    /// to.
    pub fn drained(&self, now: Time) -> Span {
        let (found, at) = self.resumed;
        let known = if now.since(at) < GUESS { found } else { Span::ZERO };
        let floor = (self.min() + self.min() / 8 + JITTER).max(known);
        self.recent.saturating_sub(now.since(self.sampled_at)).max(floor).min(self.recent)
    }

    /// As [`RttEstimator::smoothed`], but lowered at once by the first sample after a gap longer than a round trip.
    pub fn recent(&self) -> Span {
        self.recent
    }

    /// The smoothed deviation from it.
    pub fn variance(&self) -> Span {
        self.variance
    }

    /// The last sample, including the peer's delay.
    pub fn latest(&self) -> Span {
        self.latest
    }

    /// The least sample of the last 5 to 10 s, including the peer's delay. A route that became longer shows after 10 s.
    pub fn min(&self) -> Span {
        self.min_now.min(self.min_before)
    }

    /// True after the first sample.
    pub fn has_sample(&self) -> bool {
        self.samples > 0
    }

    /// Samples so far, up to 255.
    pub fn samples(&self) -> u8 {
        self.samples
    }

    /// The retransmission timeout, `srtt + max(G, 4·rttvar)` within its bounds (RFC 6298 §2).
    pub fn rto(&self, bounds: RtoBounds) -> Span {
        let wanted = self.smoothed + bounds.granularity.max(self.variance * 4);
        wanted.max(bounds.min).min(bounds.max)
    }

    /// The probe timeout, `srtt + max(4·rttvar, 1 ms) + max_ack_delay` (RFC 9002 §6.2.1).
    pub fn pto(&self, max_ack_delay: Span) -> Span {
        self.smoothed + PTO_GRANULARITY.max(self.variance * 4) + max_ack_delay
    }
}

fn bounded(sample: Span) -> Span {
    sample.max(LEAST_SAMPLE).min(LARGEST_SAMPLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn the_first_sample_sets_mean_and_half_of_it_as_deviation() {
        let mut rtt = RttEstimator::new(Span::from_millis(333));
        assert!(!rtt.has_sample());
        assert_eq!(rtt.rto(RtoBounds::default()), Span::from_millis(999));
        rtt.update(at(0), Span::from_millis(100), Span::from_millis(40));
        assert!(rtt.has_sample());
        assert_eq!((rtt.smoothed(), rtt.variance()), (Span::from_millis(100), Span::from_millis(50)));
        assert_eq!(rtt.rto(RtoBounds::default()), Span::from_millis(300));
        assert_eq!(rtt.pto(Span::from_millis(25)), Span::from_millis(325));
    }

    #[test]
    fn later_samples_move_mean_by_an_eighth_and_deviation_by_a_quarter() {
        let mut rtt = RttEstimator::new(Span::from_millis(333));
        rtt.update(at(0), Span::from_millis(100), Span::ZERO);
        rtt.update(at(100), Span::from_millis(180), Span::ZERO);
        assert_eq!(rtt.smoothed(), Span::from_millis(110));
        assert_eq!(rtt.variance(), Span::from_micros(57_500));
        assert_eq!(rtt.latest(), Span::from_millis(180));
    }

    #[test]
    fn a_queue_drains_while_nothing_is_sent_and_samples_after_a_pause_begin_anew() {
        let ms = Span::from_millis;
        let mut rtt = RttEstimator::new(ms(333));
        assert_eq!(rtt.drained(at(5_000)), ms(333));
        rtt.update(at(0), ms(10), Span::ZERO);
        for step in 1..100 {
            rtt.update(at(step), ms(50), Span::ZERO);
        }
        let whole = |span: Span| span.as_nanos().div_ceil(1_000_000);
        assert_eq!([99, 119, 139, 500].map(|millis| whole(rtt.drained(at(millis)))), [50, 30, 12, 12]);
        rtt.update(at(500), ms(12), Span::ZERO);
        assert_eq!((rtt.recent(), whole(rtt.smoothed())), (ms(12), 46));
        rtt.update(at(505), ms(20), Span::ZERO);
        assert_eq!(rtt.recent(), ms(13));
        // Another's queue is there after the next pause, and is believed for a second.
        rtt.update(at(1_000), ms(93), Span::ZERO);
        let guesses = [1_000, 1_100, 1_999, 2_100].map(|millis| whole(rtt.drained(at(millis))));
        assert_eq!((rtt.recent(), guesses), (ms(23), [23, 23, 23, 12]));
    }

    #[test]
    fn the_peers_delay_is_taken_off_only_down_to_the_minimum() {
        let mut rtt = RttEstimator::new(Span::from_millis(333));
        rtt.update(at(0), Span::from_millis(100), Span::ZERO);
        rtt.update(at(100), Span::from_millis(140), Span::from_millis(40));
        assert_eq!(rtt.smoothed(), Span::from_millis(100));
        rtt.update(at(200), Span::from_millis(116), Span::from_millis(40));
        assert_eq!(rtt.smoothed(), Span::from_millis(102));
    }

    #[test]
    fn the_minimum_is_forgotten_after_ten_seconds() {
        let mut rtt = RttEstimator::new(Span::from_millis(333));
        rtt.update(at(0), Span::from_millis(20), Span::ZERO);
        for step in 1..100 {
            rtt.update(at(step * 100), Span::from_millis(80), Span::ZERO);
            assert_eq!(rtt.min(), Span::from_millis(20), "at step {step}");
        }
        rtt.update(at(10_000), Span::from_millis(80), Span::ZERO);
        assert_eq!(rtt.min(), Span::from_millis(80));
    }

    #[test]
    fn a_timeout_stays_within_its_bounds_whatever_the_samples() {
        let bounds = RtoBounds::default();
        for sample in [Span::ZERO, Span::MAX] {
            let mut rtt = RttEstimator::new(sample);
            for step in 0..50 {
                rtt.update(at(step), sample, Span::MAX);
                assert!(rtt.rto(bounds) >= bounds.min && rtt.rto(bounds) <= bounds.max);
                assert!(!rtt.smoothed().is_zero());
            }
        }
    }
}
