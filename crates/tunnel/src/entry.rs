//! The entry queue: inner packets wait here, and each gets its lane and path when a path has room.
//!
//! The session asks for packets ([`DatagramSource`]). Flows take turns ([`FairQueue`]); the lane of the next flow
//! decides:
//!
//! - **routed**: the flow stays on one path ([`FlowRouter`]), and waits while that path has no room.
//! - **striped**: each packet takes the path on which it arrives first, and the far end restores the flow's order.
//! - **low-latency**: the path with the lowest round-trip time; a copy on every path if the class requires that.
//!
//! `auto`, the default, begins routed. It tries striping for each bulk flow ([`FlowRouter::is_bulk`]) and keeps what
//! carries more ([`Trials`]), as long as there are fewer such flows than paths: more of them fill the paths by routing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_engine::{
    DatagramSource, Decision, EarliestArrival, Item, PathView, Pulled, Scheduler, SessionView,
};
use anabranch_wire::{DatagramFrame, PathId, Payload, Span, Time};

use smallvec::SmallVec;

use crate::queue::{FairQueue, Head, QueueCounts, QueueLimits, Queueable, Want};
use crate::router::{FlowRouter, has_queue, spread};
use crate::trial::{Situation, Trials, Verdict};

/// Datagram classes of the tunnel: types of service for relays and for the far end.
pub mod class {
    /// Packets of flows that stay on one path.
    pub const ROUTED: u8 = 1;
    /// TCP packets of striped flows: the far end puts them in order.
    pub const STRIPED: u8 = 2;
    /// Other packets of striped flows: the far end puts them in order, and delivers few at once, because the sockets of
    /// programs hold few.
    pub const STRIPED_EVENLY: u8 = 3;
    /// Packets that want the lowest delay.
    pub const LOW_LATENCY: u8 = 5;
    /// Low-latency packets, copied on every path.
    pub const REDUNDANT: u8 = 6;
    /// Packets with parity for lost ones (PSMC [T8]).
    pub const PROTECTED: u8 = 4;
    /// The classes that the far end wants in order, as a mask.
    pub const ORDERED: u16 = 1 << STRIPED | 1 << STRIPED_EVENLY;
    /// The classes of which the far end delivers any number at once, as a mask.
    pub const BURST: u16 = 1 << STRIPED;
    /// The classes whose path keeps its queue short, as a mask.
    pub const URGENT: u16 = 1 << LOW_LATENCY;
}

/// Bytes of a datagram in a packet in addition to the inner packet: header, tag, frame, number and place.
pub const DATAGRAM_OVERHEAD: usize = anabranch_wire::PACKET_OVERHEAD + 10 + anabranch_wire::LARGEST_MARKS;

/// When to retry a packet that is larger than any path carries so far: the search for larger packets continues.
const RETRY: Span = Span::from_millis(10);

/// How the packets of a class travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lane {
    /// Routed until striping pays.
    #[default]
    Auto,
    /// Each flow on one path.
    Routed,
    /// Each packet takes the path on which it arrives first.
    Striped,
    /// The path with the lowest round-trip time.
    LowLatency,
    /// A copy on every path.
    Redundant,
    /// As striped, with parity for lost packets.
    Protected,
}

/// A packet in the queue, with the inputs for choosing its path.
#[derive(Clone, Debug)]
pub struct Parcel<P> {
    /// The packet.
    pub data: P,
    /// How it travels.
    pub lane: Lane,
}

/// A packet that can carry a congestion mark.
pub trait InnerPacket: Payload {
    /// Sets "congestion experienced"; false when the packet cannot carry it.
    fn mark_congestion(&mut self) -> bool;
    /// True for TCP.
    fn is_tcp(&self) -> bool;
}

impl<P: InnerPacket> Queueable for Parcel<P> {
    fn size(&self) -> usize {
        self.data.len()
    }

    fn mark(&mut self) -> bool {
        self.data.mark_congestion()
    }
}

/// The current lane and path of a flow, for status output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPlace {
    /// Striped, or routed on this path.
    pub path: Option<PathId>,
}

/// The entry queue of one session.
#[derive(Debug)]
pub struct Entry<P> {
    queue: FairQueue<Parcel<P>>,
    choice: Choice,
}

/// Chooses lane and path.
#[derive(Debug, Default)]
struct Choice {
    router: FlowRouter,
    trials: Trials,
    scheduler: EarliestArrival,
}

impl<P: InnerPacket> Entry<P> {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        Self { queue: FairQueue::new(limits), choice: Choice::default() }
    }

    pub fn push(&mut self, now: Time, flow: u32, parcel: Parcel<P>) {
        self.queue.push(now, flow, parcel);
    }

    /// Drops all packets and forgets all flows.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.choice = Choice::default();
    }

    /// True without packets.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Memory of the packets that wait, in bytes.
    pub fn memory(&self) -> usize {
        self.queue.memory()
    }

    /// Counts of dropped and marked packets.
    pub fn counts(&self) -> QueueCounts {
        self.queue.counts()
    }

    /// The path and lane of a flow; `None` without a recent packet of it.
    pub fn place_of(&self, flow: u32) -> Option<FlowPlace> {
        if self.choice.trials.is_striped(flow) {
            return Some(FlowPlace { path: None });
        }
        self.choice.router.assigned(flow).map(|path| FlowPlace { path: Some(path) })
    }

    /// The next datagram for these paths.
    pub fn next(&mut self, session: &SessionView, paths: &[PathView]) -> Pulled<P> {
        let choice = &mut self.choice;
        let mut wake_at = Time::NEVER;
        self.queue.set_detour(spread(paths));
        let found = self.queue.next(session.now, |head| match choice.place(session, paths, head) {
            Ok(place) => Ok(place),
            Err((want, until)) => {
                // A time in the past means "when the window opens": an acknowledgement wakes the session then.
                if until > session.now {
                    wake_at = wake_at.min(until);
                }
                Err(want)
            }
        });
        let Some((flow, parcel, (path, class))) = found else { return Pulled::Wait(wake_at) };
        Pulled::Send { path, datagram: DatagramFrame { class, flow, data: parcel.data } }
    }
}

impl Choice {
    /// Path and class for a flow's oldest packet, or what it waits for and when to ask again.
    fn place<P: InnerPacket>(
        &mut self,
        session: &SessionView,
        paths: &[PathView],
        head: &Head<'_, Parcel<P>>,
    ) -> Result<(PathId, u8), (Want, Time)> {
        let size = head.packet.data.len() as u64;
        // Leave out paths whose packets are too small for this one.
        let wide: SmallVec<[PathView; 8]>;
        let needed = size + DATAGRAM_OVERHEAD as u64;
        let paths = if paths.iter().all(|path| path.mtu >= needed) {
            paths
        } else {
            wide = paths.iter().filter(|path| path.mtu >= needed).copied().collect();
            &wide
        };
        if paths.is_empty() {
            return Err((Want::WiderPath, session.now + RETRY));
        }
        let lane = head.packet.lane;
        let verdict = match lane {
            Lane::Auto => self.automatic(session.now, paths, (head.flow, head.bytes as u64)),
            Lane::Striped | Lane::Protected => Verdict::Striped,
            Lane::Routed | Lane::LowLatency | Lane::Redundant => Verdict::Routed,
        };
        let striped = || if head.packet.data.is_tcp() { class::STRIPED } else { class::STRIPED_EVENLY };
        match lane {
            Lane::Routed | Lane::Auto if verdict != Verdict::Striped => {
                let path = self.router.path_of(session.now, head.flow, paths);
                let path = room_on(path, paths)?;
                self.router.count(session.now, (head.flow, size), paths);
                self.trials.count(session.now, head.flow, size);
                Ok((path, if verdict == Verdict::RoutedInOrder { striped() } else { class::ROUTED }))
            }
            Lane::LowLatency | Lane::Redundant => {
                let fastest = paths.iter().min_by_key(|path| (path.calm_rtt, path.id));
                let fastest = fastest.ok_or((Want::AnyPath, Time::NEVER))?;
                let class = if lane == Lane::Redundant { class::REDUNDANT } else { class::LOW_LATENCY };
                if fastest.room > 0 {
                    Ok((fastest.id, class))
                } else {
                    Err((Want::Path(fastest.id), fastest.ready_at))
                }
            }
            Lane::Auto | Lane::Routed | Lane::Striped | Lane::Protected => {
                let class = if lane == Lane::Protected { class::PROTECTED } else { striped() };
                let bytes = size.max(head.bytes as u64);
                let item = Item { bytes, resend: false, class, flow: head.flow };
                match self.scheduler.pick(session, paths, &item) {
                    Decision::Send { path, .. } => {
                        self.trials.count(session.now, head.flow, size);
                        Ok((path, class))
                    }
                    Decision::Duplicate(_) => Err((Want::AnyPath, Time::NEVER)),
                    Decision::Wait(until) => Err((Want::AnyPath, until)),
                }
            }
        }
    }

    /// Chooses how a flow of `auto` travels now; `waiting` are its bytes in the queue.
    fn automatic(&mut self, now: Time, paths: &[PathView], (flow, waiting): (u32, u64)) -> Verdict {
        self.trials.forget_paused(now);
        let is_striped = self.trials.is_striped(flow);
        let is_bulk = is_striped || self.router.is_bulk(flow);
        let all = self.router.bulk_flows() + self.trials.striped();
        let on = self.router.assigned(flow).filter(|_| !is_striped);
        let own = paths.iter().find(|path| Some(path.id) == on);
        let situation = Situation {
            may: is_bulk && all.max(1) < paths.len(),
            is_crowded: all > 1,
            slowest: paths.iter().map(|path| path.rtt.max(path.min_rtt)).max().unwrap_or(Span::ZERO),
            waiting,
            full: own.filter(|path| has_queue(path)).map(|path| path.rate.as_bits() as f64 / 8.0),
        };
        let verdict = self.trials.lane(now, flow, &situation);
        if verdict == Verdict::Striped {
            if !is_striped {
                self.router.release(flow);
            }
            self.router.observe(now, paths);
        }
        verdict
    }
}

/// The path, if it has room now; when to ask again otherwise.
fn room_on(path: PathId, paths: &[PathView]) -> Result<PathId, (Want, Time)> {
    let view = paths.iter().find(|view| view.id == path).ok_or((Want::Path(path), Time::NEVER))?;
    if view.budget > 0 { Ok(path) } else { Err((Want::Path(path), view.ready_at)) }
}

/// An entry queue that a session asks and a device fills.
#[derive(Debug)]
pub struct SharedEntry<P> {
    entry: Arc<Mutex<Entry<P>>>,
    /// Something waits: read without the lock.
    waiting: Arc<AtomicBool>,
    /// The session does not ask again without being woken for new packets.
    asleep: Arc<AtomicBool>,
}

impl<P> Clone for SharedEntry<P> {
    fn clone(&self) -> Self {
        Self { entry: self.entry.clone(), waiting: self.waiting.clone(), asleep: self.asleep.clone() }
    }
}

impl<P: InnerPacket> SharedEntry<P> {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        let entry = Arc::new(Mutex::new(Entry::new(limits)));
        Self { entry, waiting: Arc::default(), asleep: Arc::new(AtomicBool::new(true)) }
    }

    /// Works on the queue. Returns whether packets wait for which the session has not been woken.
    pub fn with(&self, work: impl FnOnce(&mut Entry<P>)) -> bool {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut entry);
        let waits = !entry.is_empty();
        self.waiting.store(waits, Ordering::Release);
        waits && self.asleep.swap(false, Ordering::AcqRel)
    }

    /// Reads the queue.
    pub fn look(&self, read: impl FnOnce(&Entry<P>)) {
        read(&self.entry.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl<P: InnerPacket + Send> DatagramSource<P> for SharedEntry<P> {
    fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    fn next(&mut self, session: &SessionView, paths: &[PathView]) -> Pulled<P> {
        let mut entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner);
        let pulled = entry.next(session, paths);
        self.waiting.store(!entry.is_empty(), Ordering::Release);
        let is_asleep = matches!(pulled, Pulled::Wait(_)) || entry.is_empty();
        self.asleep.store(is_asleep, Ordering::Release);
        pulled
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use anabranch_wire::{Length, Rate};

    use super::*;

    impl InnerPacket for Length {
        fn mark_congestion(&mut self) -> bool {
            false
        }
        fn is_tcp(&self) -> bool {
            self.0 != UDP
        }
    }

    pub(crate) fn view(id: u32, mbit: f64) -> PathView {
        PathView {
            id: PathId(id),
            budget: 100_000,
            room: 100_000,
            ready_at: Time::ZERO,
            window: (mbit * 2_500.0) as u64,
            in_flight: 0,
            rtt: Span::from_millis(20),
            min_rtt: Span::from_millis(20),
            calm_rtt: Span::from_millis(20),
            rtt_variance: Span::from_millis(1),
            rate: Rate::from_mbit(mbit),
            mtu: 1400,
            bytes_sent: 0,
            weight: 1.0,
        }
    }

    fn at(millis: u64) -> SessionView {
        let now = Time::ZERO + Span::from_millis(millis);
        SessionView { now, more_expected: false, window: u64::MAX }
    }

    /// The length of a packet that is not of TCP.
    const UDP: usize = 1100;

    fn fill(entry: &mut Entry<Length>, lane: Lane, flow: u32, count: usize) {
        (0..count).for_each(|_| entry.push(Time::ZERO, flow, Parcel { data: Length(1200), lane }));
    }

    /// Sends 20 Mbit/s of one flow for 220 ms; returns the class of the last packet. Two more wait then.
    fn greedy(entry: &mut Entry<Length>, paths: &[PathView]) -> u8 {
        let mut class = class::ROUTED;
        for millis in 0..220 {
            for _ in 0..2 + 2 * u32::from(millis == 219) {
                entry.push(at(millis).now, 1, Parcel { data: Length(1250), lane: Lane::Auto });
            }
            for _ in 0..2 {
                class = sent(&entry.next(&at(millis), paths)).unwrap().1;
            }
        }
        class
    }

    fn sent(pulled: &Pulled<Length>) -> Option<(u32, u8)> {
        match pulled {
            Pulled::Send { path, datagram } => Some((path.0, datagram.class)),
            Pulled::Wait(_) => None,
        }
    }

    #[test]
    fn a_routed_flow_waits_for_its_path_and_holds_up_no_other() {
        let mut entry = Entry::new(QueueLimits::default());
        fill(&mut entry, Lane::Routed, 1, 2);
        let mut paths = [view(0, 20.0), view(1, 15.0)];
        assert_eq!(sent(&entry.next(&at(0), &paths)), Some((0, class::ROUTED)));
        paths[0].budget = 0;
        paths[0].ready_at = at(3).now;
        assert!(matches!(entry.next(&at(1), &paths), Pulled::Wait(until) if until == at(3).now));
        fill(&mut entry, Lane::Routed, 2, 1);
        assert_eq!(sent(&entry.next(&at(1), &paths)), Some((1, class::ROUTED)));
    }

    #[test]
    fn only_striped_tcp_is_delivered_in_bursts() {
        let mut entry = Entry::new(QueueLimits::default());
        for (flow, length, class) in [(1, 1200, class::STRIPED), (2, UDP, class::STRIPED_EVENLY)] {
            entry.push(Time::ZERO, flow, Parcel { data: Length(length), lane: Lane::Striped });
            assert_eq!(sent(&entry.next(&at(0), &[view(0, 20.0)])), Some((0, class)));
            assert_eq!(
                (class::ORDERED >> class & 1, class::BURST >> class & 1),
                (1, u16::from(length != UDP))
            );
        }
    }

    #[test]
    fn low_latency_takes_the_fastest_path_only() {
        let mut entry = Entry::new(QueueLimits::default());
        fill(&mut entry, Lane::LowLatency, 1, 2);
        let mut paths = [view(0, 100.0), view(1, 1.0)];
        paths[1].calm_rtt = Span::from_millis(5);
        paths[1].budget = 0;
        assert_eq!(sent(&entry.next(&at(0), &paths)), Some((1, class::LOW_LATENCY)));
        paths[1].room = 0;
        assert_eq!(sent(&entry.next(&at(0), &paths)), None);
    }

    #[test]
    fn auto_stripes_a_flow_that_one_path_cannot_carry() {
        let mut entry = Entry::new(QueueLimits::default());
        let mut paths = [view(0, 20.0), view(1, 10.0)];
        assert_eq!(greedy(&mut entry, &paths), class::STRIPED);
        paths[0].budget = 0;
        assert_eq!(sent(&entry.next(&at(230), &paths)), Some((1, class::STRIPED)));
        assert_eq!(entry.place_of(1), Some(FlowPlace { path: None }));
    }

    #[test]
    fn a_steady_flow_that_no_path_carries_alone_loses_nothing_to_trials() {
        let mut entry = Entry::new(QueueLimits::default());
        let mut paths = [view(0, 50.0), view(1, 30.0), view(2, 20.0)];
        let mut sent: u32 = 0;
        for millis in 0..20_000 {
            for path in &mut paths {
                path.budget = (path.budget + path.rate.bytes_in(Span::from_millis(1))).min(12_500);
            }
            // 80 Mbit/s.
            for _ in 0..8 {
                entry.push(at(millis).now, 1, Parcel { data: Length(1250), lane: Lane::Auto });
            }
            while let Pulled::Send { path, .. } = entry.next(&at(millis), &paths) {
                let view = &mut paths[path.0 as usize];
                view.budget = view.budget.saturating_sub(1250);
                sent += 1;
            }
        }
        // It needs 200 ms to be seen as bulk. Since then, CoDel may act once.
        assert!(sent >= 160_000 - 20, "{sent} of 160,000 left");
    }

    #[test]
    fn a_striped_flow_that_is_over_keeps_no_other_from_being_striped() {
        let mut entry = Entry::new(QueueLimits::default());
        let paths = [view(0, 20.0), view(1, 10.0)];
        assert_eq!(greedy(&mut entry, &paths), class::STRIPED);
        while sent(&entry.next(&at(220), &paths)).is_some() {}
        let mut class = class::ROUTED;
        for millis in 5_000..5_300 {
            for _ in 0..2 {
                entry.push(at(millis).now, 2, Parcel { data: Length(1250), lane: Lane::Auto });
                class = sent(&entry.next(&at(millis), &paths)).unwrap().1;
            }
        }
        assert_eq!(class, class::STRIPED);
    }

    #[test]
    fn auto_routes_flows_that_fill_the_paths_on_their_own() {
        let mut entry = Entry::new(QueueLimits::default());
        let paths = [view(0, 20.0), view(1, 10.0)];
        let mut last = [class::STRIPED; 2];
        // For a moment, the far end keeps the order of the flow that was striped first.
        for millis in 0..1_500 {
            for flow in [1, 1, 2, 2] {
                entry.push(at(millis).now, flow, Parcel { data: Length(1250), lane: Lane::Auto });
            }
            for _ in 0..4 {
                let Pulled::Send { datagram, .. } = entry.next(&at(millis), &paths) else { continue };
                last[datagram.flow as usize - 1] = datagram.class;
            }
        }
        assert_eq!(last, [class::ROUTED; 2]);
    }

    #[test]
    fn the_device_is_asked_to_wake_the_session_once() {
        let mut shared = SharedEntry::new(QueueLimits::default());
        let push = |entry: &mut Entry<Length>| {
            entry.push(Time::ZERO, 1, Parcel { data: Length(100), lane: Lane::Auto });
        };
        assert!(shared.with(push));
        assert!(!shared.with(push));
        let paths = [view(0, 20.0)];
        for _ in 0..2 {
            shared.next(&at(0), &paths);
        }
        assert!(!shared.is_waiting());
        assert!(shared.with(push));
    }
}
