//! One direction of a link, computed when a driver calls.
//!
//! One ring holds the packets: first those on the wire, in order of arrival, then those waiting. The first waiting
//! packet is being sent while `sends` is set. Each call catches up to its time: a departure turns the packet from
//! waiting to flying, in place in the ring, and starts the next one *at the time of that departure*, so a late caller
//! never costs rate. The fate of a packet (loss, jitter, ...) is drawn when its sending begins, so the draws are in
//! sending order whenever the calls come.
//!
//! A simulated network has thousands of links, and each packet passes half a dozen. So the fields for a link without
//! randomness lie together in three cache lines; all others follow or are boxed. On a plain link, the whole journey of a
//! packet is computed when it is offered; see `planned`.

mod change;
mod departure;
mod planned;

use std::collections::VecDeque;
use std::num::NonZeroU64;

use anabranch_wire::{Span, Time};

use crate::codel::Codel;
use crate::impairments::{Fate, Impairments};
use crate::outages::Outages;
use crate::random::Random;
use crate::transmitter::Transmitter;
use crate::{DropReason, Ecn, Limit, LinkConfig, LinkStats, QueueModel};

/// The ring always keeps room for this many packets.
const LEAST_RING: usize = 16;
/// A ring with more room than this shrinks as soon as few packets are held.
const SMALL_RING: usize = 128;
/// A smaller ring shrinks after this many packets have left in a row while few were held. So a queue that fills and
/// empties in turn keeps its room.
const PATIENCE: u32 = 1024;

/// A link in one direction, carrying packets of type `T`.
///
/// After each call that changes it, call [`next_arrival`](Self::next_arrival) again. Times must not decrease (a small
/// step back is harmless: the packet queues behind what has left).
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Link<T> {
    held: VecDeque<Held<T>>,
    /// How many of those held are on the wire; with a plan, as of the last [`settle`](Self::settle).
    flying: usize,
    queued_bytes: u64,
    delay: Span,
    /// Time of the last departure so far; with a plan, of the last packet held.
    last_departure: Time,
    flags: Flags,
    /// The largest size carried.
    mtu: u32,
    overhead: u32,
    /// The time of a byte, if it is a whole number of nanoseconds, as at most round rates.
    per_byte: Option<NonZeroU64>,
    /// Without `per_byte`: the last size and its time. Many packets have the size of the one before.
    last_time: (u64, Span),
    flying_bytes: u64,
    /// Total time in which nothing was being sent, before the current or last packet; on a trace, before the current or
    /// last opportunity used.
    idle: Span,
    stats: LinkStats,
    /// Packets that left in a row while few were held.
    few_held: u32,
    /// When the first waiting packet has left; [`Time::NEVER`] while none is being sent, and with a plan.
    departs: Time,
    transmitter: Transmitter,
    last_arrival: Time,
    rare: Box<Rare<T>>,
}

/// Which parts of the link are in use, so that most calls skip the others.
#[derive(Clone, Copy, Debug)]
struct Flags {
    /// The arrival of every held packet is computed.
    is_planned: bool,
    /// A packet's journey depends only on the packets before it, so it can be computed on arrival.
    is_plain: bool,
    /// The first waiting packet is being sent.
    sends: bool,
    /// Packets may overtake each other.
    overtakes: bool,
    /// `rare.impairments` draws a fate for each packet.
    is_impaired: bool,
    /// `rare.queue` or `rare.codel` may mark or drop packets.
    is_managed: bool,
    /// `rare.outages` must be checked.
    has_outages: bool,
    /// `rare.lost` holds packets.
    has_lost: bool,
}

/// Fields that packets on a plain link do not need.
#[derive(Clone, Debug)]
struct Rare<T> {
    queue: QueueModel,
    codel: Option<Codel>,
    /// The largest packet that the queue has held, for CoDel.
    largest: u64,
    impairments: Impairments,
    /// The fate of the packet being sent.
    fate: Fate,
    /// On a trace, when the opportunities used so far end.
    slots_until: Time,
    outages: Outages,
    /// Packets lost after they were accepted, if the driver wants them back.
    lost: Option<Vec<T>>,
}

/// A packet that arrived at the far end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival<T> {
    /// When it arrives, possibly before the call that returned it.
    pub at: Time,
    /// The packet.
    pub item: T,
    /// Its size as given at enqueue.
    pub size: u32,
    /// True when it carries a congestion mark, from this link or an earlier one.
    pub ce: bool,
    /// True when it was damaged on the link.
    pub corrupt: bool,
}

/// A packet on the link.
#[derive(Clone, Debug)]
struct Held<T> {
    /// Since when it waits; on the wire, when it arrives.
    time: Time,
    item: T,
    size: u32,
    ecn: Ecn,
    corrupt: bool,
}

impl<T: Clone> Link<T> {
    /// An empty link.
    pub fn new(mut config: LinkConfig) -> Self {
        let QueueModel { random_drop, codel, mark_above, .. } = config.queue;
        let rare = Rare {
            queue: config.queue,
            codel: codel.map(Codel::new),
            largest: 0,
            outages: Outages::new(std::mem::take(&mut config.outages)),
            impairments: Impairments::new(&config),
            fate: Fate::default(),
            slots_until: Time::ZERO,
            lost: None,
        };
        let flags = Flags {
            is_planned: false,
            is_plain: false,
            sends: false,
            overtakes: rare.impairments.overtakes(),
            is_impaired: rare.impairments.is_needed(),
            is_managed: random_drop.is_some() || codel.is_some() || mark_above.is_some(),
            has_outages: !rare.outages.is_over(),
            has_lost: false,
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
            last_time: (0, Span::ZERO),
            mtu: config.mtu.unwrap_or(u32::MAX),
            overhead: config.overhead,
            flags,
            stats: LinkStats::default(),
            few_held: 0,
            flying_bytes: 0,
            rare: Box::new(rare),
        };
        link.flags.is_plain = link.can_be_planned();
        link.per_byte = link.transmitter.per_byte();
        link
    }

    /// Keeps packets lost after they were accepted for [`take_lost`](Self::take_lost): for items that refer to something
    /// stored elsewhere.
    #[must_use]
    pub fn keeping_lost(mut self) -> Self {
        self.rare.lost = Some(Vec::new());
        self
    }

    /// True when [`take_lost`](Self::take_lost) has a packet to return.
    #[inline]
    pub fn has_lost(&self) -> bool {
        self.flags.has_lost
    }

    /// Returns a packet that was accepted and then lost; `None` unless the link was made by
    /// [`keeping_lost`](Self::keeping_lost).
    #[inline]
    pub fn take_lost(&mut self) -> Option<T> {
        if !self.flags.has_lost {
            return None;
        }
        let lost = self.rare.lost.as_mut()?;
        let item = lost.pop();
        self.flags.has_lost = !lost.is_empty();
        item
    }

    /// Offers a packet of `size` bytes at `now`.
    ///
    /// # Errors
    /// The reason when the packet is not accepted. An accepted packet may still be lost later.
    #[inline]
    pub fn enqueue(&mut self, now: Time, size: u32, item: T, ecn: Ecn) -> Result<(), DropReason> {
        if self.flags.is_planned || (self.flags.is_plain && self.held.is_empty()) {
            return self.plan(now, size, item, ecn);
        }
        self.catch_up(now);
        self.stats.offered.count(size);
        if let Err(why) = self.admit(now, size) {
            self.stats.dropped.count(why);
            return Err(why);
        }
        let bytes = self.on_wire(size);
        let ecn = if self.flags.is_managed { self.manage(bytes, ecn) } else { ecn };
        self.queued_bytes += bytes;
        self.held.push_back(Held { time: now, item, size, ecn, corrupt: false });
        self.stats.max_queue_packets = self.stats.max_queue_packets.max(self.held.len() - self.flying);
        self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(self.queued_bytes);
        if !self.flags.sends {
            let start = now.max(self.last_departure);
            self.begin_next(start);
            if self.flags.sends && !self.transmitter.is_traced() {
                self.idle += start.since(self.last_departure);
            }
        }
        Ok(())
    }

    /// When to call [`pop`](Self::pop) next; `None` when nothing comes out unless something changes.
    ///
    /// Nothing comes out earlier. At that time the packet may turn out to be lost or, where packets may overtake each
    /// other, to be on the wire still: then call this again.
    #[inline]
    pub fn next_arrival(&self) -> Option<Time> {
        if self.flags.is_planned {
            return self.held.front().map(|packet| packet.time);
        }
        let flying = self.held.front().filter(|_| self.flying > 0).map(|packet| packet.time);
        if !self.flags.sends || (flying.is_some() && !self.flags.overtakes) {
            return flying;
        }
        let next = if self.flags.overtakes { self.departs } else { self.next_landing() };
        Some(flying.map_or(next, |at| at.min(next))).filter(|at| *at != Time::NEVER)
    }

    /// True when enqueueing another packet leaves [`next_arrival`](Self::next_arrival) unchanged: a packet is held, and each
    /// packet's journey depends only on the packets before it.
    pub fn is_steady(&self) -> bool {
        (self.flags.is_planned || self.flags.is_plain) && !self.held.is_empty()
    }

    /// True when a packet's journey depends only on the packets before it: the rate is fixed, nothing after the queue
    /// is random, and no outage is scheduled. While such a link is not changed, a driver may first take out all that
    /// arrives by some time and then offer packets with earlier times, if these cannot arrive by that time.
    pub fn is_plain(&self) -> bool {
        self.flags.is_plain
    }

    /// The parts of an empty link that a [`PlainLink`](crate::PlainLink) needs.
    pub(crate) fn into_parts(self) -> (Transmitter, Random, u32, u32) {
        (self.transmitter, self.rare.impairments.random, self.mtu, self.overhead)
    }

    /// Takes out the first packet that has arrived by `now`.
    #[inline]
    pub fn pop(&mut self, now: Time) -> Option<Arrival<T>> {
        if self.flags.is_planned {
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

    /// Packets waiting at `now`, including the one being sent, and their bytes with overhead.
    pub fn backlog(&mut self, now: Time) -> (usize, u64) {
        self.catch_up(now);
        (self.held.len() - self.flying, self.queued_bytes)
    }

    /// Counts the longest queue from `now` on.
    pub fn restart_peaks(&mut self, now: Time) {
        (self.stats.max_queue_packets, self.stats.max_queue_bytes) = self.backlog(now);
    }

    /// The total time in which a packet was being sent, by `now`: its share of a period is the link's utilisation. On a
    /// trace, each opportunity used counts as the time until the next one.
    pub fn busy(&mut self, now: Time) -> Span {
        self.catch_up(now);
        let until = if self.transmitter.is_traced() {
            self.rare.slots_until.min(now)
        } else if self.flags.sends {
            now
        } else {
            self.last_departure.min(now)
        };
        until.since(Time::ZERO + self.idle)
    }

    /// Bytes waiting or on the wire, as of the last call.
    pub fn held_bytes(&self) -> u64 {
        self.queued_bytes + self.flying_bytes
    }

    /// The link's counts, as of the last call.
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    fn on_wire(&self, size: u32) -> u64 {
        u64::from(size) + u64::from(self.overhead)
    }

    /// Shrinks the ring when few packets are held: a ring cycles through all of its memory, which should stay small.
    fn tidy(&mut self) {
        let (held, room) = (self.held.len(), self.held.capacity());
        if held == 0 {
            self.held.clear();
        }
        if held >= room / 8 || room <= LEAST_RING {
            self.few_held = 0;
            return;
        }
        self.few_held += 1;
        if room > SMALL_RING || self.few_held > PATIENCE {
            self.held.shrink_to((room / 4).max(LEAST_RING));
            self.few_held = 0;
        }
    }

    /// How long these bytes take on a regular transmitter.
    #[inline]
    fn time_for(&mut self, bytes: u64) -> Span {
        if let Some(nanos) = self.per_byte {
            return Span::from_nanos(bytes.saturating_mul(nanos.get()));
        }
        if self.last_time.0 != bytes {
            self.last_time = (bytes, self.transmitter.time_for(bytes));
        }
        self.last_time.1
    }

    fn is_down(&mut self, now: Time) -> bool {
        self.flags.has_outages && self.rare.outages.is_down(now)
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
        limit.admit(filled, random_drop, &mut self.rare.impairments.random)
    }

    /// Records a packet of this many bytes that enters the queue, and marks it above the threshold.
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
    fn the_fields_every_packet_needs_lie_in_three_cache_lines() {
        let counted = std::mem::offset_of!(Link<u64>, stats) + std::mem::offset_of!(LinkStats, dropped);
        assert!(counted <= 3 * 64, "{counted}");
    }
}
