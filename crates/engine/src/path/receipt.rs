//! Packets that arrived on one path, and when to acknowledge them (MPMTP-AR [R5, R7]).
//!
//! This is the path level of the two-level receive buffer: packet numbers are put in order here, while the data goes
//! straight to its stream. An acknowledgement is due after every n-th packet that asks for one, at once when a gap
//! opens or closes, and at the latest after the agreed delay.
//!
//! Lost data is sent again under another number, so gaps in the numbers remain. The ranges below a gap are repeated
//! until enough acknowledgements have carried them ([`Reported`]). Without that limit they would fill most of every
//! acknowledgement.

use std::ops::Range;

use anabranch_wire::{Ack, ArrivalTime, EcnCounts, Fsn, PathId, RangeSet, Ranges, Span, Time};

use crate::config::Config;
use crate::manager::cost;
use crate::route::Ecn;

/// Most ranges remembered. Older ones were reported many times.
const MAX_RANGES: usize = 32;
/// Ranges this far below the highest number are dropped: the sender no longer needs them.
const REMEMBERED: u64 = 8192;
/// A range that has ended is reported for this many round trips, within limits, and in this many acknowledgements: they
/// may be lost singly or many together.
const REPORT_ROUNDS: u64 = 3;
const REPORT_AT_LEAST: Span = Span::from_millis(50);
const REPORT_AT_MOST: Span = Span::from_secs(1);
const REPORT_TIMES: u32 = 8;
/// Bytes of missing packets that count against a cap for each byte that arrived, and the first ones.
const MISSING_FOR_RECEIVED: u64 = 16;
const MISSING_AT_FIRST: u64 = 16 << 10;

/// The number from which ranges are still reported. It follows the highest number with a delay.
#[derive(Debug, Default)]
struct Reported {
    /// Ranges that end here or below are reported no more.
    below: u64,
    /// The next value of `below`: the highest number at `since`.
    next: u64,
    since: Time,
    /// Acknowledgements that left since then.
    count: u32,
}

impl Reported {
    fn on_acknowledged(&mut self, now: Time, largest: u64, rtt: impl FnOnce() -> Span) {
        self.count += 1;
        let reported_for = now.since(self.since);
        if self.count >= REPORT_TIMES
            && reported_for >= REPORT_AT_LEAST
            && reported_for >= REPORT_AT_MOST.min(rtt() * REPORT_ROUNDS)
        {
            *self = Self { below: self.next, next: largest, since: now, count: 0 };
        }
    }

    /// Reports a late packet, even if the ranges around it were reported often enough.
    fn on_packet(&mut self, now: Time, number: u64) {
        if number < self.next {
            *self = Self { below: self.below.min(number), next: number, since: now, count: 0 };
        }
    }
}

/// A packet that arrived on a path.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    pub fsn: Fsn,
    /// UDP payload in bytes.
    pub size: usize,
    /// It asks for an acknowledgement.
    pub eliciting: bool,
    pub ecn: Ecn,
}

/// The packets received on a path. Fields that every packet needs are in front.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Receipt {
    received: RangeSet,
    /// All numbers below were received or given up.
    floor: u64,
    largest_at: Time,
    packets: u64,
    bytes: u64,
    /// The most UDP payload of a packet received.
    most: u32,
    unacknowledged: u32,
    /// Something arrived since the last acknowledgement.
    news: bool,
    /// No range but the highest ends above this. It saves a look at the ranges, which are elsewhere in memory.
    rest_end: u64,
    /// The lowest range need not be looked at before this number arrives.
    look_at: u64,
    /// [`Time::NEVER`] when no acknowledgement is.
    due: Time,
    reported: Reported,
    ecn: EcnCounts,
}

impl Default for Receipt {
    fn default() -> Self {
        Self {
            received: RangeSet::default(),
            floor: 0,
            rest_end: 0,
            look_at: 0,
            largest_at: Time::ZERO,
            due: Time::NEVER,
            unacknowledged: 0,
            news: false,
            reported: Reported::default(),
            packets: 0,
            bytes: 0,
            most: 0,
            ecn: EcnCounts::default(),
        }
    }
}

impl Receipt {
    /// Prefetches the memory outside this struct.
    pub(crate) fn prefetch(&self) {
        self.received.prefetch();
    }

    /// True if this number was received before, or is too old to be known.
    pub(crate) fn is_known(&self, fsn: Fsn) -> bool {
        fsn.0 < self.floor || self.received.contains(fsn.0)
    }

    /// The highest number received.
    #[inline]
    pub(crate) fn largest(&self) -> Option<u64> {
        self.received.last().map(|range| range.end - 1)
    }

    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }

    /// Bytes of UDP payload received.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts a packet of `size` bytes.
    #[inline]
    pub(super) fn count(&mut self, size: usize) {
        self.packets += 1;
        self.bytes += size as u64;
        self.most = self.most.max(size as u32);
    }

    /// Bytes that the peer spent of a cap, as far as packet numbers show. Missing packets count like the largest that came,
    /// and at least `size` bytes.
    ///
    /// A peer may skip any count of numbers, so all missing packets count at most [`MISSING_FOR_RECEIVED`] times what came.
    /// A lower count does not open the cap, because an honest peer keeps to its limit in any case. It only delays a higher
    /// limit on a path that loses nearly everything.
    pub(super) fn spent(&self, size: u64) -> u64 {
        let received = cost(self.bytes, self.packets);
        let each = cost(size.max(u64::from(self.most)), 1);
        let most = MISSING_AT_FIRST + received * MISSING_FOR_RECEIVED;
        received + self.missing().saturating_mul(each).min(most)
    }

    /// Records the number of a packet that arrived.
    pub(super) fn on_packet(&mut self, now: Time, packet: Received, config: &Config) {
        let Received { fsn, eliciting, ecn, .. } = packet;
        let next = self.received.last().map_or(0, |last| last.end);
        let in_order = fsn.0 == next;
        if fsn.0 >= next {
            self.largest_at = now;
        }
        if !in_order {
            self.rest_end = if fsn.0 > next { next } else { self.rest_end.max(fsn.0 + 1) };
            self.look_at = self.look_at.min(fsn.0 + 1 + REMEMBERED);
        }
        self.received.insert(fsn.0..fsn.0 + 1);
        self.reported.on_packet(now, fsn.0);
        let ranges = self.received.range_count();
        if ranges > MAX_RANGES || (ranges > 1 && fsn.0 > self.look_at) {
            self.forget_oldest(fsn, ranges);
        }
        self.news = true;
        match ecn {
            Ecn::NotEct => {}
            Ecn::Ect0 => self.ecn.ect0 += 1,
            Ecn::Ect1 => self.ecn.ect1 += 1,
            Ecn::Ce => self.ecn.ce += 1,
        }
        if !eliciting {
            return;
        }
        self.unacknowledged += 1;
        let at_once = !in_order || self.unacknowledged >= config.acks.every || ecn == Ecn::Ce;
        let due = if at_once { now } else { now + config.acks.max_delay };
        self.due = self.due.min(due);
    }

    /// Drops the lowest range if it is too old, or if there are too many.
    fn forget_oldest(&mut self, fsn: Fsn, ranges: usize) {
        let Some(first) = self.received.first() else { return };
        if ranges > MAX_RANGES || first.end + REMEMBERED < fsn.0 {
            self.received.forget_first();
            self.floor = first.end;
        } else {
            self.look_at = first.end + REMEMBERED;
        }
    }

    /// When an acknowledgement must be sent; [`Time::NEVER`] for none.
    #[inline]
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// True if an acknowledgement would report new packets that asked for one.
    #[inline]
    pub(crate) fn wants_ack(&self) -> bool {
        self.news && self.unacknowledged > 0
    }

    /// The acknowledgement of everything received so far, with the arrival time if `timed`. Call
    /// [`Self::on_acknowledged`] when it is sent. `room` returns an empty list for ranges that do not fit inline.
    pub(crate) fn acknowledge(
        &self,
        now: Time,
        (path, timed): (PathId, bool),
        room: impl FnOnce() -> Vec<Range<u64>>,
    ) -> Option<Ack> {
        if self.received.is_empty() {
            return None;
        }
        let marked = self.ecn != EcnCounts::default();
        let (delay, arrived) = (now.since(self.largest_at), timed.then(|| ArrivalTime::of(self.largest_at)));
        let ranges = self.ranges_to_report(room);
        Some(Ack { path, delay, arrived, ranges, ecn: marked.then_some(self.ecn) })
    }

    /// The ranges of an acknowledgement, highest first. The highest is always among them.
    fn ranges_to_report(&self, room: impl FnOnce() -> Vec<Range<u64>>) -> Ranges {
        if self.rest_end <= self.reported.below {
            return self.received.last().into_iter().collect();
        }
        let wanted = || self.received.iter().rev().take_while(|range| range.end > self.reported.below);
        let (mut ranges, count) = (Ranges::new(), wanted().count());
        if count > ranges.inline_size() {
            let mut list = room();
            list.reserve(count);
            ranges = Ranges::from_vec(list);
        }
        wanted().for_each(|range| ranges.push(range));
        ranges
    }

    /// The acknowledgement is in a packet that leaves. The path's round trip is needed rarely.
    pub(super) fn on_acknowledged(&mut self, now: Time, rtt: impl FnOnce() -> Span) {
        self.reported.on_acknowledged(now, self.largest().unwrap_or(0), rtt);
        self.news = false;
        self.unacknowledged = 0;
        self.due = Time::NEVER;
    }

    /// Puts off an acknowledgement that could not leave.
    pub(super) fn postpone(&mut self, until: Time) {
        self.due = until;
    }

    /// Packets received, and packets sent as the highest number shows.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.packets, self.largest().map_or(0, |largest| largest + 1))
    }

    /// Packets that were sent, as later numbers show, and have not arrived.
    pub(crate) fn missing(&self) -> u64 {
        self.largest().map_or(0, |largest| (largest + 1).saturating_sub(self.packets))
    }

    /// Time since the highest number arrived; `None` before the first packet.
    pub(crate) fn silence(&self, now: Time) -> Option<Span> {
        self.largest().map(|_| now.since(self.largest_at))
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::PACKET_COST;

    use super::*;

    fn arrive(receipt: &mut Receipt, numbers: &[u64]) {
        for number in numbers {
            let packet = Received { fsn: Fsn(*number), size: 1000, eliciting: true, ecn: Ecn::NotEct };
            receipt.on_packet(Time::ZERO, packet, &Config::default());
        }
    }

    #[test]
    fn every_second_packet_in_order_makes_an_acknowledgement_due_at_once() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &[0]);
        assert_eq!(receipt.due(), Time::ZERO + Config::default().acks.max_delay);
        arrive(&mut receipt, &[1]);
        assert_eq!(receipt.due(), Time::ZERO);
    }

    #[test]
    fn a_gap_is_reported_at_once() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &[0, 1]);
        receipt.on_acknowledged(Time::ZERO, || Span::ZERO);
        assert_eq!(receipt.due(), Time::NEVER);
        arrive(&mut receipt, &[3]);
        assert_eq!(receipt.due(), Time::ZERO);
        let ack = receipt.acknowledge(Time::ZERO, (PathId(0), false), Vec::new).unwrap();
        assert_eq!(ack.ranges.as_slice(), &[3..4, 0..2]);
    }

    #[test]
    fn packets_below_the_highest_number_that_have_not_arrived_are_missing() {
        let mut receipt = Receipt::default();
        assert_eq!(receipt.missing(), 0);
        arrive(&mut receipt, &[0, 1, 4]);
        receipt.packets = 3;
        assert_eq!(receipt.missing(), 2);
    }

    #[test]
    fn skipped_numbers_spend_at_most_sixteen_times_what_arrived() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &[0, 3]);
        (0..2).for_each(|_| receipt.count(1_000));
        let packet = 1_000 + PACKET_COST;
        assert_eq!(receipt.spent(1_000), packet * 4);
        arrive(&mut receipt, &[1 << 60]);
        receipt.count(1_000);
        assert_eq!(receipt.spent(1_000), packet * 3 * 17 + (16 << 10));
    }

    #[test]
    fn an_old_gap_is_not_reported_for_ever() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &[0, 1]);
        arrive(&mut receipt, &(3..10_000).collect::<Vec<_>>());
        let ack = receipt.acknowledge(Time::ZERO, (PathId(0), false), Vec::new).unwrap();
        assert_eq!(ack.ranges.as_slice(), &[3..10_000]);
        assert!(receipt.is_known(Fsn(1)) && !receipt.is_known(Fsn(2)));
    }

    #[test]
    fn a_straggler_makes_the_oldest_gap_older() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &[10, 11, 13, 5]);
        arrive(&mut receipt, &(14..=6 + REMEMBERED).collect::<Vec<_>>());
        assert_eq!(receipt.received.range_count(), 3);
        arrive(&mut receipt, &[7 + REMEMBERED]);
        assert_eq!(receipt.received.first(), Some(10..12));
    }

    /// Sends `count` acknowledgements `within` a time at such a round trip; returns the ranges of the next one.
    fn after(receipt: &mut Receipt, (count, within): (u32, Span), rtt: Span) -> Vec<std::ops::Range<u64>> {
        for number in 1..=count {
            let now = Time::ZERO + within * u64::from(number) / u64::from(count);
            receipt.on_acknowledged(now, || rtt);
        }
        receipt
            .acknowledge(Time::ZERO + within, (PathId(0), false), Vec::new)
            .unwrap()
            .ranges
            .as_slice()
            .to_vec()
    }

    #[test]
    fn ranges_below_a_gap_are_reported_for_three_round_trips_and_in_eight_acknowledgements() {
        let received = || {
            let mut receipt = Receipt::default();
            arrive(&mut receipt, &[0, 1, 3, 4, 6, 7]);
            receipt
        };
        let all = vec![6..8, 3..5, 0..2];
        for (rtt, report_for) in [(1, 50), (100, 300), (2_000, 1_000)] {
            let (rtt, report_for) = (Span::from_millis(rtt), Span::from_millis(report_for));
            assert_eq!(after(&mut received(), (7, report_for * 9), rtt), all, "not often enough");
            assert_eq!(after(&mut received(), (99, report_for * 9 / 10), rtt), all, "not for long enough");
            assert_eq!(after(&mut received(), (18, report_for * 3), rtt), [6..8]);
        }
    }

    #[test]
    fn a_late_packet_is_reported_although_the_ranges_around_it_no_longer_are() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &[0, 1, 5, 9]);
        assert_eq!(after(&mut receipt, (18, Span::from_secs(3)), Span::ZERO), [9..10]);
        arrive(&mut receipt, &[3]);
        assert_eq!(
            receipt.acknowledge(Time::ZERO, (PathId(0), false), Vec::new).unwrap().ranges.as_slice(),
            [9..10, 5..6, 3..4]
        );
    }

    #[test]
    fn memory_is_bounded_and_forgotten_numbers_count_as_known() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &(0..1000).map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(receipt.received.range_count(), MAX_RANGES);
        assert!(receipt.is_known(Fsn(1)) && receipt.is_known(Fsn(2)) && !receipt.is_known(Fsn(1997)));
    }
}
