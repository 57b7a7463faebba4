//! Combines traceroutes into one graph, which shows the links that candidates share (mTCP §3.3 [M9]).
//!
//! Aliases are resolved first, so that two paths that enter a router by different interfaces still meet there. A
//! link's delay is half the difference of the round-trip times at its ends. A stretch of silent hops becomes one link
//! and is counted; two paths with the same silent stretch share it.
//!
//! A router answers with the interface that a probe came in by. So two interfaces of a router that answer after the same
//! other router are the ends of two links. A destination answers with the address that was asked for, whichever link
//! the probe took. Its link is taken for one that is known, so that sharing is not overlooked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anabranch_wire::{Rate, Span};

use super::alias::{Aliases, Traceroute, resolve_aliases};
use super::score::Candidate;
use super::topology::{Link, LinkId, Topology};

/// Traceroutes on one graph.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Routers, named by their lowest address, and the links that were crossed. Loss and capacity are unknown.
    pub topology: Topology,
    /// Addresses grouped by router, and those that could not be resolved.
    pub aliases: Aliases,
    routes: Vec<Route>,
    /// For each two routers in a row, the interfaces by which probes came in on the way to another destination.
    entries: BTreeMap<(IpAddr, IpAddr), BTreeSet<IpAddr>>,
}

#[derive(Clone, Debug, Default)]
struct Route {
    links: Vec<(LinkId, Span)>,
    silent_hops: u32,
}

impl Survey {
    /// Combines traceroutes into one graph.
    pub fn new(traces: &[Traceroute]) -> Self {
        let aliases = resolve_aliases(traces);
        let entries = entries(traces, &aliases);
        let mut survey = Self { topology: Topology::default(), aliases, routes: Vec::new(), entries };
        for trace in traces {
            let route = survey.add(trace);
            survey.routes.push(route);
        }
        survey
    }

    /// A candidate over these traceroutes (by index) in series: one for the direct path, otherwise one from each relay
    /// of a chain to the next. Round-trip time, loss and capacity are measured end to end. `None` if a traceroute does
    /// not exist.
    pub fn candidate(
        &self,
        name: &str,
        traces: &[usize],
        (rtt, loss, capacity): (Span, f64, Option<Rate>),
    ) -> Option<Candidate> {
        let routes: Vec<&Route> = traces.iter().map(|&at| self.routes.get(at)).collect::<Option<_>>()?;
        Some(Candidate {
            name: name.to_owned(),
            rtt,
            loss,
            capacity,
            links: routes.iter().flat_map(|route| route.links.iter().copied()).collect(),
            silent_hops: routes.iter().map(|route| route.silent_hops).sum(),
        })
    }

    fn add(&mut self, trace: &Traceroute) -> Route {
        let mut route = Route::default();
        let (mut last, mut last_rtt) = (trace.from, Span::ZERO);
        for hop in &trace.hops {
            match hop {
                Some((address, rtt)) => {
                    let latency = rtt.saturating_sub(last_rtt) / 2;
                    self.cross((last, *address), latency, &mut route);
                    (last, last_rtt) = (*address, (*rtt).max(last_rtt));
                }
                None => route.silent_hops += 1,
            }
        }
        self.cross((last, trace.to), Span::ZERO, &mut route);
        route
    }

    fn cross(&mut self, (from, address): (IpAddr, IpAddr), latency: Span, route: &mut Route) {
        let [from, to] = [from, address].map(|address| self.aliases.router_of(address));
        if from == to {
            return;
        }
        let known = self.entries.get(&(from, to));
        let entry =
            known.and_then(|known| known.get(&address).or_else(|| known.first())).map(IpAddr::to_string);
        // All traces that end at a destination have one link to it, if none passes through.
        let entry = entry.unwrap_or_default();
        let ends = (self.topology.node(&from.to_string()), self.topology.node(&to.to_string()));
        let known = self.topology.by_entry(ends, &entry).and_then(|link| self.topology.get(link));
        let least = known.map_or(latency, |known| known.latency.min(latency));
        let link = self.topology.link_by(ends, &entry, Link { latency: least, loss: 0.0, capacity: None });
        route.links.push((link, latency));
    }
}

/// The interfaces that answered after each router, those of destinations left out.
fn entries(traces: &[Traceroute], aliases: &Aliases) -> BTreeMap<(IpAddr, IpAddr), BTreeSet<IpAddr>> {
    let mut entries: BTreeMap<_, BTreeSet<IpAddr>> = BTreeMap::new();
    for trace in traces {
        let known: Vec<IpAddr> = trace.addresses().flatten().collect();
        for pair in known.windows(2).filter(|pair| pair[1] != trace.to) {
            let ends = (aliases.router_of(pair[0]), aliases.router_of(pair[1]));
            entries.entry(ends).or_default().insert(pair[1]);
        }
    }
    entries
}
