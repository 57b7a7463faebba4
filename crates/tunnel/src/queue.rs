//! A fair queue over flows, short by CoDel: FQ-CoDel (RFC 8290) for one tunnel.
//!
//! Each flow has its own queue. Flows take turns by deficit round robin with [`QUANTUM`] bytes per turn. A flow that
//! was empty comes before those that always have packets, so a ping does not wait behind a download. Within a flow,
//! CoDel (RFC 8289) checks how long packets waited. After [`INTERVAL`] above [`TARGET`] it marks (ECN) or drops packets
//! ever more often until the wait is short again. When all queues together reach their limit, the longest one loses
//! packets at its head.
//!
//! Unlike a network card's queue, this one is asked for packets for given paths: [`FairQueue::next`] skips a flow whose
//! packets must wait for another path, and the flow keeps its turn.

use std::collections::{BTreeMap, VecDeque};

use anabranch_wire::{Span, Time};

/// Bytes that a flow may send in one turn.
const QUANTUM: i64 = 1514;
/// Wait that CoDel accepts.
pub const TARGET: Span = Span::from_millis(5);
/// How long the wait must exceed [`TARGET`] before CoDel acts.
pub const INTERVAL: Span = Span::from_millis(100);
/// Most flows tried for one packet: if more must wait for their paths, the rest waits with them.
const MOST_SKIPPED: usize = 64;

/// A packet in the queue.
pub trait Queueable {
    /// Its size in bytes.
    fn size(&self) -> usize;

    /// Marks it as having met congestion; false when it cannot carry the mark.
    fn mark(&mut self) -> bool;
}

/// Bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Bytes of all packets.
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
    /// Flows that were empty take turns first, then those that were not.
    fresh: VecDeque<u32>,
    steady: VecDeque<u32>,
    bytes: usize,
    limits: QueueLimits,
    counts: QueueCounts,
}

#[derive(Debug)]
struct FlowQueue<T> {
    packets: VecDeque<(Time, T)>,
    bytes: usize,
    deficit: i64,
    codel: Codel,
    /// Since when it has had packets without a break.
    backlogged_since: Time,
}

/// CoDel's state (RFC 8289 §5).
#[derive(Clone, Copy, Debug, Default)]
struct Codel {
    first_above: Option<Time>,
    dropping_until: Option<Time>,
    count: u32,
}

/// A flow's head, as a chooser sees it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a, T> {
    /// The flow.
    pub flow: u32,
    /// Its oldest packet.
    pub packet: &'a T,
    /// Since when the flow has had packets without a break.
    pub backlogged_since: Time,
    /// Bytes of the flow in the queue.
    pub bytes: usize,
}

impl<T: Queueable> FairQueue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Self {
        Self {
            flows: BTreeMap::new(),
            fresh: VecDeque::new(),
            steady: VecDeque::new(),
            bytes: 0,
            limits,
            counts: QueueCounts::default(),
        }
    }

    /// True without packets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes of all packets.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts of dropped and marked packets.
    #[must_use]
    pub fn counts(&self) -> QueueCounts {
        self.counts
    }

    /// Adds a packet of a flow.
    pub fn push(&mut self, now: Time, flow: u32, packet: T) {
        let size = packet.size();
        if !self.flows.contains_key(&flow) {
            if self.flows.len() >= self.limits.flows {
                self.flows.retain(|_, queue| !queue.packets.is_empty());
                let flows = &self.flows;
                self.fresh.retain(|flow| flows.contains_key(flow));
                self.steady.retain(|flow| flows.contains_key(flow));
            }
            if self.flows.len() >= self.limits.flows {
                self.counts.overflowed += 1;
                return;
            }
            self.fresh.push_back(flow);
            self.flows.insert(flow, FlowQueue::new(now));
        }
        if let Some(queue) = self.flows.get_mut(&flow) {
            if queue.packets.is_empty() {
                queue.backlogged_since = now;
            }
            queue.packets.push_back((now, packet));
            queue.bytes += size;
            self.bytes += size;
        }
        while self.bytes > self.limits.bytes {
            self.drop_from_longest();
        }
    }

    fn drop_from_longest(&mut self) {
        let Some((flow, _)) = self.flows.iter().max_by_key(|(_, queue)| queue.bytes) else { return };
        let flow = *flow;
        // Several at once, so that a flood does not search the longest queue for every packet.
        for _ in 0..16 {
            let Some(queue) = self.flows.get_mut(&flow) else { return };
            let Some((_, packet)) = queue.packets.pop_front() else { return };
            queue.bytes -= packet.size();
            self.bytes -= packet.size();
            self.counts.overflowed += 1;
        }
    }

    /// The next packet for which `choose` finds a place, with its flow and the place. CoDel may drop packets before it.
    pub fn next<R>(
        &mut self,
        now: Time,
        mut choose: impl FnMut(&Head<'_, T>) -> Option<R>,
    ) -> Option<(u32, T, R)> {
        let mut skipped = 0;
        let (mut fresh, mut steady) = (0, 0);
        while skipped < MOST_SKIPPED {
            let (is_fresh, flow) = match (self.fresh.get(fresh), self.steady.get(steady)) {
                (Some(flow), _) => (true, *flow),
                (None, Some(flow)) => (false, *flow),
                (None, None) => return None,
            };
            let queue = self.flows.get_mut(&flow)?;
            if queue.packets.is_empty() || queue.deficit <= 0 {
                let is_over = queue.packets.is_empty() && !is_fresh;
                queue.deficit = (queue.deficit + QUANTUM).min(QUANTUM);
                let list = if is_fresh { &mut self.fresh } else { &mut self.steady };
                list.remove(if is_fresh { fresh } else { steady });
                // An empty flow keeps its place for one round: otherwise it would come first again with its next
                // packet.
                if is_over {
                    self.flows.remove(&flow);
                } else {
                    self.steady.push_back(flow);
                }
                continue;
            }
            self.control_delay(now, flow);
            let Some(queue) = self.flows.get_mut(&flow) else { continue };
            let Some((_, packet)) = queue.packets.front() else { continue };
            let head = Head { flow, packet, backlogged_since: queue.backlogged_since, bytes: queue.bytes };
            let Some(choice) = choose(&head) else {
                skipped += 1;
                *if is_fresh { &mut fresh } else { &mut steady } += 1;
                continue;
            };
            let (_, packet) = queue.packets.pop_front()?;
            queue.bytes -= packet.size();
            queue.deficit -= packet.size() as i64;
            self.bytes -= packet.size();
            return Some((flow, packet, choice));
        }
        None
    }

    /// Marks or drops packets at a flow's head that waited for too long.
    fn control_delay(&mut self, now: Time, flow: u32) {
        loop {
            let Some(queue) = self.flows.get_mut(&flow) else { return };
            let Some((came, _)) = queue.packets.front() else { return };
            // Dropping a single packet shortens no wait.
            let is_late = now.since(*came) >= TARGET && queue.packets.len() > 1;
            if !queue.codel.wants_drop(now, is_late) {
                return;
            }
            let Some((_, packet)) = queue.packets.front_mut() else { return };
            if packet.mark() {
                self.counts.marked += 1;
                return;
            }
            let Some((_, packet)) = queue.packets.pop_front() else { return };
            queue.bytes -= packet.size();
            self.bytes -= packet.size();
            self.counts.dropped += 1;
        }
    }
}

impl<T> FlowQueue<T> {
    fn new(now: Time) -> Self {
        Self {
            packets: VecDeque::new(),
            bytes: 0,
            deficit: QUANTUM,
            codel: Codel::default(),
            backlogged_since: now,
        }
    }
}

impl Codel {
    /// Whether the packet at the head is to be marked or dropped now.
    fn wants_drop(&mut self, now: Time, is_late: bool) -> bool {
        if !is_late {
            (self.first_above, self.dropping_until) = (None, None);
            return false;
        }
        let first_above = *self.first_above.get_or_insert(now + INTERVAL);
        if now < first_above {
            return false;
        }
        match self.dropping_until {
            // After a pause CoDel continues from its last state, a little gentler.
            None => self.count = if self.count > 2 { self.count - 2 } else { 1 },
            Some(next) if now >= next => self.count += 1,
            Some(_) => return false,
        }
        let pause = INTERVAL.as_secs_f64() / f64::from(self.count).sqrt();
        self.dropping_until = Some(now + Span::from_secs_f64(pause));
        true
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
        std::iter::from_fn(|| queue.next(now, |_| Some(()))).map(|(_, packet, ())| packet.number).collect()
    }

    #[test]
    fn a_ping_passes_a_download() {
        let mut queue = FairQueue::new(QueueLimits::default());
        (0..10).for_each(|number| queue.push(at(0), 1, packet(number, 1500)));
        let first = queue.next(at(0), |_| Some(())).unwrap();
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
            let (flow, packet, ()) = queue.next(at(0), |_| Some(())).unwrap();
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
        while let Some((_, packet, ())) = queue.next(at(0), |head| (head.flow == 2).then_some(())) {
            order.push(packet.number);
        }
        assert_eq!(order, [10, 11, 12]);
        assert_eq!(drain(&mut queue, at(0)), [0, 1, 2]);
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
                    queue.next(at(round * 10 + 9), |_| Some(()));
                }
            }
            let counts = queue.counts();
            assert_eq!(counts.marked > 10, can_mark, "{counts:?}");
            assert_eq!(counts.dropped > 10, !can_mark, "{counts:?}");
        }
        let mut queue = FairQueue::new(QueueLimits::default());
        for round in 0..1000 {
            queue.push(at(round * 10), 1, packet(0, 1000));
            queue.next(at(round * 10 + 9), |_| Some(()));
        }
        assert_eq!(queue.counts(), QueueCounts::default());
    }

    #[test]
    fn a_flood_takes_room_from_itself_only() {
        let mut queue = FairQueue::new(QueueLimits { bytes: 100_000, flows: 10 });
        (0..5).for_each(|number| queue.push(at(0), 2, packet(number, 1000)));
        (0..1000).for_each(|number| queue.push(at(0), 1, packet(number, 1000)));
        assert!(queue.bytes() <= 100_000);
        (3..100).for_each(|flow| queue.push(at(0), flow, packet(0, 100)));
        assert!(queue.flows.len() <= 10);
        let order: Vec<u32> = std::iter::from_fn(|| queue.next(at(0), |_| Some(())))
            .filter(|(flow, ..)| *flow == 2)
            .map(|(_, packet, ())| packet.number)
            .collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }
}
