//! Maximum flow, and the paths that it consists of (PSMC §3.B [T5]).
//!
//! Dinic's algorithm (`petgraph`) computes the joint capacity; links of unknown capacity count as zero. The flow is
//! then decomposed by repeatedly removing the path with the largest remaining flow, so the first few paths carry nearly
//! all. There are at most as many paths as links.

use std::collections::{BTreeMap, BinaryHeap};

use anabranch_wire::Rate;
use petgraph::algo::maximum_flow::dinics;

use super::topology::{LinkId, NodeId, Topology, index};

/// The rate between two nodes in one direction, and the paths that carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaxFlow {
    /// Rate of all paths together.
    pub rate: Rate,
    /// The paths, the one with the greatest share first; their rates add up to `rate`.
    pub paths: Vec<FlowPath>,
}

/// A path with its share of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowPath {
    /// From source to destination.
    pub links: Vec<LinkId>,
    /// Its share.
    pub rate: Rate,
}

/// The maximum flow from `from` to `to`, in bits a second.
pub fn max_flow(topology: &Topology, from: NodeId, to: NodeId) -> MaxFlow {
    let nodes = topology.node_count() as u32;
    if from == to || from.0 >= nodes || to.0 >= nodes {
        return MaxFlow { rate: Rate::ZERO, paths: Vec::new() };
    }
    let capacities =
        topology.graph.map(|_, _| (), |_, link| link.capacity.map_or(0, Rate::as_bits).min(MOST_BITS));
    let (total, flows) = dinics(&capacities, index(from), index(to));
    let mut left: BTreeMap<LinkId, u64> =
        flows.into_iter().enumerate().map(|(link, flow)| (LinkId(link as u32), flow)).collect();
    let mut paths = Vec::new();
    while let Some(path) = widest(topology, &left, (from, to)) {
        for link in &path.links {
            left.entry(*link).and_modify(|flow| *flow -= path.rate.as_bits());
        }
        paths.push(path);
    }
    MaxFlow { rate: Rate::from_bits(total), paths }
}

/// Sums over a million links stay below the largest integer: 18 Tbit/s a link.
const MOST_BITS: u64 = u64::MAX >> 20;

/// The path along which most flow is left: Dijkstra's search with the narrowest link as a path's length.
fn widest(
    topology: &Topology,
    left: &BTreeMap<LinkId, u64>,
    (from, to): (NodeId, NodeId),
) -> Option<FlowPath> {
    let mut best: BTreeMap<NodeId, (u64, Option<(NodeId, LinkId)>)> =
        BTreeMap::from([(from, (u64::MAX, None))]);
    let mut heap = BinaryHeap::from([(u64::MAX, from)]);
    while let Some((width, node)) = heap.pop() {
        if node == to {
            break;
        }
        if best.get(&node).is_some_and(|(known, _)| *known > width) {
            continue;
        }
        for (link, next) in topology.leaving(node) {
            let through = width.min(left.get(&link).copied().unwrap_or(0));
            if through > best.get(&next).map_or(0, |(known, _)| *known) {
                best.insert(next, (through, Some((node, link))));
                heap.push((through, next));
            }
        }
    }
    let (width, mut step) = *best.get(&to)?;
    let mut links = Vec::new();
    while let Some((previous, link)) = step {
        links.push(link);
        step = best.get(&previous)?.1;
    }
    links.reverse();
    Some(FlowPath { links, rate: Rate::from_bits(width) })
}
