//! What was sent on one path and what became of it (mTCP §3.1.3 [M3], MPMTP-AR [R4]).
//!
//! Every transmission has its own packet number here, so each is accounted for by itself: `pipe` grows
//! when it is sent and shrinks when it is acknowledged or lost, whatever becomes of the data elsewhere.
//! Loss is inferred from this path's numbers and times only [M4]: a packet is lost when one sent
//! [`Scoreboard::reorder_packets`] later was acknowledged, or when it was sent 9/8 of a round trip before
//! one that was (RFC 9002 §6.1). Both limits widen when a loss turns out to have been an early guess.
//!
//! An acknowledgement costs time in proportion to what it tells anew: known ranges are skipped as
//! ranges, and the search for losses never looks at a packet twice. Only packets that ask for an
//! acknowledgement are remembered, and of the lost ones only the latest [`KEEP_LOST`], so a peer that
//! acknowledges nothing cannot make the memory grow beyond what windows let out.
//!
//! **Optimistic acknowledgements.** A peer that acknowledges what has not arrived yet gets more than its share of
//! the network (RFC 9000 §21.4). So a number is left out now and then; only a peer that acknowledges
//! blindly acknowledges it. Which one nobody can guess: the distance comes from the source of PIDs.

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_wire::{Fsn, RangeSet, Ranges, Rate, Span, Time, prefetch, prefetch_room};
use smallvec::SmallVec;

use crate::control::Control;
use crate::event::ProtocolError;
use crate::stream::SentRun;

/// What a packet carried that somebody has to hear of when it is acknowledged or lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Run(SentRun),
    Control(Control),
    MtuProbe(u16),
}

pub(crate) type Contents = SmallVec<[Content; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outstanding,
    Acked,
    Lost,
}

/// What became of a transmission that is over: acknowledged or lost.
#[derive(Debug)]
pub(crate) struct SentPacket {
    pub sent_at: Time,
    pub size: u16,
    pub contents: Contents,
    /// Its data was given to other paths while this one was in doubt.
    pub doubted: bool,
}

/// One transmission as it is remembered.
#[derive(Debug)]
struct Slot {
    number: u64,
    state: State,
    doubted: bool,
    size: u16,
    sample: Sample,
    contents: Contents,
}

/// How things stood when a packet was sent, to measure by.
#[derive(Clone, Copy, Debug)]
struct Sample {
    sent_at: Time,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    app_limited: bool,
}

impl Slot {
    /// What has to be told of a transmission that counts as lost. It may still arrive: then what it carried
    /// is acknowledged, however late.
    fn copy(&self) -> SentPacket {
        let contents = self.contents.clone();
        SentPacket { sent_at: self.sample.sent_at, size: self.size, contents, doubted: self.doubted }
    }

    /// What has to be told of a transmission that is over.
    fn take(&mut self) -> SentPacket {
        let contents = std::mem::take(&mut self.contents);
        SentPacket { sent_at: self.sample.sent_at, size: self.size, contents, doubted: self.doubted }
    }
}

/// What an acknowledgement told.
#[derive(Debug, Default)]
pub(crate) struct AckOutcome {
    /// Bytes acknowledged for the first time that were in flight.
    pub acked_bytes: u64,
    /// Bytes in flight before.
    pub in_flight: u64,
    /// Time since the highest packet was sent, if this acknowledgement is the first for it.
    pub rtt: Option<Span>,
    /// Delivery rate over the last round trip, where it can be told.
    pub delivery_rate: Option<Rate>,
    /// The packet was sent when the application had nothing more.
    pub app_limited: bool,
    /// A round trip is over: a packet sent after the last round's end was acknowledged.
    pub round_start: bool,
    /// Packets that had been declared lost.
    pub spurious: u64,
}

/// What loss detection found.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub packets: u64,
    pub bytes: u64,
    pub in_flight: u64,
    /// When the latest of them was sent.
    pub sent_at: Time,
}

#[derive(Debug)]
pub(crate) struct Scoreboard {
    /// From the first packet that is outstanding on, ascending by number; numbers in between asked for nothing or
    /// were left out.
    slots: VecDeque<Slot>,
    /// Packets before those that were lost and may arrive after all, ascending.
    past: VecDeque<Slot>,
    /// Number of the next packet.
    next: u64,
    /// Packets in `slots` and `past` that are lost.
    kept_lost: usize,
    /// The number left out last.
    skipped: Option<u64>,
    /// The number to leave out next.
    skip_at: u64,
    skip_distance: u64,
    acked: RangeSet,
    largest_acked: Option<u64>,
    /// No packet below is outstanding.
    cursor: u64,
    /// Packets below were looked at for copies.
    copied_to: u64,
    pipe: u64,
    reorder_packets: u64,
    /// Time threshold in eighths of a round trip.
    reorder_eighths: u64,
    loss_at: Option<Time>,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    app_limited_until: u64,
    round_end: u64,
    last_sent_at: Time,
}

impl Scoreboard {
    /// Leaves numbers out now and then if `skips`.
    pub(crate) fn new(skips: bool) -> Self {
        Self {
            slots: VecDeque::new(),
            past: VecDeque::new(),
            next: 0,
            kept_lost: 0,
            skipped: None,
            skip_at: if skips { FIRST_SKIP } else { u64::MAX },
            skip_distance: FIRST_SKIP,
            acked: RangeSet::new(),
            largest_acked: None,
            cursor: 0,
            copied_to: 0,
            pipe: 0,
            reorder_packets: 3,
            reorder_eighths: 9,
            loss_at: None,
            delivered: 0,
            delivered_at: Time::ZERO,
            first_sent_at: Time::ZERO,
            app_limited_until: 0,
            round_end: 0,
            last_sent_at: Time::ZERO,
        }
    }

    /// The number of the next packet.
    pub(crate) fn next_fsn(&self) -> Fsn {
        Fsn(self.next)
    }

    /// True when a number is to be left out before the next packet.
    pub(crate) fn skip_is_due(&self) -> bool {
        self.next >= self.skip_at
    }

    /// Leaves a number out; `luck` decides how far the next one is, which the peer must not be able to guess.
    pub(crate) fn skip(&mut self, luck: u64) {
        self.skipped = Some(self.next);
        self.next += 1;
        self.skip_distance = (self.skip_distance * 2).min(LAST_SKIP);
        self.skip_at = self.next + self.skip_distance / 2 + luck % self.skip_distance;
    }

    /// The lowest number that an acknowledgement may still tell something about.
    fn base(&self) -> u64 {
        self.past.front().or(self.slots.front()).map_or(self.next, |slot| slot.number)
    }

    /// Index of the first slot that is not below `number`.
    fn index_of(&self, number: u64) -> usize {
        // Most often the numbers have no holes, and the guess is right.
        let first = self.slots.front().map_or(self.next, |slot| slot.number);
        if number <= first {
            return 0;
        }
        let guess = (number - first) as usize;
        let Some(last) = self.slots.len().checked_sub(1) else { return 0 };
        let from = guess.min(last);
        // Every step down takes at least one off the number.
        let beyond = self.slots[from].number.saturating_sub(number);
        if beyond == 0 && from == guess {
            return guess;
        }
        if beyond > FEW {
            return self.slots.partition_point(|slot| slot.number < number);
        }
        let least = from.saturating_sub(beyond as usize);
        let below = self.slots.range(least..=from).take_while(|slot| slot.number < number).count();
        least + below
    }

    /// Has fetched what an acknowledgement tells of first, and the place of the next packet.
    pub(crate) fn prefetch(&self) {
        if let Some(first) = self.slots.front() {
            prefetch(first, usize::MAX);
        }
        prefetch_room(&self.slots);
    }

    /// Bytes in flight: `pipe_i` of [M3].
    pub(crate) fn pipe(&self) -> u64 {
        self.pipe
    }

    /// When loss detection has to look again, if nothing comes before.
    pub(crate) fn loss_at(&self) -> Option<Time> {
        self.loss_at
    }

    /// Packets that must be acknowledged beyond one for it to be lost.
    #[cfg(test)]
    fn reorder_packets(&self) -> u64 {
        self.reorder_packets
    }

    /// True once something sent on the path was acknowledged.
    pub(crate) fn has_acks(&self) -> bool {
        self.largest_acked.is_some()
    }

    pub(crate) fn last_sent_at(&self) -> Time {
        self.last_sent_at
    }

    /// When the oldest packet was sent whose acknowledgement is still to come. Packets below the highest that
    /// was acknowledged are for loss detection to judge, and probes of the path MTU may vanish.
    pub(crate) fn oldest_sent_at(&self) -> Option<Time> {
        let silent = self.largest_acked.map_or(0, |largest| largest + 1).max(self.cursor);
        let is_probe = |slot: &Slot| matches!(slot.contents.as_slice(), [Content::MtuProbe(_)]);
        let mut beyond = self.slots.range(self.index_of(silent)..);
        let oldest = beyond.find(|slot| slot.state == State::Outstanding && !is_probe(slot));
        oldest.map(|slot| slot.sample.sent_at)
    }

    /// Notes a packet that was sent; `eliciting` when it asks for an acknowledgement.
    pub(crate) fn on_sent(&mut self, now: Time, size: u16, eliciting: bool, contents: Contents) {
        let number = self.next;
        self.next += 1;
        if !eliciting {
            return;
        }
        if self.pipe == 0 {
            (self.first_sent_at, self.delivered_at) = (now, now);
        }
        self.pipe += u64::from(size);
        self.last_sent_at = now;
        let sample = Sample {
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            app_limited: self.app_limited_until > self.delivered,
        };
        let state = State::Outstanding;
        if self.slots.capacity() == 0 {
            self.slots.reserve_exact(IDLE_RING);
        }
        self.slots.push_back(Slot { number, state, doubted: false, size, sample, contents });
    }

    /// The application had nothing more to send: rates measured from here on are not the path's.
    pub(crate) fn on_app_limited(&mut self) {
        self.app_limited_until = (self.delivered + self.pipe).max(1);
    }

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

    /// Finds what is lost by now; `lost` receives the packets.
    pub(crate) fn detect_losses(&mut self, now: Time, rtt: Span, lost: &mut Vec<SentPacket>) -> Losses {
        let mut losses = Losses { in_flight: self.pipe, ..Losses::default() };
        self.loss_at = None;
        let Some(largest) = self.largest_acked else { return losses };
        if self.cursor >= largest {
            return losses;
        }
        let patience = (rtt * self.reorder_eighths / 8).max(Span::from_millis(1));
        let mut index = self.index_of(self.cursor);
        self.cursor = largest;
        while let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.number < largest) {
            if slot.state == State::Outstanding {
                let overdue_at = slot.sample.sent_at + patience;
                if largest < slot.number + self.reorder_packets && overdue_at > now {
                    self.loss_at = Some(overdue_at);
                    self.cursor = slot.number;
                    break;
                }
                slot.state = State::Lost;
                self.kept_lost += 1;
                self.pipe -= u64::from(slot.size);
                losses.packets += 1;
                losses.bytes += u64::from(slot.size);
                losses.sent_at = losses.sent_at.max(slot.sample.sent_at);
                lost.push(slot.copy());
            }
            index += 1;
        }
        losses
    }

    /// Declares everything lost, as a timeout does: `pipe` becomes 0 [M3].
    pub(crate) fn give_up(&mut self, lost: &mut Vec<SentPacket>) -> Losses {
        let mut losses = Losses { in_flight: self.pipe, ..Losses::default() };
        for slot in self.slots.iter_mut().filter(|slot| slot.state == State::Outstanding) {
            slot.state = State::Lost;
            self.kept_lost += 1;
            losses.packets += 1;
            losses.bytes += u64::from(slot.size);
            losses.sent_at = losses.sent_at.max(slot.sample.sent_at);
            lost.push(slot.copy());
        }
        self.pipe = 0;
        self.loss_at = None;
        self.cursor = self.next;
        self.forget_front();
        losses
    }

    /// Marks what is outstanding as doubted and shows what it carried, so that other paths can carry it too.
    pub(crate) fn doubt(&mut self, mut carried: impl FnMut(&Contents)) {
        for slot in &mut self.slots {
            if slot.state == State::Outstanding && !slot.doubted {
                slot.doubted = true;
                carried(&slot.contents);
            }
        }
    }

    /// True when packets are in flight that [`Self::next_to_copy`] never looked at.
    pub(crate) fn has_news(&self) -> bool {
        self.pipe > 0 && self.copied_to.max(self.cursor) < self.next
    }

    /// The next packet that is outstanding, carries data, was sent after `since` and was neither shown here before
    /// nor given to other paths otherwise.
    pub(crate) fn next_to_copy(&mut self, since: Time) -> Option<(u64, SmallVec<[SentRun; 1]>)> {
        let from = self.index_of(self.copied_to.max(self.cursor));
        for slot in self.slots.range(from..) {
            self.copied_to = slot.number + 1;
            if slot.state != State::Outstanding || slot.doubted || slot.sample.sent_at <= since {
                continue;
            }
            let runs: SmallVec<[SentRun; 1]> = runs_of(&slot.contents).cloned().collect();
            if !runs.is_empty() {
                return Some((slot.number, runs));
            }
        }
        None
    }

    /// Notes that another path answers for what a packet carried.
    pub(crate) fn on_copied(&mut self, number: u64) {
        let index = self.index_of(number);
        if let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.number == number) {
            slot.doubted = true;
        }
    }

    /// What the oldest outstanding packets carried, for a probe.
    pub(crate) fn oldest_runs(&self) -> impl Iterator<Item = &SentRun> {
        let outstanding = self.slots.iter().filter(|slot| slot.state == State::Outstanding);
        outstanding.flat_map(|slot| runs_of(&slot.contents))
    }

    /// What outstanding packets carry for which no other path answers.
    pub(crate) fn runs_on_their_way(&self) -> impl Iterator<Item = &SentRun> {
        let carries = |slot: &&Slot| slot.state == State::Outstanding && !slot.doubted;
        self.slots.iter().filter(carries).flat_map(|slot| runs_of(&slot.contents))
    }

    /// The runs of the packet sent last.
    pub(crate) fn latest_runs(&self) -> Vec<SentRun> {
        self.slots.back().into_iter().flat_map(|slot| runs_of(&slot.contents)).cloned().collect()
    }

    /// Gives back the room for packets that there are none of.
    pub(super) fn rest(&mut self) {
        self.slots.shrink_to_fit();
        self.past.shrink_to_fit();
    }

    /// Drops what nobody will ask about again. Lost packets stay a while, to notice that they arrived.
    fn forget_front(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.state != State::Outstanding) {
            self.past.extend(self.slots.pop_front().filter(|slot| slot.state == State::Lost));
        }
        let settled = self.largest_acked.unwrap_or(0).saturating_sub(KEEP_LOST);
        while self.past.front().is_some_and(|slot| slot.number < settled) || self.kept_lost as u64 > KEEP_LOST
        {
            if self.past.pop_front().is_none() {
                break;
            }
            self.kept_lost -= 1;
        }
        self.acked.remove_below(self.base());
        trim(&mut self.slots);
        trim(&mut self.past);
    }
}

/// Gives room back that a burst took: a ring is gone through from end to end again and again, however few it holds.
fn trim(ring: &mut VecDeque<Slot>) {
    if ring.capacity() > LEAST_RING && ring.len() < ring.capacity() / 8 {
        ring.shrink_to((ring.len() * 2).max(LEAST_RING));
    }
}

fn runs_of(contents: &Contents) -> impl Iterator<Item = &SentRun> {
    contents.iter().filter_map(|content| match content {
        Content::Run(run) => Some(run),
        _ => None,
    })
}

/// Holes among numbers that are counted one by one.
const FEW: u64 = 16;
/// Room for packets in flight that a path begins with: what opening it takes.
const IDLE_RING: usize = 2;
/// Widest reordering within a path that is waited for, in packets.
const MAX_REORDER_PACKETS: u64 = 4096;
/// A lost packet is remembered until this many later numbers were acknowledged, or this many were lost.
const KEEP_LOST: u64 = 2048;
/// Packets that there is always room for.
const LEAST_RING: usize = 32;
/// The first number that is left out; the distance doubles each time.
const FIRST_SKIP: u64 = 500;
/// Mean distance of the numbers left out at last, in packets.
const LAST_SKIP: u64 = 1 << 15;

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Span = Span::from_millis(10);

    fn sent(count: u64) -> Scoreboard {
        let mut board = Scoreboard::new(true);
        for number in 0..count {
            board.on_sent(Time::ZERO + Span::from_millis(number), 1000, true, Contents::new());
        }
        board
    }

    fn ack(board: &mut Scoreboard, ranges: &[std::ops::Range<u64>]) -> AckOutcome {
        board
            .on_ack(Time::ZERO + Span::from_millis(100), &ranges.iter().cloned().collect(), &mut Vec::new())
            .unwrap()
    }

    #[test]
    fn each_transmission_is_taken_from_the_pipe_once() {
        let mut board = sent(4);
        assert_eq!(ack(&mut board, &[1..3]).acked_bytes, 2000);
        assert_eq!(ack(&mut board, &[1..3]).acked_bytes, 0);
        assert_eq!(board.pipe(), 2000);
        ack(&mut board, &[0..4]);
        assert_eq!(board.pipe(), 0);
    }

    #[test]
    fn three_later_packets_make_a_loss_and_two_do_not() {
        let mut board = sent(5);
        ack(&mut board, &[1..3]);
        let now = Time::ZERO + Span::from_millis(5);
        assert_eq!(board.detect_losses(now, RTT, &mut Vec::new()).packets, 0);
        assert_eq!(board.loss_at(), Some(Time::ZERO + Span::from_micros(11_250)));
        ack(&mut board, &[1..4]);
        assert_eq!(board.detect_losses(now, RTT, &mut Vec::new()).packets, 1);
        assert_eq!(board.pipe(), 1000);
    }

    #[test]
    fn time_makes_a_loss_without_three_later_packets() {
        let mut board = sent(3);
        ack(&mut board, &[1..2]);
        assert_eq!(board.detect_losses(Time::ZERO + Span::from_millis(12), RTT, &mut Vec::new()).packets, 1);
    }

    #[test]
    fn a_loss_that_arrives_after_all_widens_the_reordering_window() {
        let mut board = sent(20);
        ack(&mut board, &[9..10]);
        assert_eq!(board.detect_losses(Time::ZERO, RTT, &mut Vec::new()).packets, 7);
        let outcome = ack(&mut board, &[0..10]);
        assert_eq!(outcome.spurious, 7);
        assert_eq!(board.reorder_packets(), 10);
    }

    #[test]
    fn what_arrives_after_it_was_given_up_is_told_with_what_it_carried() {
        let mut board = Scoreboard::new(true);
        let contents: Contents = std::iter::once(Content::MtuProbe(1400)).collect();
        board.on_sent(Time::ZERO, 1000, true, contents.clone());
        board.give_up(&mut Vec::new());
        let mut newly = Vec::new();
        board.on_ack(Time::ZERO + RTT, &std::iter::once(0..1).collect(), &mut newly).unwrap();
        assert_eq!(newly[0].contents, contents);
    }

    #[test]
    fn acknowledging_the_unsent_is_an_error() {
        let mut board = sent(3);
        let ranges = std::iter::once(2..4).collect();
        assert_eq!(
            board.on_ack(Time::ZERO, &ranges, &mut Vec::new()).err(),
            Some(ProtocolError::AckOfUnsent)
        );
    }

    #[test]
    fn packets_that_ask_for_nothing_leave_nothing_behind() {
        let mut board = sent(1);
        for _ in 0..100 {
            board.on_sent(Time::ZERO, 40, false, Contents::new());
        }
        assert_eq!((board.next_fsn(), board.slots.len(), board.pipe()), (Fsn(101), 1, 1000));
        assert_eq!(ack(&mut board, &[0..101]).acked_bytes, 1000);
        assert_eq!((board.slots.len(), board.acked.range_count()), (0, 0));
    }

    #[test]
    fn acknowledging_a_number_that_was_left_out_is_an_error() {
        let mut board = sent(3);
        board.skip(7);
        board.on_sent(Time::ZERO, 1000, true, Contents::new());
        assert_eq!(board.next_fsn(), Fsn(5));
        assert_eq!(ack(&mut board, &[4..5, 0..3]).acked_bytes, 4000);
        let blind = std::iter::once(0..5).collect();
        assert_eq!(board.on_ack(Time::ZERO, &blind, &mut Vec::new()).err(), Some(ProtocolError::AckOfUnsent));
    }

    #[test]
    fn room_that_a_burst_took_is_given_back() {
        let mut board = sent(1000);
        ack(&mut board, &[0..990]);
        assert!(board.slots.capacity() < 100, "{}", board.slots.capacity());
    }

    #[test]
    fn what_a_silent_peer_loses_is_not_remembered_without_end() {
        let mut board = Scoreboard::new(true);
        for _ in 0..10 {
            for _ in 0..1000 {
                board.on_sent(Time::ZERO, 1000, true, Contents::new());
            }
            board.give_up(&mut Vec::new());
        }
        assert_eq!((board.slots.len(), board.past.len() as u64, board.pipe()), (0, KEEP_LOST, 0));
        assert_eq!(ack(&mut board, &[8_000..10_000]).spurious, 2000);
        assert_eq!(board.kept_lost, 48);
    }
}
