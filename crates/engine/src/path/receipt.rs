//! What arrived on one path, and when to acknowledge it (MPMTP-AR [R5, R7]).
//!
//! This is the path level of the two-level receive buffer: packet numbers are put in order here, while
//! the data goes straight on to its stream. An acknowledgement is due after every n-th packet that asks
//! for one, at once when a gap opens or closes, and at the latest after the agreed delay.
//!
//! What is lost comes again under another number, so gaps stay. What lies below one is told until enough
//! acknowledgements have told it ([`Told`]): repeated for ever it would be most of each of them.

use std::ops::Range;

use anabranch_wire::{Ack, ArrivalTime, EcnCounts, Fsn, PathId, RangeSet, Ranges, Span, Time};

use crate::config::Config;
use crate::route::Ecn;

/// Ranges kept; older ones were told many times before.
const MAX_RANGES: usize = 32;
/// Ranges this far below the highest number are not kept: the sender has settled what they tell.
const KEPT: u64 = 8192;
/// A range that has ended is told for so many round trips, within limits, and this often, as acknowledgements are lost one by one
/// and many together.
const TELL_ROUNDS: u64 = 3;
const TELL_AT_LEAST: Span = Span::from_millis(50);
const TELL_AT_MOST: Span = Span::from_secs(1);
const TELL_OFTEN: u32 = 8;

/// From where on ranges are told. Moves up to what was highest at a moment once that moment is long ago.
#[derive(Debug, Default)]
struct Told {
    /// A range that ends here or below is told no more.
    below: u64,
    /// What `below` becomes, the highest number at `since`.
    next: u64,
    since: Time,
    /// Acknowledgements that left since then.
    count: u32,
}

impl Told {
    fn on_acknowledged(&mut self, now: Time, largest: u64, rtt: impl FnOnce() -> Span) {
        self.count += 1;
        let told_for = now.since(self.since);
        if self.count >= TELL_OFTEN
            && told_for >= TELL_AT_LEAST
            && told_for >= TELL_AT_MOST.min(rtt() * TELL_ROUNDS)
        {
            *self = Self { below: self.next, next: largest, since: now, count: 0 };
        }
    }

    /// A packet that was overtaken is news, whatever was told of those around it.
    fn on_packet(&mut self, now: Time, number: u64) {
        if number < self.next {
            *self = Self { below: self.below.min(number), next: number, since: now, count: 0 };
        }
    }
}

/// What every packet asks for is in front.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Receipt {
    received: RangeSet,
    /// All below was received or given up.
    floor: u64,
    largest_at: Time,
    pub packets: u64,
    pub bytes: u64,
    unacknowledged: u32,
    /// Something arrived since the last acknowledgement.
    news: bool,
    /// No range but the highest ends above this: they are far away in memory.
    rest_end: u64,
    /// The lowest range is not too old before this number comes: it is far away in memory.
    look_at: u64,
    /// [`Time::NEVER`] when nothing is.
    due: Time,
    told: Told,
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
            told: Told::default(),
            packets: 0,
            bytes: 0,
            ecn: EcnCounts::default(),
        }
    }
}

impl Receipt {
    /// Has fetched what lies far away.
    pub(crate) fn prefetch(&self) {
        self.received.prefetch();
    }

    /// True when this number was here before, or is too old to tell.
    pub(crate) fn is_known(&self, fsn: Fsn) -> bool {
        fsn.0 < self.floor || self.received.contains(fsn.0)
    }

    /// The highest number received.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.received.last().map(|range| range.end - 1)
    }

    pub(crate) fn on_packet(&mut self, now: Time, fsn: Fsn, (eliciting, ecn): (bool, Ecn), config: &Config) {
        let next = self.received.last().map_or(0, |last| last.end);
        let in_order = fsn.0 == next;
        if fsn.0 >= next {
            self.largest_at = now;
        }
        if !in_order {
            self.rest_end = if fsn.0 > next { next } else { self.rest_end.max(fsn.0 + 1) };
            self.look_at = self.look_at.min(fsn.0 + 1 + KEPT);
        }
        self.received.insert(fsn.0..fsn.0 + 1);
        self.told.on_packet(now, fsn.0);
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
        let at_once = !in_order || self.unacknowledged >= config.ack_every || ecn == Ecn::Ce;
        let due = if at_once { now } else { now + config.max_ack_delay };
        self.due = self.due.min(due);
    }

    /// Forgets the lowest range when it is too old, or there are too many.
    fn forget_oldest(&mut self, fsn: Fsn, ranges: usize) {
        let Some(first) = self.received.first() else { return };
        if ranges > MAX_RANGES || first.end + KEPT < fsn.0 {
            self.received.forget_first();
            self.floor = first.end;
        } else {
            self.look_at = first.end + KEPT;
        }
    }

    /// When an acknowledgement has to leave; [`Time::NEVER`] for none.
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// True when an acknowledgement would tell something new to somebody who asked.
    pub(crate) fn wants_ack(&self) -> bool {
        self.news && self.unacknowledged > 0
    }

    /// The acknowledgement for what has arrived so far, with the time of arrival if `timed`; [`Self::on_acknowledged`] once it leaves.
    /// `room` gives an empty list for ranges that do not lie in place.
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
        let ranges = self.news_of_ranges(room);
        Some(Ack { path, delay, arrived, ranges, ecn: marked.then_some(self.ecn) })
    }

    /// What an acknowledgement tells, highest first: the highest range always is told.
    fn news_of_ranges(&self, room: impl FnOnce() -> Vec<Range<u64>>) -> Ranges {
        if self.rest_end <= self.told.below {
            return self.received.last().into_iter().collect();
        }
        let told = || self.received.iter().rev().take_while(|range| range.end > self.told.below);
        let (mut ranges, count) = (Ranges::new(), told().count());
        if count > ranges.inline_size() {
            let mut list = room();
            list.reserve(count);
            ranges = Ranges::from_vec(list);
        }
        told().for_each(|range| ranges.push(range));
        ranges
    }

    /// The acknowledgement is in a packet that leaves. The path's round trip is asked for rarely.
    pub(crate) fn on_acknowledged(&mut self, now: Time, rtt: impl FnOnce() -> Span) {
        self.told.on_acknowledged(now, self.largest().unwrap_or(0), rtt);
        self.news = false;
        self.unacknowledged = 0;
        self.due = Time::NEVER;
    }

    /// Puts an acknowledgement that could not leave back in line.
    pub(crate) fn postpone(&mut self, until: Time) {
        self.due = until;
    }

    /// Packets received, and sent as the highest number tells.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.packets, self.largest().map_or(0, |largest| largest + 1))
    }

    /// Packets that were sent, as later numbers tell, and are not here.
    pub(crate) fn missing(&self) -> u64 {
        self.largest().map_or(0, |largest| (largest + 1).saturating_sub(self.packets))
    }

    /// How long ago something arrived; `None` before the first packet.
    pub(crate) fn silence(&self, now: Time) -> Option<Span> {
        self.largest().map(|_| now.since(self.largest_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(receipt: &mut Receipt, numbers: &[u64]) {
        for number in numbers {
            receipt.on_packet(Time::ZERO, Fsn(*number), (true, Ecn::NotEct), &Config::default());
        }
    }

    #[test]
    fn every_second_packet_in_order_makes_an_acknowledgement_due_at_once() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &[0]);
        assert_eq!(receipt.due(), Time::ZERO + Config::default().max_ack_delay);
        arrive(&mut receipt, &[1]);
        assert_eq!(receipt.due(), Time::ZERO);
    }

    #[test]
    fn a_gap_is_told_at_once() {
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
    fn what_later_numbers_tell_of_and_has_not_come_is_missing() {
        let mut receipt = Receipt::default();
        assert_eq!(receipt.missing(), 0);
        arrive(&mut receipt, &[0, 1, 4]);
        receipt.packets = 3;
        assert_eq!(receipt.missing(), 2);
    }

    #[test]
    fn an_old_gap_is_not_told_for_ever() {
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
        arrive(&mut receipt, &(14..=6 + KEPT).collect::<Vec<_>>());
        assert_eq!(receipt.received.range_count(), 3);
        arrive(&mut receipt, &[7 + KEPT]);
        assert_eq!(receipt.received.first(), Some(10..12));
    }

    /// Acknowledges so often within so long with such a round trip, and returns what the next acknowledgement tells.
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
    fn what_lies_below_a_gap_is_told_for_three_round_trips_and_in_eight_acknowledgements_and_then_no_more() {
        let received = || {
            let mut receipt = Receipt::default();
            arrive(&mut receipt, &[0, 1, 3, 4, 6, 7]);
            receipt
        };
        let all = vec![6..8, 3..5, 0..2];
        for (rtt, tell_for) in [(1, 50), (100, 300), (2_000, 1_000)] {
            let (rtt, tell_for) = (Span::from_millis(rtt), Span::from_millis(tell_for));
            assert_eq!(after(&mut received(), (7, tell_for * 9), rtt), all, "not often enough");
            assert_eq!(after(&mut received(), (99, tell_for * 9 / 10), rtt), all, "not for long enough");
            assert_eq!(after(&mut received(), (18, tell_for * 3), rtt), [6..8]);
        }
    }

    #[test]
    fn what_arrives_late_is_told_though_what_lies_around_it_is_not_told_any_more() {
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
    fn memory_is_bounded_and_what_was_forgotten_counts_as_known() {
        let mut receipt = Receipt::default();
        arrive(&mut receipt, &(0..1000).map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(receipt.received.range_count(), MAX_RANGES);
        assert!(receipt.is_known(Fsn(1)) && receipt.is_known(Fsn(2)) && !receipt.is_known(Fsn(1997)));
    }
}
