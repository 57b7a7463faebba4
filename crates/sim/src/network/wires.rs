//! The links of a network and what is on them: takes packets from hop to hop.
//!
//! A link calls once for whatever it holds: when its first packet arrives. That packet is offered to
//! the next link of its route, or handed out when there is none.
//!
//! What is sent arrives a link's delay later at the soonest. Where packets enter over links that others do not pass
//! through, what links do meanwhile does not depend on what is sent: so they may go ahead of the sessions by
//! [`Wires::lookahead`], many packets at a time, which keeps the code and the memory of either at hand.

use anabranch_link::{Arrival, Ecn, Link, LinkConfig, RateModel};
use anabranch_wire::{Length, Message, PathId, Span, Time, prefetch_item};

use super::agenda::Agenda;
use super::packets::{Destination, Flying, Kept, LAST_HOP, Packets};
use super::plan::LinkChange;
use crate::chance::seed_of;

/// The kind of party whose seeds are those of links.
const SEED_KIND: u64 = 1;

/// How many calls ahead a link is fetched, so that it is at hand when its turn comes ...
const FAR_AHEAD: usize = 12;
/// ... and then what is first on it.
const AHEAD: usize = 5;

/// A packet at the end of its route.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub to: Destination,
    /// UDP payload in bytes.
    pub size: u32,
    /// It carries a congestion mark.
    pub ce: bool,
    pub message: Option<Message<Length>>,
}

/// The same before somebody takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub at: Time,
    place: u32,
    ce: bool,
}

/// And when it was fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetched {
    pub at: Time,
    ce: bool,
    kept: Kept,
}

impl Fetched {
    pub(crate) fn to(&self) -> Destination {
        self.kept.to
    }

    /// The path that it is about.
    pub(crate) fn path(&self) -> Option<PathId> {
        self.kept.path()
    }
}

/// A packet that has left a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    at: Time,
    turn: u32,
    /// UDP payload in bytes.
    size: u32,
    hop: Hop,
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
    /// What arrived at the ends of links and is not moved on yet.
    arrived: Vec<Arrival<Hop>>,
    /// Packets that crossed a link so far.
    pub packet_hops: u64,
    /// Of each link, whether routes begin with it, and whether they come to it from another.
    uses: Vec<(bool, bool)>,
    /// The shortest delay, if links may go ahead.
    least_delay: Option<Span>,
}

impl Wires {
    pub(crate) fn new(links: Vec<LinkConfig>, seed: u64) -> Self {
        let link = |(index, config): (usize, LinkConfig)| {
            Link::new(LinkConfig { seed: seed_of(seed, SEED_KIND, index as u64), ..config }).keeping_lost()
        };
        let least_delay = links.iter().map(|link| link.delay).min();
        let links: Vec<_> = links.into_iter().enumerate().map(link).collect();
        let agenda = Agenda::new(links.len());
        let uses = vec![(false, false); links.len()];
        let least_delay = least_delay.filter(|_| links.iter().all(Link::is_plain));
        let packets = Packets::default();
        Self {
            links,
            agenda,
            packets,
            hops: Vec::new(),
            arrived: Vec::new(),
            packet_hops: 0,
            uses,
            least_delay,
        }
    }

    /// How far links may go ahead of what is sent. Nowhere, unless each is and remains plain and either begins
    /// routes or goes on with them.
    pub(crate) fn lookahead(&self) -> Span {
        let is_mixed = self.uses.iter().any(|(begins, goes_on)| *begins && *goes_on);
        self.least_delay.filter(|_| !is_mixed).unwrap_or(Span::ZERO)
    }

    /// Links will change while they run.
    pub(crate) fn expect_changes(&mut self) {
        self.least_delay = None;
    }

    /// Notes a route; returns where it begins.
    pub(crate) fn add_route(&mut self, links: &[u32]) -> u32 {
        let start = self.hops.len() as u32;
        self.hops.extend_from_slice(links);
        self.hops.push(LAST_HOP);
        for (index, link) in links.iter().enumerate() {
            let (begins, goes_on) = &mut self.uses[*link as usize];
            *begins |= index == 0;
            *goes_on |= index > 0;
        }
        start
    }

    /// Takes over a packet that leaves at `at`, in the given turn among those that do, over the route that begins at
    /// `start`.
    pub(crate) fn pack(&mut self, (at, turn): (Time, u32), start: u32, packet: Flying) -> Leaving {
        let size = packet.size;
        let next = if packet.to.ecn { start | CAPABLE } else { start };
        Leaving { at, turn, size, hop: Hop { place: self.packets.insert(packet), next } }
    }

    /// Offers packets to the first links of their routes, in order of time and turn.
    pub(crate) fn send_all(&mut self, leaving: &mut Vec<Leaving>) {
        if !leaving.is_sorted_by_key(|packet| (packet.at, packet.turn)) {
            leaving.sort_by_key(|packet| (packet.at, packet.turn));
        }
        for Leaving { at, size, hop, .. } in leaving.drain(..) {
            self.offer(at, hop, size, hop.ecn(false));
        }
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
        self.free_lost(index);
        if let Some(at) = self.links[index].next_arrival() {
            self.agenda.call(index, at);
        }
    }

    fn free_lost(&mut self, index: usize) {
        while let Some(lost) = self.links[index].take_lost() {
            self.packets.remove(lost.place);
        }
    }

    /// Moves on what arrives at the ends of links by `until`, which is nothing that enters a link meanwhile.
    ///
    /// All that happens until then is known beforehand. So all packets are taken out first, and then each is offered to its next
    /// link, in the same order: memory that is far away, and most of it is, is then fetched side by side and not
    /// piece by piece.
    pub(crate) fn step_all(&mut self, until: Time, landed: &mut Vec<Landed>) {
        let mut arrived = std::mem::take(&mut self.arrived);
        while let Some((now, index)) = self.agenda.next(until) {
            if let Some(link) = self.agenda.upcoming(FAR_AHEAD).and_then(|party| self.links.get(party)) {
                link.prefetch();
            }
            if let Some(link) = self.agenda.upcoming(AHEAD).and_then(|party| self.links.get(party)) {
                link.prefetch_first();
            }
            let link = &mut self.links[index];
            let mut next = Some(now);
            while next.is_some_and(|at| at <= now) {
                if let Some(arrival) = link.pop(now) {
                    prefetch_item(&self.hops, arrival.item.position());
                    arrived.push(arrival);
                }
                next = link.next_arrival();
            }
            if let Some(at) = next {
                self.agenda.call(index, at);
            }
        }
        self.packet_hops += arrived.len() as u64;
        for arrival in &arrived {
            match self.links.get(self.hops[arrival.item.position()] as usize) {
                Some(link) => link.prefetch(),
                None => self.packets.prefetch(arrival.item.place),
            }
        }
        for arrival in &arrived {
            if let Some(link) = self.links.get(self.hops[arrival.item.position()] as usize) {
                link.prefetch_room();
            }
        }
        for arrival in &arrived {
            self.move_on(arrival, landed);
        }
        arrived.clear();
        self.arrived = arrived;
    }

    /// Offers a packet that has crossed a link to the next one, or hands it out.
    fn move_on(&mut self, arrival: &Arrival<Hop>, landed: &mut Vec<Landed>) {
        let Arrival { at, item: hop, size, ce, corrupt } = *arrival;
        if corrupt {
            self.packets.remove(hop.place);
        } else if self.hops[hop.position()] == LAST_HOP {
            landed.push(Landed { at, place: hop.place, ce });
        } else {
            self.offer(at, hop, size, hop.ecn(ce));
        }
    }

    /// Moves on what has arrived at the end of a link by `now`, into `landed` what that was the last hop of.
    pub(crate) fn step(&mut self, now: Time, index: usize, landed: &mut Vec<Landed>) {
        loop {
            let link = &mut self.links[index];
            let arrival = link.pop(now);
            let next = link.next_arrival();
            if link.has_lost() {
                self.free_lost(index);
            }
            let is_over = next.is_none_or(|at| at > now);
            if let (true, Some(at)) = (is_over, next) {
                self.agenda.call(index, at);
            }
            if let Some(arrival) = arrival {
                self.packet_hops += 1;
                self.move_on(&Arrival { at: now, ..arrival }, landed);
            }
            if is_over {
                return;
            }
        }
    }

    /// Fetches a packet that has landed.
    pub(crate) fn fetch(&mut self, Landed { at, place, ce }: Landed) -> Fetched {
        Fetched { at, ce, kept: self.packets.fetch(place) }
    }

    /// Opens a packet that was fetched.
    pub(crate) fn open(&mut self, fetched: &Fetched) -> Delivered {
        let Flying { size, to, message } = self.packets.open(fetched.kept);
        Delivered { to, size, ce: fetched.ce, message }
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
