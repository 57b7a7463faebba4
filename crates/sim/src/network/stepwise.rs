//! Links that run one by one.
//!
//! A link has one pending call: the arrival of its first packet. That packet then enters the next link of its route, or
//! is delivered at the end of the route.

use anabranch_link::{Arrival, Ecn, Link, LinkConfig, LinkStats, RateModel};
use anabranch_wire::{Span, Time};

use super::agenda::Agenda;
use super::flights::Flight;
use super::packets::LAST_HOP;
use super::plan::LinkChange;
use super::wires::{Freight, Landed};

/// A packet as links see it: eight bytes, because queues use most of a network's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hop {
    /// The packet's slot.
    place: u32,
    /// Index of its next link in the route table; with the bit [`CAPABLE`] if it supports ECN.
    next: u32,
}

/// The mark of a packet that supports ECN.
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

/// Links and their calendar; party `n` is link `n`.
#[derive(Debug)]
pub(super) struct Stepwise {
    links: Vec<Link<Hop>>,
    agenda: Agenda,
}

impl Stepwise {
    pub(super) fn new(configs: Vec<LinkConfig>) -> Self {
        let links: Vec<_> = configs.into_iter().map(|link| Link::new(link).keeping_lost()).collect();
        Self { agenda: Agenda::new(links.len()), links }
    }

    pub(super) fn next_at(&mut self) -> Time {
        self.agenda.next_at()
    }

    /// Offers a packet to the first link of its route.
    pub(super) fn send(&mut self, now: Time, flight: Flight, capable: bool, freight: &mut Freight) {
        let next = if capable { flight.next | CAPABLE } else { flight.next };
        self.offer(now, (Hop { place: flight.place, next }, flight.size), false, freight);
    }

    fn offer(&mut self, now: Time, (hop, size): (Hop, u32), marked: bool, freight: &mut Freight) {
        let index = freight.routes.link(hop.position()) as usize;
        let ecn = hop.ecn(marked);
        let hop = Hop { next: hop.next + 1, ..hop };
        let link = &mut self.links[index];
        let is_steady = link.is_steady();
        if link.enqueue(now, size, hop, ecn).is_err() {
            freight.packets.discard(hop.place);
        }
        if !is_steady {
            self.attend(index, freight);
        }
    }

    /// Frees packets that a link lost, and schedules its next call.
    fn attend(&mut self, index: usize, freight: &mut Freight) {
        self.free_lost(index, freight);
        if let Some(at) = self.links[index].next_arrival() {
            self.agenda.call(index, at);
        }
    }

    fn free_lost(&mut self, index: usize, freight: &mut Freight) {
        while let Some(lost) = self.links[index].take_lost() {
            freight.packets.discard(lost.place);
        }
    }

    /// Moves the packets that have arrived at the end of the first link due, if that is by `until`.
    pub(super) fn step(&mut self, until: Time, freight: &mut Freight, landed: &mut Vec<Landed>) {
        let Some((now, index)) = self.agenda.next(until) else { return };
        loop {
            let link = &mut self.links[index];
            let arrival = link.pop(now);
            let next = link.next_arrival();
            if link.has_lost() {
                self.free_lost(index, freight);
            }
            let is_over = next.is_none_or(|at| at > now);
            if let (true, Some(at)) = (is_over, next) {
                self.agenda.call(index, at);
            }
            if let Some(arrival) = arrival {
                freight.packet_hops += 1;
                self.move_on(now, &arrival, freight, landed);
            }
            if is_over {
                return;
            }
        }
    }

    /// Offers a packet that has crossed a link to the next one, or adds it to `landed`.
    fn move_on(&mut self, at: Time, arrival: &Arrival<Hop>, freight: &mut Freight, landed: &mut Vec<Landed>) {
        let Arrival { item: hop, size, ce, corrupt, .. } = *arrival;
        if corrupt {
            freight.packets.discard(hop.place);
        } else if freight.routes.link(hop.position()) == LAST_HOP {
            landed.push(Landed { at, place: hop.place, ce });
        } else {
            self.offer(at, (hop, size), ce, freight);
        }
    }

    pub(super) fn change(&mut self, now: Time, index: usize, change: &LinkChange, freight: &mut Freight) {
        let link = &mut self.links[index];
        match change {
            LinkChange::Down(down) => link.set_down(now, *down),
            LinkChange::Rate(rate) => link.set_rate(now, RateModel::clone(rate)),
            LinkChange::Delay(delay) => link.set_delay(now, *delay),
            LinkChange::Loss(loss) => link.set_loss(now, *loss),
        }
        self.attend(index, freight);
    }

    /// Counters of a link at `now`; they are updated only on request.
    pub(super) fn stats(&mut self, now: Time, link: usize) -> LinkStats {
        let link = &mut self.links[link];
        link.backlog(now);
        *link.stats()
    }

    /// Restarts the queue maximum.
    pub(super) fn restart_peaks(&mut self, now: Time) {
        self.links.iter_mut().for_each(|link| link.restart_peaks(now));
    }

    /// How long a link has been sending by `now`.
    pub(super) fn busy(&mut self, now: Time, link: usize) -> Span {
        self.links[link].busy(now)
    }

    /// Packets waiting at a link at `now`, including the one being sent.
    pub(super) fn backlog(&mut self, now: Time, link: usize) -> usize {
        self.links[link].backlog(now).0
    }
}
