//! Evidence of shared bottlenecks, collected from acknowledgements by the detector in use.

use anabranch_wire::{ArrivalTime, PathId, Span, Time};
use smallvec::SmallVec;

use crate::bottleneck::{
    DelaySample, DelayStatistics, DelayWaves, FastRetransmits, FullQueues, LoneLosses, LossCounts, OneWay,
    OneWayDelays, SharedCongestion, Verdict,
};
use crate::config::Detector;

/// The state of the detector in use.
#[derive(Debug)]
enum Method {
    Losses(FastRetransmits),
    Delays(DelayStatistics),
    Waves(DelayWaves),
    Both(FastRetransmits, DelayWaves, FullQueues, LoneLosses),
}

/// The detectors, and the conversion of arrival times into delays.
#[derive(Debug)]
pub(super) struct Evidence {
    method: Method,
    one_way: OneWayDelays,
}

impl Evidence {
    pub(super) fn new(detector: Detector) -> Self {
        let method = match detector {
            Detector::Losses => Method::Losses(FastRetransmits::default()),
            Detector::Delays => Method::Delays(DelayStatistics::default()),
            Detector::Waves => Method::Waves(DelayWaves::default()),
            Detector::Both => Method::Both(
                FastRetransmits::default(),
                DelayWaves::default(),
                FullQueues::default(),
                LoneLosses::default(),
            ),
        };
        Self { method, one_way: OneWayDelays::default() }
    }

    /// A packet was acknowledged now.
    pub(super) fn on_delay(&mut self, now: Time, path: PathId, seen: &Seen) {
        if let Method::Losses(losses) | Method::Both(losses, ..) = &mut self.method {
            losses.on_rtt(now, path, seen.smoothed);
        }
        if matches!(self.method, Method::Losses(_)) {
            return;
        }
        let Some((sample, waited)) = self.travel_time(now, path, seen) else { return };
        match &mut self.method {
            Method::Losses(_) => {}
            Method::Waves(waves) => waves.on_delay(path, &sample),
            Method::Both(_, waves, queues, _) => {
                queues.on_wait(now, path, waited, seen.smoothed);
                waves.on_delay(path, &sample);
            }
            Method::Delays(statistics) if seen.arrived.is_some() => statistics.on_delay(path, &sample),
            Method::Delays(_) => {}
        }
    }

    /// How long a packet travelled and how long it waited in queues: one way if the peer reports arrival times,
    /// otherwise both ways. These values are not comparable, so round trips are dropped at the first arrival time.
    fn travel_time(&mut self, now: Time, path: PathId, seen: &Seen) -> Option<(DelaySample, Span)> {
        let Some(arrived) = seen.arrived else {
            let waited = seen.delay.saturating_sub(seen.shortest);
            let has_arrivals = self.one_way.knows(path);
            return (!has_arrivals).then_some((DelaySample { now, delay: seen.delay }, waited));
        };
        let departure = (seen.sent_at, seen.shortest / 2);
        let OneWay { delay, waited, is_first } = self.one_way.measure(path, departure, arrived);
        if is_first {
            self.forget_delays(path);
        }
        Some((DelaySample { now: seen.sent_at + delay, delay }, waited))
    }

    /// Packets were found lost.
    pub(super) fn on_lost(&mut self, path: PathId, packets: u64) {
        if let Method::Delays(statistics) = &mut self.method {
            statistics.on_lost(path, packets);
        }
    }

    /// Handles the fast retransmit of a path; true if groups should be reviewed at once.
    pub(super) fn on_congestion(&mut self, now: Time, path: PathId, in_slow_start: bool) -> bool {
        match &mut self.method {
            Method::Losses(losses) => losses.on_congestion(now, path),
            Method::Both(losses, _, queues, _) => {
                losses.on_congestion(now, path);
                return queues.on_congestion(now, path, in_slow_start);
            }
            Method::Delays(_) | Method::Waves(_) => {}
        }
        false
    }

    /// A path entered fast retransmit while `others` carried data. Returns those that certainly do not share
    /// its bottleneck.
    pub(super) fn on_loss_counts(
        &mut self,
        now: Time,
        loser: (LossCounts, bool),
        others: &[LossCounts],
    ) -> SmallVec<[PathId; 8]> {
        match &mut self.method {
            Method::Both(_, _, _, lone) => lone.on_congestion(now, loser, others.iter().copied()),
            _ => SmallVec::new(),
        }
    }

    pub(super) fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict {
        match &self.method {
            Method::Losses(losses) => losses.verdict(now, a, b),
            Method::Delays(statistics) => statistics.verdict(now, a, b),
            Method::Waves(waves) => waves.verdict(now, a, b),
            Method::Both(_, _, _, lone) if lone.are_apart(now, a, b) => Verdict::Separate,
            Method::Both(losses, waves, queues, _) => {
                let first = |known: Verdict, next: &dyn Fn() -> Verdict| match known {
                    Verdict::Undecided => next(),
                    decided => decided,
                };
                let verdict = first(waves.verdict(now, a, b), &|| losses.verdict(now, a, b));
                first(verdict, &|| queues.verdict(now, a, b))
            }
        }
    }

    pub(super) fn forget(&mut self, path: PathId) {
        self.one_way.forget(path);
        self.forget_delays(path);
        match &mut self.method {
            Method::Losses(losses) => losses.forget(path),
            Method::Both(losses, _, _, lone) => {
                losses.forget(path);
                lone.forget(path);
            }
            Method::Waves(_) => {}
            Method::Delays(statistics) => statistics.forget(path),
        }
    }

    fn forget_delays(&mut self, path: PathId) {
        match &mut self.method {
            Method::Losses(_) | Method::Delays(_) => {}
            Method::Waves(waves) => waves.forget(path),
            Method::Both(_, waves, queues, _) => {
                waves.forget(path);
                queues.forget(path);
            }
        }
    }
}

/// A packet's delay, as its acknowledgement shows it.
pub(super) struct Seen {
    pub sent_at: Time,
    pub arrived: Option<ArrivalTime>,
    /// There and back, queues included.
    pub delay: Span,
    pub smoothed: Span,
    pub shortest: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(2);

    /// A queue in milliseconds that fills within `period` seconds and is then emptied at once.
    fn saw(at: Time, period: f64) -> f64 {
        50.0 * (at.as_secs_f64() / period).fract()
    }

    /// A packet that waits in queues `there` and `back`, in milliseconds; with an arrival time if `told`.
    fn seen(now: Time, (there, back): (f64, f64), told: bool) -> Seen {
        let delay = Span::from_secs_f64((20.0 + there + back) / 1e3);
        let sent_at = now - delay;
        let arrived = told.then(|| ArrivalTime::of(sent_at + Span::from_secs_f64((10.0 + there) / 1e3)));
        Seen { sent_at, arrived, delay, smoothed: delay, shortest: Span::from_millis(20) }
    }

    /// The verdict after 20 s on two paths with queues in both directions; arrival times start after `told_from`
    /// seconds.
    fn verdict(detector: Detector, queues: fn(Time) -> [(f64, f64); 2], told_from: f64) -> Verdict {
        let mut evidence = Evidence::new(detector);
        let mut now = Time::ZERO;
        for step in 100..2_100 {
            now = Time::ZERO + Span::from_millis(10 * step);
            for (path, waits) in [A, B].into_iter().zip(queues(now)) {
                evidence.on_delay(now, path, &seen(now, waits, now.as_secs_f64() >= told_from));
            }
        }
        evidence.verdict(now, A, B)
    }

    #[test]
    fn queues_on_the_return_path_decide_nothing_with_times_of_arrival() {
        let apart: fn(Time) -> _ =
            |at| [(saw(at, 3.0) / 5.0, saw(at, 5.0)), (saw(at, 4.1) / 5.0, saw(at, 5.0))];
        let together: fn(Time) -> _ =
            |at| [(saw(at, 3.0), 2.0 * saw(at, 5.0)), (saw(at, 3.0), 2.0 * saw(at, 4.1))];
        for detector in [Detector::Waves, Detector::Both] {
            assert_eq!(verdict(detector, apart, 0.0), Verdict::Separate);
            assert_eq!(verdict(detector, together, 0.0), Verdict::Shared);
            // Round trips contain both directions.
            assert_eq!(verdict(detector, apart, 1e9), Verdict::Shared);
            assert_eq!(verdict(detector, together, 1e9), Verdict::Separate);
        }
    }

    #[test]
    fn round_trips_are_forgotten_when_the_first_time_of_arrival_comes() {
        let together: fn(Time) -> _ = |at| [(saw(at, 3.0), 0.0), (saw(at, 3.0), 0.0)];
        assert_eq!(verdict(Detector::Waves, together, 14.0), Verdict::Undecided, "7 s are not enough");
        assert_eq!(verdict(Detector::Waves, together, 10.0), Verdict::Shared);
    }
}
