//! Estimates what each path of a session can carry, from the paths' counters.
//!
//! A sender estimates a path's rate as its window over its round-trip time, even without data to send. A receiver sees
//! only the data that arrives, smoothed over [`SMOOTHING`]. It cannot distinguish a slow path from one that the sender
//! does not need. So it judges only while the total is lower than recently ([`RECENTLY`], [`SHORT`]). Without much
//! data, no path has an estimate.

use std::collections::{BTreeMap, VecDeque};

use anabranch_engine::{IdleReason, PathInfo, PathState, PathStats, Standing};
use anabranch_wire::{PathId, Rate, Span, Time};

/// Rates are averaged over about this time.
const SMOOTHING: Span = Span::from_secs(1);
/// A receiver judges paths while the total is below this part of its recent maximum.
const SHORT: f64 = 0.95;
/// How far back "recently" goes.
const RECENTLY: Span = Span::from_secs(30);
/// Below this rate in both directions, in bits per second, a session gives no estimates.
const NEXT_TO_NOTHING: f64 = 100_000.0;

/// Smoothed rates of one path in bits per second, and the counters that they come from.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    counted: PathStats,
    sending: f64,
    receiving: f64,
}

/// True for an open path whose rate only the path itself limits.
fn is_judged(path: &PathInfo) -> bool {
    let is_free = matches!(path.standing, Standing::InUse | Standing::Idle(IdleReason::TooSlow { .. }));
    path.state == PathState::Active && is_free && !path.rtt.is_zero()
}

/// The estimates of one session.
#[derive(Debug, Default)]
pub struct Capacity {
    looked: Option<Time>,
    flows: BTreeMap<PathId, Flow>,
    /// Maxima of the total arrival rate in bits per second; each entry is higher than all later ones.
    highest: VecDeque<(Time, f64)>,
}

impl Capacity {
    /// Updates the estimates from the counters of all paths. Returns the estimated rate of each open path that has one.
    pub fn look(&mut self, paths: &[PathInfo], now: Time) -> BTreeMap<PathId, Rate> {
        let since = self.looked.replace(now).map_or(Span::ZERO, |before| now.since(before));
        self.flows = paths.iter().map(|path| (path.id, self.flow(path, since))).collect();
        let sum = |rate: fn(&Flow) -> f64| self.flows.values().map(rate).sum::<f64>();
        let (sending, receiving) = (sum(|flow| flow.sending), sum(|flow| flow.receiving));
        let is_short = self.is_short(receiving, now);
        if sending.max(receiving) < NEXT_TO_NOTHING || (receiving > sending && !is_short) {
            return BTreeMap::new();
        }
        let open = paths.iter().filter(|path| is_judged(path));
        let rate = |path: &PathInfo| match sending >= receiving {
            true => path.window as f64 * 8.0 / path.rtt.as_secs_f64(),
            false => self.flows.get(&path.id).map_or(0.0, |flow| flow.receiving),
        };
        open.map(|path| (path.id, Rate::from_bits(rate(path) as u64))).collect()
    }

    /// Records the total arrival rate; true if it is lower than recently.
    fn is_short(&mut self, receiving: f64, now: Time) -> bool {
        while self.highest.back().is_some_and(|(_, rate)| *rate <= receiving) {
            self.highest.pop_back();
        }
        self.highest.push_back((now, receiving));
        while self.highest.front().is_some_and(|(at, _)| now > *at + RECENTLY) {
            self.highest.pop_front();
        }
        self.highest.front().is_some_and(|(_, highest)| receiving < highest * SHORT)
    }

    /// The rates of a path, after `since` from the last look.
    fn flow(&self, path: &PathInfo, since: Span) -> Flow {
        let Some(before) = self.flows.get(&path.id) else {
            return Flow { counted: path.stats, ..Flow::default() };
        };
        let weight = since.as_secs_f64() / (since + SMOOTHING).as_secs_f64();
        let moved = |rate: f64, now: u64, then: u64| {
            let bits = now.saturating_sub(then) as f64 * 8.0;
            rate * (1.0 - weight) + bits / (since + SMOOTHING).as_secs_f64()
        };
        Flow {
            counted: path.stats,
            sending: moved(before.sending, path.stats.data_sent, before.counted.data_sent),
            receiving: moved(before.receiving, path.stats.data_received, before.counted.data_received),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use anabranch_engine::Route;
    use anabranch_wire::PathUse;

    /// A path that has sent and received these bytes.
    pub(crate) fn path(id: u32, (sent, received): (u64, u64)) -> PathInfo {
        let stats = PathStats { data_sent: sent, data_received: received, ..PathStats::default() };
        PathInfo {
            id: PathId(id),
            route: Route { socket: id, remote: "192.0.2.1:4433".parse().unwrap() },
            state: PathState::Active,
            usage: PathUse::Normal,
            standing: Standing::InUse,
            meter: None,
            rate_limit: None,
            rtt: Span::from_millis(20),
            min_rtt: Span::from_millis(20),
            rtt_variance: Span::ZERO,
            window: 25_000,
            in_flight: 0,
            delivery_rate: Rate::ZERO,
            mtu: 1452,
            loss_cause: Default::default(),
            group: 0,
            reliability: 1.0,
            stats,
        }
    }

    /// Looks ten times a second at paths that send and receive these bytes per second, in phases of these seconds.
    fn watch(phases: &[(&[(u64, u64)], u64)]) -> BTreeMap<PathId, Rate> {
        let (mut capacity, start) = (Capacity::default(), Time::ZERO);
        let mut found = BTreeMap::new();
        let (mut counts, mut ticks) = ([(0, 0); 4], 0_u64);
        for (rates, seconds) in phases {
            for _ in 0..seconds * 10 {
                let step = |(count, rate): (&mut (u64, u64), &(u64, u64))| {
                    *count = (count.0 + rate.0 / 10, count.1 + rate.1 / 10);
                };
                counts.iter_mut().zip(*rates).for_each(step);
                let paths = counts.iter().enumerate().take(rates.len());
                let paths: Vec<_> = paths.map(|(id, count)| path(id as u32, *count)).collect();
                found = capacity.look(&paths, start + Span::from_millis(100) * ticks);
                ticks += 1;
            }
        }
        found
    }

    #[test]
    fn a_sender_goes_by_windows() {
        let sender = watch(&[(&[(1_000_000, 10_000), (0, 0)], 5)]);
        assert_eq!(sender.into_values().collect::<Vec<_>>(), [Rate::from_mbit(10.0); 2]);
    }

    #[test]
    fn a_receiver_judges_by_what_arrives_once_that_is_less_than_recently() {
        let before: (&[(u64, u64)], u64) = (&[(10_000, 1_000_000), (10_000, 1_000_000)], 5);
        let fallen: &[(u64, u64)] = &[(10_000, 1_000_000), (10_000, 250_000)];
        let receiver = watch(&[before, (fallen, 6)]);
        let mbit: Vec<f64> = receiver.into_values().map(|rate| rate.as_bits() as f64 / 1e6).collect();
        assert!((mbit[0] - 8.0).abs() < 0.2 && (mbit[1] - 2.0).abs() < 0.1, "{mbit:?}");
        assert_eq!(
            watch(&[before, (fallen, 60)]),
            BTreeMap::new(),
            "the lower rate has become the usual one"
        );
    }

    #[test]
    fn a_receiver_says_nothing_of_paths_that_its_sender_does_not_need() {
        assert_eq!(watch(&[(&[(1_000, 1_000_000), (1_000, 30_000), (1_000, 0)], 20)]), BTreeMap::new());
    }

    #[test]
    fn nothing_is_known_while_next_to_nothing_flows() {
        assert_eq!(watch(&[(&[(5_000, 2_000), (0, 5_000)], 5)]), BTreeMap::new());
    }

    #[test]
    fn a_path_that_is_kept_back_is_not_judged() {
        let mut capacity = Capacity::default();
        let start = Time::ZERO;
        for tick in 0..20_u64 {
            let mut backup = path(1, (0, 0));
            backup.standing = Standing::Idle(IdleReason::Kept(PathUse::Backup));
            let paths = [path(0, (100_000 * tick, 0)), backup];
            let found = capacity.look(&paths, start + Span::from_millis(100) * tick);
            assert!(!found.contains_key(&PathId(1)), "{found:?}");
        }
    }
}
