//! The links of a network and what is on them: takes packets from hop to hop.
//!
//! A link calls once for whatever it holds: when its first packet arrives. That packet is offered to
//! the next link of its route, or handed out when there is none.

use anabranch_link::{Ecn, Link, LinkConfig, RateModel};
use anabranch_wire::{Length, Message, Time};

use super::agenda::Agenda;
use super::packets::{Destination, Flying, LAST_HOP, Packets};
use super::plan::LinkChange;
use crate::chance::seed_of;

/// The kind of party whose seeds are those of links.
const SEED_KIND: u64 = 1;

/// A packet at the end of its route.
pub(crate) struct Delivered {
    pub to: Destination,
    /// UDP payload in bytes.
    pub size: u32,
    /// It carries a congestion mark.
    pub ce: bool,
    pub message: Option<Message<Length>>,
}

/// A packet as links see it: nothing of the packet itself is touched between its first and its last link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// Where the packet is.
    place: u32,
    /// Where the rest of its route begins in the list of hops; [`CAPABLE`] when it is capable of ECN. Queues
    /// are the largest part of a network in memory, so eight bytes a packet it is.
    next: u32,
}

/// The mark of a packet that is capable of ECN.
const CAPABLE: u32 = 1 << 31;

impl Hop {
    fn position(self) -> usize {
        (self.next & !CAPABLE) as usize
    }

    fn ecn(self, marked: bool) -> Ecn {
        match (marked, self.next & CAPABLE != 0) {
            (true, _) => Ecn::Marked,
            (false, true) => Ecn::Capable,
            (false, false) => Ecn::NotCapable,
        }
    }
}

/// Links, packets and the calendar. Party `n` of the calendar is link `n`.
#[derive(Debug)]
pub(crate) struct Wires {
    pub links: Vec<Link<Hop>>,
    pub agenda: Agenda,
    pub packets: Packets,
    /// All routes, one after the other, each ended by [`LAST_HOP`].
    hops: Vec<u32>,
    /// Packets that crossed a link so far.
    pub packet_hops: u64,
}

impl Wires {
    pub(crate) fn new(links: Vec<LinkConfig>, seed: u64) -> Self {
        let link = |(index, config): (usize, LinkConfig)| {
            Link::new(LinkConfig { seed: seed_of(seed, SEED_KIND, index as u64), ..config }).keeping_lost()
        };
        let links: Vec<_> = links.into_iter().enumerate().map(link).collect();
        let agenda = Agenda::new(links.len());
        Self { links, agenda, packets: Packets::default(), hops: Vec::new(), packet_hops: 0 }
    }

    /// Notes a route; returns where it begins.
    pub(crate) fn add_route(&mut self, links: &[u32]) -> u32 {
        let start = self.hops.len() as u32;
        self.hops.extend_from_slice(links);
        self.hops.push(LAST_HOP);
        start
    }

    /// Puts a packet on its way, over the route that begins at `start`.
    pub(crate) fn send(&mut self, now: Time, start: u32, packet: Flying) {
        let size = packet.size;
        let next = if packet.to.ecn { start | CAPABLE } else { start };
        let hop = Hop { place: self.packets.insert(packet), next };
        self.offer(now, hop, size, hop.ecn(false));
    }

    fn offer(&mut self, now: Time, hop: Hop, size: u32, ecn: Ecn) {
        let index = self.hops[hop.position()] as usize;
        let hop = Hop { next: hop.next + 1, ..hop };
        let link = &mut self.links[index];
        let is_steady = link.is_steady();
        if link.enqueue(now, size, hop, ecn).is_err() {
            self.packets.remove(hop.place);
        }
        if !is_steady {
            self.attend(index);
        }
    }

    /// Frees what a link lost and asks for its next call.
    fn attend(&mut self, index: usize) {
        let link = &mut self.links[index];
        while let Some(lost) = link.take_lost() {
            self.packets.remove(lost.place);
        }
        if let Some(at) = link.next_arrival() {
            self.agenda.call(index, at);
        }
    }

    /// Moves on the first packet that has arrived at the end of a link; hands it out when that was its last
    /// hop. To be called until the link's next arrival is later than `now`.
    pub(crate) fn step(&mut self, now: Time, index: usize) -> Option<Delivered> {
        let arrival = self.links[index].pop(now);
        self.attend(index);
        let arrival = arrival?;
        self.packet_hops += 1;
        let hop = arrival.item;
        if !arrival.corrupt && self.hops[hop.position()] != LAST_HOP {
            self.offer(now, hop, arrival.size, hop.ecn(arrival.ce));
            return None;
        }
        let Flying { size, to, message } = self.packets.remove(hop.place);
        let arrived = Delivered { to, size, ce: arrival.ce, message };
        Some(arrived).filter(|_| !arrival.corrupt)
    }

    /// Changes a link.
    pub(crate) fn change(&mut self, now: Time, index: usize, change: &LinkChange) {
        let link = &mut self.links[index];
        match change {
            LinkChange::Down(down) => link.set_down(now, *down),
            LinkChange::Rate(rate) => link.set_rate(now, RateModel::clone(rate)),
            LinkChange::Delay(delay) => link.set_delay(now, *delay),
            LinkChange::Loss(loss) => link.set_loss(now, *loss),
        }
        self.attend(index);
    }
}
