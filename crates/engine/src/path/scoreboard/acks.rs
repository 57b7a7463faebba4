//! What an acknowledgement tells: which packets arrived, how long they took, how fast they are delivered.

use std::ops::Range;

use anabranch_wire::{Ranges, Rate, Time};
use smallvec::SmallVec;

use super::{AckOutcome, MAX_REORDER_PACKETS, Sample, Scoreboard, SentPacket, State};
use crate::event::ProtocolError;

impl Scoreboard {
    /// Takes in the ranges of an acknowledgement; `newly` receives the packets it is the first for.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        ranges: &Ranges,
        newly: &mut Vec<SentPacket>,
    ) -> Result<AckOutcome, ProtocolError> {
        let mut outcome = AckOutcome { in_flight: self.pipe, ..AckOutcome::default() };
        let Some(largest) = ranges.first().map(|range| range.end - 1) else { return Ok(outcome) };
        let skipped = |number| ranges.iter().any(|range| range.contains(&number));
        if largest >= self.next || self.skipped.is_some_and(skipped) {
            return Err(ProtocolError::AckOfUnsent);
        }
        let mut newest: Option<Sample> = None;
        for range in self.news_of(ranges) {
            let gaps: SmallVec<[_; 4]> = self.acked.gaps_in(range.clone()).collect();
            self.acked.insert(range);
            for gap in gaps {
                self.take_late(&gap, &mut outcome, &mut newest, newly);
                let mut index = self.index_of(gap.start);
                while self.slots.get(index).is_some_and(|slot| slot.number < gap.end) {
                    self.take_acked(index, &mut outcome, &mut newest, newly);
                    index += 1;
                }
            }
        }
        if self.largest_acked.is_none_or(|known| largest > known) {
            self.largest_acked = Some(largest);
            if let Some(packet) = &newest {
                outcome.rtt = Some(now.since(packet.sent_at));
            }
        }
        if let Some(packet) = newest {
            self.measure(now, &packet, &mut outcome);
        }
        self.forget_front();
        Ok(outcome)
    }

    /// The ranges of an acknowledgement that tell something new, lowest first. Most tell what those before told
    /// already: what is told and what is known are gone through side by side.
    fn news_of(&self, ranges: &Ranges) -> SmallVec<[Range<u64>; 4]> {
        let base = self.base();
        let mut known = self.acked.iter().peekable();
        let mut is_new = |range: &Range<u64>| {
            while known.next_if(|held| held.end < range.end).is_some() {}
            known.peek().is_none_or(|held| held.start > range.start)
        };
        let told = ranges.iter().rev().map(|range| range.start.max(base)..range.end);
        told.filter(|range| !range.is_empty() && is_new(range)).collect()
    }

    /// Takes packets in that counted as lost and were past.
    fn take_late(
        &mut self,
        gap: &Range<u64>,
        outcome: &mut AckOutcome,
        newest: &mut Option<Sample>,
        newly: &mut Vec<SentPacket>,
    ) {
        if self.past.back().is_none_or(|last| last.number < gap.start) {
            return;
        }
        let index = self.past.partition_point(|slot| slot.number < gap.start);
        while let Some(slot) = self.past.get(index).filter(|slot| slot.number < gap.end) {
            let (number, size, sample) = (slot.number, slot.size, slot.sample);
            self.on_spurious(number, outcome);
            self.on_arrived(size, sample, newest);
            newly.extend(self.past.remove(index).map(|mut slot| slot.take()));
        }
    }

    fn take_acked(
        &mut self,
        index: usize,
        outcome: &mut AckOutcome,
        newest: &mut Option<Sample>,
        newly: &mut Vec<SentPacket>,
    ) {
        let slot = &mut self.slots[index];
        let (number, size, sample) = (slot.number, slot.size, slot.sample);
        match std::mem::replace(&mut slot.state, State::Acked) {
            State::Acked => return,
            State::Lost => self.on_spurious(number, outcome),
            State::Outstanding => {
                self.pipe -= u64::from(size);
                outcome.acked_bytes += u64::from(size);
            }
        }
        self.on_arrived(size, sample, newest);
        newly.push(self.slots[index].take());
    }

    /// A packet that counted as lost has arrived: it takes longer for others to be lost from now on.
    fn on_spurious(&mut self, number: u64, outcome: &mut AckOutcome) {
        outcome.spurious += 1;
        self.kept_lost -= 1;
        let gap = self.largest_acked.unwrap_or(0).saturating_sub(number) + 1;
        self.reorder_packets = self.reorder_packets.max(gap).min(MAX_REORDER_PACKETS);
        self.reorder_eighths = (self.reorder_eighths + 1).min(16);
    }

    fn on_arrived(&mut self, size: u16, sample: Sample, newest: &mut Option<Sample>) {
        self.delivered += u64::from(size);
        if newest.as_ref().is_none_or(|best| sample.sent_at >= best.sent_at) {
            *newest = Some(sample);
        }
    }

    /// Delivery rate as BBR samples it (draft-cheng-iccrg-delivery-rate-estimation): what was delivered
    /// since the packet was sent, over the longer of the sending and the acknowledging interval.
    fn measure(&mut self, now: Time, packet: &Sample, outcome: &mut AckOutcome) {
        let sending = packet.sent_at.since(packet.first_sent_at);
        let acking = now.since(packet.delivered_at);
        self.first_sent_at = packet.sent_at;
        self.delivered_at = now;
        outcome.app_limited = packet.app_limited;
        outcome.round_start = packet.delivered >= self.round_end;
        if outcome.round_start {
            self.round_end = self.delivered;
        }
        let interval = sending.max(acking);
        if !interval.is_zero() && self.delivered > packet.delivered {
            outcome.delivery_rate = Some(Rate::from_bytes_in(self.delivered - packet.delivered, interval));
        }
    }
}
