//! Flow routing: each inner flow stays on one path (SAFIRE [S1, S2]).
//!
//! A new flow takes the path with the highest `α/(N + 1)`: α is the path's [capacity](FlowRouter::capacity), N the
//! number of active flows that it carries. The paper estimates α as `min(C, k·MSS/(RTT·√ε))`; here congestion control
//! has measured what a path delivers, which includes both terms.
//!
//! A flow keeps its path, since its packets on two paths would overtake each other. It moves when its path is no longer
//! offered. It also moves when another path has become [`BETTER`] times as good, or carries no flow while this one
//! carries several: at a pause longer than the difference of the paths' delays ("flowlet"), or [`STAY`] after it came.
//! Without the latter, a flow without pauses that had to leave a path for a moment would never return.

use std::collections::BTreeMap;

use anabranch_engine::PathView;
use anabranch_wire::{PathId, Rate, Span, Time};

/// A flow counts as active for this long after a packet.
const ACTIVE: Span = Span::from_secs(2);
/// A flow is forgotten after this long without a packet.
const MEMORY: Span = Span::from_secs(60);
/// A flow without pauses may move after so long on a path.
const STAY: Span = Span::from_secs(3);
/// Another path must be this many times as good for a flow to move at a pause.
const BETTER: f64 = 1.5;
/// Most flows in the table.
const MOST_FLOWS: usize = 4096;
/// How many flows make room at once: each time all are looked at.
const FORGOTTEN: usize = MOST_FLOWS / 16;
/// How long a flow's rate is measured.
const MEASURE: Span = Span::from_millis(200);
/// A flow is bulk from so many bytes in [`MEASURE`] on, which is 5 Mbit/s,
const BULK: u64 = 128 << 10;
/// or, if it fills a queue, 200 kbit/s,
const LEAST_BULK: u64 = 5 << 10;
/// and from this share of its path's capacity on.
const FULL: f64 = 0.7;
/// A shorter queue may be noise.
const LEAST_QUEUE: Span = Span::from_millis(3);
/// How often inactive flows are looked for.
const SWEEP: Span = Span::from_millis(500);

/// The flow table.
#[derive(Debug, Default)]
pub struct FlowRouter {
    flows: BTreeMap<u32, Assigned>,
    loads: BTreeMap<PathId, Load>,
    /// The rates of paths when a flow last filled all of them.
    seen: BTreeMap<PathId, (Rate, Time)>,
    swept_at: Time,
}

/// The flows on a path that were active recently.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    flows: u32,
    bulk: u32,
}

#[derive(Clone, Copy, Debug)]
struct Assigned {
    path: PathId,
    last: Time,
    is_active: bool,
    /// When it came to the path.
    came: Time,
    /// Bytes sent since the measurement began.
    bytes: u64,
    since: Time,
    /// The last measurement.
    is_bulk: bool,
}

impl FlowRouter {
    /// The path for a packet of this flow. `paths` has the paths that may carry data now; it is never empty.
    pub fn path_of(&mut self, now: Time, flow: u32, paths: &[PathView]) -> PathId {
        self.sweep(now);
        let known = self.flows.get(&flow).copied();
        let path = match known.filter(|known| paths.iter().any(|path| path.id == known.path)) {
            Some(known) if now.since(known.last) <= spread(paths) && now.since(known.came) < STAY => {
                known.path
            }
            Some(known) => self.better(known.path, paths),
            None => self.best(None, paths),
        };
        self.note(now, flow, path);
        path
    }

    /// Counts a packet of this many bytes that leaves on the flow's path.
    pub fn count(&mut self, now: Time, (flow, bytes): (u32, u64), paths: &[PathView]) {
        let Some(assigned) = self.flows.get_mut(&flow) else { return };
        assigned.bytes += bytes;
        let (span, id) = (now.since(assigned.since), assigned.path);
        if span < MEASURE {
            return;
        }
        let rate = Rate::from_bytes_in(assigned.bytes, span);
        (assigned.bytes, assigned.since) = (0, now);
        let before = *assigned;
        let own = paths.iter().find(|path| path.id == id);
        let is_share = |of: Rate| rate.as_bits() as f64 >= of.as_bits() as f64 * FULL;
        // A window counts its queue as capacity. Where a queue stands, the path delivers what it can.
        let fills_queue = |path: &PathView| has_queue(path) && is_share(path.rate);
        let fills = own.is_none_or(|path| is_share(self.capacity(path)))
            || own.is_some_and(fills_queue) && rate >= Rate::from_bytes_in(LEAST_BULK, MEASURE);
        let is_bulk = fills || rate >= Rate::from_bytes_in(BULK, MEASURE);
        self.leave(before);
        self.enter(flow, Assigned { is_bulk, ..before });
    }

    /// Whether one path may be too little for a flow. Whether the flow fills its path is not visible here: a loss-based
    /// sender inside waits for the queue of the link, not for ours.
    pub fn is_bulk(&self, flow: u32) -> bool {
        self.flows.get(&flow).is_some_and(|assigned| assigned.is_bulk)
    }

    /// How many bulk flows are routed.
    pub(crate) fn bulk_flows(&self) -> usize {
        self.loads.values().map(|load| load.bulk as usize).sum()
    }

    /// Forgets a flow that fills all paths from now on, and what paths carried before.
    pub(crate) fn release(&mut self, flow: u32) {
        if let Some(assigned) = self.flows.remove(&flow) {
            self.leave(assigned);
        }
        self.seen.clear();
    }

    /// Notes what paths carry while a flow fills all of them.
    pub(crate) fn observe(&mut self, now: Time, paths: &[PathView]) {
        for path in paths {
            let seen = self.seen.entry(path.id).or_default();
            *seen = (path.rate.max(seen.0), now);
        }
    }

    /// How many flows were active on a path recently.
    pub fn active_on(&self, path: PathId) -> u32 {
        self.loads.get(&path).map_or(0, |load| load.flows)
    }

    /// The path of a known flow.
    pub fn assigned(&self, flow: u32) -> Option<PathId> {
        self.flows.get(&flow).map(|assigned| assigned.path)
    }

    /// `α/(N + 1)` of a path, for a flow that is already on `own`.
    fn worth(&self, path: &PathView, own: Option<PathId>) -> f64 {
        let others = self.active_on(path.id) - u32::from(own == Some(path.id)).min(self.active_on(path.id));
        self.capacity(path).as_bits() as f64 / f64::from(others + 1)
    }

    fn best(&self, own: Option<PathId>, paths: &[PathView]) -> PathId {
        let worth = |path: &&PathView| self.worth(path, own);
        // Among equals the shortest delay, then the lowest number.
        let best = paths.iter().max_by(|a, b| {
            worth(a).total_cmp(&worth(b)).then(b.min_rtt.cmp(&a.min_rtt)).then(b.id.cmp(&a.id))
        });
        best.map_or(PathId::FIRST, |path| path.id)
    }

    fn better(&self, own: PathId, paths: &[PathView]) -> PathId {
        // Nobody knows what an unused path carries: one of several flows finds out.
        let unused = paths.iter().find(|path| path.id != own && self.active_on(path.id) == 0);
        if let Some(unused) = unused.filter(|_| self.active_on(own) > 1) {
            return unused.id;
        }
        let best = self.best(Some(own), paths);
        let worth = |id: PathId| {
            paths.iter().find(|path| path.id == id).map_or(0.0, |path| self.worth(path, Some(own)))
        };
        if worth(best) > worth(own) * BETTER { best } else { own }
    }

    fn note(&mut self, now: Time, flow: u32, path: PathId) {
        if !self.flows.contains_key(&flow) && self.flows.len() >= MOST_FLOWS {
            self.forget_oldest();
        }
        let mut assigned =
            Assigned { path, last: now, is_active: true, came: now, bytes: 0, since: now, is_bulk: false };
        if let Some(before) = self.flows.get(&flow).copied() {
            self.leave(before);
            if before.path == path {
                assigned = Assigned { last: now, is_active: true, ..before };
            }
        }
        self.enter(flow, assigned);
    }

    fn forget_oldest(&mut self) {
        let mut flows: Vec<(Time, u32)> =
            self.flows.iter().map(|(flow, assigned)| (assigned.last, *flow)).collect();
        flows.select_nth_unstable(FORGOTTEN);
        for (_, flow) in &flows[..FORGOTTEN] {
            if let Some(oldest) = self.flows.remove(flow) {
                self.leave(oldest);
            }
        }
    }

    fn enter(&mut self, flow: u32, assigned: Assigned) {
        let load = self.loads.entry(assigned.path).or_default();
        load.flows += u32::from(assigned.is_active);
        load.bulk += u32::from(assigned.is_active && assigned.is_bulk);
        self.flows.insert(flow, assigned);
    }

    /// Takes a flow off its path's load.
    fn leave(&mut self, assigned: Assigned) {
        if let Some(load) = self.loads.get_mut(&assigned.path).filter(|_| assigned.is_active) {
            load.flows = load.flows.saturating_sub(1);
            load.bulk = load.bulk.saturating_sub(u32::from(assigned.is_bulk));
        }
    }

    /// α: the capacity of a path. With bulk flows it is the delivery rate. Otherwise the path delivers less than it could:
    /// the most that a striped flow got from it recently counts if that is more, or else a window per round trip. Under
    /// bulk flows a window would be too much: if their senders limit themselves, it exceeds what the path carries.
    pub fn capacity(&self, path: &PathView) -> Rate {
        match self.loads.get(&path.id) {
            Some(load) if load.bulk > 0 => path.rate,
            _ if self.seen.contains_key(&path.id) => path.rate.max(self.seen[&path.id].0),
            _ => path.rate.max(Rate::from_bytes_in(path.window, path.min_rtt)),
        }
    }

    fn sweep(&mut self, now: Time) {
        if now.since(self.swept_at) < SWEEP {
            return;
        }
        self.swept_at = now;
        let loads = &mut self.loads;
        self.flows.retain(|_, assigned| {
            if assigned.is_active && now.since(assigned.last) > ACTIVE {
                assigned.is_active = false;
                if let Some(load) = loads.get_mut(&assigned.path) {
                    load.flows = load.flows.saturating_sub(1);
                    load.bulk = load.bulk.saturating_sub(u32::from(assigned.is_bulk));
                }
            }
            now.since(assigned.last) <= MEMORY
        });
        loads.retain(|_, load| load.flows > 0);
        self.seen.retain(|_, (_, at)| now.since(*at) <= MEMORY);
    }
}

/// Whether a queue stands before the bottleneck of a path.
pub(crate) fn has_queue(path: &PathView) -> bool {
    path.rtt > path.min_rtt + path.min_rtt / 8 + LEAST_QUEUE
}

/// The largest difference of the paths' one-way delays.
pub(crate) fn spread(paths: &[PathView]) -> Span {
    let longest = paths.iter().map(|path| path.rtt.max(path.min_rtt)).max().unwrap_or(Span::ZERO);
    let shortest = paths.iter().map(|path| path.min_rtt).min().unwrap_or(Span::ZERO);
    longest.saturating_sub(shortest) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::tests::view;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn flows_spread_by_rate_over_active_flows() {
        let mut router = FlowRouter::default();
        let paths = [view(0, 10.0), view(1, 10.0), view(2, 20.0)];
        for flow in 0..8 {
            router.path_of(at(0), flow, &paths);
        }
        let counts: Vec<u32> = paths.iter().map(|path| router.active_on(path.id)).collect();
        assert_eq!(counts, [2, 2, 4]);
    }

    #[test]
    fn a_flow_keeps_its_path_until_it_pauses_and_another_is_far_better() {
        let mut router = FlowRouter::default();
        let even = [view(0, 10.0), view(1, 9.0)];
        assert_eq!(router.path_of(at(0), 7, &even), PathId(0));
        let mut changed = [view(0, 5.0), view(1, 9.0)];
        changed[1].min_rtt = Span::from_millis(120);
        changed[1].rtt = Span::from_millis(120);
        assert_eq!(router.path_of(at(10), 7, &changed), PathId(0), "no pause");
        assert_eq!(router.path_of(at(200), 7, &changed), PathId(1), "a pause longer than 50 ms");
        assert_eq!(router.path_of(at(400), 7, &even), PathId(1), "not far better");
        assert_eq!((router.active_on(PathId(0)), router.active_on(PathId(1))), (0, 1));
    }

    #[test]
    fn a_flow_without_pauses_returns_to_a_far_better_path() {
        let mut router = FlowRouter::default();
        let mut paths = [view(0, 50.0), view(1, 20.0)];
        (paths[1].rtt, paths[1].min_rtt) = (Span::from_millis(120), Span::from_millis(120));
        assert_eq!(router.path_of(at(0), 7, &paths[1..]), PathId(1), "the other is not offered");
        let moves: Vec<u32> = (1..400).map(|step| router.path_of(at(step * 10), 7, &paths).0).collect();
        assert_eq!(moves.iter().filter(|path| **path == 1).count(), 299);
        assert!(moves.is_sorted_by(|a, b| a >= b), "it moves once");
    }

    #[test]
    fn one_of_several_flows_tries_an_unused_path() {
        let mut router = FlowRouter::default();
        let mut paths = [view(0, 50.0), view(1, 20.0)];
        // Its window is still small, and its round trip long.
        (paths[1].window, paths[1].rtt, paths[1].min_rtt) =
            (14_000, Span::from_millis(120), Span::from_millis(120));
        paths[1].rate = Rate::from_mbit(0.1);
        for millis in (0..3100).step_by(10) {
            for flow in 0..8 {
                router.path_of(at(millis), flow, &paths);
            }
        }
        assert_eq!((router.active_on(PathId(0)), router.active_on(PathId(1))), (7, 1));
    }

    #[test]
    fn an_idle_path_is_worth_its_window() {
        let mut router = FlowRouter::default();
        let mut paths = [view(0, 50.0), view(1, 20.0)];
        // It has delivered next to nothing so far.
        paths[0].rate = Rate::from_mbit(0.1);
        assert_eq!(router.path_of(at(0), 7, &paths), PathId(0));
    }

    #[test]
    fn a_flow_is_bulk_from_seven_tenths_of_its_path_or_five_mbit_on() {
        // 10 Mbit/s are 12,500 bytes in 10 ms.
        for (mbit, bytes, is_bulk) in
            [(4.0, 3_300, false), (4.0, 3_600, true), (50.0, 6_000, false), (50.0, 6_600, true)]
        {
            let paths = [view(0, mbit)];
            let mut router = FlowRouter::default();
            for step in 0..=20 {
                router.path_of(at(step * 10), 7, &paths);
                router.count(at(step * 10), (7, bytes), &paths);
            }
            assert_eq!(router.is_bulk(7), is_bulk, "{bytes}");
        }
    }

    #[test]
    fn a_slow_flow_is_bulk_where_it_fills_a_queue() {
        for (rtt, bytes, is_bulk) in [(20, 1_000, false), (40, 1_000, true), (40, 200, false)] {
            let mut paths = [view(0, 1.0)];
            // The window includes the queue.
            (paths[0].window, paths[0].rtt) = (20_000, Span::from_millis(rtt));
            let mut router = FlowRouter::default();
            for step in 0..=20 {
                router.path_of(at(step * 10), 7, &paths);
                router.count(at(step * 10), (7, bytes), &paths);
            }
            assert_eq!(router.is_bulk(7), is_bulk, "{rtt} {bytes}");
        }
    }

    #[test]
    fn a_flow_leaves_a_path_that_is_not_offered_at_once() {
        let mut router = FlowRouter::default();
        let paths = [view(0, 10.0), view(1, 9.0)];
        assert_eq!(router.path_of(at(0), 7, &paths), PathId(0));
        assert_eq!(router.path_of(at(1), 7, &paths[1..]), PathId(1));
    }

    #[test]
    fn flows_without_packets_are_forgotten_and_a_flood_of_flows_is_bounded() {
        let mut router = FlowRouter::default();
        let paths = [view(0, Rate::from_mbit(10.0).as_bits() as f64 / 1e6)];
        for flow in 0..10_000 {
            router.path_of(at(u64::from(flow) / 100), flow, &paths);
        }
        assert!(router.flows.len() <= MOST_FLOWS && router.active_on(PathId(0)) as usize <= MOST_FLOWS);
        router.path_of(at(100_000), 1, &paths);
        assert_eq!((router.flows.len(), router.active_on(PathId(0))), (1, 1));
    }
}
