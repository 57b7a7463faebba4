//! Plain links, slot by slot. The arrival of a packet is known when it is sent. So a link does not hold packets: it
//! only stores when the earlier ones have left, and it is called only for the next packet.

use anabranch_link::{LinkConfig, LinkStats, PlainLink, Tally};
use anabranch_wire::{Span, Time};

use super::flights::{Flight, Flights};
use super::packets::LAST_HOP;
use super::wires::{Freight, Landed};

/// How many packets ahead the place for a link's next size is prefetched.
const SOON: usize = 12;

/// Links, and the arrivals of their packets.
#[derive(Debug)]
pub(super) struct Express {
    links: Vec<PlainLink>,
    flights: Flights,
    /// The packets on each link; computed on request.
    underway: Vec<Tally>,
    /// Packets at the ends of links, and their next links.
    arrived: Vec<(Time, Flight, u32)>,
}

impl Express {
    /// `None` unless all links are plain and long enough.
    pub(super) fn new(configs: &[LinkConfig]) -> Option<Self> {
        let least_delay = configs.iter().map(|link| link.delay).min()?;
        let flights = Flights::new(least_delay, configs.len())?;
        let links = configs.iter().cloned().map(PlainLink::new).collect::<Option<_>>()?;
        Some(Self { links, flights, underway: Vec::new(), arrived: Vec::new() })
    }

    /// Packets sent at or after `at` arrive later than this.
    pub(super) fn ahead_of(&self, at: Time) -> Time {
        self.flights.end_of_slot(at)
    }

    pub(super) fn next_at(&self) -> Time {
        self.flights.next_at()
    }

    /// Offers a packet to the next link of its route.
    pub(super) fn offer(&mut self, now: Time, flight: Flight, freight: &mut Freight) {
        self.underway.clear();
        let link = freight.routes.link(flight.next as usize);
        self.send((now, flight, link), freight);
    }

    #[inline]
    fn send(&mut self, (now, flight, link): (Time, Flight, u32), freight: &mut Freight) {
        match self.links[link as usize].pass(now, flight.size) {
            Ok(at) => self.flights.add(at, link, Flight { next: flight.next + 1, ..flight }),
            Err(_) => freight.packets.discard(flight.place),
        }
    }

    /// Moves all packets that reach the end of a link by `until`. None of them enters a link within that time.
    ///
    /// So all these packets are known beforehand. Their memory is rarely in the cache, so it is prefetched for many
    /// packets at a time.
    pub(super) fn step(&mut self, until: Time, freight: &mut Freight, landed: &mut Vec<Landed>) {
        self.underway.clear();
        let mut arrived = std::mem::take(&mut self.arrived);
        // The next links are read after the routes were prefetched.
        let prefetched = |(at, flight): (Time, Flight)| {
            freight.routes.prefetch(flight.next as usize);
            (at, flight, LAST_HOP)
        };
        arrived.extend(self.flights.take(until).map(prefetched));
        freight.packet_hops += arrived.len() as u64;
        for (_, flight, link) in &mut arrived {
            *link = freight.routes.link(flight.next as usize);
            match self.links.get(*link as usize) {
                Some(link) => link.prefetch(),
                None => freight.packets.prefetch(flight.place),
            }
        }
        for index in 0..arrived.len() {
            let (at, flight, link) = arrived[index];
            let soon = arrived.get(index + SOON).and_then(|(.., link)| self.links.get(*link as usize));
            if let Some(soon) = soon {
                soon.prefetch_room();
            }
            if link == LAST_HOP {
                landed.push(Landed { at, place: flight.place, ce: false });
            } else {
                self.send((at, flight, link), freight);
            }
        }
        arrived.clear();
        self.arrived = arrived;
    }

    pub(super) fn stats(&mut self, link: usize) -> LinkStats {
        let Self { links, flights, underway, .. } = self;
        if underway.is_empty() {
            underway.resize(links.len(), Tally::default());
            flights.for_each(|link, flight| underway[link as usize].count(flight.size));
        }
        links[link].stats(underway[link])
    }

    /// Restarts the queue maximum.
    pub(super) fn restart_peaks(&mut self, now: Time) {
        self.links.iter_mut().for_each(|link| link.restart_peaks(now));
    }

    /// How long a link has been sending by `now`.
    pub(super) fn busy(&self, now: Time, link: usize) -> Span {
        self.links[link].busy(now)
    }

    /// Packets waiting at a link at `now`, including the one being sent.
    pub(super) fn backlog(&mut self, now: Time, link: usize) -> usize {
        self.links[link].backlog(now).0
    }
}
