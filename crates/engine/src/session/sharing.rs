//! Adaptive coupling: windows are coupled within groups of paths that share a bottleneck and free between groups.
//!
//! Evidence is collected as acknowledgements come; every [`REVIEW`] it is judged, by the method that [`Config::detector`](crate::Config::detector)
//! names; usually whether delays rise and fall together, one-way delays where the peer tells when packets arrived, and where
//! they say nothing, whether losses come at the same moments [M8], or a queue was full on one path only. One path's heavy losses that another
//! has none of go before all that. A path whose group changes is told as an event with the
//! reason. Each end judges the paths by what it sends on them itself.

use anabranch_wire::{ArrivalTime, PathId, Payload, Span, Time};
use smallvec::SmallVec;

use super::Session;
use crate::bottleneck::{
    DelaySample, DelayStatistics, DelayWaves, FastRetransmits, FullQueues, Groups, LoneLosses, LossCounts,
    OneWay, OneWayDelays, SharedCongestion, Verdict,
};
use crate::config::{Coupling, Detector};
use crate::event::{Event, PathChange};
use crate::path::{Losses, Path, PathState};

/// How often the evidence is judged.
const REVIEW: Span = Span::from_millis(500);

/// What the application has sent before anything is collected, in bytes and in datagrams: less tells nothing, and of
/// thousands of sessions most have sent next to nothing.
const WORTH: (u64, u64) = (16 << 10, 16);

/// What the method that is used has seen.
#[derive(Debug)]
enum Method {
    Losses(FastRetransmits),
    Delays(DelayStatistics),
    Waves(DelayWaves),
    Both(FastRetransmits, DelayWaves, FullQueues, LoneLosses),
}

/// That, and what makes delays of times of arrival.
#[derive(Debug)]
struct Evidence {
    method: Method,
    one_way: OneWayDelays,
}

impl Evidence {
    fn new(detector: Detector) -> Self {
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
    fn on_delay(&mut self, now: Time, path: PathId, seen: &Seen) {
        if let Method::Losses(losses) | Method::Both(losses, ..) = &mut self.method {
            losses.on_rtt(now, path, seen.smoothed);
        }
        if matches!(self.method, Method::Losses(_)) {
            return;
        }
        let Some((sample, waited)) = self.journey(now, path, seen) else { return };
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

    /// What a packet's journey took, and how long it waited in queues: one way where the peer tells when it arrived, there and back where
    /// it never did. The two are not comparable, so what was seen of round trips is forgotten when the first time is told.
    fn journey(&mut self, now: Time, path: PathId, seen: &Seen) -> Option<(DelaySample, Span)> {
        let Some(arrived) = seen.arrived else {
            let waited = seen.delay.saturating_sub(seen.shortest);
            let is_told = self.one_way.knows(path);
            return (!is_told).then_some((DelaySample { now, delay: seen.delay }, waited));
        };
        let departure = (seen.sent_at, seen.shortest / 2);
        let OneWay { delay, waited, is_first } = self.one_way.measure(path, departure, arrived);
        if is_first {
            self.forget_delays(path);
        }
        Some((DelaySample { now: seen.sent_at + delay, delay }, waited))
    }

    /// So many packets were found lost.
    fn on_lost(&mut self, path: PathId, packets: u64) {
        if let Method::Delays(statistics) = &mut self.method {
            statistics.on_lost(path, packets);
        }
    }

    /// A path entered fast retransmit; true when that is worth a review at once.
    fn on_congestion(&mut self, now: Time, path: PathId, in_slow_start: bool) -> bool {
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

    /// A path entered fast retransmit beside others: those that it is now known to be separate from, beyond doubt.
    fn on_toll(
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

    fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict {
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

    fn forget(&mut self, path: PathId) {
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

    /// Forgets what was made of a path's round trips.
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

/// What an acknowledgement told of a packet's journey.
struct Seen {
    sent_at: Time,
    arrived: Option<ArrivalTime>,
    /// There and back, queues included.
    delay: Span,
    smoothed: Span,
    shortest: Span,
}

/// What is known of shared bottlenecks.
#[derive(Debug)]
pub(super) struct Sharing {
    evidence: Evidence,
    groups: Groups,
    review_at: Time,
    /// When paths entered fast retransmit last: what left before and is lost belongs to it.
    episodes: SmallVec<[(PathId, Time); 8]>,
}

impl Sharing {
    fn new(detector: Detector) -> Self {
        Self {
            evidence: Evidence::new(detector),
            groups: Groups::default(),
            review_at: Time::ZERO,
            episodes: SmallVec::new(),
        }
    }

    /// True when losses of packets that left until `sent_at` begin another fast retransmit of the path.
    fn begins_episode(&mut self, now: Time, path: PathId, sent_at: Time) -> bool {
        match self.episodes.iter_mut().find(|(known, _)| *known == path) {
            Some((_, since)) if sent_at <= *since => return false,
            Some((_, since)) => *since = now,
            None => self.episodes.push((path, now)),
        }
        true
    }

    pub(super) fn forget(&mut self, path: PathId) {
        self.evidence.forget(path);
        self.groups.forget(path);
        self.episodes.retain(|(known, _)| *known != path);
    }

    fn judge(&mut self, now: Time, paths: &[(PathId, u32)]) {
        for (index, (b, _)) in paths.iter().enumerate() {
            for (a, _) in &paths[..index] {
                let verdict = self.evidence.verdict(now, *a, *b);
                self.groups.note(now, (*a, *b), verdict);
            }
        }
    }
}

impl<P: Payload> Session<P> {
    /// What is known, where there is anything to know: not of a single path, not where nobody asks, and not before [`WORTH`].
    fn sharing(&mut self) -> Option<&mut Sharing> {
        let asked = self.coupling == Coupling::Adaptive || self.leaves_out_sharers();
        let sends = self.stats.bytes_written >= WORTH.0 || self.stats.datagrams_sent >= WORTH.1;
        let watched = self.paths.len() > 1 && asked && sends;
        let detector = self.config.detector;
        watched.then(|| &mut **self.sharing.get_or_insert_with(|| Box::new(Sharing::new(detector))))
    }

    /// From now on the caller says which paths' windows are coupled.
    pub(super) fn groups_are_given(&mut self) {
        self.coupling = Coupling::Fixed;
        if !self.leaves_out_sharers() {
            self.sharing = None;
        }
    }

    /// What is believed of two paths: whether they share a bottleneck, by what [`Config::detector`](crate::Config::detector)
    /// has seen. Undecided as well where nobody asks.
    #[must_use]
    pub fn shared_bottleneck(&self, a: PathId, b: PathId) -> Verdict {
        let known = self.sharing.as_ref();
        known.map_or(Verdict::Undecided, |sharing| sharing.groups.believed(a.min(b), a.max(b)))
    }

    pub(super) fn forget_sharing(&mut self, path: PathId) {
        if let Some(sharing) = &mut self.sharing {
            sharing.forget(path);
        }
    }

    /// A packet of a path was acknowledged so long after it left, of which the peer kept the acknowledgement back for so long.
    pub(super) fn note_delay(
        &mut self,
        now: Time,
        index: usize,
        (sample, kept): (Span, Span),
        arrived: Option<ArrivalTime>,
    ) {
        let path = &self.paths[index];
        let (path, smoothed, shortest) = (path.id, path.rtt().smoothed(), path.rtt().min());
        let (sent_at, delay) = (now - sample, sample.saturating_sub(kept));
        if let Some(sharing) = self.sharing() {
            sharing.evidence.on_delay(now, path, &Seen { sent_at, arrived, delay, smoothed, shortest });
        }
    }

    /// Packets of a path were found lost.
    pub(super) fn note_losses(&mut self, now: Time, index: usize, losses: &Losses) {
        let path = self.paths[index].id;
        let in_slow_start = self.cc.in_slow_start(path);
        let Some(sharing) = self.sharing() else { return };
        sharing.evidence.on_lost(path, losses.packets);
        if !sharing.begins_episode(now, path, losses.sent_at) {
            return;
        }
        let is_news = sharing.evidence.on_congestion(now, path, in_slow_start);
        let parted = self.part_from_spared(now, index, in_slow_start);
        if is_news || parted {
            // Before windows are cut for what is lost elsewhere.
            self.review_groups(now);
        }
    }

    /// Parts a path that entered fast retransmit from those that lose nothing where it loses much; what its losses took from
    /// their windows last is given back.
    fn part_from_spared(&mut self, now: Time, index: usize, in_slow_start: bool) -> bool {
        let toll = |path: &Path| LossCounts {
            path: path.id,
            sent: path.stats.packets_sent,
            lost: path.stats.packets_lost,
            rtt: path.rtt().smoothed(),
        };
        let loser = toll(&self.paths[index]);
        let active = |path: &&Path| path.id != loser.path && path.state == PathState::Active;
        let others: SmallVec<[LossCounts; 8]> = self.paths.iter().filter(active).map(toll).collect();
        let Some(sharing) = self.sharing() else { return false };
        let spared = sharing.evidence.on_toll(now, (loser, in_slow_start), &others);
        for other in &spared {
            sharing.groups.part(now, (loser.path.min(*other), loser.path.max(*other)));
        }
        // Groups that the caller gave stay what they are, and so does what they took.
        if self.coupling == Coupling::Adaptive {
            for other in &spared {
                self.cc.on_parted(*other, loser.path);
                if let Some(place) = self.path_index(*other) {
                    self.paths.forget(place);
                }
            }
        }
        !spared.is_empty()
    }

    /// Judges the evidence when it is time.
    pub(super) fn regroup(&mut self, now: Time) {
        if self.sharing().is_some_and(|sharing| now >= sharing.review_at) {
            self.review_groups(now);
        }
    }

    /// Puts paths into groups by what is known now.
    pub(super) fn review_groups(&mut self, now: Time) {
        let proven = |path: &&Path| !matches!(path.state, PathState::Validating | PathState::Closing);
        let mut paths: SmallVec<[(PathId, u32); 8]> =
            self.paths.iter().filter(proven).map(|path| (path.id, path.route.socket)).collect();
        let Some(sharing) = self.sharing() else { return };
        sharing.review_at = now + REVIEW;
        sharing.judge(now, &paths);
        if self.coupling == Coupling::Fixed {
            return;
        }
        paths.retain(|(path, _)| !self.stands_alone(*path));
        let Some(sharing) = self.sharing() else { return };
        let groups = sharing.groups.of(&paths);
        for ((path, _), (group, reason)) in paths.iter().zip(groups) {
            if self.cc.group(*path) != group {
                self.cc.set_group(*path, group);
                let change = PathChange::Grouped { group, reason };
                self.events.push_back(Event::Path { path: *path, change });
            }
        }
    }

    /// Takes a path that is held out of its group: what is lost of its probes is no congestion that others cause. True for such a path.
    fn stands_alone(&mut self, path: PathId) -> bool {
        let is_held = self.path(path).is_some_and(|path| path.trouble.is_held());
        if is_held && self.cc.group(path) != path.0 {
            self.cc.set_group(path, path.0);
        }
        is_held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(2);

    /// A queue in milliseconds that fills in so many seconds and is emptied at once.
    fn saw(at: Time, period: f64) -> f64 {
        50.0 * (at.as_secs_f64() / period).fract()
    }

    /// What a path shows whose acknowledgements wait for so long after its packets did, in milliseconds; `told` when packets arrived.
    fn seen(now: Time, (there, back): (f64, f64), told: bool) -> Seen {
        let delay = Span::from_secs_f64((20.0 + there + back) / 1e3);
        let sent_at = now - delay;
        let arrived = told.then(|| ArrivalTime::of(sent_at + Span::from_secs_f64((10.0 + there) / 1e3)));
        Seen { sent_at, arrived, delay, smoothed: delay, shortest: Span::from_millis(20) }
    }

    /// What 20 s tell of two paths with queues there and back; times of arrival are told from `told_from` seconds on.
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
    fn queues_on_the_way_back_decide_nothing_where_times_of_arrival_are_told() {
        let apart: fn(Time) -> _ =
            |at| [(saw(at, 3.0) / 5.0, saw(at, 5.0)), (saw(at, 4.1) / 5.0, saw(at, 5.0))];
        let together: fn(Time) -> _ =
            |at| [(saw(at, 3.0), 2.0 * saw(at, 5.0)), (saw(at, 3.0), 2.0 * saw(at, 4.1))];
        for detector in [Detector::Waves, Detector::Both] {
            assert_eq!(verdict(detector, apart, 0.0), Verdict::Separate);
            assert_eq!(verdict(detector, together, 0.0), Verdict::Shared);
            // Round trips have both ways in them.
            assert_eq!(verdict(detector, apart, 1e9), Verdict::Shared);
            assert_eq!(verdict(detector, together, 1e9), Verdict::Separate);
        }
    }

    #[test]
    fn round_trips_are_forgotten_when_the_first_time_of_arrival_is_told() {
        let together: fn(Time) -> _ = |at| [(saw(at, 3.0), 0.0), (saw(at, 3.0), 0.0)];
        assert_eq!(verdict(Detector::Waves, together, 14.0), Verdict::Undecided, "7 s are not enough");
        assert_eq!(verdict(Detector::Waves, together, 10.0), Verdict::Shared);
    }
}
