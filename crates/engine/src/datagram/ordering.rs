//! Delivers datagrams in order, for the classes in which this end asked for order: one double buffer of PSMC (§III.C [T6])
//! per lane.
//!
//! A datagram that is not next in its lane waits for the earlier ones, until each path that could carry them has delivered a
//! later one ([`Frontier`]): they are lost then. The wait is limited to the longest possible delay
//! of any path ([`DoubleBuffer`]) and to the application's limit; the size rule limits the number of waiting datagrams. The
//! rule uses half the round-trip times as one-way delays, and the paths' recent receive rates over all traffic. Until
//! these are known, only [`MOST_HELD`] limits. If datagrams have come later than these delays tell, both limits give way
//! ([`Lateness`]). Datagrams in order leave at once, or one after another ([`Outlet`]).

use std::collections::{BTreeMap, BTreeSet};

use anabranch_wire::{DatagramFrame, Payload, Rate, Span, Time, order_lane};

use super::frontier::{Came, Frontier};
use super::lateness::Lateness;
use super::outlet::Outlet;
use crate::reorder::{BufferSize, DoubleBuffer, Lane};
use crate::stream::{MemoryBudget, Reservation};

/// Most datagrams that wait, over all lanes.
const MOST_HELD: usize = 1024;
/// The interval of rate measurements.
const LOOK: Span = Span::from_millis(100);
/// Memory of a waiting datagram in addition to its bytes.
const COST: u64 = 96;
/// Steps in which bytes are reserved from the budget.
const STEP: u64 = 16 << 10;

/// A path as seen by the receiving end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inflow {
    pub path: anabranch_wire::PathId,
    /// Half its round-trip time.
    pub one_way: Span,
    /// Bytes and packets received so far.
    pub received: (u64, u64),
}

/// A datagram that has a place in its lane.
#[derive(Debug)]
pub(crate) struct Arrived<P> {
    pub place: u64,
    /// The path that brought it, and how many of its packet numbers are missing so far; `None` if it was restored from
    /// parity.
    pub path: Option<(anabranch_wire::PathId, u64)>,
    pub datagram: DatagramFrame<P>,
}

/// Counts of datagrams that had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrderCounts {
    /// Datagrams that waited.
    pub waited: u64,
    /// Gaps given up because all paths had passed them or too many datagrams waited behind them, or because one waited for too
    /// long.
    pub overflowed: u64,
    pub timed_out: u64,
    /// Positions received twice.
    pub repeated: u64,
}

pub(crate) struct Ordering<P> {
    lanes: BTreeMap<(u8, u8), DoubleBuffer<DatagramFrame<P>>>,
    frontiers: BTreeMap<(u8, u8), Frontier>,
    /// For the lanes whose datagrams do not leave in bursts.
    outlets: BTreeMap<(u8, u8), Outlet<DatagramFrame<P>>>,
    /// Longest wait of a datagram.
    patience: Span,
    /// The classes of which any number may leave at once, as a mask.
    bursts: u16,
    lateness: Lateness,
    looked_at: Time,
    looked: Vec<Inflow>,
    /// The inputs of the size rule, after the first measurement, and the bytes of a packet.
    routes: Option<(Vec<Lane>, u32)>,
    /// Waiting datagrams and their bytes.
    held: usize,
    bytes: u64,
    reservation: Reservation,
    pub counts: OrderCounts,
}

impl<P: Payload> Ordering<P> {
    /// Datagrams wait for at most `patience`; `bursts` is the mask of the classes of which any number may leave at once.
    pub(crate) fn new((patience, bursts): (Span, u16), budget: MemoryBudget) -> Self {
        Self {
            lanes: BTreeMap::new(),
            frontiers: BTreeMap::new(),
            outlets: BTreeMap::new(),
            patience,
            bursts,
            lateness: Lateness::default(),
            looked_at: Time::ZERO,
            looked: Vec::new(),
            routes: None,
            held: 0,
            bytes: 0,
            reservation: Reservation::new(budget),
            counts: OrderCounts::default(),
        }
    }

    /// True when [`Self::look`] should be called before the next datagram.
    pub(crate) fn wants_look(&self, now: Time) -> bool {
        self.looked.is_empty() || now.since(self.looked_at) >= LOOK
    }

    /// Measures the receive rates of the paths.
    pub(crate) fn look(&mut self, now: Time, paths: Vec<Inflow>) {
        let span = now.since(self.looked_at);
        let grown = |inflow: &Inflow| {
            let before = self.looked.iter().find(|known| known.path == inflow.path);
            let (bytes, packets) = before.map_or((0, 0), |known| known.received);
            (inflow.received.0.saturating_sub(bytes), inflow.received.1.saturating_sub(packets))
        };
        let all: Vec<_> = paths.iter().map(|inflow| (inflow.one_way, grown(inflow))).collect();
        let packets: u64 = all.iter().map(|(_, (_, packets))| packets).sum();
        // The first look has no earlier one to measure from.
        if !self.looked.is_empty() && packets > 0 {
            let size = all.iter().map(|(_, (bytes, _))| bytes).sum::<u64>() / packets;
            let used = all.iter().filter(|(_, (_, packets))| *packets > 0);
            let lane = |(delay, (bytes, _)): &(Span, (u64, u64))| Lane {
                delay: *delay,
                rate: Rate::from_bytes_in(*bytes, span),
            };
            self.routes = Some((used.map(lane).collect(), size.max(1) as u32));
        }
        (self.looked_at, self.looked) = (now, paths);
        let lanes = std::mem::take(&mut self.lanes);
        self.lanes = lanes.into_iter().map(|(lane, buffer)| (lane, self.adjusted(buffer))).collect();
    }

    /// Adjusts a buffer to the measurements.
    fn adjusted(&self, mut buffer: DoubleBuffer<DatagramFrame<P>>) -> DoubleBuffer<DatagramFrame<P>> {
        let slowest = self.looked.iter().map(|inflow| inflow.one_way).max().unwrap_or(Span::ZERO);
        match &self.routes {
            Some((routes, packet)) => {
                buffer.adjust((BufferSize::Adaptive { packet: *packet }, routes), slowest, MOST_HELD);
            }
            None => buffer.adjust((BufferSize::Fixed(MOST_HELD), &[]), slowest * 2, MOST_HELD),
        }
        buffer.limit_patience(self.patience);
        buffer
    }

    /// Handles a datagram with its position; appends the datagrams that are now in order to `ready`.
    pub(crate) fn insert(
        &mut self,
        now: Time,
        Arrived { place, path, datagram }: Arrived<P>,
        ready: &mut Vec<DatagramFrame<P>>,
    ) {
        let lane = (datagram.class, order_lane(datagram.flow));
        if !self.lanes.contains_key(&lane) {
            let new = self.adjusted(DoubleBuffer::new(BufferSize::Fixed(MOST_HELD), &[], Span::ZERO));
            self.lanes.insert(lane, new);
            if self.bursts >> lane.0.min(15) & 1 == 0 {
                self.outlets.insert(lane, Outlet::new(now));
            }
        }
        let Some(buffer) = self.lanes.get_mut(&lane) else { return };
        if buffer.has(place) {
            self.counts.repeated += 1;
            return;
        }
        let late = buffer.lateness(now, place);
        if late <= self.patience {
            // No wait would have saved a later one.
            self.lateness.note(now, late);
        }
        buffer.tolerate(self.lateness.worth_waiting(now).min(self.patience));
        let (gaps, waiting, before) = (buffer.counts().0, buffer.waiting(), ready.len());
        let waits = place > buffer.next();
        let datagram = if waits && P::HAS_BYTES {
            // It may wait for long, so it must not keep its packet's memory alive.
            DatagramFrame { data: P::copied(datagram.data.bytes(), datagram.data.len()), ..datagram }
        } else {
            datagram
        };
        self.bytes += cost(&datagram);
        let frontier = self.frontiers.entry(lane).or_default();
        if let Some((path, missing)) = path {
            let known = self.looked.iter().map(|inflow| inflow.path);
            frontier.note(now, Came { path, missing, place }, (known, buffer.patience()));
        }
        buffer.insert_sparing(now, (place, datagram), ready, |missing| !frontier.suspects(missing));
        if path.is_some() {
            buffer.give_up_below(frontier.lost_below(now, buffer.patience()), ready);
        }
        self.counts.overflowed += buffer.counts().0 - gaps;
        self.counts.waited += u64::from(waits);
        self.held = self.held + buffer.waiting() - waiting;
        if let Some(outlet) = self.outlets.get_mut(&lane) {
            outlet.count_arrival();
        }
        self.let_out(now, lane, ready, before);
        self.make_room(lane, ready);
    }

    /// Delivers those of `ready` from number `before`, or keeps them in the lane's outlet.
    fn let_out(&mut self, now: Time, lane: (u8, u8), ready: &mut Vec<DatagramFrame<P>>, before: usize) {
        if let Some(outlet) = self.outlets.get_mut(&lane) {
            let waiting = outlet.len();
            outlet.pass(now, ready, before);
            self.held = self.held + outlet.len() - waiting;
        }
        self.bytes -= ready[before..].iter().map(cost).sum::<u64>();
    }

    /// Releases datagrams, those of this lane first, until the waiting ones are within bounds.
    fn make_room(&mut self, lane: (u8, u8), ready: &mut Vec<DatagramFrame<P>>) {
        if self.bytes > self.reservation.held() {
            let more = self.bytes - self.reservation.held();
            self.reservation.reserve_more(more.max(STEP));
        }
        while self.held > MOST_HELD || (self.held > 0 && self.bytes > self.reservation.held()) {
            let own = Some(lane).filter(|lane| self.held_in(*lane) > 0);
            let Some(chosen) =
                own.or_else(|| self.lanes.keys().copied().find(|lane| self.held_in(*lane) > 0))
            else {
                break;
            };
            let before = ready.len();
            match self.outlets.get_mut(&chosen).filter(|outlet| outlet.len() > 0) {
                Some(outlet) => {
                    self.held -= outlet.len();
                    outlet.flush(ready);
                }
                None => self.counts.overflowed += self.release(chosen, ready, DoubleBuffer::give_up),
            }
            self.bytes -= ready[before..].iter().map(cost).sum::<u64>();
        }
        self.forget_nothing_held();
    }

    /// Datagrams of a lane that wait.
    fn held_in(&self, lane: (u8, u8)) -> usize {
        let waiting = self.lanes.get(&lane).map_or(0, DoubleBuffer::waiting);
        waiting + self.outlets.get(&lane).map_or(0, Outlet::len)
    }

    fn forget_nothing_held(&mut self) {
        if self.held == 0 {
            self.bytes = 0;
            self.reservation.release();
        }
    }

    /// Releases datagrams of a lane by `how`; returns how many gaps it gave up.
    fn release(
        &mut self,
        lane: (u8, u8),
        ready: &mut Vec<DatagramFrame<P>>,
        how: impl FnOnce(&mut DoubleBuffer<DatagramFrame<P>>, &mut Vec<DatagramFrame<P>>),
    ) -> u64 {
        let Some(buffer) = self.lanes.get_mut(&lane) else { return 0 };
        let (gaps, waiting) = (buffer.counts().0, buffer.waiting());
        how(buffer, ready);
        self.held = self.held + buffer.waiting() - waiting;
        buffer.counts().0 - gaps
    }

    /// When to call [`Self::handle_timeout`].
    pub(crate) fn next_timeout(&self) -> Time {
        if self.held == 0 {
            return Time::NEVER;
        }
        let buffers = self.lanes.values().filter_map(DoubleBuffer::deadline);
        buffers.chain(self.outlets.values().filter_map(Outlet::deadline)).min().unwrap_or(Time::NEVER)
    }

    /// Releases datagrams that have waited for long enough.
    pub(crate) fn handle_timeout(&mut self, now: Time, ready: &mut Vec<DatagramFrame<P>>) {
        if self.next_timeout() > now {
            return;
        }
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let gaps = self.lanes.iter().filter(|(_, buffer)| is_due(buffer.deadline()));
        let outlets = self.outlets.iter().filter(|(_, outlet)| is_due(outlet.deadline()));
        let due: BTreeSet<_> = gaps.map(|(lane, _)| *lane).chain(outlets.map(|(lane, _)| *lane)).collect();
        for lane in due {
            let before = ready.len();
            self.counts.timed_out +=
                self.release(lane, ready, |buffer, ready| buffer.handle_timeout(now, ready));
            self.let_out(now, lane, ready, before);
        }
        self.forget_nothing_held();
    }
}

fn cost<P: Payload>(datagram: &DatagramFrame<P>) -> u64 {
    datagram.data.len() as u64 + COST
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Length, MAX_PLACE, PathId};

    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn ordering(budget: u64) -> (Ordering<Length>, MemoryBudget) {
        let budget = MemoryBudget::new(budget);
        (Ordering::new((Span::from_millis(200), u16::MAX), budget.clone()), budget)
    }

    fn inflow(path: u32, millis: u64, packets: u64) -> Inflow {
        let received = (packets * 1000, packets);
        Inflow { path: PathId(path), one_way: Span::from_millis(millis), received }
    }

    /// Inserts these positions of a flow, each with its position as length; returns the datagrams released.
    fn take(ordering: &mut Ordering<Length>, now: Time, flow: u32, places: &[u64]) -> Vec<usize> {
        let mut ready = Vec::new();
        for place in places {
            let datagram = DatagramFrame { class: 1, flow, data: Length(*place as usize) };
            ordering.insert(now, Arrived { place: *place, path: None, datagram }, &mut ready);
        }
        ready.iter().map(|datagram| datagram.data.0).collect()
    }

    #[test]
    fn a_flow_comes_in_order_and_does_not_wait_for_another() {
        let (mut ordering, budget) = ordering(1 << 20);
        assert_eq!(take(&mut ordering, at(0), 1, &[1, 2]), [0; 0]);
        assert_eq!(take(&mut ordering, at(0), 2, &[0, 1]), [0, 1]);
        assert!(budget.left() < 1 << 20);
        assert_eq!(take(&mut ordering, at(1), 1, &[0, 3]), [0, 1, 2, 3]);
        assert_eq!((ordering.counts.waited, budget.left()), (2, 1 << 20));
    }

    #[test]
    fn the_timer_releases_datagrams_that_wait_for_a_lost_one() {
        let (mut ordering, _) = ordering(1 << 20);
        ordering.look(at(0), vec![inflow(0, 10, 0), inflow(2, 15, 0)]);
        take(&mut ordering, at(0), 1, &[0, 2, 3]);
        assert_eq!(ordering.next_timeout(), at(60), "twice the longest round trip");
        let mut ready = Vec::new();
        ordering.handle_timeout(at(59), &mut ready);
        assert!(ready.is_empty());
        ordering.handle_timeout(at(60), &mut ready);
        assert_eq!((ready.len(), ordering.counts.timed_out, ordering.next_timeout()), (2, 1, Time::NEVER));
        // On very slow paths the application's limit applies.
        ordering.look(at(100), vec![inflow(0, 900, 0)]);
        take(&mut ordering, at(100), 1, &[5]);
        assert_eq!(ordering.next_timeout(), at(300));
    }

    #[test]
    fn a_datagram_that_every_path_has_passed_is_not_waited_for() {
        let (mut ordering, _) = ordering(1 << 20);
        ordering.look(at(0), vec![inflow(0, 10, 0), inflow(2, 15, 0)]);
        let mut ready = Vec::new();
        for (path, place) in [(0, 0), (2, 1), (0, 3), (0, 4)] {
            let datagram = DatagramFrame { class: 1, flow: 1, data: Length(place) };
            ordering.insert(
                at(1),
                Arrived { place: place as u64, path: Some((PathId(path), 0)), datagram },
                &mut ready,
            );
        }
        assert_eq!(ready.len(), 2, "path 2 may still bring the third");
        let datagram = DatagramFrame { class: 1, flow: 1, data: Length(5) };
        ordering.insert(at(2), Arrived { place: 5, path: Some((PathId(2), 0)), datagram }, &mut ready);
        assert_eq!((ready.len(), ordering.held, ordering.next_timeout()), (5, 0, Time::NEVER));
    }

    #[test]
    fn without_bursts_datagrams_leave_one_after_another_and_in_order() {
        let budget = MemoryBudget::new(1 << 20);
        let mut ordering = Ordering::new((Span::from_millis(200), 0), budget.clone());
        let places: Vec<u64> = (1..200).collect();
        let mut all = take(&mut ordering, at(0), 1, &places);
        all.extend(take(&mut ordering, at(0), 1, &[0, 200]));
        assert!(all.len() < 50 && ordering.next_timeout() == at(1), "{}", all.len());
        let mut ready = Vec::new();
        for millis in 1..10 {
            ordering.handle_timeout(at(millis), &mut ready);
            assert!(ready.len() <= 50 * millis as usize);
        }
        all.extend(ready.iter().map(|datagram| datagram.data.0));
        assert_eq!(all, (0..=200).collect::<Vec<_>>());
        assert_eq!((ordering.held, ordering.bytes, budget.left()), (0, 0, 1 << 20));
    }

    #[test]
    fn datagrams_that_may_not_leave_yet_stay_within_the_bounds() {
        for (budget, most) in [(1 << 30, MOST_HELD), (STEP, STEP as usize / COST as usize)] {
            let mut ordering = Ordering::new((Span::from_millis(200), 0), MemoryBudget::new(budget));
            let mut ready = Vec::new();
            for place in (0..5_000_u64).rev() {
                let datagram = DatagramFrame { class: 1, flow: 1, data: Length(1) };
                ordering.insert(at(0), Arrived { place, path: None, datagram }, &mut ready);
                assert!(ordering.held <= most && ordering.held == ordering.held_in((1, 1)));
            }
            (1..100).for_each(|millis| ordering.handle_timeout(at(millis * 10), &mut ready));
            assert_eq!((ready.len(), ordering.held, ordering.bytes), (5_000, 0, 0));
        }
    }

    #[test]
    fn more_waiting_than_the_faster_path_brings_in_the_delay_difference_means_a_loss() {
        let (mut ordering, _) = ordering(1 << 20);
        ordering.look(at(0), vec![inflow(0, 10, 0), inflow(2, 30, 0)]);
        // 50 packets of 1,000 bytes each in 100 ms: ten of the fast path in the 20 ms that the other is later.
        ordering.look(at(100), vec![inflow(0, 10, 50), inflow(2, 30, 50)]);
        let places: Vec<u64> = (1..=12).collect();
        assert_eq!(take(&mut ordering, at(100), 1, &places), [0; 0]);
        assert_eq!(take(&mut ordering, at(100), 1, &[13]).len(), 13);
        assert_eq!(ordering.counts.overflowed, 1);
    }

    #[test]
    fn datagrams_that_were_late_are_waited_for_as_long_unless_a_path_lost_some() {
        let mut ordering = ordering(1 << 20).0;
        ordering.look(at(0), vec![inflow(0, 1, 0), inflow(2, 1, 0)]);
        ordering.look(at(100), vec![inflow(0, 1, 50), inflow(2, 1, 50)]);
        let mut ready = Vec::new();
        let mut insert = |millis, (path, missing), places: &[u64]| {
            for place in places {
                let datagram = DatagramFrame { class: 1, flow: 1, data: Length(*place as usize) };
                let arrived = Arrived { place: *place, path: Some((PathId(path), missing)), datagram };
                ordering.insert(at(millis), arrived, &mut ready);
            }
            std::mem::take(&mut ready).iter().map(|datagram| datagram.data.0 as u64).collect::<Vec<_>>()
        };
        let all = |places: std::ops::Range<u64>| places.collect::<Vec<_>>();
        // Round trips promise a millisecond; path 2 is 40 ms behind.
        assert_eq!(insert(100, (2, 0), &[0]), [0]);
        assert_eq!(insert(100, (0, 0), &all(2..20)), all(2..20));
        assert_eq!(insert(140, (2, 0), &[1]), [1]);
        assert_eq!(insert(150, (0, 0), &all(21..40)), [0; 0]);
        assert_eq!(insert(190, (2, 0), &[20]), all(20..40));
        // One of path 0 is lost: the size rule holds.
        assert_eq!(insert(200, (0, 1), &all(41..60)), all(41..60));
    }

    #[test]
    fn hostile_positions_delay_nothing_beyond_the_bounds() {
        let (mut ordering, budget) = ordering(1 << 30);
        assert!(take(&mut ordering, at(0), 7, &[3, 3]).is_empty());
        assert_eq!((ordering.counts.repeated, ordering.held), (1, 1));
        for number in 0..20_000_u64 {
            let flow = (number % 200) as u32;
            take(&mut ordering, at(0), flow, &[1 + number * 2 % MAX_PLACE]);
            assert!(ordering.held <= MOST_HELD);
        }
        take(&mut ordering, at(0), 7, &[MAX_PLACE, MAX_PLACE, MAX_PLACE - 1]);
        let waiting: usize = ordering.lanes.values().map(DoubleBuffer::waiting).sum();
        assert_eq!(waiting, ordering.held);
        assert!(ordering.lanes.len() <= 64);
        let mut ready = Vec::new();
        ordering.handle_timeout(at(10_000), &mut ready);
        assert_eq!((ordering.held, budget.left(), ordering.next_timeout()), (0, 1 << 30, Time::NEVER));
        assert!(!take(&mut ordering, at(10_000), 7, &[0, MAX_PLACE]).is_empty());
    }

    #[test]
    fn positions_in_descending_order_delay_nothing_beyond_the_patience() {
        let (mut ordering, _) = ordering(1 << 30);
        ordering.look(at(0), vec![inflow(0, 900, 0)]);
        let mut ready = Vec::new();
        for step in 0..1_000 {
            let now = at(step * 150);
            ordering.handle_timeout(now, &mut ready);
            take(&mut ordering, now, 1, &[1_000 - step]);
            assert!(ordering.held <= 2, "{} wait after {step} steps", ordering.held);
            assert!(ordering.held == 0 || ordering.next_timeout() <= now + Span::from_millis(200));
        }
    }

    #[test]
    fn without_memory_nothing_waits() {
        let (mut ordering, _) = ordering(0);
        assert_eq!(take(&mut ordering, at(0), 1, &[2, 1, 4]), [2, 1, 4]);
        assert_eq!((ordering.held, ordering.bytes), (0, 0));
    }
}
