//! The links of a network and their packets: moves packets from hop to hop.
//!
//! A packet arrives at least one link delay after it was sent. If packets enter only over links that no other packets
//! cross, links do not depend on packets that are sent meanwhile. Plain links then run ahead of the sessions by that
//! delay, slot by slot ([`Express`]). Otherwise links run one by one ([`Stepwise`]).

use anabranch_link::{LinkConfig, LinkStats};
use anabranch_wire::{Message, PathId, Span, StreamId, Time};

use super::express::Express;
use super::flights::Flight;
use super::load::Load;
use super::packets::{Destination, PackedPacket, Packets};
use super::plan::LinkChange;
use super::routes::Table;
use super::stepwise::Stepwise;
use crate::chance::seed_of;

/// The kind of links for seeds.
const SEED_KIND: u64 = 1;

/// The envelope of a packet at the end of its route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub to: Destination,
    /// UDP payload in bytes.
    pub size: u32,
    /// Whether it was marked for congestion.
    pub ce: bool,
}

/// A packet at the end of its route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub at: Time,
    pub place: u32,
    pub ce: bool,
}

/// A packet at the end of its route, fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    pub at: Time,
    ce: bool,
    packed: PackedPacket,
}

impl Fetched {
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope { to: self.packed.to, size: self.packed.size, ce: self.ce }
    }

    pub(crate) fn to(&self) -> Destination {
        self.packed.to
    }

    /// The stream of its bytes, and their offset.
    pub(crate) fn run_start(&self) -> Option<(StreamId, u64)> {
        self.packed.run_start()
    }

    /// The path that it concerns, and whether it is an acknowledgement.
    pub(crate) fn path(&self) -> Option<(PathId, bool)> {
        self.packed.path()
    }
}

/// A packet that leaves its source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    pub at: Time,
    /// The order among packets that leave at the same time.
    pub turn: u32,
    /// Index of its route in the route table.
    pub start: u32,
    pub to: Destination,
    /// UDP payload in bytes.
    pub size: u32,
}

/// A packet that has left a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    at: Time,
    turn: u32,
    /// Whether it supports ECN.
    ecn: bool,
    flight: Flight,
}

/// Packets, their routes, and how many have crossed a link.
#[derive(Debug)]
pub(crate) struct Freight {
    pub packets: Packets,
    pub routes: Table,
    pub packet_hops: u64,
}

/// Links and their packets.
#[derive(Debug)]
pub(crate) struct Wires {
    freight: Freight,
    links: Links,
}

#[derive(Debug)]
enum Links {
    Express(Box<Express>),
    Stepwise(Stepwise),
}

impl Wires {
    /// Links for these routes; `changes` tells whether links change during the run.
    pub(crate) fn new(mut links: Vec<LinkConfig>, seed: u64, routes: Table, changes: bool) -> Self {
        for (index, link) in links.iter_mut().enumerate() {
            link.seed = seed_of(seed, SEED_KIND, index as u64);
        }
        let express = (!changes && !routes.is_mixed()).then(|| Express::new(&links)).flatten();
        let links = express.map_or_else(
            || Links::Stepwise(Stepwise::new(links)),
            |express| Links::Express(Box::new(express)),
        );
        Self { freight: Freight { packets: Packets::default(), routes, packet_hops: 0 }, links }
    }

    /// The time until which links may run ahead of packets sent at or after `at`; `None` if they may not.
    pub(crate) fn ahead_of(&self, at: Time) -> Option<Time> {
        match &self.links {
            Links::Express(links) => Some(links.ahead_of(at)),
            Links::Stepwise(_) => None,
        }
    }

    /// No packet arrives before this time.
    pub(crate) fn next_at(&mut self) -> Time {
        match &mut self.links {
            Links::Express(links) => links.next_at(),
            Links::Stepwise(links) => links.next_at(),
        }
    }

    /// Moves the packets that reach the end of a link by `until`, and adds those at the end of their route to `landed`.
    /// Links that run ahead move all of them, others only the first.
    pub(crate) fn step(&mut self, until: Time, landed: &mut Vec<Landed>) {
        match &mut self.links {
            Links::Express(links) => links.step(until, &mut self.freight, landed),
            Links::Stepwise(links) => links.step(until, &mut self.freight, landed),
        }
    }

    /// Packets that have crossed a link so far.
    pub(crate) fn packet_hops(&self) -> u64 {
        self.freight.packet_hops
    }

    /// Stores a packet; only the lists stay in `message`.
    pub(crate) fn pack(&mut self, packet: Departure, message: Option<&mut Message<Load>>) -> Leaving {
        let Departure { at, turn, start, to, size } = packet;
        let place = self.freight.packets.insert(to, size, message);
        Leaving { at, turn, ecn: to.ecn, flight: Flight { place, next: start, size } }
    }

    /// Offers packets to the first links of their routes, in order of time and turn.
    pub(crate) fn send_all(&mut self, leaving: &mut Vec<Leaving>) {
        if !leaving.is_sorted_by_key(|packet| (packet.at, packet.turn)) {
            leaving.sort_by_key(|packet| (packet.at, packet.turn));
        }
        let packets = leaving.drain(..);
        match &mut self.links {
            Links::Express(links) => {
                packets.for_each(|packet| links.offer(packet.at, packet.flight, &mut self.freight));
            }
            Links::Stepwise(links) => {
                packets
                    .for_each(|packet| links.send(packet.at, packet.flight, packet.ecn, &mut self.freight));
            }
        }
    }

    /// Fetches a packet at the end of its route.
    pub(crate) fn fetch(&mut self, Landed { at, place, ce }: Landed) -> Fetched {
        Fetched { at, ce, packed: self.freight.packets.fetch(place) }
    }

    /// Opens a packet that was fetched.
    #[inline]
    pub(crate) fn open(&mut self, fetched: &Fetched) -> Option<Message<Load>> {
        self.freight.packets.open(&fetched.packed)
    }

    /// Returns the lists of an opened packet for reuse, before another packet leaves.
    #[inline]
    pub(crate) fn close(&mut self, fetched: &Fetched, message: &mut Message<Load>) {
        self.freight.packets.close(&fetched.packed, message);
    }

    /// Changes a link; allowed only if [`Self::new`] announced changes.
    pub(crate) fn change(&mut self, now: Time, index: usize, change: &LinkChange) {
        match &mut self.links {
            Links::Express(_) => debug_assert!(false, "links that go ahead do not change"),
            Links::Stepwise(links) => links.change(now, index, change, &mut self.freight),
        }
    }

    pub(crate) fn stats(&mut self, now: Time, link: usize) -> LinkStats {
        match &mut self.links {
            Links::Express(links) => links.stats(link),
            Links::Stepwise(links) => links.stats(now, link),
        }
    }

    /// Restarts the queue maximum of each link.
    pub(crate) fn restart_peaks(&mut self, now: Time) {
        match &mut self.links {
            Links::Express(links) => links.restart_peaks(now),
            Links::Stepwise(links) => links.restart_peaks(now),
        }
    }

    /// Lost packets of a source of plain packets so far.
    pub(crate) fn lost_of(&self, source: usize) -> u64 {
        self.freight.packets.lost_of(source)
    }

    /// How long a link has been sending by `now`.
    pub(crate) fn busy(&mut self, now: Time, link: usize) -> Span {
        match &mut self.links {
            Links::Express(links) => links.busy(now, link),
            Links::Stepwise(links) => links.busy(now, link),
        }
    }

    /// Packets waiting at a link at `now`, including the one being sent.
    pub(crate) fn backlog(&mut self, now: Time, link: usize) -> usize {
        match &mut self.links {
            Links::Express(links) => links.backlog(now, link),
            Links::Stepwise(links) => links.backlog(now, link),
        }
    }

    /// Number of packets in flight.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.freight.packets.count()
    }
}
