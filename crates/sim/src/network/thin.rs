//! A thin layer under a session: the packets of its only path are striped over several routes, one at a time, and put back in order
//! at the other end, or not (PSMC [T1, T3, T6], SAFIRE [S5]).
//!
//! The session knows nothing of it, as a TCP knows nothing of what is below. Packets are spread by weighted round robin; what the
//! server says comes back over the first route (one-way multipath [T4]). A packet's number on its path is its number below, too:
//! there is one path and none is left out.

use anabranch_engine::DoubleBuffer;
use anabranch_wire::{Length, Message, Time};

use super::flow::SERVER;
use super::plan::StripingPlan;
use super::wires::Envelope;

/// A packet and what is written on it.
type Parcel = (Envelope, Message<Length>);

/// What is between a session and its routes.
#[derive(Debug)]
pub(crate) struct ThinLayer {
    plan: StripingPlan,
    /// What each route has saved up; the one with the most sends.
    credits: Vec<i64>,
    buffer: Option<DoubleBuffer<Parcel>>,
}

impl ThinLayer {
    pub(crate) fn new(plan: StripingPlan) -> Self {
        let mut layer = Self { credits: Vec::new(), buffer: None, plan };
        layer.reset();
        layer
    }

    /// Another session begins.
    pub(crate) fn reset(&mut self) {
        self.credits = vec![0; self.plan.weights.len()];
        self.buffer = self.plan.buffer.map(|size| DoubleBuffer::new(size, &self.plan.lanes, self.plan.back));
    }

    /// The route of the next packet of an end.
    pub(crate) fn next_route(&mut self, end: usize) -> usize {
        if end == SERVER {
            return 0;
        }
        let total: i64 = self.plan.weights.iter().sum();
        for (credit, weight) in self.credits.iter_mut().zip(&self.plan.weights) {
            *credit += weight;
        }
        let richest = (0..self.credits.len()).rev().max_by_key(|route| self.credits[*route]).unwrap_or(0);
        self.credits[richest] -= total;
        richest
    }

    /// Takes in a packet for an end; what can be handed to its session goes into `ready`.
    pub(crate) fn take_in(&mut self, now: Time, packet: Parcel, ready: &mut Vec<Parcel>) {
        let number = packet.1.packet().map(|packet| packet.fsn.0);
        match (&mut self.buffer, number) {
            (Some(buffer), Some(number)) if usize::from(packet.0.to.end) == SERVER => {
                buffer.insert(now, (number, packet), ready);
            }
            _ => ready.push(packet),
        }
    }

    /// Hands up what has waited for too long.
    pub(crate) fn handle_timeout(&mut self, now: Time, ready: &mut Vec<Parcel>) {
        if let Some(buffer) = &mut self.buffer {
            buffer.handle_timeout(now, ready);
        }
    }

    /// When an end has to be called.
    pub(crate) fn deadline(&self, end: usize) -> Time {
        let buffer = self.buffer.as_ref().filter(|_| end == SERVER);
        buffer.and_then(DoubleBuffer::deadline).unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Span;

    use super::super::flow::CLIENT;
    use super::*;

    #[test]
    fn packets_are_spread_in_the_ratio_of_the_weights_without_bursts() {
        let plan = StripingPlan { weights: vec![1, 1, 2], buffer: None, lanes: Vec::new(), back: Span::ZERO };
        let mut layer = ThinLayer::new(plan);
        let routes: Vec<usize> = (0..8).map(|_| layer.next_route(CLIENT)).collect();
        assert_eq!(routes, [2, 0, 1, 2, 2, 0, 1, 2]);
        assert_eq!(layer.next_route(SERVER), 0, "acknowledgements come back over the first");
    }
}
