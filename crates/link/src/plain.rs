//! The plain link that holds no packets: it tells when one arrives as soon as it is offered.
//!
//! For a driver that keeps packets elsewhere, by when they arrive. All that is left to know of a packet is whether it still
//! waits when another comes. While packets wait the wire is never idle, so their sizes say when each leaves: a ring of
//! sizes, two bytes a packet, begun anew whenever the wire is idle. Who has left is looked at only when it may matter, as
//! in [`Link`]; what does a packet's work lies in two cache lines and one of that ring.

use std::num::NonZeroU64;

use anabranch_prefetch::prefetch;
use anabranch_wire::{Span, Time};

use crate::link::Link;
use crate::random::Random;
use crate::sizes::Sizes;
use crate::transmitter::Transmitter;
use crate::{DropCounts, DropReason, Limit, LinkConfig, LinkStats, RandomDrop, Tally};

/// Bytes of a link in front that a packet needs.
const AT_HAND: usize = 128;

/// The largest size there is: that of an IP packet.
const LARGEST: u32 = u16::MAX as u32;

/// A link in one direction on which nothing but its turn decides about a packet.
///
/// Times given to it are not to go back.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct PlainLink {
    /// Of all that was taken.
    last_departure: Time,
    /// When the first in `waiting` leaves.
    first_departure: Time,
    /// Their sum, with overhead.
    queued_bytes: u64,
    delay: Span,
    taken: Tally,
    wait_total: Span,
    /// How long a byte takes, where that is a whole number of nanoseconds.
    per_byte: Option<NonZeroU64>,
    /// A queue that seems no longer than this has room and was as long before.
    ample_packets: usize,
    max_queue_bytes: u64,
    /// The largest size that is carried.
    mtu: u32,
    overhead: u32,
    /// The sizes of what waits, or waited when somebody last looked, without overhead.
    waiting: Sizes,
    // Up to here, but for the sizes themselves, two cache lines.
    /// A size and how long it takes, where `per_byte` does not say it.
    known: (u64, Span),
    max_queue_packets: usize,
    limit: Limit,
    random_drop: Option<RandomDrop>,
    rare: Box<Rare>,
}

/// What most packets do not need.
#[derive(Clone, Debug)]
struct Rare {
    transmitter: Transmitter,
    random: Random,
    refused: Tally,
    dropped: DropCounts,
}

impl PlainLink {
    /// A link with nothing on it; `None` unless it [is plain](Link::is_plain).
    #[must_use]
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
                known: (0, Span::ZERO),
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

    /// Has the link's own memory fetched, for a call that comes soon.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self, 0..AT_HAND);
    }

    /// Has fetched where the next size goes, once what [`Self::prefetch`] asks for is at hand.
    #[inline]
    pub fn prefetch_room(&self) {
        self.waiting.prefetch_room();
    }

    /// Offers a packet of `size` bytes at `now`; returns when it arrives.
    ///
    /// # Errors
    /// Why it was not taken.
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

    /// True when a packet is sure to find room, and no more waiting than there was once.
    #[inline]
    fn has_ample_room(&self, size: u32, bytes: u64) -> bool {
        self.waiting.len() < self.ample_packets
            && self.queued_bytes + bytes <= self.max_queue_bytes
            && size <= self.mtu
    }

    /// Looks whether a packet finds room.
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

    /// Looks who has left by `now`.
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

    /// Packets waiting at `now`, the one on its way out included, and their bytes with overhead.
    pub fn backlog(&mut self, now: Time) -> (usize, u64) {
        self.settle(now);
        (self.waiting.len(), self.queued_bytes)
    }

    /// Counts from `now` on how many packets wait at most.
    pub fn restart_peaks(&mut self, now: Time) {
        (self.max_queue_packets, self.max_queue_bytes) = self.backlog(now);
        self.ample_packets = self.ample_packets.min(self.max_queue_packets);
    }

    /// For how long something was on its way out, by `now`: as [`Link::busy`], but for nanoseconds of packets whose time is no
    /// whole number of them.
    #[must_use]
    pub fn busy(&self, now: Time) -> Span {
        let bytes = self.taken.bytes + self.taken.packets * u64::from(self.overhead);
        self.rare.transmitter.time_for(bytes).saturating_sub(self.last_departure.since(now))
    }

    /// What the link has done, if of what it took so much has not arrived yet.
    #[must_use]
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
        if self.known.0 != bytes {
            self.known = (bytes, self.rare.transmitter.time_for(bytes));
        }
        self.known.1
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
        // Two at a time, of which one has left when the next ones come: the wire is never idle.
        for at in 0..10_000 {
            for _ in 0..2 {
                link.pass(Time::from_nanos(at * 199_000), 100).unwrap();
            }
        }
        assert!(link.max_queue_packets < 200, "{}", link.max_queue_packets);
        assert_eq!(link.waiting.capacity(), link.max_queue_packets.next_power_of_two().max(128));
    }

    #[test]
    fn what_a_packet_needs_lies_in_front() {
        assert!(std::mem::offset_of!(PlainLink, waiting) + Sizes::HEAD <= AT_HAND);
    }
}
