//! Turns traces into candidate routes and chooses among them (mTCP §3.3 [M9]).

use std::collections::BTreeSet;
use std::net::IpAddr;

use anabranch_overlay::select::{ChoiceLimits, Explanation, Link, LinkId, Survey, choose};
use anabranch_overlay::sense::Figures;
use anabranch_wire::{Rate, Span};
use serde::Serialize;

use super::args::{Chain, TraceArgs};
use super::known::Known;
use super::map::{Map, Routes};
use super::sets::Sets;
use super::traces::Trace;

/// The result: all routes, and the choice among them.
#[derive(Debug, Serialize)]
pub struct Report {
    pub node: IpAddr,
    /// The routes, in the order of the request.
    pub ways: Vec<Way>,
    /// Relays that did not answer, so the capacity to them is unknown.
    pub silent: Vec<String>,
    /// Sets of routes and their combined value.
    pub sets: Sets,
    /// Addresses that belong to one router, for each router.
    pub routers: Vec<Vec<IpAddr>>,
    /// Routers with only one known address; some of them may be the same router.
    pub unresolved: Vec<IpAddr>,
    /// Pairs of addresses that looked like one router but cannot be, because one trace contains both.
    pub conflicts: Vec<[IpAddr; 2]>,
}

/// One route.
#[derive(Debug, Serialize)]
pub struct Way {
    /// The hops, segment by segment.
    pub hops: Vec<Option<IpAddr>>,
    /// Whether the end of every traced segment answered. If not, the route may lead nowhere, and its time is a lower bound.
    pub answered: bool,
    /// Untraced segments with their ends. Each is assumed to be as long as the direct route.
    pub unknown: Vec<[IpAddr; 2]>,
    /// Segments that relays measured, or whose length was estimated from their measurements.
    pub told: Vec<Told>,
    /// Its score, its shared links, and the decision on it.
    #[serde(flatten)]
    pub explanation: Explanation,
}

/// The known facts about a route's segments: the first four fields of [`Way`].
type Segments = (Vec<Option<IpAddr>>, bool, Vec<[IpAddr; 2]>, Vec<Told>);

impl Way {
    fn new((hops, answered, unknown, told): Segments, explanation: Explanation) -> Self {
        Self { hops, answered, unknown, told, explanation }
    }
}

/// A segment reported by a controller.
#[derive(Debug, Serialize)]
pub struct Told {
    /// Its start.
    pub from: IpAddr,
    /// Its end.
    pub to: IpAddr,
    /// Round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Loss in this direction, 0 to 1.
    pub loss: f64,
    /// Capacity in Mbit/s, if packet trains measured it.
    pub capacity_mbit: Option<f64>,
    /// Available part of the capacity in Mbit/s.
    pub available_mbit: Option<f64>,
    /// Likely relative error of an estimated round-trip time; `None` for a measured one.
    pub estimated: Option<f64>,
}

impl Told {
    fn new((from, to): (IpAddr, IpAddr), figures: &Figures) -> Self {
        let Figures { rtt, loss, capacity, available, estimated } = *figures;
        let [capacity_mbit, available_mbit] = [capacity, available].map(|rate| rate.map(Rate::as_mbit));
        Self { from, to, rtt_ms: rtt.as_millis_f64(), loss, capacity_mbit, available_mbit, estimated }
    }
}

/// Builds one graph from all traces and from the reported segments, and chooses routes.
pub fn report(
    args: &TraceArgs,
    (own, elsewhere, known): (&[Trace], &[(IpAddr, Trace)], &Known),
    limits: &ChoiceLimits,
) -> (Report, Map) {
    let all: Vec<&Trace> = own.iter().chain(elsewhere.iter().map(|(_, trace)| trace)).collect();
    let routes: Vec<_> = all.iter().map(|trace| trace.route()).collect();
    let mut survey = Survey::new(&routes);
    let here = own.iter().flat_map(|trace| own.first().map(|first| [first.from, trace.from]));
    let there = elsewhere.iter().map(|(made_at, trace)| [*made_at, trace.from]);
    here.chain(there).for_each(|addresses| join_addresses(&mut survey, addresses));
    let find = |at: Option<IpAddr>, to: IpAddr| match at {
        None => own.iter().position(|trace| trace.to == to),
        Some(at) => {
            let found = elsewhere.iter().position(|(made_at, trace)| *made_at == at && trace.to == to);
            found.map(|index| own.len() + index)
        }
    };
    let direct = Chain(Vec::new());
    let direct_rtt = find(None, args.node.0).map_or(Span::ZERO, |index| all[index].rtt());
    let (mut parts, mut candidates, mut told_links) = (Vec::new(), Vec::new(), BTreeSet::new());
    let granted = known.chains(args.node.0, own);
    let granted = granted.iter().filter(|chain| !args.relays.contains(chain));
    for chain in std::iter::once(&direct).chain(&args.relays).chain(granted) {
        let (mut stretches, mut unknown, mut told) = (Vec::new(), Vec::new(), Vec::new());
        let carried = chain.0.first().and_then(|relay| known.carried(*relay));
        let mut rates: Vec<Rate> = carried.into_iter().collect();
        let mut at: Option<IpAddr> = None;
        for to in chain.0.iter().copied().chain([args.node.0]) {
            let figures = at.and_then(|from| known.figures(from, to));
            // A trace has no rate, so the reported one counts for traced segments, too.
            rates.extend(figures.and_then(|figures| figures.rate()));
            match (find(at, to), at, figures) {
                (Some(index), ..) => stretches.push(index),
                (None, Some(from), Some(figures)) => told.push(((from, to), figures)),
                (None, Some(from), None) => unknown.push([from, to]),
                (None, None, _) => {}
            }
            at = Some(to);
        }
        let traced = stretches.iter().fold(Span::ZERO, |sum, index| sum + all[*index].rtt());
        let sensed = told.iter().fold(Span::ZERO, |sum, (_, figures)| sum + figures.rtt);
        let survives: f64 = told.iter().map(|(_, figures)| 1.0 - figures.loss).product();
        let rtt = traced + sensed + direct_rtt * unknown.len() as u64;
        let figures = (rtt, 1.0 - survives, rates.into_iter().min());
        let Some(mut candidate) = survey.candidate(&name(chain, known), &stretches, figures) else {
            continue;
        };
        candidate.silent_hops += (unknown.len() + told.len()) as u32;
        let links: Vec<_> = told.iter().map(|(ends, figures)| stretch(&mut survey, *ends, figures)).collect();
        told_links.extend(links.iter().map(|(link, _)| *link));
        candidate.links.extend(links);
        candidates.push(candidate);
        let address = |index: &usize| all[*index].hops.iter().map(|hop| hop.as_ref().map(|hop| hop.address));
        let told: Vec<Told> = told.iter().map(|(ends, figures)| Told::new(*ends, figures)).collect();
        let answered = stretches.iter().all(|index| all[*index].is_complete());
        parts.push((stretches.iter().flat_map(address).collect(), answered, unknown, told));
    }
    let choice = choose(&survey.topology, &candidates, limits);
    let routes = Routes { candidates: &candidates, choice: &choice, untraced: told_links };
    let map = Map::new(&survey, own, args.node.0, routes);
    let ways = parts.into_iter().zip(choice.explanations);
    let routers = survey.aliases.routers().into_values().filter(|addresses| addresses.len() > 1);
    let report = Report {
        node: args.node.0,
        ways: ways.map(|(segments, explanation)| Way::new(segments, explanation)).collect(),
        silent: known.silent(),
        sets: Sets::new(&map, known, (own, args.node.0), limits.k),
        routers: routers.map(|addresses| addresses.into_iter().collect()).collect(),
        unresolved: survey.aliases.unresolved.clone(),
        conflicts: survey.aliases.conflicts.iter().map(|conflict| [conflict.a, conflict.b]).collect(),
    };
    (report, map)
}

/// Joins two addresses of one machine: it traced from the second, so the graph needs a link between them.
fn join_addresses(survey: &mut Survey, addresses: [IpAddr; 2]) {
    let [a, b] = addresses.map(|address| survey.aliases.router_of(address).to_string());
    let [a, b] = [a, b].map(|router| survey.topology.node(&router));
    if a != b {
        survey.topology.link_both(a, b, Link { latency: Span::ZERO, loss: 0.0, capacity: None });
    }
}

/// Adds an untraced segment as one link, shared by all routes over it.
fn stretch(survey: &mut Survey, (from, to): (IpAddr, IpAddr), figures: &Figures) -> (LinkId, Span) {
    let [from, to] = [from, to].map(|address| survey.aliases.router_of(address).to_string());
    let [from, to] = [from, to].map(|router| survey.topology.node(&router));
    let latency = figures.rtt / 2;
    let link = Link { latency, loss: figures.loss, capacity: figures.rate() };
    (survey.topology.link(from, to, link), latency)
}

fn name(chain: &Chain, known: &Known) -> String {
    if chain.0.is_empty() {
        return "direct".to_owned();
    }
    chain.0.iter().map(|relay| known.name(*relay)).collect::<Vec<_>>().join("+")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    const NODE: &str = "203.0.113.9";
    const RELAYS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

    fn trace(from: &str, to: &str) -> Trace {
        Trace { from: from.parse().unwrap(), to: to.parse().unwrap(), hops: Vec::new() }
    }

    #[test]
    fn no_capacity_is_larger_than_a_measurement_on_its_route() {
        let args: TraceArgs = parse(&[NODE]).unwrap();
        let [one, other] = RELAYS;
        let own = [one, other, NODE].map(|to| trace("198.51.100.1", to));
        let carried = [(one, 30.0), (other, 5.0)];
        let between = [(one, NODE, 10.0, true), (other, NODE, 20.0, true), (one, other, 8.0, true)];
        let known = Known::by_hand(&["192.0.2.1:4600", "192.0.2.2:4600"], &carried, &between);
        // The same with a trace from a relay, which says nothing about rates.
        for elsewhere in [vec![], vec![(one.parse::<IpAddr>().unwrap(), trace(one, NODE))]] {
            let (report, _) = report(&args, (&own, &elsewhere, &known), &ChoiceLimits::default());
            let mut rates: Vec<(&str, Option<f64>)> = report
                .ways
                .iter()
                .map(|way| (way.explanation.name.as_str(), way.explanation.capacity_mbit))
                .collect();
            rates.sort_by_key(|(name, _)| *name);
            let expected = [
                ("192.0.2.1", Some(10.0)),
                ("192.0.2.1+192.0.2.2", Some(8.0)),
                ("192.0.2.2", Some(5.0)),
                ("direct", None),
            ];
            assert_eq!(rates, expected, "{} traces from a relay", elsewhere.len());
        }
    }
}
