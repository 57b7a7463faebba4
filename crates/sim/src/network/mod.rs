//! A packet network in virtual time: many sessions over many links.
//!
//! ```text
//! links:            a packet's arrival -> next link of the route, or a session
//! agenda of others: a session's timer  -> session: what it sends goes to its first link
//!                   a source           -> packets or new sessions
//!                   the script         -> links change
//! ```
//! Each party on the agenda has one pending call. Packets are typed values that stay in their slots; only slot numbers
//! travel. Routes are lists of links, made beforehand. After the first round trips only the engine allocates.
//!
//! A run is a pure function of its [`Plan`]. Parties that are due at the same time are called in order of their
//! numbers, links first, and each has its own generator. Links run ahead of the others if that changes no result
//! ([`Wires`]).

mod agenda;
mod capture;
mod chunked;
mod delivery;
mod express;
mod flights;
mod flow;
mod inspect;
mod load;
mod packets;
pub(crate) mod plan;
mod routes;
mod slots;
mod source;
mod stepwise;
mod tunnel;
mod wires;

pub use capture::{Captured, PathMetrics};
pub use inspect::{ArrivalState, BurstState, FlowState};
pub use load::Load;
pub use plan::{
    AgentPlan, ArrivalPlan, BurstPlan, Change, Decided, Decision, Duration, Exceeded, FlowPlan, InTunnel,
    InterfaceChange, Limits, LinkChange, PathPlan, Plan, Sizes, Supply, TunnelPlan,
};

use std::sync::Arc;

use anabranch_link::LinkConfig;
use anabranch_wire::Time;

use crate::chance::seed_of;
use agenda::Agenda;
use delivery::Batch;
use flow::{CLIENT, Flow, InnerPackets, Passage, Routes, Served};
use packets::Destination;
use routes::Table;
use source::{Arrivals, Burst, MAX_OPEN};
use tunnel::Tunnel;
use wires::{Departure, Fetched, Landed, Leaving, Wires};

/// Kinds of parties for [`seed_of`]; links are kind 1.
const BURSTS: u64 = 2;
const ARRIVALS: u64 = 3;

/// The first party of the agenda: the script.
const SCRIPT_PARTY: usize = 0;

/// The end in the destination of a plain packet.
const NO_END: u8 = 2;

/// A running network.
pub struct Network {
    now: Time,
    wires: Wires,
    /// The calendar of everything except links.
    agenda: Agenda,
    /// Packets at the end of their routes, to be delivered.
    landed: Vec<Landed>,
    fetched: Vec<Fetched>,
    /// Packets that have left a session and not yet entered their first link.
    leaving: Vec<Leaving>,
    batch: Batch,
    flows: Vec<Flow>,
    tunnels: Vec<Tunnel>,
    /// Number of flows and tunnels in the plan itself.
    lasting: usize,
    /// For each further flow, its source of arrivals.
    owners: Vec<u32>,
    bursts: Vec<Burst>,
    arrivals: Vec<(Arrivals, Routes)>,
    script: Script,
    parties: Parties,
    events: u64,
    limits: Limits,
    /// Captured packets since the last [`Self::take_captured`], if capturing is on.
    captured: Option<Vec<Captured>>,
}

/// The first party of each kind in the agenda; the script comes before them.
struct Parties {
    burst: usize,
    arrival: usize,
    end: usize,
}

/// The changes of links, in order of time.
struct Script {
    changes: Vec<Change>,
    played: usize,
}

impl Script {
    fn new(mut changes: Vec<Change>) -> Self {
        changes.sort_by_key(|change| change.at);
        Self { changes, played: 0 }
    }

    /// The next change.
    fn next(&self) -> Option<&Change> {
        self.changes.get(self.played)
    }
}

/// Most captured packets before the caller has to take them.
pub const MOST_CAPTURED: usize = 10_000;

impl Network {
    /// A network at time zero.
    pub fn new(mut plan: Plan) -> Self {
        lead_back(&mut plan);
        let mut table = Table::new(plan.links.len());
        let mut agenda = Agenda::new(1);
        let first_burst = SCRIPT_PARTY + 1;
        let burst = |(index, burst): (usize, BurstPlan)| {
            let route = table.add(&burst.links);
            let party = agenda.add_party();
            agenda.call(party, burst.start);
            Burst::new(burst, route, seed_of(plan.seed, BURSTS, index as u64))
        };
        let bursts: Vec<_> = plan.bursts.into_iter().enumerate().map(burst).collect();
        let first_arrival = first_burst + bursts.len();
        let arrival = |(index, arrivals): (usize, ArrivalPlan)| {
            let routes = add_paths(&mut table, &arrivals.paths);
            let party = agenda.add_party();
            agenda.call(party, arrivals.start);
            (Arrivals::new(arrivals, seed_of(plan.seed, ARRIVALS, index as u64)), routes)
        };
        let arrivals: Vec<_> = plan.arrivals.into_iter().enumerate().map(arrival).collect();
        let first_end = first_arrival + arrivals.len();
        let script = Script::new(plan.script);
        if let Some(first) = script.next() {
            agenda.call(SCRIPT_PARTY, first.at);
        }
        let add_flow = |flow: &FlowPlan| match flow.tunnel {
            // Its packets cross no link of their own.
            Some(_) => Routes::from([[0; 2]]),
            None => add_paths(&mut table, &flow.paths),
        };
        let routes: Vec<_> = plan.flows.iter().map(add_flow).collect();
        let add_tunnel = |tunnel: &TunnelPlan| add_paths(&mut table, &tunnel.paths);
        let tunnel_routes: Vec<_> = plan.tunnels.iter().map(add_tunnel).collect();
        let mut network = Self {
            now: Time::ZERO,
            wires: Wires::new(plan.links, plan.seed, table, script.next().is_some()),
            agenda,
            landed: Vec::new(),
            fetched: Vec::new(),
            leaving: Vec::new(),
            batch: Batch::default(),
            flows: Vec::new(),
            tunnels: (plan.flows.len()..).take(plan.tunnels.len()).map(Tunnel::new).collect(),
            lasting: plan.flows.len() + plan.tunnels.len(),
            owners: Vec::new(),
            bursts,
            arrivals,
            script,
            parties: Parties { burst: first_burst, arrival: first_arrival, end: first_end },
            events: 0,
            limits: plan.limits,
            captured: None,
        };
        for (flow, routes) in plan.flows.into_iter().zip(routes) {
            let start = flow.start;
            let made = Flow::new(routes, flow.config, flow.supply, (start, flow.stop));
            let passage = match flow.tunnel {
                None => Passage::Links,
                Some(InTunnel { tunnel, lane: Some(lane), is_tcp }) => {
                    Passage::Packets(tunnel, InnerPackets { lane, is_tcp })
                }
                Some(InTunnel { tunnel, lane: None, .. }) => Passage::Stream(tunnel),
            };
            let made = made.opening(flow.openings).through(passage).redundant(flow.redundant);
            network.add_flow(made.guided(flow.agent));
        }
        for (number, (tunnel, routes)) in plan.tunnels.into_iter().zip(tunnel_routes).enumerate() {
            let made = Flow::new(routes, tunnel.config, Supply::Tunnel, (Time::ZERO, Time::NEVER));
            let made = made.carrying(number as u32, &network.tunnels[number].entries);
            network.add_flow(made);
        }
        network
    }

    /// Starts to capture the sessions' packets for [`Self::take_captured`]. [`Self::run`] stops at [`MOST_CAPTURED`].
    pub fn capture(&mut self) {
        self.captured = Some(Vec::new());
    }

    /// The packets captured since the last call.
    pub fn take_captured(&mut self) -> Vec<Captured> {
        self.captured.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Runs up to and including `until`, or until a limit is exceeded.
    pub fn run(&mut self, until: Time) {
        loop {
            let (links_at, others_at) = (self.wires.next_at(), self.agenda.next_at());
            let at = links_at.min(others_at);
            if at > until || at == Time::NEVER {
                break;
            }
            if self.exceeded().is_some() || self.is_laden() {
                return;
            }
            if let Some(last) = self.wires.ahead_of(at) {
                let last = last.min(until);
                self.step_links(last);
                self.call_others(last);
            } else if links_at <= others_at {
                self.step_links(at);
                // No other party is due earlier.
                self.call_others(Time::ZERO);
            } else {
                self.call_other(at);
                self.wires.send_all(&mut self.leaving);
            }
        }
        self.now = self.now.max(until);
    }

    /// The limit that was exceeded, if any; the network then stands still.
    pub fn exceeded(&self) -> Option<Exceeded> {
        if self.wires.count() > self.limits.packets {
            return Some(Exceeded::Packets);
        }
        (self.events > self.limits.events).then_some(Exceeded::Events)
    }

    /// The limits at which a run ends early.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether the caller has to take captured packets.
    fn is_laden(&self) -> bool {
        self.captured.as_ref().is_some_and(|captured| captured.len() >= MOST_CAPTURED)
    }

    /// Moves the packets that have crossed a link by `until`.
    fn step_links(&mut self, until: Time) {
        let hops = self.wires.packet_hops();
        self.wires.step(until, &mut self.landed);
        self.events += self.wires.packet_hops() - hops;
    }

    /// Delivers packets and calls everything except links, in order of time, up to and including `until`.
    fn call_others(&mut self, until: Time) {
        let mut fetched = std::mem::take(&mut self.fetched);
        fetched.extend(self.landed.drain(..).map(|packet| self.wires.fetch(packet)));
        self.prefetch(&fetched);
        self.deliver(&fetched);
        fetched.clear();
        self.fetched = fetched;
        while self.call_other(until) {}
        self.wires.send_all(&mut self.leaving);
    }

    /// Calls the first due party that is not a link; false without one.
    fn call_other(&mut self, until: Time) -> bool {
        let Some((at, party)) = self.agenda.next(until) else { return false };
        self.now = at;
        self.events += 1;
        if party >= self.parties.end {
            let end = party - self.parties.end;
            self.call_end(end / 2, end % 2);
        } else if party >= self.parties.arrival {
            self.call_arrivals(party - self.parties.arrival);
        } else if party >= self.parties.burst {
            self.call_burst(party - self.parties.burst);
        } else {
            self.call_script();
        }
        true
    }

    fn call_end(&mut self, flow: usize, end: usize) {
        if let Passage::Stream(tunnel) = self.flows[flow].passage {
            if end == CLIENT {
                self.begin_stream(flow, tunnel);
            }
            return;
        }
        if self.flows[flow].handle_timeout(self.now, end) {
            self.serve(flow, end);
        }
    }

    /// Calls an end's application, sends its packets, and schedules its next call.
    fn serve(&mut self, index: usize, end: usize) {
        let passage = self.flows[index].passage;
        let mut served = self.flows[index].serve(self.now, end);
        loop {
            if served == Served::Over {
                return self.on_finished(index);
            }
            if let Passage::Carrier(tunnel) = passage {
                self.hand_on(tunnel, end);
            }
            let flow = &mut self.flows[index];
            let Some(session) = &mut flow.sessions[end] else { return };
            let mut sends = false;
            // Not moved: it is large.
            while let Some(transmit) = &mut session.poll_transmit(self.now) {
                sends = true;
                let path = transmit.route.socket as usize;
                let Some(routes) = flow.routes.get(path) else { continue };
                let to = Destination {
                    flow: index as u32,
                    generation: flow.generation,
                    end: 1 - end as u8,
                    path: path as u8,
                    ecn: transmit.ecn,
                };
                let size = transmit.size as u32;
                if let Some(list) = &mut self.captured {
                    let packet = Captured::new(self.now, (to, true), size, &transmit.message);
                    list.push(packet.with_metrics(session));
                }
                if let Passage::Packets(tunnel, packets) = passage {
                    self.tunnels[tunnel as usize].push(self.now, to, packets, transmit);
                    continue;
                }
                let message = &mut transmit.message;
                let packet = Departure { at: self.now, turn: self.batch.turn, start: routes[end], to, size };
                self.leaving.push(self.wires.pack(packet, Some(message)));
                session.reclaim(message);
            }
            // Sending makes room for more of the application's data.
            served = if sends { flow.serve(self.now, end) } else { Served::Nothing };
            if let (true, Passage::Packets(tunnel, _)) = (sends, passage) {
                self.wake_tunnel(tunnel, end);
            }
            if served == Served::Nothing {
                break;
            }
        }
        let flow = &self.flows[index];
        // The probe timeout may have become shorter than the time already passed: then it is due now.
        let next = flow.next_call(end).max(self.now);
        self.agenda.call(self.parties.end + index * 2 + end, next);
    }

    fn add_flow(&mut self, flow: Flow) -> usize {
        let party = self.agenda.add_party();
        self.agenda.add_party();
        self.agenda.call(party, flow.start);
        self.flows.push(flow);
        self.flows.len() - 1
    }

    /// Ends a flow; the slot of an arrived flow becomes free.
    fn on_finished(&mut self, index: usize) {
        let Some(owner) = index.checked_sub(self.lasting) else { return };
        let arrivals = &mut self.arrivals[self.owners[owner] as usize].0;
        let flow = &mut self.flows[index];
        let bytes = std::mem::take(&mut flow.counts.bytes);
        arrivals.completed.push((self.now, self.now.since(flow.start), bytes));
        arrivals.bytes += bytes;
        arrivals.free.push(index as u32);
        arrivals.open -= 1;
    }

    fn call_burst(&mut self, index: usize) {
        let burst = &mut self.bursts[index];
        let (sends, next) = burst.call(self.now);
        if sends {
            let to = Destination { flow: index as u32, end: NO_END, ..Destination::default() };
            let (start, size) = (burst.route, burst.plan.packet);
            let packet = Departure { at: self.now, turn: self.batch.turn, start, to, size };
            self.leaving.push(self.wires.pack(packet, None));
        }
        self.agenda.call(self.parties.burst + index, next);
    }

    fn call_arrivals(&mut self, index: usize) {
        let (arrivals, routes) = &mut self.arrivals[index];
        let (size, next) = arrivals.call(self.now);
        self.agenda.call(self.parties.arrival + index, next);
        let Some(size) = size else { return };
        arrivals.arrived += 1;
        if arrivals.open >= MAX_OPEN
            || (arrivals.free.is_empty() && self.owners.len() >= self.limits.sessions)
        {
            arrivals.refused += 1;
            return;
        }
        arrivals.open += 1;
        let supply = Supply::File(size);
        if let Some(place) = arrivals.free.pop() {
            self.flows[place as usize].reuse(supply, self.now);
            self.agenda.call(self.parties.end + place as usize * 2, self.now);
        } else {
            let config = Arc::clone(&arrivals.plan.config);
            let flow = Flow::new(Arc::clone(routes), config, supply, (self.now, Time::NEVER));
            self.owners.push(index as u32);
            self.add_flow(flow);
        }
    }

    fn call_script(&mut self) {
        while let Some(change) = self.script.next().filter(|change| change.at <= self.now) {
            self.wires.change(self.now, change.link as usize, &change.what);
            self.script.played += 1;
        }
        if let Some(change) = self.script.next() {
            self.agenda.call(SCRIPT_PARTY, change.at);
        }
    }
}

/// Gives paths without a return route an instant one over one additional link.
fn lead_back(plan: &mut Plan) {
    let at_once = plan.links.len() as u32;
    let flows = plan.flows.iter_mut().map(|flow| &mut flow.paths);
    let flows = flows.chain(plan.tunnels.iter_mut().map(|tunnel| &mut tunnel.paths));
    let paths = flows.chain(plan.arrivals.iter_mut().map(|arrivals| &mut arrivals.paths)).flatten();
    let mut without: Vec<_> = paths.filter(|path| path.back.is_empty()).collect();
    if !without.is_empty() {
        without.iter_mut().for_each(|path| path.back.push(at_once));
        plan.links.push(LinkConfig::default());
    }
}

fn add_paths(table: &mut Table, paths: &[PathPlan]) -> Routes {
    paths.iter().map(|path| [table.add(&path.forward), table.add(&path.back)]).collect()
}

#[cfg(test)]
mod tests;
