//! Tunnels: a session carries the packets of other flows through the tunnel's core (`anabranch-tunnel`).
//!
//! ```text
//! inner session ─ packet ─▶ entry queue of its end ─ asked by the tunnel's session ─▶ links
//! links ─▶ tunnel's session ─ datagram, in order where its lane says so ─▶ inner session
//! ```
//!
//! A flow in the stream lane has no session of its own: its data are a stream of the tunnel's session. The programs and
//! both ends of the tunnel are on one host each, so nothing is lost or delayed between them.

use std::collections::VecDeque;

use anabranch_engine::{Ecn, Session, Transmit};
use anabranch_tunnel::entry::{Parcel, SharedEntry};
use anabranch_tunnel::queue::{QueueCounts, QueueLimits};
use anabranch_wire::{Message, Time};

use super::flow::{CLIENT, InnerPackets, Passage};
use super::load::Load;
use super::packets::{Destination, NO_MESSAGE};
use super::wires::Envelope;
use super::{Captured, Network};

/// IPv4 and UDP headers of an inner packet.
const HEADERS: u32 = 28;
/// Inner packets in the queues and on the way that are kept; the oldest make room.
const MOST_UNDERWAY: usize = 1 << 16;

pub(super) struct Tunnel {
    /// The flow of its session.
    pub carrier: usize,
    /// The entry queue of each end.
    pub entries: [SharedEntry<Load>; 2],
    underway: Underway,
}

impl Tunnel {
    pub(super) fn new(carrier: usize) -> Self {
        let entries = [(); 2].map(|()| SharedEntry::new(QueueLimits::default()));
        Self { carrier, entries, underway: Underway::default() }
    }

    /// Queues a packet of an inner session.
    pub(super) fn push(
        &mut self,
        now: Time,
        to: Destination,
        packets: InnerPackets,
        sent: &mut Transmit<Load>,
    ) {
        let size = sent.size as u32;
        let message = std::mem::replace(&mut sent.message, NO_MESSAGE);
        let number = self.underway.add(InnerPacket { to, size, message });
        let data = Load::inner(size + HEADERS, number, sent.ecn, packets.is_tcp);
        let parcel = Parcel { data, lane: packets.lane };
        self.entries[usize::from(1 - to.end)].with(|entry| entry.push(now, to.flow, parcel));
    }

    /// Packets that the entry queue of an end dropped and marked.
    pub(super) fn counts(&self, end: usize) -> QueueCounts {
        let mut counts = QueueCounts::default();
        self.entries[end].look(|entry| counts = entry.counts());
        counts
    }
}

/// A packet of an inner session.
#[derive(Debug)]
struct InnerPacket {
    to: Destination,
    size: u32,
    message: Message<Load>,
}

/// Inner packets by number. Losses are not reported, so lost ones stay until all older ones have gone.
#[derive(Debug, Default)]
struct Underway {
    first: u32,
    packets: VecDeque<Option<InnerPacket>>,
}

impl Underway {
    fn add(&mut self, packet: InnerPacket) -> u32 {
        let number = (self.first + self.packets.len() as u32) % Load::NUMBERS;
        self.packets.push_back(Some(packet));
        while self.packets.len() > MOST_UNDERWAY || self.packets.front().is_some_and(Option::is_none) {
            self.packets.pop_front();
            self.first = (self.first + 1) % Load::NUMBERS;
        }
        number
    }

    /// The packet with this number, once.
    fn take(&mut self, number: u32) -> Option<InnerPacket> {
        let index = (number + Load::NUMBERS - self.first) % Load::NUMBERS;
        self.packets.get_mut(index as usize)?.take()
    }
}

impl Network {
    /// Wakes an end of a tunnel's session, whose entry queue or streams have something new.
    pub(super) fn wake_tunnel(&mut self, tunnel: u32, end: usize) {
        let carrier = self.tunnels[tunnel as usize].carrier;
        self.agenda.call(self.parties.end + carrier * 2 + end, self.now);
    }

    /// Hands the datagrams that a tunnel's session received to the inner sessions.
    pub(super) fn hand_on(&mut self, tunnel: u32, end: usize) {
        let carrier = self.tunnels[tunnel as usize].carrier;
        let received = |network: &mut Self| {
            network.flows[carrier].sessions[end].as_mut().and_then(Session::recv_datagram)
        };
        while let Some((_, datagram)) = received(self) {
            let tunnel = &mut self.tunnels[tunnel as usize];
            let Some(InnerPacket { to, size, mut message }) = tunnel.underway.take(datagram.data.number())
            else {
                continue;
            };
            let flow = &mut self.flows[to.flow as usize];
            if flow.generation != to.generation {
                continue;
            }
            if let Some(list) = &mut self.captured {
                list.push(Captured::new(self.now, (to, false), size, &message));
            }
            let ce = datagram.data.ecn() == Ecn::Ce;
            flow.handle_packet(self.now, Envelope { to, size, ce }, &mut message);
            self.agenda.call(self.parties.end + to.flow as usize * 2 + end, self.now);
        }
    }

    /// Starts a flow in the stream lane.
    pub(super) fn begin_stream(&mut self, index: usize, tunnel: u32) {
        let carrier = self.tunnels[tunnel as usize].carrier;
        let supply = self.flows[index].supply().clone();
        self.flows[carrier].add_stream(index as u32, &supply);
        self.wake_tunnel(tunnel, CLIENT);
    }

    /// The flow whose session carries the data of a flow in the stream lane.
    pub(super) fn carrier_of(&self, flow: usize) -> Option<usize> {
        match self.flows[flow].passage {
            Passage::Stream(tunnel) => Some(self.tunnels[tunnel as usize].carrier),
            _ => None,
        }
    }
}
