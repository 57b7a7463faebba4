//! The links of a network and what is on them: takes packets from hop to hop.
//!
//! What is sent arrives a link's delay later at the soonest. Where packets enter over links that others do not pass
//! through, what links do meanwhile does not depend on what is sent. So where links are plain, too, they go ahead of the sessions
//! by that delay, slot by slot ([`Express`]); else they are asked one by one ([`Stepwise`]).

use anabranch_link::{LinkConfig, LinkStats};
use anabranch_wire::{Length, Message, PathId, Span, StreamId, Time};

use super::express::Express;
use super::flights::Flight;
use super::packets::{Destination, Kept, Packets};
use super::plan::LinkChange;
use super::routes::Table;
use super::stepwise::Stepwise;
use crate::chance::seed_of;

/// The kind of party whose seeds are those of links.
const SEED_KIND: u64 = 1;

/// What is written on a packet at the end of its route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub to: Destination,
    /// UDP payload in bytes.
    pub size: u32,
    /// It carries a congestion mark.
    pub ce: bool,
}

/// A packet at the end of its route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub at: Time,
    pub place: u32,
    pub ce: bool,
}

/// And when it was fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    pub at: Time,
    ce: bool,
    kept: Kept,
}

impl Fetched {
    pub(crate) fn envelope(&self) -> Envelope {
        Envelope { to: self.kept.to, size: self.kept.size, ce: self.ce }
    }

    pub(crate) fn to(&self) -> Destination {
        self.kept.to
    }

    /// The stream that it has bytes of, and where they begin.
    pub(crate) fn run_start(&self) -> Option<(StreamId, u64)> {
        self.kept.run_start()
    }

    /// The path that it is about, and whether it acknowledges.
    pub(crate) fn path(&self) -> Option<(PathId, bool)> {
        self.kept.path()
    }
}

/// A packet that has left a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    at: Time,
    turn: u32,
    /// Capable of ECN.
    ecn: bool,
    flight: Flight,
}

/// Packets, where they go, and how many have crossed a link.
#[derive(Debug)]
pub(crate) struct Freight {
    pub packets: Packets,
    pub routes: Table,
    pub packet_hops: u64,
}

/// Links and what is on them.
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
    /// Links over which these routes go, and which change while they run or not.
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

    /// Up to when links may go ahead of what is sent from `at` on; `None` when they may not.
    pub(crate) fn ahead_of(&self, at: Time) -> Option<Time> {
        match &self.links {
            Links::Express(links) => Some(links.ahead_of(at)),
            Links::Stepwise(_) => None,
        }
    }

    /// Nothing arrives anywhere before that.
    pub(crate) fn next_at(&mut self) -> Time {
        match &mut self.links {
            Links::Express(links) => links.next_at(),
            Links::Stepwise(links) => links.next_at(),
        }
    }

    /// Moves on what arrives at the ends of links by `until`, into `landed` what that was the last hop of: all of it where links go
    /// ahead, else what is first.
    pub(crate) fn step(&mut self, until: Time, landed: &mut Vec<Landed>) {
        match &mut self.links {
            Links::Express(links) => links.step(until, &mut self.freight, landed),
            Links::Stepwise(links) => links.step(until, &mut self.freight, landed),
        }
    }

    /// Packets that crossed a link so far.
    pub(crate) fn packet_hops(&self) -> u64 {
        self.freight.packet_hops
    }

    /// Takes over a packet of `size` bytes that leaves at `at`, in the given turn among those that do, over the route that
    /// begins at `start`. What is left in the message is there for its lists only.
    pub(crate) fn pack(
        &mut self,
        (at, turn): (Time, u32),
        (start, to): (u32, Destination),
        size: u32,
        message: Option<&mut Message<Length>>,
    ) -> Leaving {
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

    /// Has a packet fetched that has landed.
    pub(crate) fn fetch(&mut self, Landed { at, place, ce }: Landed) -> Fetched {
        Fetched { at, ce, kept: self.freight.packets.fetch(place) }
    }

    /// Opens a packet that was fetched.
    #[inline]
    pub(crate) fn open(&mut self, fetched: &Fetched) -> Option<Message<Length>> {
        self.freight.packets.open(&fetched.kept)
    }

    /// Takes the lists back of what was opened, before another packet leaves.
    #[inline]
    pub(crate) fn close(&mut self, fetched: &Fetched, message: &mut Message<Length>) {
        self.freight.packets.close(&fetched.kept, message);
    }

    /// Changes a link; only where that was expected.
    pub(crate) fn change(&mut self, now: Time, index: usize, change: &LinkChange) {
        match &mut self.links {
            Links::Express(_) => debug_assert!(false, "links that go ahead do not change"),
            Links::Stepwise(links) => links.change(now, index, change, &mut self.freight),
        }
    }

    /// What a link has done by `now`.
    pub(crate) fn stats(&mut self, now: Time, link: usize) -> LinkStats {
        match &mut self.links {
            Links::Express(links) => links.stats(link),
            Links::Stepwise(links) => links.stats(now, link),
        }
    }

    /// Counts from `now` on how many packets wait at most at each link.
    pub(crate) fn restart_peaks(&mut self, now: Time) {
        match &mut self.links {
            Links::Express(links) => links.restart_peaks(now),
            Links::Stepwise(links) => links.restart_peaks(now),
        }
    }

    /// Packets of a source of plain packets that were lost so far.
    pub(crate) fn lost_of(&self, source: usize) -> u64 {
        self.freight.packets.lost_of(source)
    }

    /// For how long a link had something on its way out by `now`.
    pub(crate) fn busy(&mut self, now: Time, link: usize) -> Span {
        match &mut self.links {
            Links::Express(links) => links.busy(now, link),
            Links::Stepwise(links) => links.busy(now, link),
        }
    }

    /// Packets waiting at a link at `now`, the one on its way out included.
    pub(crate) fn backlog(&mut self, now: Time, link: usize) -> usize {
        match &mut self.links {
            Links::Express(links) => links.backlog(now, link),
            Links::Stepwise(links) => links.backlog(now, link),
        }
    }

    /// Packets on their way now.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.freight.packets.count()
    }
}
