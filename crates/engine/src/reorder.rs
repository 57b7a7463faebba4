//! The double buffer: restores the order of packets from several routes, for a receiver that mistakes disorder for loss
//! (PSMC §III.C [T6]).
//!
//! It is for packets of a tunnel, which the far end numbers over all routes together. The next packet is delivered at
//! once, with all packets that waited for it; others wait. The gap before them counts as a loss in two cases: when more
//! than *n* packets wait, or when one has waited longer than any route can be late. Then the waiting packet is
//! delivered with all before it, and the receiver's own fast retransmit fills the gap.
//!
//! **The size n** (Algorithm 2): a packet in order increases it by one, a packet out of order decreases it by one, within
//! `max(B1, B2) < n < cwnd`. B1 is the number of packets from faster routes until the first packet of the slowest one.
//! B2 is their number between two packets of the narrowest route. `cwnd` is the window of the inner flow. That is not
//! visible, so it is estimated as the packets of the last round trip. If the lower bound exceeds the upper one, the
//! lower one counts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anabranch_wire::{Rate, Span, Time};

/// A route from the receiver's point of view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lane {
    /// One-way delay. Only differences matter, so clocks need not be synchronised.
    pub delay: Span,
    pub rate: Rate,
}

/// Gaps that were given up and are remembered.
const MISSED: usize = 32;

/// How many packets may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferSize {
    /// By Algorithm 2, for packets of this size on the wire.
    Adaptive {
        /// Bytes of a packet.
        packet: u32,
    },
    /// A fixed number.
    Fixed(usize),
}

/// The lower limit of the size in packets: `max(B1, B2)` with `B1 = Σ((OWD_max − OWD_i)·BW_i + 1)` and `B2 =
/// Σ(BW_i/BW_min + 1)`, with rates in packets of `packet` bytes per second.
pub fn least_size(lanes: &[Lane], packet: u32) -> usize {
    let rate = |lane: &Lane| lane.rate.as_bits() as f64 / 8.0 / f64::from(packet.max(1));
    let latest = lanes.iter().map(|lane| lane.delay).max().unwrap_or(Span::ZERO);
    let narrowest = lanes.iter().map(rate).fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE);
    let until_first: f64 =
        lanes.iter().map(|lane| latest.saturating_sub(lane.delay).as_secs_f64() * rate(lane) + 1.0).sum();
    let between: f64 = lanes.iter().map(|lane| rate(lane) / narrowest + 1.0).sum();
    // Rates in packets per second are fractions: round values that are whole except for rounding errors.
    (until_first.max(between) - 1e-6).ceil() as usize
}

/// Packets that wait for earlier ones. `T` represents a packet.
#[derive(Debug)]
pub struct DoubleBuffer<T> {
    /// The number of the next packet.
    next: u64,
    /// With their arrival times.
    waiting: BTreeMap<u64, (Time, T)>,
    /// The same packets by arrival, because their numbers may arrive in any order.
    arrivals: BTreeSet<(Time, u64)>,
    size: BufferSize,
    /// n.
    limit: usize,
    least: usize,
    /// Longest wait of a packet.
    patience: Span,
    /// Packets since the current round trip began, those of the one before, its start, and its length.
    round: (usize, usize, Time),
    round_trip: Span,
    /// How late packets have been.
    tolerance: Span,
    /// The gaps given up last: the number behind each, and since when packets had waited for it.
    missed: VecDeque<(u64, Time)>,
    given_up: u64,
    /// The most packets that waited at one time.
    most: usize,
}

impl<T> DoubleBuffer<T> {
    /// A buffer for these routes and a flow whose acknowledgements take `back` to return.
    pub fn new(size: BufferSize, lanes: &[Lane], back: Span) -> Self {
        let slowest = lanes.iter().map(|lane| lane.delay).max().unwrap_or(Span::ZERO);
        let least = match size {
            BufferSize::Adaptive { packet } => least_size(lanes, packet),
            BufferSize::Fixed(size) => size,
        };
        Self {
            next: 0,
            waiting: BTreeMap::new(),
            arrivals: BTreeSet::new(),
            size,
            limit: least,
            least,
            patience: (slowest + back) * 2,
            round: (0, 0, Time::ZERO),
            round_trip: slowest + back,
            tolerance: Span::ZERO,
            missed: VecDeque::new(),
            given_up: 0,
            most: 0,
        }
    }

    /// Changes the routes, for a flow whose acknowledgements take `back` to return; at most `most` packets may wait.
    pub(crate) fn adjust(&mut self, (size, lanes): (BufferSize, &[Lane]), back: Span, most: usize) {
        let fresh = Self::new(size, lanes, back);
        (self.size, self.least) = (size, fresh.least.min(most));
        (self.patience, self.round_trip) = (fresh.patience, fresh.round_trip);
        self.limit = match size {
            BufferSize::Fixed(size) => size.min(most),
            BufferSize::Adaptive { .. } => self.limit.min(self.window()).clamp(self.least, most),
        };
    }

    /// Limits the wait of packets.
    pub(crate) fn limit_patience(&mut self, most: Span) {
        self.patience = self.patience.min(most).max(self.tolerance);
    }

    /// Lets packets wait for at least this: so late have packets been.
    pub(crate) fn tolerate(&mut self, late: Span) {
        self.tolerance = late;
        self.patience = self.patience.max(late);
    }

    /// How long a later packet had been here before this one, as far as known.
    pub(crate) fn lateness(&self, now: Time, number: u64) -> Span {
        let came = if number < self.next {
            self.missed.iter().find(|(behind, _)| *behind > number).map(|(_, came)| *came)
        } else {
            self.arrivals.first().filter(|_| number == self.next).map(|(came, _)| *came)
        };
        came.map_or(Span::ZERO, |came| now.since(came))
    }

    /// The number of the next packet.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// True when a packet with this number waits.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.waiting.contains_key(&number)
    }

    /// Handles packet `number`; appends the packets that are now in order to `ready`. A packet below the next
    /// number is delivered at once; one that waits already is dropped.
    pub fn insert(&mut self, now: Time, packet: (u64, T), ready: &mut Vec<T>) {
        self.insert_sparing(now, packet, ready, |_| false);
    }

    /// As [`Self::insert`]. The size rule gives up no packet of a number that `spares` accepts, unless another has waited
    /// for longer than packets have been late.
    pub(crate) fn insert_sparing(
        &mut self,
        now: Time,
        (number, packet): (u64, T),
        ready: &mut Vec<T>,
        spares: impl Fn(u64) -> bool,
    ) {
        self.count(now);
        if number < self.next {
            return ready.push(packet);
        }
        if number == self.next {
            self.adapt(true);
            self.next += 1;
            ready.push(packet);
            return self.drain(ready);
        }
        self.adapt(false);
        if let Entry::Vacant(place) = self.waiting.entry(number) {
            place.insert((now, packet));
            self.arrivals.insert((now, number));
        }
        while self.waiting.len() > self.limit
            && (self.longest_wait(now) >= self.tolerance || !spares(self.next))
        {
            self.give_up(ready);
        }
        self.most = self.most.max(self.waiting.len());
    }

    /// Gives up all gaps before packets that have waited for too long.
    pub fn handle_timeout(&mut self, now: Time, ready: &mut Vec<T>) {
        while self.deadline().is_some_and(|at| at <= now) {
            self.give_up(ready);
        }
    }

    /// Gives up all gaps below `number`.
    pub(crate) fn give_up_below(&mut self, number: u64, ready: &mut Vec<T>) {
        while self.waiting.keys().next().is_some_and(|first| *first <= number) {
            self.give_up(ready);
        }
    }

    fn longest_wait(&self, now: Time) -> Span {
        self.arrivals.first().map_or(Span::ZERO, |(came, _)| now.since(*came))
    }

    /// The longest wait of a packet.
    pub(crate) fn patience(&self) -> Span {
        self.patience
    }

    /// When to call [`Self::handle_timeout`].
    pub fn deadline(&self) -> Option<Time> {
        let is_full = self.waiting.len() > self.limit;
        let wait = if is_full { self.tolerance.min(self.patience) } else { self.patience };
        self.arrivals.first().map(|(came, _)| *came + wait)
    }

    /// Packets that wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// n, the number of packets that may wait now.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Gaps given up so far, and the most packets that waited at one time.
    pub fn counts(&self) -> (u64, usize) {
        (self.given_up, self.most)
    }

    fn count(&mut self, now: Time) {
        if now.since(self.round.2) >= self.round_trip {
            self.round = (0, self.round.0, now);
        }
        self.round.0 += 1;
    }

    fn adapt(&mut self, in_order: bool) {
        if let BufferSize::Adaptive { .. } = self.size {
            let wanted = if in_order { self.limit + 1 } else { self.limit.saturating_sub(1) };
            self.limit = wanted.min(self.window()).max(self.least);
        }
    }

    /// The window of the flow inside, as far as visible here.
    fn window(&self) -> usize {
        self.round.0.max(self.round.1).saturating_sub(1)
    }

    /// Declares the gap before the first packet a loss.
    pub(crate) fn give_up(&mut self, ready: &mut Vec<T>) {
        if let Some(first) = self.waiting.keys().next() {
            self.next = *first;
            self.given_up += 1;
            if self.missed.len() == MISSED {
                self.missed.pop_front();
            }
            self.missed.extend(self.arrivals.first().map(|(came, _)| (self.next, *came)));
            self.drain(ready);
        }
    }

    fn drain(&mut self, ready: &mut Vec<T>) {
        while let Some((came, packet)) = self.waiting.remove(&self.next) {
            self.arrivals.remove(&(came, self.next));
            ready.push(packet);
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(millis: u64, mbit: f64) -> Lane {
        Lane { delay: Span::from_millis(millis), rate: Rate::from_mbit(mbit) }
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    fn fixed(size: usize) -> DoubleBuffer<u64> {
        DoubleBuffer::new(BufferSize::Fixed(size), &[lane(10, 5.0), lane(30, 5.0)], Span::from_millis(10))
    }

    /// The packets delivered when these arrive, one a millisecond.
    fn handed(buffer: &mut DoubleBuffer<u64>, numbers: &[u64]) -> Vec<u64> {
        let mut ready = Vec::new();
        for (millis, number) in numbers.iter().enumerate() {
            buffer.insert(at(millis as u64), (*number, *number), &mut ready);
        }
        ready
    }

    #[test]
    fn packets_are_delivered_in_order() {
        assert_eq!(handed(&mut fixed(8), &[1, 3, 0, 2, 4]), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn spared_packets_wait_beyond_the_size_for_as_long_as_packets_were_late() {
        let mut buffer = fixed(3);
        buffer.tolerate(Span::from_millis(100));
        let mut ready = Vec::new();
        for number in 1..=1000 {
            buffer.insert_sparing(at(0), (number, number), &mut ready, |_| true);
        }
        assert_eq!((ready.len(), buffer.waiting()), (0, 1000));
        buffer.insert_sparing(at(100), (1100, 1100), &mut ready, |_| true);
        assert_eq!((ready.len(), buffer.waiting()), (1000, 1));
    }

    #[test]
    fn a_full_buffer_gives_up_the_gap_and_a_late_packet_is_delivered_at_once() {
        let mut buffer = fixed(3);
        assert_eq!(handed(&mut buffer, &[1, 2, 3]), [0; 0]);
        assert_eq!(handed(&mut buffer, &[4]), [1, 2, 3, 4]);
        assert_eq!((handed(&mut buffer, &[0, 5]), buffer.counts()), (vec![0, 5], (1, 3)));
    }

    #[test]
    fn the_tail_of_a_flow_does_not_wait_forever() {
        let mut buffer = fixed(100);
        assert!(handed(&mut buffer, &[1, 2]).is_empty());
        let (due, mut ready) = (buffer.deadline().unwrap(), Vec::new());
        assert_eq!(due, at(80), "twice the longest round trip");
        buffer.handle_timeout(due - Span::from_nanos(1), &mut ready);
        assert!(ready.is_empty());
        buffer.handle_timeout(due, &mut ready);
        assert_eq!((ready, buffer.deadline()), (vec![1, 2], None));
    }

    #[test]
    fn nothing_waits_longer_than_the_patience_even_if_ever_lower_numbers_follow() {
        // One packet every 70 ms, so none waits longer than 80.
        let mut buffer = fixed(1_000);
        let mut ready = Vec::new();
        for step in 0..900 {
            buffer.handle_timeout(at(step * 70), &mut ready);
            buffer.insert(at(step * 70), (1_000 - step, step), &mut ready);
            assert!(buffer.waiting() <= 2, "{} wait in step {step}", buffer.waiting());
        }
        assert_eq!((ready.len(), buffer.arrivals.len()), (900 - buffer.waiting(), buffer.waiting()));
    }

    #[test]
    fn a_packet_that_waited_too_long_takes_along_those_before_it_and_leaves_the_rest() {
        let mut buffer = fixed(100);
        assert!(handed(&mut buffer, &[5, 3, 9, 9, 6]).is_empty());
        let mut ready = Vec::new();
        buffer.handle_timeout(at(80), &mut ready);
        assert_eq!((ready, buffer.counts().0), (vec![3, 5, 6], 2));
        assert_eq!(buffer.deadline(), Some(at(82)), "it came twice; the first time counts");
    }

    #[test]
    fn the_least_size_is_what_faster_routes_bring_before_the_slowest_one() {
        // 5 Mbit/s are 416.7 packets of 1,500 bytes a second: 8.3 in 20 ms.
        assert_eq!(least_size(&[lane(10, 5.0), lane(30, 5.0)], 1_500), 11);
        // Routes with equal delays and a tenth of the rate on one: ten packets of the fast one between two of the slow
        // one.
        assert_eq!(least_size(&[lane(10, 5.0), lane(10, 0.5)], 1_500), 13);
        assert_eq!(least_size(&[lane(10, 5.0)], 1_500), 2);
    }

    #[test]
    fn the_size_grows_in_order_and_shrinks_out_of_order_between_its_limits() {
        let lanes = [lane(10, 5.0), lane(10, 5.0)];
        let size = BufferSize::Adaptive { packet: 1_500 };
        let mut buffer = DoubleBuffer::new(size, &lanes, Span::from_millis(10));
        let least = least_size(&lanes, 1_500);
        assert_eq!(buffer.limit(), least);
        let mut ready = Vec::new();
        // 40 packets in a round trip of 20 ms: the window is 39 at most.
        for number in 0..200 {
            buffer.insert(Time::ZERO + Span::from_micros(number * 500), (number, number), &mut ready);
        }
        let grown = buffer.limit();
        assert!((30..40).contains(&grown), "{grown}");
        for number in (201..220).chain([200]) {
            buffer.insert(at(100), (number, number), &mut ready);
        }
        assert_eq!(buffer.limit(), grown - 19 + 1);
        assert_eq!(ready, (0..220).collect::<Vec<_>>());
    }
}
