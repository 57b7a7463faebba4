//! The plain link that holds no packets: it returns a packet's arrival as soon as the packet is offered.
//!
//! For a driver that stores packets elsewhere, by arrival. The link only needs to know which packets still wait when
//! another one is offered. While packets wait the wire is never idle, so their sizes determine when each leaves. The link
//! keeps a ring of sizes, two bytes a packet, and clears it whenever the wire is idle. As in [`Link`], departures are
//! computed only when they may matter. A packet touches two cache lines and one of that ring.

use std::num::NonZeroU64;

use anabranch_prefetch::prefetch;
use anabranch_wire::{Span, Time};

use crate::link::Link;
use crate::random::Random;
use crate::sizes::Sizes;
use crate::transmitter::Transmitter;
use crate::{DropCounts, DropReason, Limit, LinkConfig, LinkStats, RandomDrop, Tally};

/// Bytes at the start of the link that every packet needs.
const HOT_BYTES: usize = 128;

/// The largest possible size: that of an IP packet.
const LARGEST: u32 = u16::MAX as u32;

/// A link in one direction on which a packet's journey depends only on the packets before it.
///
/// Times must not decrease.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct PlainLink {
    /// Departure of the last accepted packet.
    last_departure: Time,
    /// When the first in `waiting` leaves.
    first_departure: Time,
    /// Bytes of the packets in `waiting`, with overhead.
    queued_bytes: u64,
    delay: Span,
    taken: Tally,
    wait_total: Span,
    /// The time of a byte, if it is a whole number of nanoseconds.
    per_byte: Option<NonZeroU64>,
    /// With fewer waiting packets than this, another one has room and sets no record of the longest queue.
    ample_packets: usize,
    max_queue_bytes: u64,
    /// The largest size carried.
    mtu: u32,
    overhead: u32,
    /// The sizes of waiting packets, as of the last [`settle`](Self::settle), without overhead.
    waiting: Sizes,
    // The fields above, without the ring, fill two cache lines.
    /// The last size and its time, unless `per_byte` gives it.
    last_time: (u64, Span),
    max_queue_packets: usize,
    limit: Limit,
    random_drop: Option<RandomDrop>,
    rare: Box<Rare>,
}

/// Fields that most packets do not need.
#[derive(Clone, Debug)]
struct Rare {
    transmitter: Transmitter,
    random: Random,
    refused: Tally,
    dropped: DropCounts,
}

impl PlainLink {
    /// An empty link; `None` unless its configuration [is plain](Link::is_plain).
    pub fn new(config: LinkConfig) -> Option<Self> {
        let (queue, delay) = (config.queue, config.delay);
        let link = Link::<()>::new(config);
        link.is_plain().then(|| {
            let (transmitter, random, mtu, overhead) = link.into_parts();
            Self {
                last_departure: Time::ZERO,
                first_departure: Time::ZERO,
                queued_bytes: 0,
                delay,
                taken: Tally::default(),
                wait_total: Span::ZERO,
                per_byte: transmitter.per_byte(),
                ample_packets: 0,
                max_queue_bytes: 0,
                mtu: mtu.min(LARGEST),
                overhead,
                waiting: Sizes::new(),
                last_time: (0, Span::ZERO),
                max_queue_packets: 0,
                limit: queue.limit,
                random_drop: queue.random_drop,
                rare: Box::new(Rare {
                    transmitter,
                    random,
                    refused: Tally::default(),
                    dropped: DropCounts::default(),
                }),
            }
        })
    }

    /// Prefetches the link's own memory for a call that comes soon.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self, 0..HOT_BYTES);
    }

    /// Prefetches the slot of the next size, after [`Self::prefetch`] has taken effect.
    #[inline]
    pub fn prefetch_room(&self) {
        self.waiting.prefetch_room();
    }

    /// Offers a packet of `size` bytes at `now`; returns when it arrives.
    #[inline]
    pub fn pass(&mut self, now: Time, size: u32) -> Result<Time, DropReason> {
        if now >= self.last_departure {
            self.waiting.clear();
            self.queued_bytes = 0;
        }
        let bytes = self.on_wire(size);
        if !self.has_ample_room(size, bytes) {
            self.find_room(now, size, bytes)?;
        }
        let start = now.max(self.last_departure);
        self.taken.count(size);
        self.wait_total += start.since(now);
        self.last_departure = start + self.time_for(bytes);
        if self.waiting.is_empty() {
            self.first_departure = self.last_departure;
        }
        self.waiting.push_back(size as u16);
        self.queued_bytes += bytes;
        Ok(self.last_departure + self.delay)
    }

    /// True when a packet certainly finds room and the queue stays within its longest so far.
    #[inline]
    fn has_ample_room(&self, size: u32, bytes: u64) -> bool {
        self.waiting.len() < self.ample_packets
            && self.queued_bytes + bytes <= self.max_queue_bytes
            && size <= self.mtu
    }

    /// Checks whether a packet finds room.
    fn find_room(&mut self, now: Time, size: u32, bytes: u64) -> Result<(), DropReason> {
        self.settle(now);
        let (packets, queued_bytes) = (self.waiting.len() + 1, self.queued_bytes + bytes);
        let admitted = if size > self.mtu {
            Err(DropReason::TooLarge)
        } else {
            let random = &mut self.rare.random;
            self.limit.admit((packets as u64, queued_bytes), self.random_drop, random)
        };
        if let Err(why) = admitted {
            self.rare.refused.count(size);
            self.rare.dropped.count(why);
            return Err(why);
        }
        self.max_queue_packets = self.max_queue_packets.max(packets);
        self.max_queue_bytes = self.max_queue_bytes.max(queued_bytes);
        if self.random_drop.is_none() {
            self.ample_packets = self.max_queue_packets;
        }
        self.waiting.make_room(packets);
        Ok(())
    }

    /// Removes packets that have left by `now`.
    fn settle(&mut self, now: Time) {
        while self.first_departure <= now
            && let Some(size) = self.waiting.pop_front()
        {
            self.queued_bytes -= self.on_wire(u32::from(size));
            if let Some(next) = self.waiting.front() {
                let takes = self.time_for(self.on_wire(u32::from(next)));
                self.first_departure += takes;
            }
        }
    }

    /// Packets waiting at `now`, including the one being sent, and their bytes with overhead.
    pub fn backlog(&mut self, now: Time) -> (usize, u64) {
        self.settle(now);
        (self.waiting.len(), self.queued_bytes)
    }

    /// Counts the longest queue from `now` on.
    pub fn restart_peaks(&mut self, now: Time) {
        (self.max_queue_packets, self.max_queue_bytes) = self.backlog(now);
        self.ample_packets = self.ample_packets.min(self.max_queue_packets);
    }

    /// The total time in which a packet was being sent, by `now`: as [`Link::busy`], except for rounding where a packet takes
    /// no whole number of nanoseconds.
    pub fn busy(&self, now: Time) -> Span {
        let bytes = self.taken.bytes + self.taken.packets * u64::from(self.overhead);
        self.rare.transmitter.time_for(bytes).saturating_sub(self.last_departure.since(now))
    }

    /// The link's counts; `underway` are accepted packets that have not arrived yet.
    pub fn stats(&self, underway: Tally) -> LinkStats {
        let (taken, refused) = (self.taken, self.rare.refused);
        LinkStats {
            offered: taken + refused,
            delivered: taken - underway,
            max_queue_packets: self.max_queue_packets,
            max_queue_bytes: self.max_queue_bytes,
            wait_total: self.wait_total,
            waits: taken.packets,
            dropped: self.rare.dropped,
            ..LinkStats::default()
        }
    }

    fn on_wire(&self, size: u32) -> u64 {
        u64::from(size) + u64::from(self.overhead)
    }

    #[inline]
    fn time_for(&mut self, bytes: u64) -> Span {
        if let Some(nanos) = self.per_byte {
            return Span::from_nanos(bytes.saturating_mul(nanos.get()));
        }
        if self.last_time.0 != bytes {
            self.last_time = (bytes, self.rare.transmitter.time_for(bytes));
        }
        self.last_time.1
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Rate;

    use super::*;

    #[test]
    fn the_ring_is_as_long_as_the_queue_was_and_no_longer() {
        let config = LinkConfig::fixed(Rate::from_mbit(8.0), Span::from_secs(1), 1_000_000);
        let mut link = PlainLink::new(config).unwrap();
        // Two packets at a time, one of which has left when the next two come: the wire is never idle.
        for at in 0..10_000 {
            for _ in 0..2 {
                link.pass(Time::from_nanos(at * 199_000), 100).unwrap();
            }
        }
        assert!(link.max_queue_packets < 200, "{}", link.max_queue_packets);
        assert_eq!(link.waiting.capacity(), link.max_queue_packets.next_power_of_two().max(128));
    }

    #[test]
    fn the_fields_every_packet_needs_come_first() {
        assert!(std::mem::offset_of!(PlainLink, waiting) + Sizes::HEAD <= HOT_BYTES);
    }
}
