//! Finds shared congestion from the times of fast retransmits (mTCP §3.2 [M8]).
//!
//! Each path stores the times at which it entered fast retransmit. For two paths with m ≤ n such times, `match` is the size
//! of the largest one-to-one matching of times less than `interval` apart. The paths are correlated when `match / m > δ`.
//! Both lists are sorted, so taking the earliest free partner gives a largest matching in one pass.
//!
//! **How long to wait.** By chance one time finds a partner with probability about `p = 2·interval / min(interval_s,
//! interval_t)`, where `interval_s` is the mean time between events of a path. By the Chernoff bound more than δm of m
//! match by chance with probability below `e^(−m·D(δ‖p))`, `D(δ‖p) = δ ln(δ/p) + (1−δ) ln((1−δ)/(1−p))`. So a
//! verdict waits for `m ≥ −ln ζ / D(δ‖p)`. Where p ≥ δ the bound says nothing, and nothing is decided.
//!
//! **Lag.** Paths with different latencies see one bottleneck at different times. Shifts of one list within a round trip
//! are tried in [`STEPS`] steps, and the best one counts. This search gives several chances to match: as many as shifts an
//! `interval` apart fit into a round trip. [`Lag::Counted`] divides ζ by their number, so that the bound holds again;
//! [`Lag::AsPrinted`] is the paper's rule.
//!
//! **Forgetting.** By default the last 64 events of a path count, and none older than two minutes.

use std::collections::VecDeque;

use anabranch_wire::{PathId, Span, Time};
use smallvec::SmallVec;

use super::{DelaySample, SharedCongestion, Verdict};

/// Events stored for each path by default.
const KEPT: usize = 64;
/// Older events are dropped by default.
const MEMORY: Span = Span::from_secs(120);
/// Shifts tried in each direction.
const STEPS: i64 = 16;
/// Round-trip time beyond which lags are not searched.
const LONGEST_RTT: Span = Span::from_secs(2);

/// How the search for a lag counts in the waiting time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lag {
    /// ζ is divided by the number of chances that the search gives.
    #[default]
    Counted,
    /// As in the paper: not at all.
    AsPrinted,
}

#[derive(Clone, Debug)]
struct Events {
    path: PathId,
    times: VecDeque<Time>,
    /// Events before this are unknown.
    since: Time,
    rtt: Span,
}

/// mTCP's detector.
#[derive(Clone, Debug)]
pub struct FastRetransmits {
    /// Two events less than this apart may be one congestion: longer than most bursts of losses.
    pub interval: Span,
    /// δ: paths are correlated when a larger share of events matches.
    pub threshold: f64,
    /// ζ: the accepted chance of a false *shared*.
    pub zeta: f64,
    /// How the search for a lag counts.
    pub lag: Lag,
    /// Most events of a path that count, the latest ones.
    pub kept: usize,
    /// Older events are dropped.
    pub memory: Span,
    paths: Vec<Events>,
}

impl Default for FastRetransmits {
    /// interval = 200 ms and δ = 0.5, as in the paper; ζ = 0.05, which the paper does not give.
    fn default() -> Self {
        Self {
            interval: Span::from_millis(200),
            threshold: 0.5,
            zeta: 0.05,
            lag: Lag::default(),
            kept: KEPT,
            memory: MEMORY,
            paths: Vec::new(),
        }
    }
}

/// The evidence on a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correlation {
    /// `match / min(m, n)` at the best lag.
    pub ratio: f64,
    /// min(m, n).
    pub events: usize,
    /// How many of these a verdict waits for; `None` where the bound says nothing.
    pub wanted: Option<usize>,
}

impl FastRetransmits {
    fn events(&mut self, now: Time, path: PathId) -> &mut Events {
        let index = self.paths.iter().position(|known| known.path == path).unwrap_or_else(|| {
            self.paths.push(Events { path, times: VecDeque::new(), since: now, rtt: Span::ZERO });
            self.paths.len() - 1
        });
        &mut self.paths[index]
    }

    /// The evidence on two paths; `None` until both have had an event.
    pub fn correlation(&self, now: Time, a: PathId, b: PathId) -> Option<Correlation> {
        let find = |path| self.paths.iter().find(|known| known.path == path);
        let (a, b) = (find(a)?, find(b)?);
        let oldest = Time::ZERO + now.since(Time::ZERO + self.memory);
        let since = a.since.max(b.since).max(oldest);
        let times = |events: &Events| -> SmallVec<[i64; KEPT]> {
            let recent = events.times.iter().filter(|time| **time >= since);
            recent.map(|time| time.as_nanos() as i64).collect()
        };
        let (s, t) = (times(a), times(b));
        let events = s.len().min(t.len());
        if events == 0 {
            return None;
        }
        let longest = a.rtt.max(b.rtt).min(LONGEST_RTT);
        let ratio = self.best_match(&s, &t, longest) as f64 / events as f64;
        let mean_gap = now.since(since).as_secs_f64() / s.len().max(t.len()) as f64;
        let p = 2.0 * self.interval.as_secs_f64() / mean_gap;
        let zeta = match self.lag {
            Lag::AsPrinted => self.zeta,
            Lag::Counted => self.zeta / (1.0 + longest.as_secs_f64() / self.interval.as_secs_f64()),
        };
        Some(Correlation { ratio, events, wanted: wait(self.threshold, p, zeta) })
    }

    /// The size of the largest matching over all lags.
    fn best_match(&self, s: &[i64], t: &[i64], longest: Span) -> usize {
        let step = (longest.as_nanos() as i64 / STEPS).max(1);
        let interval = self.interval.as_nanos() as i64;
        let shifts = if longest.is_zero() { 0..=0 } else { -STEPS..=STEPS };
        shifts.map(|shift| matching(s, t, shift * step, interval)).max().unwrap_or(0)
    }
}

/// The largest one-to-one matching of sorted times less than `interval` apart once `shift` is added to the second.
fn matching(s: &[i64], t: &[i64], shift: i64, interval: i64) -> usize {
    let (mut i, mut j, mut found) = (0, 0, 0);
    while let (Some(a), Some(b)) = (s.get(i), t.get(j)) {
        let b = b + shift;
        if (a - b).abs() < interval {
            (i, j, found) = (i + 1, j + 1, found + 1);
        } else if *a < b {
            i += 1;
        } else {
            j += 1;
        }
    }
    found
}

/// `−ln ζ / D(δ‖p)` events; `None` where p ≥ δ.
fn wait(delta: f64, p: f64, zeta: f64) -> Option<usize> {
    if p >= delta {
        return None;
    }
    let divergence = delta * libm::log(delta / p) + (1.0 - delta) * libm::log((1.0 - delta) / (1.0 - p));
    Some(libm::ceil(-libm::log(zeta) / divergence).max(2.0) as usize)
}

impl SharedCongestion for FastRetransmits {
    fn on_congestion(&mut self, now: Time, path: PathId) {
        let kept = self.kept;
        let events = self.events(now, path);
        if events.times.len() >= kept
            && let Some(forgotten) = events.times.pop_front()
        {
            events.since = forgotten;
        }
        events.times.push_back(now);
    }

    fn on_delay(&mut self, _: PathId, _: &DelaySample) {}

    fn on_lost(&mut self, _: PathId, _: u64) {}

    fn on_rtt(&mut self, now: Time, path: PathId, rtt: Span) {
        self.events(now, path).rtt = rtt;
    }

    fn forget(&mut self, path: PathId) {
        self.paths.retain(|known| known.path != path);
    }

    fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict {
        match self.correlation(now, a, b) {
            Some(Correlation { ratio, events, wanted: Some(wanted) }) if events >= wanted => {
                if ratio > self.threshold { Verdict::Shared } else { Verdict::Separate }
            }
            _ => Verdict::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(2);

    fn at(seconds: f64) -> Time {
        Time::ZERO + Span::from_secs_f64(seconds)
    }

    /// Pseudo-random numbers in [0, 1) (SplitMix64).
    fn noise(mut seed: u64) -> impl FnMut() -> f64 {
        move || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        }
    }

    /// The first decided verdict, checked at every event as in mTCP.
    fn first_verdict(mut events: Vec<(f64, PathId)>, rtt: Span, lag: Lag) -> Option<(f64, Verdict)> {
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut detector = FastRetransmits { lag, ..FastRetransmits::default() };
        detector.on_rtt(Time::ZERO, A, rtt);
        detector.on_rtt(Time::ZERO, B, rtt);
        for (seconds, path) in events {
            detector.on_congestion(at(seconds), path);
            let verdict = detector.verdict(at(seconds), A, B);
            if verdict != Verdict::Undecided {
                return Some((seconds, verdict));
            }
        }
        None
    }

    #[test]
    fn a_matching_uses_every_time_once() {
        assert_eq!(matching(&[0, 10, 20], &[1, 2, 3], 0, 5), 1);
        assert_eq!(matching(&[0, 10, 20], &[1, 2, 3], 0, 9), 2);
        assert_eq!(matching(&[0, 10, 20], &[104, 114, 124], -104, 5), 3);
    }

    #[test]
    fn the_waiting_time_is_that_of_the_chernoff_bound() {
        // δ = 0.5, p = 0.1: D = 0.5 ln 5 + 0.5 ln(0.5/0.9) = 0.5108; −ln 0.05 = 2.996.
        assert_eq!(wait(0.5, 0.1, 0.05), Some(6));
        assert_eq!(wait(0.5, 0.5, 0.05), None);
    }

    #[test]
    fn paths_that_lose_together_are_found_to_share() {
        let mut next = noise(3);
        let mut events = Vec::new();
        for k in 0..20 {
            let time = 1.0 + 2.5 * f64::from(k) + next();
            events.push((time, A));
            events.push((time + 0.05 * next(), B));
        }
        let (seconds, verdict) = first_verdict(events, Span::from_millis(80), Lag::Counted).unwrap();
        assert_eq!(verdict, Verdict::Shared);
        assert!(seconds < 30.0, "{seconds}");
    }

    #[test]
    fn a_lag_within_the_round_trip_is_found() {
        let together = |lag: f64| {
            let times = (0..20).map(|k| 1.0 + 3.1 * f64::from(k) + 0.3 * f64::from(k % 3));
            let both = times.flat_map(move |time| [(time, A), (time + lag, B)]).collect();
            first_verdict(both, Span::from_millis(600), Lag::Counted).map(|(_, verdict)| verdict)
        };
        assert_eq!(together(0.5), Some(Verdict::Shared));
        assert_eq!(together(1.2), Some(Verdict::Separate));
    }

    #[test]
    fn independent_paths_are_taken_for_sharing_at_most_once_in_twenty() {
        let wrong = |lag| {
            let wrong = |seed: &u64| {
                let mut next = noise(seed * 7919);
                let mut events = Vec::new();
                for path in [A, B] {
                    let (mut time, gap) = (0.0, 1.5 + 4.0 * next());
                    while time < 120.0 {
                        time += -gap * (1.0 - next()).ln();
                        events.push((time, path));
                    }
                }
                let verdict = first_verdict(events, Span::from_millis(100), lag);
                verdict.is_some_and(|(_, verdict)| verdict == Verdict::Shared)
            };
            (0..1000).filter(wrong).count()
        };
        let (counted, printed) = (wrong(Lag::Counted), wrong(Lag::AsPrinted));
        assert!(counted <= 50 && counted <= printed, "counted {counted}, as printed {printed}");
    }

    #[test]
    fn with_losses_too_dense_nothing_is_decided() {
        let events = (0..400).map(|k| (0.3 * f64::from(k), if k % 2 == 0 { A } else { B })).collect();
        assert_eq!(first_verdict(events, Span::ZERO, Lag::Counted), None);
    }

    #[test]
    fn old_evidence_of_sharing_is_forgotten() {
        let mut detector = FastRetransmits::default();
        for k in 0..10 {
            let now = at(5.0 * f64::from(k));
            detector.on_congestion(now, A);
            detector.on_congestion(now, B);
        }
        assert_eq!(detector.verdict(at(46.0), A, B), Verdict::Shared);
        assert_eq!(detector.verdict(at(300.0), A, B), Verdict::Undecided);
        for k in 0..1000 {
            detector.on_congestion(at(300.0 + f64::from(k)), A);
        }
        assert_eq!(detector.paths[0].times.len(), KEPT);
    }

    #[test]
    fn nothing_is_forgotten_if_configured_so() {
        let mut detector =
            FastRetransmits { kept: usize::MAX, memory: Span::MAX, ..FastRetransmits::default() };
        for k in 0..1000 {
            let now = at(5.0 * f64::from(k));
            detector.on_congestion(now, A);
            detector.on_congestion(now, B);
        }
        let known = detector.correlation(at(5000.0), A, B);
        assert_eq!(known.map(|known| (known.ratio, known.events)), Some((1.0, 1000)));
    }
}
