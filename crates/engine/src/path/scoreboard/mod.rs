//! Packets sent on one path, and whether they arrived (mTCP §3.1.3 [M3], MPMTP-AR [R4]).
//!
//! Every transmission has its own packet number, so each is counted separately: `pipe` grows when it is sent and
//! shrinks when it is acknowledged or lost, whatever happens to its data on other paths. Losses depend only on this
//! path's numbers and times [M4]. A packet is lost when one sent a few numbers later was acknowledged, or one sent 9/8
//! of a round trip later (RFC 9002 §6.1). Both limits ([`Reordering`]) widen when a lost packet arrives after all.
//!
//! The cost of an acknowledgement depends on its new information: known ranges are skipped as ranges, and the search
//! for losses never looks at a packet twice. Only packets that ask for an acknowledgement are stored, and only the
//! latest [`KEEP_LOST`] lost ones. So a peer that acknowledges nothing cannot make the memory grow beyond the windows.
//!
//! **Optimistic acknowledgements.** A peer that acknowledges packets before they arrive gets more than its share of the
//! network (RFC 9000 §21.4). So some numbers are skipped at random, and only a peer that acknowledges blindly
//! acknowledges them. It cannot guess them, because the distance comes from the source of PIDs.

mod acks;
mod contents;
mod losses;

use std::collections::VecDeque;
use std::ops::Range;

pub(crate) use contents::Contents;
use contents::Spare;

use anabranch_prefetch::{prefetch, prefetch_room};
use anabranch_wire::{Fsn, RangeSet, Rate, Span, Time};
use smallvec::SmallVec;

use crate::control::Control;
use crate::stream::SentRun;

/// One thing that a packet carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Run(SentRun),
    Control(Control),
    MtuProbe(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Outstanding,
    /// Still outstanding, but another path is responsible for its data.
    Doubted,
    Acked,
    Lost,
}

impl State {
    fn is_outstanding(self) -> bool {
        matches!(self, Self::Outstanding | Self::Doubted)
    }
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
    /// Its data was queued for other paths while this one was in doubt.
    pub doubted: bool,
}

/// One transmission, in one cache line, because the cache cannot hold thousands of larger ones.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    /// The number's last 32 bits: far fewer numbers lie between it and the next.
    low: u32,
    size: u16,
    state: State,
    app_limited: bool,
    sample: Sample,
    contents: Contents,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// The state when a packet was sent, to measure the delivery rate.
#[derive(Clone, Copy, Debug)]
struct Sample {
    sent_at: Time,
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
}

impl Slot {
    /// Its number, if the next one to be sent is `next`.
    fn number(&self, next: u64) -> u64 {
        next - u64::from((next as u32).wrapping_sub(self.low))
    }

    /// Counts it as lost, and returns its contents. If it still arrives, its contents count as acknowledged,
    /// however late.
    fn lose(&mut self) -> SentPacket {
        let doubted = self.state == State::Doubted;
        self.state = State::Lost;
        let contents = self.contents.clone();
        SentPacket { sent_at: self.sample.sent_at, size: self.size, contents, doubted }
    }

    /// The transmission, as a report that it arrived.
    fn arrived(&self) -> Arrived<'_> {
        Arrived { sent_at: self.sample.sent_at, size: self.size, contents: &self.contents }
    }
}

/// The result of an acknowledgement.
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
    /// Delivery rate over the last round trip, if it can be measured.
    pub delivery_rate: Option<Rate>,
    /// The packet was sent when the application had no more data.
    pub app_limited: bool,
    /// A round trip is over: a packet sent after the last round's end was acknowledged.
    pub round_start: bool,
    /// Packets that were declared lost before, without probes of the path MTU, which do not count as losses.
    pub spurious: u64,
}

/// The result of loss detection.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub packets: u64,
    pub bytes: u64,
    pub in_flight: u64,
    /// When the latest of these packets was sent.
    pub sent_at: Time,
}

/// The newest packets that were searched for copies: from the first number to the second.
#[derive(Clone, Copy, Debug, Default)]
struct Tail {
    from: u64,
    to: u64,
    /// Bytes of these packets that were in flight.
    bytes: u64,
}

impl Tail {
    fn pass(&mut self, slot: &Slot, next: u64) {
        self.from = slot.number(next);
        self.bytes += if slot.state.is_outstanding() { u64::from(slot.size) } else { 0 };
    }
}

/// The stream bytes of a packet: one run, in most.
pub(crate) type Runs = SmallVec<[SentRun; 1]>;

/// A packet in flight that might be copied.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub number: u64,
    pub sent_at: Time,
    /// Bytes in flight that left no later, its own among them.
    pub ahead: u64,
    pub runs: Runs,
}

/// Numbers that are left out.
#[derive(Debug)]
#[repr(C)]
struct Skips {
    /// The number to leave out next.
    next: u64,
    /// The number left out last, [`u64::MAX`] before the first.
    last: u64,
    distance: u64,
}

/// Sums to measure the delivery rate.
#[derive(Debug, Default)]
#[repr(C)]
struct RateSampler {
    delivered: u64,
    delivered_at: Time,
    first_sent_at: Time,
    app_limited_until: u64,
    /// A round trip ends when a packet is acknowledged that was sent after this many bytes were delivered.
    round_end: u64,
}

/// How much reordering is waited for.
#[derive(Debug)]
struct Reordering {
    packets: u64,
    /// In eighths of a round trip.
    eighths: u64,
}

/// Packets before the slots that were lost and may arrive after all.
#[derive(Debug, Default)]
struct Past {
    /// Ascending by number.
    slots: VecDeque<Slot>,
    /// From the lowest number among them to the highest: it saves a look at the slots, which are elsewhere in
    /// memory.
    span: Range<u64>,
    /// Lost packets, here and among the scoreboard's slots.
    lost: usize,
}

/// How far the packets in flight were searched for something to copy.
#[derive(Debug, Default)]
struct CopySearch {
    /// Packets below this were checked for copies.
    looked_to: u64,
    /// The newest packets, which were checked from the other end.
    tail: Tail,
}

/// The packets sent on a path. Fields for sending are in front, those for acknowledgements follow.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Scoreboard {
    /// The packets from the first outstanding one on, ascending by number. Missing numbers were skipped, or asked for
    /// no acknowledgement.
    slots: VecDeque<Slot>,
    /// Number of the next packet.
    next: u64,
    skips: Skips,
    pipe: u64,
    /// No packet from this one on carries data.
    data_end: u64,
    rate: RateSampler,
    last_sent_at: Time,
    acked: RangeSet,
    largest_acked: Option<u64>,
    /// No packet below is outstanding.
    cursor: u64,
    reordering: Reordering,
    loss_at: Option<Time>,
    past: Past,
    spare: Spare,
    copies: CopySearch,
    /// From the first to the last number of packets that took another route than the path's.
    strays: Range<u64>,
}

impl Scoreboard {
    /// An empty scoreboard. With `skips`, it leaves numbers out now and then.
    pub(crate) fn new(skips: bool) -> Self {
        let next = if skips { FIRST_SKIP } else { u64::MAX };
        Self {
            slots: VecDeque::new(),
            next: 0,
            skips: Skips { next, last: u64::MAX, distance: FIRST_SKIP },
            pipe: 0,
            data_end: 0,
            rate: RateSampler::default(),
            last_sent_at: Time::ZERO,
            acked: RangeSet::new(),
            largest_acked: None,
            cursor: 0,
            reordering: Reordering { packets: 3, eighths: 9 },
            loss_at: None,
            past: Past::default(),
            spare: Spare::default(),
            copies: CopySearch::default(),
            strays: 0..0,
        }
    }

    /// The number of the next packet.
    pub(crate) fn next_fsn(&self) -> Fsn {
        Fsn(self.next)
    }

    /// True when a number must be skipped before the next packet.
    pub(crate) fn skip_is_due(&self) -> bool {
        self.next >= self.skips.next
    }

    /// Leaves a number out. `random` decides the distance to the next one, which the peer must not be able to
    /// guess.
    pub(crate) fn skip(&mut self, random: u64) {
        self.skips.last = self.next;
        self.next += 1;
        self.skips.distance = (self.skips.distance * 2).min(LAST_SKIP);
        self.skips.next = self.next + self.skips.distance / 2 + random % self.skips.distance;
    }

    /// The lowest number whose acknowledgement would be new.
    fn base(&self) -> u64 {
        if !self.past.span.is_empty() {
            return self.past.span.start;
        }
        self.slots.front().map_or(self.next, |slot| slot.number(self.next))
    }

    /// Index of the first slot with at least this `number`.
    fn index_of(&self, number: u64) -> usize {
        // Usually the numbers have no holes, and the guess is right.
        let first = self.slots.front().map_or(self.next, |slot| slot.number(self.next));
        if number <= first {
            return 0;
        }
        let guess = (number - first) as usize;
        let Some(last) = self.slots.len().checked_sub(1) else { return 0 };
        let from = guess.min(last);
        // Every step down lowers the number by at least one.
        let beyond = self.slots[from].number(self.next).saturating_sub(number);
        if beyond == 0 && from == guess {
            return guess;
        }
        if beyond > FEW {
            return self.slots.partition_point(|slot| slot.number(self.next) < number);
        }
        let least = from.saturating_sub(beyond as usize);
        let is_below = |slot: &&Slot| slot.number(self.next) < number;
        let below = self.slots.range(least..=from).take_while(is_below).count();
        least + below
    }

    /// Prefetches the first packets that an acknowledgement is about, and the slot of the next packet.
    pub(crate) fn prefetch(&self) {
        self.slots.iter().take(2).for_each(|slot| prefetch(slot, 0..usize::MAX));
        prefetch_room(&self.slots);
    }

    /// Bytes in flight: `pipe_i` of [M3].
    pub(crate) fn pipe(&self) -> u64 {
        self.pipe
    }

    /// True when data may be in flight; surely not when this is false.
    pub(crate) fn has_data(&self) -> bool {
        self.pipe > 0 && self.slots.front().is_some_and(|oldest| oldest.number(self.next) < self.data_end)
    }

    /// When loss detection must run again, if no acknowledgement arrives before.
    pub(crate) fn loss_at(&self) -> Option<Time> {
        self.loss_at
    }

    /// Packets that must be acknowledged beyond one for it to be lost.
    #[cfg(test)]
    fn reorder_packets(&self) -> u64 {
        self.reordering.packets
    }

    /// True once something sent on the path was acknowledged.
    pub(crate) fn has_acks(&self) -> bool {
        self.largest_acked.is_some()
    }

    pub(crate) fn last_sent_at(&self) -> Time {
        self.last_sent_at
    }

    /// When the oldest packet with an outstanding acknowledgement was sent. Leaves out packets below the highest
    /// acknowledged one, which loss detection handles, and probes of the path MTU, which may be lost.
    pub(crate) fn oldest_sent_at(&self) -> Option<Time> {
        let silent = self.largest_acked.map_or(0, |largest| largest + 1).max(self.cursor);
        let mut beyond = self.slots.range(self.index_of(silent)..);
        let oldest = beyond.find(|slot| slot.state.is_outstanding() && !slot.contents.is_mtu_probe());
        oldest.map(|slot| slot.sample.sent_at)
    }

    /// Adds to the contents of a packet that is being built.
    pub(crate) fn add(&mut self, contents: &mut Contents, content: Content) {
        self.spare.add(contents, content);
    }

    /// Records a sent packet; `eliciting` if it asks for an acknowledgement.
    pub(crate) fn on_sent(&mut self, now: Time, size: u16, eliciting: bool, contents: Contents) {
        let number = self.next;
        self.next += 1;
        if !eliciting {
            return;
        }
        if self.pipe == 0 {
            (self.rate.first_sent_at, self.rate.delivered_at) = (now, now);
        }
        self.pipe += u64::from(size);
        self.last_sent_at = now;
        let app_limited = self.rate.app_limited_until > self.rate.delivered;
        let sample = Sample {
            sent_at: now,
            delivered: self.rate.delivered,
            delivered_at: self.rate.delivered_at,
            first_sent_at: self.rate.first_sent_at,
        };
        if contents.runs().next().is_some() {
            self.data_end = self.next;
        }
        if self.slots.capacity() == 0 {
            self.slots.reserve_exact(IDLE_RING);
        }
        let (low, state) = (number as u32, State::Outstanding);
        self.slots.push_back(Slot { low, size, state, app_limited, sample, contents });
    }

    /// Records a packet that takes another route than the path's, so its loss says nothing about the path.
    pub(crate) fn on_stray(&mut self) {
        let told = self.largest_acked.is_some_and(|largest| largest + 1 >= self.strays.end);
        if told || self.strays.is_empty() {
            self.strays.start = self.next;
        }
        self.next += 1;
        self.strays.end = self.next;
    }

    /// The application has no more data, so rates measured from here on are not limited by the path.
    pub(crate) fn on_app_limited(&mut self) {
        self.rate.app_limited_until = (self.rate.delivered + self.pipe).max(1);
    }

    /// Number of transmissions from the oldest outstanding one on.
    pub(crate) fn remembered(&self) -> usize {
        self.slots.len()
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.slots.shrink_to_fit();
        self.past.slots.shrink_to_fit();
        self.spare = Spare::default();
    }

    /// Records which numbers are in `past`.
    fn note_past(&mut self) {
        let number = |slot: Option<&Slot>| slot.map(|slot| slot.number(self.next));
        let (first, last) = (number(self.past.slots.front()), number(self.past.slots.back()));
        self.past.span = first.unwrap_or(0)..last.map_or(0, |last| last + 1);
    }

    /// Drops settled packets. Lost ones stay for a while, to notice if they arrive.
    fn forget_front(&mut self) {
        while let Some(state) = self.slots.front().map(|slot| slot.state) {
            match state {
                State::Outstanding | State::Doubted => break,
                State::Acked => {
                    if let Some(slot) = self.slots.pop_front() {
                        self.spare.keep(slot.contents);
                    }
                }
                State::Lost => {
                    self.past.slots.extend(self.slots.pop_front());
                    self.note_past();
                }
            }
        }
        let settled = self.largest_acked.unwrap_or(0).saturating_sub(KEEP_LOST);
        while !self.past.slots.is_empty()
            && (self.past.span.start < settled || self.past.lost as u64 > KEEP_LOST)
        {
            if let Some(slot) = self.past.slots.pop_front() {
                self.spare.keep(slot.contents);
            }
            self.past.lost -= 1;
            self.note_past();
        }
        self.acked.remove_below(self.base());
        trim(&mut self.slots);
        trim(&mut self.past.slots);
    }
}

/// Frees the room that a burst took. A ring is cycled through from end to end, however few slots it holds.
fn trim(ring: &mut VecDeque<Slot>) {
    if ring.capacity() > LEAST_RING && ring.len() < ring.capacity() / 4 {
        ring.shrink_to((ring.len() * 2).max(LEAST_RING));
    }
}

/// Holes among numbers that are counted one by one.
const FEW: u64 = 16;
/// Initial capacity for packets in flight: enough for opening a path.
const IDLE_RING: usize = 2;
/// Widest tolerated reordering within a path, in packets.
const MAX_REORDER_PACKETS: u64 = 4096;
/// A lost packet is remembered until this many later numbers were acknowledged, or this many were lost.
const KEEP_LOST: u64 = 2048;
/// Capacity that is never given up, in packets.
const LEAST_RING: usize = 32;
/// The first skipped number; the distance doubles each time.
const FIRST_SKIP: u64 = 500;
/// Mean distance of the numbers left out at last, in packets.
const LAST_SKIP: u64 = 1 << 15;

#[cfg(test)]
mod tests;
