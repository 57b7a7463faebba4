//! Acknowledgements: which packets arrived, how long they took, how fast they are delivered.

use std::ops::Range;

use anabranch_wire::{Fsn, Ranges, Rate, Time};
use smallvec::SmallVec;

use super::{AckOutcome, Arrived, MAX_REORDER_PACKETS, Sample, Scoreboard, Slot, State};
use crate::event::ProtocolError;

/// The newest packet that an acknowledgement is the first to report: its number, and the state when it was sent.
type Newest = (u64, Sample);

impl Scoreboard {
    /// The highest acknowledged number.
    pub(crate) fn highest_acked(&self) -> Option<Fsn> {
        self.largest_acked.map(Fsn)
    }

    /// Bytes that have arrived so far.
    pub(crate) fn delivered(&self) -> u64 {
        self.rate.delivered
    }

    /// Handles the ranges of an acknowledgement; calls `tell` for each newly acknowledged packet.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        ranges: &Ranges,
        mut tell: impl FnMut(&Arrived<'_>),
    ) -> Result<AckOutcome, ProtocolError> {
        let mut outcome = AckOutcome { in_flight: self.pipe, ..AckOutcome::default() };
        let Some(largest) = ranges.first().map(|range| range.end - 1) else { return Ok(outcome) };
        if largest >= self.next || ranges.iter().any(|range| range.contains(&self.skips.last)) {
            return Err(ProtocolError::AckOfUnsent);
        }
        let mut newest: Option<Newest> = None;
        let base = self.base();
        // Most ranges repeat those of earlier acknowledgements.
        let told = ranges.iter().take_while(|range| range.end > base);
        let told = told.map(|range| range.start.max(base)..range.end);
        let news: Ranges = self.acked.not_held(told).collect();
        for range in news.into_iter().rev() {
            let mut from = range.start;
            while let Some(gap) = self.acked.first_gap_in(from..range.end) {
                from = gap.end;
                self.take_late(&gap, (&mut outcome, &mut newest), &mut tell);
                self.take_acked(&gap, (&mut outcome, &mut newest), &mut tell);
            }
            if from > range.start {
                self.acked.insert(range);
            }
        }
        if self.largest_acked.is_none_or(|known| largest > known) {
            let reported = newest.as_ref().map(|(number, _)| *number);
            if self.strays.contains(&largest) && reported != Some(largest) {
                // It took another route, so it overtook nothing, and the reported delay is its own.
                self.largest_acked = self.largest_acked.max(reported);
            } else {
                self.largest_acked = Some(largest);
                outcome.rtt = newest.as_ref().map(|(_, packet)| now.since(packet.sent_at));
            }
        }
        if let Some((_, packet)) = newest {
            self.measure(now, &packet, &mut outcome);
        }
        self.forget_front();
        Ok(outcome)
    }

    /// Removes past packets that count as lost but arrived.
    fn take_late(
        &mut self,
        gap: &Range<u64>,
        (outcome, newest): (&mut AckOutcome, &mut Option<Newest>),
        tell: &mut impl FnMut(&Arrived<'_>),
    ) {
        if self.past.span.end <= gap.start {
            return;
        }
        let index = self.past.slots.partition_point(|slot| slot.number(self.next) < gap.start);
        while self.past.slots.get(index).is_some_and(|slot| slot.number(self.next) < gap.end)
            && let Some(slot) = self.past.slots.remove(index)
        {
            let number = slot.number(self.next);
            self.note_past();
            self.on_late(number);
            self.rate.delivered += u64::from(slot.size);
            outcome.packets += 1;
            outcome.spurious += u64::from(!slot.contents.is_mtu_probe());
            take_newest(newest, (number, &slot), outcome);
            tell(&slot.arrived());
        }
    }

    /// Removes packets that were not acknowledged before.
    fn take_acked(
        &mut self,
        gap: &Range<u64>,
        (outcome, newest): (&mut AckOutcome, &mut Option<Newest>),
        tell: &mut impl FnMut(&Arrived<'_>),
    ) {
        let mut late: SmallVec<[u64; 4]> = SmallVec::new();
        let mut index = self.index_of(gap.start);
        while let Some(slot) = self.slots.get_mut(index) {
            let number = slot.number(self.next);
            if number >= gap.end {
                break;
            }
            index += 1;
            match std::mem::replace(&mut slot.state, State::Acked) {
                State::Acked => continue,
                State::Lost => {
                    outcome.spurious += u64::from(!slot.contents.is_mtu_probe());
                    late.push(number);
                }
                State::Outstanding | State::Doubted => {
                    self.pipe -= u64::from(slot.size);
                    outcome.acked_bytes += u64::from(slot.size);
                }
            }
            self.rate.delivered += u64::from(slot.size);
            outcome.packets += 1;
            take_newest(newest, (number, slot), outcome);
            tell(&slot.arrived());
        }
        late.into_iter().for_each(|number| self.on_late(number));
    }

    /// Handles a packet that counted as lost but arrived. If others had overtaken it, loss detection allows more
    /// reordering from now on; the end of a silence shows none.
    fn on_late(&mut self, number: u64) {
        self.past.lost -= 1;
        let Some(largest) = self.largest_acked.filter(|largest| *largest > number) else { return };
        let gap = largest - number + 1;
        self.reordering.packets = self.reordering.packets.max(gap).min(MAX_REORDER_PACKETS);
        self.reordering.eighths = (self.reordering.eighths + 1).min(16);
    }

    /// Delivery rate as BBR samples it (draft-cheng-iccrg-delivery-rate-estimation): the bytes delivered since the
    /// packet was sent, over the longer of the sending and the acknowledging interval.
    fn measure(&mut self, now: Time, packet: &Sample, outcome: &mut AckOutcome) {
        let sending = packet.sent_at.since(packet.first_sent_at);
        let acking = now.since(packet.delivered_at);
        self.rate.first_sent_at = packet.sent_at;
        self.rate.delivered_at = now;
        outcome.round_start = packet.delivered >= self.rate.round_end;
        if outcome.round_start {
            self.rate.round_end = self.rate.delivered;
        }
        let interval = sending.max(acking);
        if !interval.is_zero() && self.rate.delivered > packet.delivered {
            outcome.delivery_rate =
                Some(Rate::from_bytes_in(self.rate.delivered - packet.delivered, interval));
        }
    }
}

/// Keeps the sample of the packet that was sent last.
fn take_newest(newest: &mut Option<Newest>, (number, slot): (u64, &Slot), outcome: &mut AckOutcome) {
    if newest.as_ref().is_none_or(|(_, best)| slot.sample.sent_at >= best.sent_at) {
        *newest = Some((number, slot.sample));
        outcome.app_limited = slot.app_limited;
    }
}
