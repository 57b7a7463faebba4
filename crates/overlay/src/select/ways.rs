//! Candidate generation: the k shortest loopless routes (Yen), by latency.

use anabranch_wire::Span;
use pathfinding::directed::yen::yen;

use super::topology::{LinkId, NodeId, Topology};

/// A route through a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its nodes, from source to destination.
    pub nodes: Vec<NodeId>,
    /// Its links; one fewer than nodes.
    pub links: Vec<LinkId>,
    /// Sum of the links' one-way delays.
    pub latency: Span,
}

/// The `k` routes of least latency from `from` to `to`, shortest first. None has a loop or more than `most_links`
/// links (a chain has at most four relays, so five overlay links).
///
/// A route that is too long takes one of the `k` positions and is left out, so fewer may be returned.
#[must_use]
pub fn shortest(topology: &Topology, from: NodeId, to: NodeId, (k, most_links): (usize, usize)) -> Vec<Way> {
    if from == to || from.0 as usize >= topology.node_count() {
        return Vec::new();
    }
    let successors = |node: &NodeId| {
        let next = topology.leaving(*node).into_iter();
        // A link without delay costs a nanosecond, so that fewer links win.
        next.filter_map(|(link, to)| Some((to, topology.get(link)?.latency.as_nanos().clamp(1, MOST_NANOS))))
            .collect::<Vec<_>>()
    };
    let found = yen(&from, successors, |node| *node == to, k);
    let ways = found.into_iter().filter(|(nodes, _)| nodes.len() <= most_links + 1);
    ways.filter_map(|(nodes, _)| {
        let links = topology.links_along(&nodes)?;
        Some(Way { latency: latency_of(topology, &links), nodes, links })
    })
    .collect()
}

/// A day: sums of a path's delays stay far from overflow.
const MOST_NANOS: u64 = 86_400_000_000_000;

/// Sum of the links' delays.
pub(super) fn latency_of(topology: &Topology, links: &[LinkId]) -> Span {
    links.iter().filter_map(|link| topology.get(*link)).fold(Span::ZERO, |sum, link| sum + link.latency)
}
