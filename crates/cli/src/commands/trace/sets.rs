//! Rates sets of routes: their maximum flow, and the set with the fewest shared links (PSMC §3.B [T5]).

use std::net::IpAddr;

use anabranch_overlay::select::{Link, LinkId, Topology, least_joint, max_flow};
use anabranch_wire::{Rate, Span};
use serde::Serialize;

use super::known::Known;
use super::map::Map;
use super::traces::Trace;

/// The name of this machine in lists of relays.
const HERE: &str = "here";

/// The two sets of routes to a node.
#[derive(Debug, Serialize)]
pub struct Sets {
    /// The maximum flow over relays, from capacities measured with packet trains; `None` if no complete route was
    /// measured.
    pub max_flow: Option<Flow>,
    /// The routes that share least, computed on the router graph rather than on the routes in the request.
    pub least_joint: LeastJoint,
}

/// A flow over relays.
#[derive(Debug, Serialize)]
pub struct Flow {
    /// Total in Mbit/s.
    pub mbit: f64,
    /// Its parts, largest first.
    pub parts: Vec<Part>,
}

/// A part of a flow.
#[derive(Debug, Serialize)]
pub struct Part {
    /// Rate in Mbit/s.
    pub mbit: f64,
    /// Its relays.
    pub over: Vec<String>,
}

/// The routes that share least.
#[derive(Debug, Serialize)]
pub struct LeastJoint {
    /// Sum of link delays, counting each link once for every use beyond the first.
    pub jointness_ms: f64,
    /// The routes as lists of routers, shortest first.
    pub ways: Vec<Vec<String>>,
}

impl Sets {
    /// Computes the sets, with at most `most` routes in the least joint one.
    pub fn new(map: &Map, known: &Known, (own, node): (&[Trace], IpAddr), most: usize) -> Self {
        let joint = map.here.zip(map.node).map(|(here, node)| least_joint(&map.topology, here, node, most));
        let (paths, jointness) =
            joint.map_or((Vec::new(), Span::ZERO), |joint| (joint.paths, joint.jointness));
        let ways = paths.iter().map(|links| stops(&map.topology, links)).collect();
        let least_joint = LeastJoint { jointness_ms: jointness.as_millis_f64(), ways };
        Self { max_flow: flow(known, own, node), least_joint }
    }
}

fn flow(known: &Known, own: &[Trace], node: IpAddr) -> Option<Flow> {
    let mut overlay = Topology::default();
    let (here, end) = (overlay.node(HERE), overlay.node(&node.to_string()));
    for relay in own.iter().map(|trace| trace.to).filter(|relay| *relay != node) {
        let Some(carried) = known.carried(relay) else { continue };
        let at = overlay.node(&relay.to_string());
        overlay.link(here, at, link(carried));
        for to in own.iter().map(|trace| trace.to).filter(|to| *to != relay) {
            let told = known.figures(relay, to).filter(|figures| figures.estimated.is_none());
            if let Some(rate) = told.and_then(|figures| figures.rate()) {
                let to = overlay.node(&to.to_string());
                overlay.link(at, to, link(rate));
            }
        }
    }
    let flow = max_flow(&overlay, here, end);
    let parts = flow.paths.iter().map(|path| {
        let mut over = stops(&overlay, &path.links);
        over.pop();
        Part { mbit: path.rate.as_mbit(), over: over.split_off(1) }
    });
    (flow.rate > Rate::ZERO).then(|| Flow { mbit: flow.rate.as_mbit(), parts: parts.collect() })
}

fn link(rate: Rate) -> Link {
    Link { latency: Span::ZERO, loss: 0.0, capacity: Some(rate) }
}

/// The names of the routers along `links`.
fn stops(topology: &Topology, links: &[LinkId]) -> Vec<String> {
    let first = links.first().and_then(|link| topology.ends(*link));
    let first = first.map(|(from, _)| topology.name(from).to_owned());
    first.into_iter().chain(links.iter().map(|link| topology.stop(*link))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "203.0.113.9";
    const RELAYS: [&str; 2] = ["192.0.2.1:4600", "192.0.2.2:4600"];
    const PLACES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

    /// The flow over both relays, given traces from here to each.
    fn of(known: &Known) -> Option<Flow> {
        let here: IpAddr = "198.51.100.1".parse().unwrap();
        let node: IpAddr = NODE.parse().unwrap();
        let ends = PLACES.iter().map(|relay| relay.parse().unwrap()).chain([node]);
        let own: Vec<Trace> = ends.map(|to| Trace { from: here, to, hops: Vec::new() }).collect();
        flow(known, &own, node)
    }

    fn parts(flow: &Flow) -> Vec<(f64, String)> {
        let mut parts: Vec<_> = flow.parts.iter().map(|part| (part.mbit, part.over.join("+"))).collect();
        parts.sort_by(|a, b| b.0.total_cmp(&a.0));
        parts
    }

    #[test]
    fn what_one_relay_cannot_pass_on_by_itself_goes_over_another() {
        let carried = [(PLACES[0], 30.0), (PLACES[1], 5.0)];
        let between =
            [(PLACES[0], NODE, 10.0, true), (PLACES[1], NODE, 20.0, true), (PLACES[0], PLACES[1], 8.0, true)];
        let flow = of(&Known::by_hand(&RELAYS, &carried, &between)).expect("a flow");
        assert_eq!(flow.mbit, 23.0, "10 and 5 over one each, 8 over both");
        let both = format!("{}+{}", PLACES[0], PLACES[1]);
        assert_eq!(parts(&flow), [(10.0, PLACES[0].into()), (8.0, both), (5.0, PLACES[1].into())]);
    }

    #[test]
    fn what_was_estimated_or_not_measured_from_here_carries_nothing() {
        let carried = [(PLACES[0], 30.0)];
        let told = [(PLACES[0], NODE, 10.0, false), (PLACES[1], NODE, 20.0, true)];
        assert!(of(&Known::by_hand(&RELAYS, &carried, &told)).is_none());
        assert!(of(&Known::by_hand(&RELAYS, &carried, &[])).is_none());
        assert!(of(&Known::default()).is_none());
    }

    #[test]
    fn the_narrower_stretch_counts_and_the_parts_add_up_to_the_whole() {
        let carried = [(PLACES[0], 7.0), (PLACES[1], 50.0)];
        let between = [(PLACES[0], NODE, 10.0, true), (PLACES[1], NODE, 20.0, true)];
        let flow = of(&Known::by_hand(&RELAYS, &carried, &between)).expect("a flow");
        assert_eq!(flow.mbit, 27.0);
        assert_eq!(parts(&flow), [(20.0, PLACES[1].to_owned()), (7.0, PLACES[0].to_owned())]);
    }
}
