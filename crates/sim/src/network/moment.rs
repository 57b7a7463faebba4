//! The packets of a moment, taken in by the sessions they are for.
//!
//! Most packets that arrive within the shortest delay of a link are for different sessions, and nobody can tell in which order
//! these took them in. Then each step is done for all of them before the next: its code, and the memory that it needs, is
//! fetched once. Where somebody could tell they are taken in one by one.

use super::flow::{CLIENT, SERVER};
use super::wires::Fetched;
use super::{Captured, NO_END, Network};
use anabranch_wire::Time;

impl Network {
    /// Takes in packets one by one; whoever is to be called before one of them is.
    pub(super) fn deliver_in_turn(&mut self, packets: &[Fetched]) {
        for packet in packets {
            while self.agenda.next_at() < packet.at {
                self.call_other(packet.at);
            }
            if self.receive(packet) {
                let to = packet.to();
                self.serve(to.flow as usize, usize::from(to.end));
            }
        }
    }

    /// True when nobody can tell in which order the packets are taken in: each is for another session's end, nobody is to be
    /// called meanwhile, and nobody looks on.
    pub(super) fn is_side_by_side(&mut self, packets: &[Fetched], until: Time) -> bool {
        if packets.len() < 2 || self.captured.is_some() || !self.arrivals.is_empty() {
            return false;
        }
        if self.agenda.next_at() <= until {
            return false;
        }
        self.rounds += 1;
        self.seen.resize(self.flows.len() * 2, 0);
        packets.iter().all(|packet| {
            let to = packet.to();
            let session = to.flow as usize * 2 + usize::from(to.end);
            to.end != NO_END && std::mem::replace(&mut self.seen[session], self.rounds) != self.rounds
        })
    }

    /// Does the same for all packets before the next: the code of each step, larger than the nearest cache, is then
    /// fetched once and not for every packet.
    pub(super) fn deliver_side_by_side(&mut self, packets: &[Fetched]) {
        for end in [SERVER, CLIENT] {
            for (turn, packet) in packets.iter().enumerate() {
                if usize::from(packet.to().end) == end && self.receive(packet) {
                    self.received.push((turn, packet.at, packet.to().flow));
                }
            }
            let received = std::mem::take(&mut self.received);
            for (turn, at, flow) in &received {
                (self.now, self.turn) = (*at, *turn as u32);
                self.serve(*flow as usize, end);
            }
            self.received = received;
            self.received.clear();
        }
        // Whoever is called by the clock comes behind them.
        self.turn = u32::MAX;
    }

    /// Gives a packet to its session; false when there is none any more.
    fn receive(&mut self, packet: &Fetched) -> bool {
        self.now = packet.at;
        let packet = self.wires.open(packet);
        let to = packet.to;
        if to.end == NO_END {
            self.bursts[to.flow as usize].received += 1;
            return false;
        }
        let flow = &mut self.flows[to.flow as usize];
        if flow.generation != to.generation {
            return false;
        }
        if let (Some(list), Some(message)) = (&mut self.captured, &packet.message) {
            list.push(Captured::new(self.now, (to, false), packet.size, message));
        }
        flow.handle_packet(self.now, packet);
        true
    }
}
