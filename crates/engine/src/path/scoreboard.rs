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

mod acks;
mod losses;

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_wire::{Fsn, RangeSet, Rate, Span, Time, prefetch, prefetch_room};
use smallvec::SmallVec;

use crate::control::Control;
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

/// A transmission that arrived.
#[derive(Debug)]
pub(crate) struct Arrived<'a> {
    pub sent_at: Time,
    pub size: u16,
    pub contents: &'a Contents,
}

/// A transmission that counts as lost.
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
    app_limited: bool,
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
}

impl Slot {
    /// What has to be told of a transmission that counts as lost. It may still arrive: then what it carried
    /// is acknowledged, however late.
    fn copy(&self) -> SentPacket {
        let contents = self.contents.clone();
        SentPacket { sent_at: self.sample.sent_at, size: self.size, contents, doubted: self.doubted }
    }

    /// What has to be told of a transmission that arrived.
    fn arrived(&self) -> Arrived<'_> {
        Arrived { sent_at: self.sample.sent_at, size: self.size, contents: &self.contents }
    }
}

/// What an acknowledgement told.
#[derive(Debug, Default)]
pub(crate) struct AckOutcome {
    /// Packets acknowledged for the first time.
    pub packets: u64,
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

/// The newest packets that were gone through for copies: from the first number to the second.
#[derive(Clone, Copy, Debug, Default)]
struct Tail {
    from: u64,
    to: u64,
    /// Bytes of them that were in flight.
    bytes: u64,
}

impl Tail {
    fn pass(&mut self, slot: &Slot) {
        self.from = slot.number;
        self.bytes += if slot.state == State::Outstanding { u64::from(slot.size) } else { 0 };
    }
}

/// A packet in flight that might be copied.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub number: u64,
    pub sent_at: Time,
    /// Bytes in flight that left no later, its own among them.
    pub ahead: u64,
    pub runs: SmallVec<[SentRun; 1]>,
}

/// What leaves asks for what is in front, an acknowledgement for what comes then.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Scoreboard {
    /// From the first packet that is outstanding on, ascending by number; numbers in between asked for nothing or
    /// were left out.
    slots: VecDeque<Slot>,
    /// Number of the next packet.
    next: u64,
    /// The number to leave out next.
    skip_at: u64,
    pipe: u64,
    /// No packet from this one on carries data.
    data_end: u64,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    last_sent_at: Time,
    app_limited_until: u64,
    acked: RangeSet,
    largest_acked: Option<u64>,
    /// No packet below is outstanding.
    cursor: u64,
    round_end: u64,
    reorder_packets: u64,
    /// Time threshold in eighths of a round trip.
    reorder_eighths: u64,
    loss_at: Option<Time>,
    /// Packets in `slots` and `past` that are lost.
    kept_lost: usize,
    /// Packets before those that were lost and may arrive after all, ascending.
    past: VecDeque<Slot>,
    /// The number left out last.
    skipped: Option<u64>,
    skip_distance: u64,
    /// Packets below were looked at for copies.
    copied_to: u64,
    /// Nothing in it is to be copied any more.
    tail: Tail,
    /// From the first to the last number of those that went another way than the path's.
    strays: Range<u64>,
}

impl Scoreboard {
    /// Leaves numbers out now and then if `skips`.
    pub(crate) fn new(skips: bool) -> Self {
        Self {
            slots: VecDeque::new(),
            past: VecDeque::new(),
            next: 0,
            data_end: 0,
            kept_lost: 0,
            skipped: None,
            skip_at: if skips { FIRST_SKIP } else { u64::MAX },
            skip_distance: FIRST_SKIP,
            acked: RangeSet::new(),
            largest_acked: None,
            cursor: 0,
            copied_to: 0,
            tail: Tail::default(),
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
            strays: 0..0,
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
            prefetch(first, 0..usize::MAX);
        }
        prefetch_room(&self.slots);
    }

    /// Bytes in flight: `pipe_i` of [M3].
    pub(crate) fn pipe(&self) -> u64 {
        self.pipe
    }

    /// True when data may be in flight; surely not when this is false.
    pub(crate) fn has_data(&self) -> bool {
        self.pipe > 0 && self.slots.front().is_some_and(|oldest| oldest.number < self.data_end)
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
        let app_limited = self.app_limited_until > self.delivered;
        let sample = Sample {
            sent_at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
        };
        if runs_of(&contents).next().is_some() {
            self.data_end = self.next;
        }
        let state = State::Outstanding;
        if self.slots.capacity() == 0 {
            self.slots.reserve_exact(IDLE_RING);
        }
        self.slots.push_back(Slot { number, state, doubted: false, size, app_limited, sample, contents });
    }

    /// A packet leaves another way than the path's: what becomes of it says nothing of the path.
    pub(crate) fn on_stray(&mut self) {
        let told = self.largest_acked.is_some_and(|largest| largest + 1 >= self.strays.end);
        if told || self.strays.is_empty() {
            self.strays.start = self.next;
        }
        self.next += 1;
        self.strays.end = self.next;
    }

    /// The application had nothing more to send: rates measured from here on are not the path's.
    pub(crate) fn on_app_limited(&mut self) {
        self.app_limited_until = (self.delivered + self.pipe).max(1);
    }

    /// Gives back the room for packets that there are none of.
    pub(super) fn rest(&mut self) {
        self.slots.shrink_to_fit();
        self.past.shrink_to_fit();
    }

    /// Drops what nobody will ask about again. Lost packets stay a while, to notice that they arrived.
    fn forget_front(&mut self) {
        while let Some(state) = self.slots.front().map(|slot| slot.state) {
            match state {
                State::Outstanding => break,
                State::Acked => drop(self.slots.pop_front()),
                State::Lost => self.past.extend(self.slots.pop_front()),
            }
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
mod tests;
