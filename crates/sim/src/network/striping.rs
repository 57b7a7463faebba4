//! A layer below a session that stripes the packets of its only path over several routes, and may reorder them at the
//! other end (PSMC [T1, T3, T6], SAFIRE [S5]).
//!
//! The session does not notice it. Weighted round robin spreads the client's packets; the server's packets return over
//! the first route (one-way multipath [T4]). The layer uses the path's packet numbers: there is only one path, and no
//! number is skipped.

use anabranch_engine::DoubleBuffer;
use anabranch_wire::{Length, Message, Time};

use super::flow::SERVER;
use super::plan::StripingPlan;
use super::wires::Envelope;

type Parcel = (Envelope, Message<Length>);

/// The layer between a session and its routes.
#[derive(Debug)]
pub(crate) struct StripingLayer {
    plan: StripingPlan,
    /// The credit of each route; the route with the most sends next.
    credits: Vec<i64>,
    buffer: Option<DoubleBuffer<Parcel>>,
}

impl StripingLayer {
    pub(crate) fn new(plan: StripingPlan) -> Self {
        let mut layer = Self { credits: Vec::new(), buffer: None, plan };
        layer.reset();
        layer
    }

    /// Restarts for another session.
    pub(crate) fn reset(&mut self) {
        self.credits = vec![0; self.plan.weights.len()];
        self.buffer = self.plan.buffer.map(|size| DoubleBuffer::new(size, &self.plan.lanes, self.plan.back));
    }

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

    /// Handles a packet for an end; adds the packets that its session may receive to `ready`.
    pub(crate) fn take_in(&mut self, now: Time, packet: Parcel, ready: &mut Vec<Parcel>) {
        let number = packet.1.packet().map(|packet| packet.fsn.0);
        match (&mut self.buffer, number) {
            (Some(buffer), Some(number)) if usize::from(packet.0.to.end) == SERVER => {
                buffer.insert(now, (number, packet), ready);
            }
            _ => ready.push(packet),
        }
    }

    /// Delivers packets that have waited too long.
    pub(crate) fn handle_timeout(&mut self, now: Time, ready: &mut Vec<Parcel>) {
        if let Some(buffer) = &mut self.buffer {
            buffer.handle_timeout(now, ready);
        }
    }

    /// When an end needs a call.
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
        let mut layer = StripingLayer::new(plan);
        let routes: Vec<usize> = (0..8).map(|_| layer.next_route(CLIENT)).collect();
        assert_eq!(routes, [2, 0, 1, 2, 2, 0, 1, 2]);
        assert_eq!(layer.next_route(SERVER), 0, "acknowledgements come back over the first");
    }
}
