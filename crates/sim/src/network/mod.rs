//! A packet network in virtual time: many sessions over many links.
//!
//! ```text
//! links:            a packet's arrival -> next link of the route, or a session
//! agenda of others: a session's timer  -> session: what it sends goes to its first link
//!                   a source           -> packets or new sessions
//!                   the script         -> links change
//! ```
//! Each of those on the agenda has one pending moment, whatever it holds. Packets are typed values that
//! stay where they are; numbers of places travel. Routes are lists of links made beforehand. After the
//! first round trips nothing is allocated any more but what the engine allocates.
//!
//! A run is a pure function of its [`Plan`]: parties that are due together are called in the order
//! of their numbers, links first, and each draws from a generator of its own. Links run ahead of the others
//! where that changes nothing ([`Wires`]).

mod agenda;
mod beliefs;
mod capture;
mod express;
mod flights;
mod flow;
mod look;
mod moment;
mod packets;
mod piles;
mod plan;
mod routes;
mod slots;
mod source;
mod stepwise;
mod thin;
mod wires;

pub use capture::{Captured, PathMetrics};
pub use look::{ArrivalState, BurstState, FlowState};
pub use plan::{
    AgentPlan, ArrivalPlan, BurstPlan, Change, Decided, Decision, Duration, FlowPlan, InterfaceChange,
    Limits, LinkChange, PathPlan, Plan, Sizes, StripingPlan, Supply,
};

use std::sync::Arc;

use anabranch_link::LinkConfig;
use anabranch_wire::Time;

use crate::chance::seed_of;
use agenda::Agenda;
use flow::{Flow, Routes, Served};
use packets::Destination;
use routes::Table;
use source::{Arrivals, Burst, MAX_OPEN};
use wires::{Fetched, Landed, Leaving, Wires};

/// Kinds of parties for [`seed_of`]; links are kind 1.
const BURSTS: u64 = 2;
const ARRIVALS: u64 = 3;

/// The first party of the agenda of those that are no links.
const SCRIPT_PARTY: usize = 0;

/// The end of a destination that is a source of plain packets.
const NO_END: u8 = 2;

/// A network that runs.
pub struct Network {
    now: Time,
    wires: Wires,
    /// The calendar of all that are no links.
    agenda: Agenda,
    /// Packets at the end of their routes that nobody has taken in yet.
    landed: Vec<Landed>,
    fetched: Vec<Fetched>,
    /// Packets that left a session and are not offered to their first links yet.
    leaving: Vec<Leaving>,
    /// Of the packets that were given to sessions side by side: which in turn, when, and to which flow.
    received: Vec<(usize, Time, u32)>,
    /// The turn of the session that is called.
    turn: u32,
    /// Counts the rounds in which packets were given out, and in which each session had its last one.
    rounds: u64,
    seen: Vec<u64>,
    flows: Vec<Flow>,
    /// How many of the flows are the plan's own.
    lasting: usize,
    /// The source of arrivals that each further flow belongs to.
    owners: Vec<u32>,
    bursts: Vec<Burst>,
    arrivals: Vec<(Arrivals, Routes)>,
    script: Vec<Change>,
    played: usize,
    /// The first parties of each kind in the agenda, after the script, which is the first of all.
    first_burst: usize,
    first_arrival: usize,
    first_end: usize,
    events: u64,
    limits: Limits,
    /// Packets that sessions sent and received since they were last taken out, when anybody wants to know.
    captured: Option<Vec<Captured>>,
}

/// Most packets that are captured before somebody takes them.
pub const MOST_CAPTURED: usize = 10_000;

impl Network {
    /// A network at time zero.
    #[must_use]
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
        let mut script = plan.script;
        script.sort_by_key(|change| change.at);
        if let Some(first) = script.first() {
            agenda.call(SCRIPT_PARTY, first.at);
        }
        let routes: Vec<_> = plan.flows.iter().map(|flow| add_paths(&mut table, &flow.paths)).collect();
        let mut network = Self {
            now: Time::ZERO,
            wires: Wires::new(plan.links, plan.seed, table, !script.is_empty()),
            agenda,
            landed: Vec::new(),
            fetched: Vec::new(),
            leaving: Vec::new(),
            received: Vec::new(),
            turn: u32::MAX,
            rounds: 0,
            seen: Vec::new(),
            flows: Vec::new(),
            lasting: plan.flows.len(),
            owners: Vec::new(),
            bursts,
            arrivals,
            script,
            played: 0,
            first_burst,
            first_arrival,
            first_end,
            events: 0,
            limits: plan.limits,
            captured: None,
        };
        for (flow, routes) in plan.flows.into_iter().zip(routes) {
            let start = flow.start;
            let made = Flow::new(routes, flow.config, flow.supply, (start, flow.stop));
            let made = made.opening(flow.openings).striped(flow.striping).redundant(flow.redundant);
            network.add_flow(made.guided(flow.agent));
        }
        network
    }

    /// Keeps from now on what sessions send and receive, for [`Self::take_captured`]. It does not go on while it has
    /// [`MOST_CAPTURED`] of them.
    pub fn capture(&mut self) {
        self.captured = Some(Vec::new());
    }

    /// Hands out what was captured since the last call.
    pub fn take_captured(&mut self) -> Vec<Captured> {
        self.captured.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Lets everything happen up to and with `until`.
    pub fn run(&mut self, until: Time) {
        loop {
            let (links_at, others_at) = (self.wires.next_at(), self.agenda.next_at());
            let at = links_at.min(others_at);
            if at > until || at == Time::NEVER {
                break;
            }
            if self.is_overfull() || self.is_laden() {
                return;
            }
            if let Some(last) = self.wires.ahead_of(at) {
                let last = last.min(until);
                self.step_links(last);
                self.call_others(last);
            } else if links_at <= others_at {
                self.step_links(at);
                // Nobody is to be called before.
                self.call_others(Time::ZERO);
            } else {
                self.call_other(at);
                self.wires.send_all(&mut self.leaving);
            }
        }
        self.now = self.now.max(until);
    }

    /// True when more packets wait or are on their way than there is to be memory for: then it does not go on.
    #[must_use]
    pub fn is_overfull(&self) -> bool {
        self.wires.count() > self.limits.packets
    }

    /// Where a run ends early.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// True when so much was captured that somebody has to take it.
    fn is_laden(&self) -> bool {
        self.captured.as_ref().is_some_and(|captured| captured.len() >= MOST_CAPTURED)
    }

    /// Moves on packets that have crossed a link by `until`.
    fn step_links(&mut self, until: Time) {
        let hops = self.wires.packet_hops();
        self.wires.step(until, &mut self.landed);
        self.events += self.wires.packet_hops() - hops;
    }

    /// Hands out what has landed and calls all but links, in order of time, up to and with `until`.
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

    /// Calls the first that is no link and is to be called by `until`; false when none is.
    fn call_other(&mut self, until: Time) -> bool {
        let Some((at, party)) = self.agenda.next(until) else { return false };
        self.now = at;
        self.events += 1;
        if party >= self.first_end {
            let end = party - self.first_end;
            self.call_end(end / 2, end % 2);
        } else if party >= self.first_arrival {
            self.call_arrivals(party - self.first_arrival);
        } else if party >= self.first_burst {
            self.call_burst(party - self.first_burst);
        } else {
            self.call_script();
        }
        true
    }

    fn call_end(&mut self, flow: usize, end: usize) {
        if self.flows[flow].handle_timeout(self.now, end) {
            self.serve(flow, end);
        }
    }

    /// Lets an end's application act, sends what its session has to send, and notes when to call it next.
    fn serve(&mut self, index: usize, end: usize) {
        let flow = &mut self.flows[index];
        let mut served = flow.serve(self.now, end);
        loop {
            if served == Served::Over {
                return self.on_finished(index);
            }
            let Some(session) = &mut flow.sessions[end] else { return };
            let mut sends = false;
            // Looked at where it lies: it is large.
            while let Some(transmit) = &mut session.poll_transmit(self.now) {
                sends = true;
                let path = match &mut flow.thin {
                    Some(thin) => thin.next_route(end),
                    None => transmit.route.socket as usize,
                };
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
                let when = (self.now, self.turn);
                let message = &mut transmit.message;
                self.leaving.push(self.wires.pack(when, (routes[end], to), size, Some(message)));
                session.reclaim(message);
            }
            // Sending makes room, which the application may fill.
            served = if sends { flow.serve(self.now, end) } else { Served::Nothing };
            if served == Served::Nothing {
                break;
            }
        }
        // A probe timeout that has become shorter may be over already: then it is now, for time does not go back.
        let next = flow.next_call(end).max(self.now);
        self.agenda.call(self.first_end + index * 2 + end, next);
    }

    fn add_flow(&mut self, flow: Flow) -> usize {
        let party = self.agenda.add_party();
        self.agenda.add_party();
        self.agenda.call(party, flow.start);
        self.flows.push(flow);
        self.flows.len() - 1
    }

    /// A flow is over; one that had arrived leaves its place to the next.
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
            let when = (self.now, self.turn);
            self.leaving.push(self.wires.pack(when, (burst.route, to), burst.plan.packet, None));
        }
        self.agenda.call(self.first_burst + index, next);
    }

    fn call_arrivals(&mut self, index: usize) {
        let (arrivals, routes) = &mut self.arrivals[index];
        let (size, next) = arrivals.call(self.now);
        self.agenda.call(self.first_arrival + index, next);
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
            self.agenda.call(self.first_end + place as usize * 2, self.now);
        } else {
            let config = Arc::clone(&arrivals.plan.config);
            let flow = Flow::new(Arc::clone(routes), config, supply, (self.now, Time::NEVER));
            self.owners.push(index as u32);
            self.add_flow(flow);
        }
    }

    fn call_script(&mut self) {
        while let Some(change) = self.script.get(self.played).filter(|change| change.at <= self.now) {
            self.wires.change(self.now, change.link as usize, &change.what);
            self.played += 1;
        }
        if let Some(change) = self.script.get(self.played) {
            self.agenda.call(SCRIPT_PARTY, change.at);
        }
    }
}

/// Paths without a way back get one that takes no time: a link of its own, after all others.
fn lead_back(plan: &mut Plan) {
    let at_once = plan.links.len() as u32;
    let flows = plan.flows.iter_mut().map(|flow| &mut flow.paths);
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
