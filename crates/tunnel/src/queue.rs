//! A fair queue over flows, kept short by CoDel: FQ-CoDel (RFC 8290) for one tunnel.
//!
//! Each flow has its own queue. Flows take turns by deficit round robin with [`QUANTUM`] bytes per turn. A flow that
//! was empty comes before flows that always have packets, so a ping does not wait behind a download. Within a flow,
//! CoDel (RFC 8289) checks how long packets waited. After [`INTERVAL`] above [`TARGET`] it marks (ECN) or drops packets
//! ever more often until the wait is short again. When all queues together reach their limit, the longest one loses
//! packets at its head.
//!
//! Unlike a network card's queue, this one feeds several paths. [`FairQueue::next`] passes over a flow whose path has
//! no room, and that flow keeps its turn. Flows that wait for the same thing ([`Want`]) share a list, so a blocked path
//! costs one look, however many flows wait for it. Turns are numbered, so the lists together keep one order.
//!
//! A striped flow also waits while a long path has room, if its packets arrive earlier over a short path that is full
//! now. CoDel accepts this wait ([`FairQueue::set_detour`]). Otherwise the sender would slow down for it.
//!
//! After an outage of all paths, each flow keeps only its newest packet. A TCP sender takes the wait of an old one for
//! the round trip: after a minute it would wait for two minutes before it repeats the next loss. The newest packet of a
//! TCP flow is its latest retransmission or acknowledgement, and the answer restarts the flow at once.

use std::collections::{BTreeMap, VecDeque};

use anabranch_wire::{PathId, Span, Time};

use crate::codel::Codel;
pub use crate::codel::{INTERVAL, TARGET};

/// Bytes that a flow may send in one turn.
const QUANTUM: i64 = 1514;
/// A packet that is larger than any path carries waits for this long: the search for larger packets may still go on.
const TOO_LARGE: Span = Span::from_secs(3);
/// No path had room when the queue is asked again after this long. An outage also makes paths look narrow.
const OUTAGE: Span = Span::from_secs(2);
/// Lists kept before empty ones are dropped.
const USUAL_LISTS: usize = 16;
/// How often empty flows make room for new ones. A look at all flows for each packet of a flood would take too long.
const SWEEP: Span = Span::from_millis(20);
/// Memory of a packet in the queue in addition to its own bytes, more or less.
const OVERHEAD: usize = 128;
/// Most packets that a flow loses at once when the queue is full.
const MOST_LOST: usize = 16;

/// A packet in the queue.
pub trait Queueable {
    /// Its size in bytes.
    fn size(&self) -> usize;

    /// Marks it as having met congestion; false when it cannot carry the mark.
    fn mark(&mut self) -> bool;
}

/// The reason why a flow's oldest packet waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Want {
    /// Not looked at yet.
    #[default]
    Unknown,
    /// Room on this path.
    Path(PathId),
    /// Room on any path.
    AnyPath,
    /// A path with larger packets.
    WiderPath,
}

/// Bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Memory of all packets, in bytes.
    pub bytes: usize,
    /// Flows with packets.
    pub flows: usize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        Self { bytes: 8 << 20, flows: 4096 }
    }
}

/// Counts of dropped and marked packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Dropped by CoDel.
    pub dropped: u64,
    /// Marked by CoDel.
    pub marked: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
}

/// Packets by flow.
#[derive(Debug)]
pub struct FairQueue<T> {
    flows: BTreeMap<u32, FlowQueue<T>>,
    /// Each flow is in one list. The first list holds flows that were not looked at yet.
    lists: Vec<List>,
    /// The number of the latest turn.
    latest_turn: u64,
    /// Counts calls of [`Self::next`].
    call: u64,
    /// When it was last called.
    called: Time,
    /// When it was last called after an [`OUTAGE`].
    resumed: Time,
    /// When empty flows were removed.
    swept: Option<Time>,
    bytes: usize,
    packets: usize,
    limits: QueueLimits,
    counts: QueueCounts,
    /// How much longer a striped flow may wait.
    detour: Span,
}

/// Flows that wait for the same thing.
#[derive(Debug, Default)]
struct List {
    want: Want,
    /// Flows that were empty before, by turn.
    fresh: VecDeque<Turn>,
    /// All others, by turn.
    steady: VecDeque<Turn>,
    /// The latest call of [`FairQueue::next`] that found them still waiting.
    blocked_in: u64,
}

/// A flow's place in the order.
#[derive(Clone, Copy, Debug)]
struct Turn {
    number: u64,
    flow: u32,
}

/// A place in the lists.
#[derive(Clone, Copy, Debug)]
struct Place {
    list: usize,
    is_fresh: bool,
    at: usize,
}

/// The outcome of a look at one flow.
enum Look<T, R> {
    Found(T, R),
    Waits(Want),
    Empty,
}

#[derive(Debug)]
struct FlowQueue<T> {
    packets: VecDeque<(Time, T)>,
    bytes: usize,
    deficit: i64,
    codel: Codel,
    /// Whether it last waited for any of several paths.
    is_striped: bool,
}

/// The head of a flow's queue, as `choose` sees it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a, T> {
    /// The flow.
    pub flow: u32,
    /// Its oldest packet.
    pub packet: &'a T,
    /// Bytes of the flow in the queue.
    pub bytes: usize,
}

impl<T: Queueable> FairQueue<T> {
    /// An empty queue.
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            flows: BTreeMap::new(),
            lists: vec![List::default()],
            latest_turn: 0,
            call: 0,
            called: Time::ZERO,
            resumed: Time::ZERO,
            swept: None,
            bytes: 0,
            packets: 0,
            limits,
            counts: QueueCounts::default(),
            detour: Span::ZERO,
        }
    }

    /// True without packets.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Bytes of all packets.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Memory of all packets, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes + self.packets * OVERHEAD
    }

    /// Counts of dropped and marked packets.
    pub fn counts(&self) -> QueueCounts {
        self.counts
    }

    /// Sets how much later a packet arrives on the longest path than on the shortest: a flow that waits for any path may
    /// wait longer by this.
    pub fn set_detour(&mut self, detour: Span) {
        self.detour = detour;
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        self.counts.overflowed += self.flows.values().map(|queue| queue.packets.len() as u64).sum::<u64>();
        self.flows.clear();
        self.lists = vec![List::default()];
        (self.bytes, self.packets) = (0, 0);
    }

    /// Adds a packet of a flow.
    pub fn push(&mut self, now: Time, flow: u32, packet: T) {
        let size = packet.size();
        if !self.flows.contains_key(&flow) {
            let is_time = self.swept.is_none_or(|swept| now.since(swept) >= SWEEP);
            if self.flows.len() >= self.limits.flows && is_time {
                self.swept = Some(now);
                self.flows.retain(|_, queue| !queue.packets.is_empty());
                let flows = &self.flows;
                for list in &mut self.lists {
                    list.fresh.retain(|turn| flows.contains_key(&turn.flow));
                    list.steady.retain(|turn| flows.contains_key(&turn.flow));
                }
            }
            if self.flows.len() >= self.limits.flows {
                self.counts.overflowed += 1;
                return;
            }
            let number = self.number();
            self.lists[0].fresh.push_back(Turn { number, flow });
            self.flows.insert(flow, FlowQueue::new());
        }
        if let Some(queue) = self.flows.get_mut(&flow) {
            queue.packets.push_back((now, packet));
            queue.bytes += size;
            self.bytes += size;
            self.packets += 1;
        }
        while self.memory() > self.limits.bytes {
            self.drop_from_longest();
        }
    }

    /// Drops the oldest packets of each flow that is more than half as long as the longest one, until an eighth of the
    /// queue is free. One flow at a time, a flood of similar flows would cost a look at all flows for each packet.
    fn drop_from_longest(&mut self) {
        let longest = self.flows.values().map(FlowQueue::memory).max().unwrap_or(0);
        let enough = self.limits.bytes - self.limits.bytes / 8;
        for queue in self.flows.values_mut() {
            for _ in 0..MOST_LOST {
                if self.bytes + self.packets * OVERHEAD <= enough || queue.memory() * 2 <= longest {
                    break;
                }
                let Some((_, packet)) = queue.packets.pop_front() else { break };
                queue.bytes -= packet.size();
                self.bytes -= packet.size();
                self.packets -= 1;
                self.counts.overflowed += 1;
            }
        }
    }

    /// Drops the packets of each flow that waited for an [`OUTAGE`], but not its newest one.
    fn drop_stale(&mut self, now: Time) {
        for queue in self.flows.values_mut() {
            let last = queue.packets.len().saturating_sub(1);
            let stale = queue.packets.partition_point(|(came, _)| now.since(*came) >= OUTAGE).min(last);
            let bytes: usize = queue.packets.drain(..stale).map(|(_, packet)| packet.size()).sum();
            queue.bytes -= bytes;
            self.bytes -= bytes;
            self.packets -= stale;
            self.counts.dropped += stale as u64;
        }
    }

    /// The next packet for which `choose` finds a place, with its flow and the place. CoDel may drop packets before it.
    pub fn next<R>(
        &mut self,
        now: Time,
        mut choose: impl FnMut(&Head<'_, T>) -> Result<R, Want>,
    ) -> Option<(u32, T, R)> {
        self.call += 1;
        if now.since(self.called) >= OUTAGE {
            self.resumed = now;
            self.drop_stale(now);
        }
        self.called = now;
        if self.lists.len() > USUAL_LISTS {
            // Lists of paths that are gone.
            self.lists.retain(|list| list.want == Want::Unknown || !list.is_empty());
        }
        while let Some((place, flow)) = self.first() {
            if self.ends_turn(place, flow) {
                continue;
            }
            match self.look(now, flow, &mut choose) {
                Look::Found(packet, choice) => return Some((flow, packet, choice)),
                Look::Waits(want) => {
                    let list = self.list_for(want);
                    self.lists[list].blocked_in = self.call;
                    self.relocate(place, list);
                }
                Look::Empty => {}
            }
        }
        self.look_behind(now, choose)
    }

    /// Looks at one more flow of each list: it may no longer wait for the same thing as the first.
    fn look_behind<R>(
        &mut self,
        now: Time,
        mut choose: impl FnMut(&Head<'_, T>) -> Result<R, Want>,
    ) -> Option<(u32, T, R)> {
        for list in 0..self.lists.len() {
            let Some((place, flow)) = self.some_flow_of(list) else { continue };
            if self.flows.get(&flow).is_none_or(|queue| queue.packets.is_empty() || queue.deficit <= 0) {
                continue;
            }
            match self.look(now, flow, &mut choose) {
                Look::Found(packet, choice) => return Some((flow, packet, choice)),
                Look::Waits(want) => {
                    let wanted = self.list_for(want);
                    self.relocate(place, wanted);
                }
                Look::Empty => {}
            }
        }
        None
    }

    /// A flow of a list, another one in each call.
    fn some_flow_of(&self, list: usize) -> Option<(Place, u32)> {
        let fresh = self.lists[list].fresh.len();
        let all = fresh + self.lists[list].steady.len();
        let at = (self.call as usize).checked_rem(all)?;
        let is_fresh = at < fresh;
        let place = Place { list, is_fresh, at: if is_fresh { at } else { at - fresh } };
        let List { fresh, steady, .. } = &self.lists[list];
        let turn = if is_fresh { fresh.get(place.at) } else { steady.get(place.at) };
        turn.map(|turn| (place, turn.flow))
    }

    /// The flow whose turn it is, among those that are not known to wait.
    fn first(&self) -> Option<(Place, u32)> {
        let open = self.lists.iter().enumerate().filter(|(_, list)| list.blocked_in != self.call);
        let firsts = open.flat_map(|(index, list)| {
            let fresh = list.fresh.front().map(|turn| (false, turn, index));
            fresh.or_else(|| list.steady.front().map(|turn| (true, turn, index)))
        });
        let (is_steady, turn, list) = firsts.min_by_key(|(is_steady, turn, _)| (*is_steady, turn.number))?;
        Some((Place { list, is_fresh: !is_steady, at: 0 }, turn.flow))
    }

    /// Gives the flow a later turn if it has sent its share or has no packets. Returns whether it did.
    fn ends_turn(&mut self, place: Place, flow: u32) -> bool {
        let queue = self.flows.get_mut(&flow);
        if queue.as_ref().is_some_and(|queue| !queue.packets.is_empty() && queue.deficit > 0) {
            return false;
        }
        // An empty flow keeps a place for one round: otherwise it would come first again with its next packet.
        let stays = queue.is_some_and(|queue| {
            queue.deficit = (queue.deficit + QUANTUM).min(QUANTUM);
            !queue.packets.is_empty() || place.is_fresh
        });
        self.lists[place.list].lane(place.is_fresh).remove(place.at);
        if stays {
            let number = self.number();
            self.lists[place.list].steady.push_back(Turn { number, flow });
        } else {
            self.flows.remove(&flow);
        }
        true
    }

    fn number(&mut self) -> u64 {
        self.latest_turn += 1;
        self.latest_turn
    }

    /// The list of flows that wait for this, added if missing.
    fn list_for(&mut self, want: Want) -> usize {
        if let Some(list) = self.lists.iter().position(|list| list.want == want) {
            return list;
        }
        self.lists.push(List { want, ..List::default() });
        self.lists.len() - 1
    }

    /// Moves a flow to another list and keeps its place in the order.
    fn relocate(&mut self, from: Place, to: usize) {
        if from.list == to {
            return;
        }
        let Some(turn) = self.lists[from.list].lane(from.is_fresh).remove(from.at) else { return };
        let lane = self.lists[to].lane(from.is_fresh);
        let at = lane.partition_point(|other| other.number < turn.number);
        lane.insert(at, turn);
    }

    /// Takes a flow's oldest packet out if `choose` finds a place for it.
    fn look<R>(
        &mut self,
        now: Time,
        flow: u32,
        choose: &mut impl FnMut(&Head<'_, T>) -> Result<R, Want>,
    ) -> Look<T, R> {
        let Some(queue) = self.flows.get_mut(&flow) else { return Look::Empty };
        let before = queue.packets.len();
        self.bytes -= queue.control_delay(now, self.detour, &mut self.counts);
        self.packets -= before - queue.packets.len();
        let Some((came, packet)) = queue.packets.front() else { return Look::Empty };
        let head = Head { flow, packet, bytes: queue.bytes };
        let choice = choose(&head);
        if let Err(want) = &choice {
            queue.is_striped = *want == Want::AnyPath;
        }
        let choice = match choice {
            Ok(choice) => Some(choice),
            Err(Want::WiderPath) if now.since(self.resumed.max(*came)) >= TOO_LARGE => None,
            Err(want) => return Look::Waits(want),
        };
        let Some((_, packet)) = queue.packets.pop_front() else { return Look::Empty };
        queue.bytes -= packet.size();
        self.bytes -= packet.size();
        self.packets -= 1;
        let Some(choice) = choice else {
            self.counts.dropped += 1;
            return Look::Empty;
        };
        queue.deficit -= packet.size() as i64;
        Look::Found(packet, choice)
    }
}

impl List {
    fn lane(&mut self, is_fresh: bool) -> &mut VecDeque<Turn> {
        if is_fresh { &mut self.fresh } else { &mut self.steady }
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.steady.is_empty()
    }
}

impl<T: Queueable> FlowQueue<T> {
    /// Marks or drops packets at the head that waited for too long. Returns how many bytes were dropped.
    fn control_delay(&mut self, now: Time, detour: Span, counts: &mut QueueCounts) -> usize {
        let before = self.bytes;
        let target = if self.is_striped { TARGET + detour } else { TARGET };
        while let Some((came, _)) = self.packets.front() {
            // One packet alone cannot be made to wait less.
            let is_late = now.since(*came) >= target && self.packets.len() > 1;
            if !self.codel.wants_drop(now, is_late) {
                break;
            }
            let Some((_, packet)) = self.packets.front_mut() else { break };
            if packet.mark() {
                counts.marked += 1;
                break;
            }
            self.bytes -= packet.size();
            self.packets.pop_front();
            counts.dropped += 1;
        }
        before - self.bytes
    }
}

impl<T> FlowQueue<T> {
    fn new() -> Self {
        Self {
            packets: VecDeque::new(),
            bytes: 0,
            deficit: QUANTUM,
            codel: Codel::default(),
            is_striped: false,
        }
    }

    fn memory(&self) -> usize {
        self.bytes + self.packets.len() * OVERHEAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Sample {
        number: u32,
        size: usize,
        can_mark: bool,
        is_marked: bool,
    }

    impl Queueable for Sample {
        fn size(&self) -> usize {
            self.size
        }

        fn mark(&mut self) -> bool {
            self.is_marked = self.can_mark;
            self.can_mark
        }
    }

    fn packet(number: u32, size: usize) -> Sample {
        Sample { number, size, can_mark: false, is_marked: false }
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn drain(queue: &mut FairQueue<Sample>, now: Time) -> Vec<u32> {
        std::iter::from_fn(|| queue.next(now, |_| Ok(()))).map(|(_, packet, ())| packet.number).collect()
    }

    #[test]
    fn a_ping_passes_a_download() {
        let mut queue = FairQueue::new(QueueLimits::default());
        (0..10).for_each(|number| queue.push(at(0), 1, packet(number, 1500)));
        let first = queue.next(at(0), |_| Ok(())).unwrap();
        assert_eq!(first.0, 1);
        queue.push(at(0), 2, packet(100, 84));
        let order = drain(&mut queue, at(0));
        assert!(order.iter().position(|number| *number == 100).unwrap() <= 1, "{order:?}");
        assert!(queue.is_empty());
    }

    #[test]
    fn flows_share_by_bytes_whatever_their_packets_are() {
        let mut queue = FairQueue::new(QueueLimits::default());
        (0..1000).for_each(|number| queue.push(at(0), 1, packet(number, 1500)));
        (0..1000).for_each(|number| queue.push(at(0), 2, packet(number, 500)));
        let mut bytes = [0; 2];
        for _ in 0..400 {
            let (flow, packet, ()) = queue.next(at(0), |_| Ok(())).unwrap();
            bytes[flow as usize - 1] += packet.size;
        }
        let ratio = bytes[0] as f64 / bytes[1] as f64;
        assert!((0.95..1.05).contains(&ratio), "{bytes:?}");
    }

    #[test]
    fn a_flow_that_has_to_wait_for_its_path_holds_up_no_other() {
        let mut queue = FairQueue::new(QueueLimits::default());
        (0..3).for_each(|number| queue.push(at(0), 1, packet(number, 1000)));
        (10..13).for_each(|number| queue.push(at(0), 2, packet(number, 1000)));
        let mut order = Vec::new();
        while let Some((_, packet, ())) =
            queue.next(at(0), |head| if head.flow == 2 { Ok(()) } else { Err(Want::Path(PathId(0))) })
        {
            order.push(packet.number);
        }
        assert_eq!(order, [10, 11, 12]);
        assert_eq!(drain(&mut queue, at(0)), [0, 1, 2]);
    }

    #[test]
    fn a_cleared_queue_holds_nothing_and_works() {
        let mut queue = FairQueue::new(QueueLimits::default());
        (0..10).for_each(|flow| queue.push(at(0), flow, packet(flow, 1000)));
        assert!(queue.next(at(0), |_| Err::<(), _>(Want::AnyPath)).is_none());
        queue.clear();
        assert_eq!((queue.bytes(), queue.counts().overflowed), (0, 10));
        assert!(queue.next(at(0), |_| Ok(())).is_none());
        queue.push(at(1), 7, packet(70, 1000));
        assert_eq!(drain(&mut queue, at(1)), [70]);
    }

    #[test]
    fn a_queue_that_stays_long_loses_or_marks_packets_and_a_short_one_does_not() {
        for can_mark in [false, true] {
            let mut queue = FairQueue::new(QueueLimits::default());
            let mut number = 0;
            // Twelve packets arrive and ten leave in ten milliseconds.
            for round in 0..200 {
                for _ in 0..12 {
                    queue.push(at(round * 10), 1, Sample { can_mark, ..packet(number, 1000) });
                    number += 1;
                }
                for _ in 0..10 {
                    queue.next(at(round * 10 + 9), |_| Ok(()));
                }
            }
            let counts = queue.counts();
            assert_eq!(counts.marked > 10, can_mark, "{counts:?}");
            assert_eq!(counts.dropped > 10, !can_mark, "{counts:?}");
        }
        let mut queue = FairQueue::new(QueueLimits::default());
        for round in 0..1000 {
            queue.push(at(round * 10), 1, packet(0, 1000));
            queue.next(at(round * 10 + 9), |_| Ok(()));
        }
        assert_eq!(queue.counts(), QueueCounts::default());
    }

    #[test]
    fn a_striped_flow_may_wait_for_the_shorter_path() {
        for (want, loses) in [(Want::AnyPath, false), (Want::Path(PathId(0)), true)] {
            let mut queue = FairQueue::new(QueueLimits::default());
            queue.set_detour(Span::from_millis(50));
            // One packet arrives and one leaves in ten milliseconds, after a wait of thirty to forty.
            for round in 0..200 {
                queue.push(at(round * 10), 1, packet(round as u32, 1000));
                assert!(queue.next(at(round * 10), |_| Err::<(), _>(want)).is_none());
                if round > 3 {
                    queue.next(at(round * 10), |_| Ok(()));
                }
            }
            assert_eq!(queue.counts().dropped > 0, loses, "{want:?}: {:?}", queue.counts());
        }
    }

    #[test]
    fn a_flood_takes_room_from_itself_only() {
        let mut queue = FairQueue::new(QueueLimits { bytes: 100_000, flows: 10 });
        (0..5).for_each(|number| queue.push(at(0), 2, packet(number, 1000)));
        (0..1000).for_each(|number| queue.push(at(0), 1, packet(number, 1000)));
        assert!(queue.bytes() <= 100_000);
        (3..100).for_each(|flow| queue.push(at(0), flow, packet(0, 100)));
        assert!(queue.flows.len() <= 10);
        let order: Vec<u32> = std::iter::from_fn(|| queue.next(at(0), |_| Ok(())))
            .filter(|(flow, ..)| *flow == 2)
            .map(|(_, packet, ())| packet.number)
            .collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_flood_of_flows_that_are_alike_leaves_short_ones_alone() {
        let mut queue = FairQueue::new(QueueLimits { bytes: 100_000, flows: 1000 });
        queue.push(at(0), 5000, packet(5000, 100));
        for round in 0..10 {
            (0..500).for_each(|flow| queue.push(at(round), flow, packet(flow, 100)));
            assert!(queue.memory() <= 100_000);
        }
        assert!(queue.memory() >= 80_000, "{}", queue.memory());
        assert!(drain(&mut queue, at(10)).contains(&5000));
    }

    #[test]
    fn small_packets_take_no_more_memory_than_large_ones() {
        let mut queue = FairQueue::new(QueueLimits { bytes: 100_000, flows: 10 });
        (0..10_000).for_each(|number| queue.push(at(0), 1, packet(number, 28)));
        assert!(queue.memory() <= 100_000 && queue.bytes() < 20_000, "{} bytes", queue.bytes());
        while queue.next(at(0), |_| Ok(())).is_some() {}
        assert_eq!((queue.memory(), queue.is_empty()), (0, true));
    }

    #[test]
    fn a_thousand_flows_that_wait_for_one_path_block_no_other_and_cost_little() {
        let mut queue = FairQueue::new(QueueLimits::default());
        (0..1000).for_each(|flow| queue.push(at(0), flow, packet(flow, 1000)));
        queue.push(at(0), 5000, packet(5000, 1000));
        let mut looks = 0;
        let mut blocked = |head: &Head<'_, Sample>| {
            looks += 1;
            if head.flow == 5000 { Ok(()) } else { Err(Want::Path(PathId(head.flow % 2))) }
        };
        assert_eq!(queue.next(at(0), &mut blocked).unwrap().0, 5000);
        assert!(queue.next(at(0), &mut blocked).is_none());
        // Each was looked at once to learn what it waits for. From now on a look at each path is enough.
        for _ in 0..100 {
            assert!(queue.next(at(0), &mut blocked).is_none());
        }
        assert!(looks < 1000 + 101 * 5, "{looks} looks");
        // When one path has room, its flows leave in their order.
        let open = |head: &Head<'_, Sample>| {
            if head.flow % 2 == 1 { Ok(()) } else { Err(Want::Path(PathId(0))) }
        };
        let order: Vec<u32> = std::iter::from_fn(|| queue.next(at(0), open)).map(|(flow, ..)| flow).collect();
        assert_eq!(order, (0..1000).filter(|flow| flow % 2 == 1).collect::<Vec<_>>());
        assert_eq!(drain(&mut queue, at(0)).len(), 500);
    }

    #[test]
    fn a_packet_that_no_path_carries_is_dropped_in_the_end() {
        let mut queue = FairQueue::new(QueueLimits::default());
        queue.push(at(0), 1, packet(0, 1500));
        let narrow = |_: &Head<'_, Sample>| Err::<(), _>(Want::WiderPath);
        for millis in (0..3000).step_by(10) {
            assert!(queue.next(at(millis), narrow).is_none() && !queue.is_empty());
        }
        assert!(queue.next(at(3000), narrow).is_none() && queue.is_empty());
        assert_eq!(queue.counts().dropped, 1);
    }

    #[test]
    fn a_packet_outlives_an_outage_after_which_paths_look_narrow() {
        let mut queue = FairQueue::new(QueueLimits::default());
        let narrow = |_: &Head<'_, Sample>| Err::<(), _>(Want::WiderPath);
        assert!(queue.next(at(0), narrow).is_none());
        queue.push(at(50), 1, packet(0, 1500));
        // No path has room for a minute. Then the search for larger packets starts anew.
        for millis in (60_000..62_990).step_by(10) {
            assert!(queue.next(at(millis), narrow).is_none() && !queue.is_empty());
        }
        assert_eq!(drain(&mut queue, at(62_990)).len(), 1);
    }

    #[test]
    fn each_flow_keeps_only_its_newest_packet_through_an_outage() {
        let mut queue = FairQueue::new(QueueLimits::default());
        assert!(queue.next(at(0), |_| Ok(())).is_none());
        // A TCP flow repeats a packet ever more rarely, a UDP flow sends steadily, and a third one sent once.
        [0, 300, 900, 2_100, 4_500]
            .iter()
            .for_each(|millis| queue.push(at(*millis), 1, packet(*millis as u32, 1000)));
        (0..6_000).step_by(100).for_each(|millis| queue.push(at(millis), 2, packet(millis as u32, 500)));
        queue.push(at(50), 3, packet(50, 80));
        let mut order = drain(&mut queue, at(7_000));
        order.sort_unstable();
        let fresh = (5_100..6_000).step_by(100);
        assert_eq!(order, [50, 4_500].into_iter().chain(fresh).collect::<Vec<_>>());
        assert_eq!((queue.bytes(), queue.memory(), queue.is_empty()), (0, 0, true));
        assert_eq!(queue.counts().dropped, 4 + 51);
    }

    #[test]
    fn packets_outlive_a_short_pause_and_an_idle_time() {
        let mut queue = FairQueue::new(QueueLimits::default());
        for (asked, came, left) in [(0, 0, 1_900), (10_000, 20_000, 20_000)] {
            assert!(queue.next(at(asked), |_| Ok(())).is_none());
            (0..5).for_each(|number| queue.push(at(came), 1, packet(number, 1000)));
            assert_eq!(drain(&mut queue, at(left)), [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn a_flow_that_waits_for_nothing_any_more_is_found_behind_one_that_does() {
        let mut queue = FairQueue::new(QueueLimits::default());
        (0..100).for_each(|flow| queue.push(at(0), flow, packet(flow, 1000)));
        let wait = |_: &Head<'_, Sample>| Err::<(), _>(Want::Path(PathId(0)));
        assert!(queue.next(at(0), wait).is_none());
        let one = |head: &Head<'_, Sample>| if head.flow == 70 { Ok(()) } else { Err(Want::Path(PathId(0))) };
        let calls = (0..200).position(|_| queue.next(at(0), one).is_some());
        assert!(calls.is_some(), "the flow starves");
    }
}
