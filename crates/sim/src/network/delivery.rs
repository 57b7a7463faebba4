//! Delivers packets to their sessions, in batches.
//!
//! Most packets that arrive within the shortest link delay are for different sessions, so their order has no effect.
//! Then each step is done for all packets before the next step, so that its code and memory are loaded once. Packets
//! whose order matters are delivered one by one.

use super::flow::{CLIENT, SERVER};
use super::wires::Fetched;
use super::{Captured, NO_END, Network};
use anabranch_prefetch::prefetch_item;
use anabranch_wire::Time;

/// The packets that are delivered together.
pub(super) struct Batch {
    /// Those for sessions: number in the batch, time, flow.
    received: Vec<(usize, Time, u32)>,
    /// The number in the batch of the packet whose session is called.
    pub turn: u32,
    /// Counts batches.
    pub rounds: u64,
    /// For each session, the batch of its last packet.
    seen: Vec<u64>,
}

impl Default for Batch {
    fn default() -> Self {
        Self { received: Vec::new(), turn: u32::MAX, rounds: 0, seen: Vec::new() }
    }
}

impl Network {
    /// Prefetches the memory of the packets' sessions: it is rarely in the cache.
    pub(super) fn prefetch(&self, packets: &[Fetched]) {
        let packets = packets.iter().filter(|packet| packet.to().end != NO_END);
        let flow = |packet: &Fetched| &self.flows[packet.to().flow as usize];
        for packet in packets.clone() {
            let acknowledges = packet.path().is_none_or(|(_, acknowledges)| acknowledges);
            flow(packet).prefetch(usize::from(packet.to().end), acknowledges);
        }
        let of_paths = packets.filter_map(|packet| {
            let (flow, to) = (flow(packet), packet.to());
            Some((packet, flow, flow.sessions[usize::from(to.end)].as_ref()?, packet.path()?))
        });
        for (packet, flow, session, (path, acknowledges)) in of_paths.clone() {
            prefetch_item(&flow.routes, usize::from(packet.to().path));
            session.prefetch(path, acknowledges);
        }
        for (packet, _, session, (path, acknowledges)) in of_paths.clone() {
            session.prefetch_flight(path, acknowledges);
            if let Some((stream, _)) = packet.run_start() {
                session.prefetch_held(stream);
            }
        }
        for (packet, _, session, _) in of_paths {
            if let Some((stream, offset)) = packet.run_start() {
                session.prefetch_place(stream, offset);
            }
        }
    }

    /// Delivers packets in order of time, and calls every party that is due before one of them.
    pub(super) fn deliver(&mut self, packets: &[Fetched]) {
        let mut turn = 0;
        while let Some(next) = packets.get(turn) {
            while self.agenda.next_at() < next.at {
                self.call_other(next.at);
            }
            let together = self.count_together(&packets[turn..]);
            self.take_in(turn, &packets[turn..turn + together]);
            turn += together;
        }
    }

    /// How many of the packets can be delivered as a batch, at least one. Each must be for another session's end, no
    /// party may be due meanwhile, and no trace may record the order.
    fn count_together(&mut self, packets: &[Fetched]) -> usize {
        if self.captured.is_some() || !self.arrivals.is_empty() {
            return 1;
        }
        let until = self.agenda.next_at();
        self.batch.rounds += 1;
        self.batch.seen.resize(self.flows.len() * 2, 0);
        let is_alone = |packet: &&Fetched| {
            let to = packet.to();
            if packet.at > until || to.end == NO_END {
                return false;
            }
            let flow = to.flow as usize;
            // When a flow ends, it disappears at both ends.
            let end = if self.flows[flow].is_endless() { usize::from(to.end) } else { 0 };
            std::mem::replace(&mut self.batch.seen[flow * 2 + end], self.batch.rounds) != self.batch.rounds
        };
        packets.iter().take_while(is_alone).count().max(1)
    }

    /// Delivers a batch that starts with packet number `first`. Each step handles all packets before the next step,
    /// because the code of a step is larger than the nearest cache.
    fn take_in(&mut self, first: usize, packets: &[Fetched]) {
        for end in [SERVER, CLIENT, usize::from(NO_END)] {
            for (place, packet) in packets.iter().enumerate() {
                if usize::from(packet.to().end) == end && self.receive(packet) {
                    self.batch.received.push((first + place, packet.at, packet.to().flow));
                }
            }
            let received = std::mem::take(&mut self.batch.received);
            for (turn, at, flow) in &received {
                (self.now, self.batch.turn) = (*at, *turn as u32);
                self.serve(*flow as usize, end);
            }
            self.batch.received = received;
            self.batch.received.clear();
        }
        // Parties on the agenda follow the packets.
        self.batch.turn = u32::MAX;
    }

    /// Delivers a packet to its session; false if the session is gone.
    fn receive(&mut self, packet: &Fetched) -> bool {
        self.now = packet.at;
        let to = packet.to();
        if to.end == NO_END {
            self.bursts[to.flow as usize].received += 1;
            return false;
        }
        let Some(mut message) = self.wires.open(packet) else { return false };
        let flow = &mut self.flows[to.flow as usize];
        if flow.generation != to.generation {
            return false;
        }
        if let Some(list) = &mut self.captured {
            list.push(Captured::new(self.now, (to, false), packet.envelope().size, &message));
        }
        flow.handle_packet(self.now, packet.envelope(), &mut message);
        self.wires.close(packet, &mut message);
        true
    }
}
