//! One direction of a link as a value that is asked, never one that acts.
//!
//! One ring holds the packets: those on the wire, in order of arrival, and behind them those waiting for it, of
//! which the first is on its way out while `sends` is set. Everything up to a moment is caught up on
//! when the link is next asked: a departure takes a packet from waiting to flying where it lies and begins
//! the next one *at the time of that departure*, so lateness of the caller never costs rate. A packet's luck
//! (loss, jitter, ...) is drawn when it begins to leave: in sending order, whoever asks when.
//!
//! A simulated network has thousands of links, and each packet meets half a dozen: what a link that leaves nothing
//! to chance needs lies side by side in three cache lines, all else behind them or behind a pointer. Where nothing but its turn decides about a packet, its whole
//! journey is worked out when it comes; see `planned`.

mod change;
mod departure;
mod planned;

use std::collections::VecDeque;
use std::num::NonZeroU64;

use anabranch_wire::{Span, Time};

use crate::codel::Codel;
use crate::luck::{Drawn, Luck};
use crate::outages::Outages;
use crate::random::Random;
use crate::transmitter::Transmitter;
use crate::{DropReason, Ecn, Limit, LinkConfig, LinkStats, QueueModel};

/// Packets that there is always room for.
const LEAST_RING: usize = 16;
/// Room for no more than these is given back only when few packets were held ...
const SMALL_RING: usize = 128;
/// ... while so many came out in a row: a queue that a sender fills and empties in turn keeps its room.
const PATIENCE: u32 = 1024;

/// A link in one direction, carrying packets of type `T`.
///
/// After each call that changes it, ask [`next_arrival`](Self::next_arrival) again. Times given to it
/// are not to go back (a little does no harm: a late packet queues behind what has left).
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Link<T> {
    held: VecDeque<Held<T>>,
    /// How many of those held are on the wire; under a plan, when somebody last looked.
    flying: usize,
    queued_bytes: u64,
    delay: Span,
    /// Of what has left; under a plan, of all that is held.
    last_departure: Time,
    /// The arrival of everything held is known.
    is_planned: bool,
    /// Nothing but its turn decides about a packet: all that comes can be planned.
    is_plain: bool,
    /// The first that waits is on its way out.
    sends: bool,
    /// Packets may overtake each other.
    overtakes: bool,
    /// Something is left to chance on the wire: `rare.luck` is to be asked.
    has_luck: bool,
    /// Not every packet that finds room waits its turn: `rare.queue` and `rare.codel` are to be asked.
    is_managed: bool,
    /// `rare.outages` is to be asked.
    has_outages: bool,
    /// Something waits in `rare.lost`.
    has_lost: bool,
    /// The largest size that is carried.
    mtu: u32,
    overhead: u32,
    /// How long a byte takes, where that is a whole number of nanoseconds, as with most rates that are round ...
    per_byte: Option<NonZeroU64>,
    /// ... and else a size and how long it takes: many packets have that of the one before.
    known: (u64, Span),
    flying_bytes: u64,
    /// How long nothing was on its way out before what is or was last.
    idle: Span,
    stats: LinkStats,
    /// Packets that came out in a row while few were held.
    few: u32,
    /// When the first that waits has left; [`Time::NEVER`] while none is on its way out, and under a plan.
    departs: Time,
    transmitter: Transmitter,
    last_arrival: Time,
    rare: Box<Rare<T>>,
}

/// What a packet on a plain link never needs.
#[derive(Clone, Debug)]
struct Rare<T> {
    queue: QueueModel,
    codel: Option<Codel>,
    /// The largest packet that the queue has held, for CoDel.
    largest: u64,
    luck: Luck,
    /// That of the packet that is on its way out.
    drawn: Drawn,
    outages: Outages,
    /// What was lost after it was taken, for a driver that asked to have it back.
    lost: Option<Vec<T>>,
}

/// A packet at the far end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival<T> {
    /// When it arrives, which may be earlier than when it was asked for.
    pub at: Time,
    /// The packet.
    pub item: T,
    /// Its size as given at enqueue.
    pub size: u32,
    /// True when it carries a congestion mark, from here or from before.
    pub ce: bool,
    /// True when it was damaged on the way.
    pub corrupt: bool,
}

/// A packet on the link.
#[derive(Clone, Debug)]
struct Held<T> {
    /// Since when it waits; when it arrives, once it is on the wire.
    time: Time,
    item: T,
    size: u32,
    ecn: Ecn,
    corrupt: bool,
}

impl<T: Clone> Link<T> {
    /// A link with nothing on it.
    #[must_use]
    pub fn new(mut config: LinkConfig) -> Self {
        let QueueModel { random_drop, codel, mark_above, .. } = config.queue;
        let rare = Rare {
            queue: config.queue,
            codel: codel.map(Codel::new),
            largest: 0,
            outages: Outages::new(std::mem::take(&mut config.outages)),
            luck: Luck::new(&config),
            drawn: Drawn::default(),
            lost: None,
        };
        let mut link = Self {
            held: VecDeque::new(),
            flying: 0,
            queued_bytes: 0,
            delay: config.delay,
            departs: Time::NEVER,
            last_departure: Time::ZERO,
            last_arrival: Time::ZERO,
            idle: Span::ZERO,
            transmitter: Transmitter::new(std::mem::take(&mut config.rate)),
            per_byte: None,
            known: (0, Span::ZERO),
            mtu: config.mtu.unwrap_or(u32::MAX),
            overhead: config.overhead,
            is_planned: false,
            is_plain: false,
            sends: false,
            overtakes: rare.luck.overtakes(),
            has_luck: rare.luck.is_needed(),
            is_managed: random_drop.is_some() || codel.is_some() || mark_above.is_some(),
            has_outages: !rare.outages.is_over(),
            has_lost: false,
            stats: LinkStats::default(),
            few: 0,
            flying_bytes: 0,
            rare: Box::new(rare),
        };
        link.is_plain = link.can_be_planned();
        link.per_byte = link.transmitter.per_byte();
        link
    }

    /// Keeps what is lost after it was taken, until [`take_lost`](Self::take_lost) asks for it: for items
    /// that stand for something held elsewhere.
    #[must_use]
    pub fn keeping_lost(mut self) -> Self {
        self.rare.lost = Some(Vec::new());
        self
    }

    /// True when [`take_lost`](Self::take_lost) has something to give.
    #[inline]
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Gives back a packet that was taken and then lost; nothing unless made by
    /// [`keeping_lost`](Self::keeping_lost).
    #[inline]
    pub fn take_lost(&mut self) -> Option<T> {
        if !self.has_lost {
            return None;
        }
        let lost = self.rare.lost.as_mut()?;
        let item = lost.pop();
        self.has_lost = !lost.is_empty();
        item
    }

    /// Offers a packet of `size` bytes at `now`.
    ///
    /// # Errors
    /// Why it was not taken. A packet that was taken may still be lost later.
    #[inline]
    pub fn enqueue(&mut self, now: Time, size: u32, item: T, ecn: Ecn) -> Result<(), DropReason> {
        if self.is_planned || (self.is_plain && self.held.is_empty()) {
            return self.plan(now, size, item, ecn);
        }
        self.catch_up(now);
        self.stats.offered.count(size);
        if let Err(why) = self.admit(now, size) {
            self.stats.dropped.count(why);
            return Err(why);
        }
        let bytes = self.on_wire(size);
        let ecn = if self.is_managed { self.manage(bytes, ecn) } else { ecn };
        self.queued_bytes += bytes;
        self.held.push_back(Held { time: now, item, size, ecn, corrupt: false });
        self.stats.max_queue_packets = self.stats.max_queue_packets.max(self.held.len() - self.flying);
        self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(self.queued_bytes);
        if !self.sends {
            let start = now.max(self.last_departure);
            self.begin_next(start);
            if self.sends {
                self.idle += start.since(self.last_departure);
            }
        }
        Ok(())
    }

    /// When to ask [`pop`](Self::pop) next; `None` when nothing will come out unless something changes.
    ///
    /// Nothing comes out before that. It may be that nothing does then either (the packet
    /// was lost, or, where packets may overtake each other, has only left): ask again.
    #[inline]
    #[must_use]
    pub fn next_arrival(&self) -> Option<Time> {
        if self.is_planned {
            return self.held.front().map(|packet| packet.time);
        }
        let flying = self.held.front().filter(|_| self.flying > 0).map(|packet| packet.time);
        if !self.sends || (flying.is_some() && !self.overtakes) {
            return flying;
        }
        let next = if self.overtakes { self.departs } else { self.next_landing() };
        Some(flying.map_or(next, |at| at.min(next))).filter(|at| *at != Time::NEVER)
    }

    /// True when another packet enqueued would change nothing about [`next_arrival`](Self::next_arrival): one
    /// is held already, and nothing but its turn decides about a packet's journey.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        (self.is_planned || self.is_plain) && !self.held.is_empty()
    }

    /// True when nothing but its turn decides about a packet: the rate is fixed, nothing is left to chance once it
    /// has found room, and no outage is to come. Unless such a link is changed, it may be asked for what arrives up to a
    /// moment before it is offered packets that come earlier, as long as these cannot arrive by then.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// What an empty link is made of, for one that holds no packets.
    pub(crate) fn into_parts(self) -> (Transmitter, Random, u32, u32) {
        (self.transmitter, self.rare.luck.random, self.mtu, self.overhead)
    }

    /// Takes out the first packet that has arrived by `now`.
    #[inline]
    pub fn pop(&mut self, now: Time) -> Option<Arrival<T>> {
        if self.is_planned {
            return self.pop_planned(now);
        }
        self.catch_up(now);
        if self.flying == 0 || self.held.front()?.time > now {
            return None;
        }
        let Held { time: at, item, size, ecn, corrupt } = self.held.pop_front()?;
        self.tidy();
        self.flying -= 1;
        self.flying_bytes -= u64::from(size);
        self.stats.delivered.count(size);
        self.stats.corrupted += u64::from(corrupt);
        Some(Arrival { at, item, size, ce: ecn == Ecn::Marked, corrupt })
    }

    /// Packets waiting at `now`, the one on its way out included, and their bytes with overhead.
    pub fn backlog(&mut self, now: Time) -> (usize, u64) {
        self.catch_up(now);
        (self.held.len() - self.flying, self.queued_bytes)
    }

    /// Counts from `now` on how many packets wait at most.
    pub fn restart_peaks(&mut self, now: Time) {
        (self.stats.max_queue_packets, self.stats.max_queue_bytes) = self.backlog(now);
    }

    /// For how long something was on its way out, by `now`: over a stretch of time the share of it in which the link is used.
    pub fn busy(&mut self, now: Time) -> Span {
        self.catch_up(now);
        let until = if self.sends { now } else { self.last_departure.min(now) };
        until.since(Time::ZERO + self.idle)
    }

    /// Bytes held, waiting or on the wire, when the link was last asked.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.queued_bytes + self.flying_bytes
    }

    /// What the link has done by the time it was last asked.
    #[must_use]
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    fn on_wire(&self, size: u32) -> u64 {
        u64::from(size) + u64::from(self.overhead)
    }

    /// A ring is gone through from end to end again and again, however few it holds: what is at hand is little.
    fn tidy(&mut self) {
        let (held, room) = (self.held.len(), self.held.capacity());
        if held == 0 {
            self.held.clear();
        }
        if held >= room / 8 || room <= LEAST_RING {
            self.few = 0;
            return;
        }
        self.few += 1;
        if room > SMALL_RING || self.few > PATIENCE {
            self.held.shrink_to((room / 4).max(LEAST_RING));
            self.few = 0;
        }
    }

    /// How long so many bytes take, if the transmitter is regular.
    #[inline]
    fn time_for(&mut self, bytes: u64) -> Span {
        if let Some(nanos) = self.per_byte {
            return Span::from_nanos(bytes.saturating_mul(nanos.get()));
        }
        if self.known.0 != bytes {
            self.known = (bytes, self.transmitter.time_for(bytes));
        }
        self.known.1
    }

    fn is_down(&mut self, now: Time) -> bool {
        self.has_outages && self.rare.outages.is_down(now)
    }

    fn admit(&mut self, now: Time, size: u32) -> Result<(), DropReason> {
        if self.is_down(now) {
            return Err(DropReason::Outage);
        }
        if size > self.mtu {
            return Err(DropReason::TooLarge);
        }
        let filled = ((self.held.len() - self.flying) as u64 + 1, self.queued_bytes + self.on_wire(size));
        let QueueModel { limit, random_drop, .. } = self.rare.queue;
        limit.admit(filled, random_drop, &mut self.rare.luck.random)
    }

    /// Notes a packet of so many bytes on the wire that the queue takes, and marks it where there is too much.
    fn manage(&mut self, bytes: u64, ecn: Ecn) -> Ecn {
        self.rare.largest = self.rare.largest.max(bytes);
        let is_above_mark = match self.rare.queue.mark_above {
            Some(Limit::Packets(limit)) => (self.held.len() - self.flying) as u64 > u64::from(limit),
            Some(Limit::Bytes(limit)) => self.queued_bytes > limit,
            None => false,
        };
        if ecn != Ecn::Capable || !is_above_mark {
            return ecn;
        }
        self.stats.marked += 1;
        Ecn::Marked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_packet_needs_lies_in_three_cache_lines() {
        let counted = std::mem::offset_of!(Link<u64>, stats) + std::mem::offset_of!(LinkStats, dropped);
        assert!(counted <= 3 * 64, "{counted}");
    }
}
