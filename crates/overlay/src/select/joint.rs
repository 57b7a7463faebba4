//! Paths that share as little as possible (PSMC §3.B [T5]).
//!
//! The jointness of a set of paths is the delay of every link, counted once for each path beyond the first that uses
//! it. Among sets with equal jointness, the one with the least total delay is best. The price of a link never falls
//! with use, so this is a minimum-cost flow. A cheapest path is added k times (successive shortest paths, with Bellman
//! and Ford's search because of negative costs). A further use of a link costs its whole delay as jointness; giving up
//! a use returns its cost. PSMC uses a heuristic; this is exact. Costs are pairs, compared by jointness first.

use std::collections::BTreeSet;

use anabranch_wire::Span;

use super::topology::{LinkId, NodeId, Topology};

/// Paths and their jointness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joint {
    /// The paths, least delay first, all different.
    pub paths: Vec<Vec<LinkId>>,
    /// Delay of each link once for every use beyond the first.
    pub jointness: Span,
}

/// Jointness, then delay, in nanoseconds.
type Cost = (i64, i64);

/// Up to `k` paths from `from` to `to` of least jointness. Fewer when further ones would repeat those found.
pub fn least_joint(topology: &Topology, from: NodeId, to: NodeId, k: usize) -> Joint {
    let nodes = topology.node_count();
    let links: Vec<Arc> = (0..topology.link_count() as u32)
        .filter_map(|id| {
            let (tail, head) = topology.ends(LinkId(id))?;
            let delay = topology.get(LinkId(id))?.latency.as_nanos().clamp(1, MOST_NANOS) as i64;
            Some(Arc { tail: tail.0 as usize, head: head.0 as usize, delay, uses: 0 })
        })
        .collect();
    let mut network = Network { nodes, links };
    if from == to || from.0.max(to.0) as usize >= nodes {
        return Joint { paths: Vec::new(), jointness: Span::ZERO };
    }
    for _ in 0..k {
        if !network.augment(from.0 as usize, to.0 as usize) {
            break;
        }
    }
    let mut paths = network.take_apart(from.0 as usize, to.0 as usize);
    while let Some(better) = recombined(topology, &paths) {
        paths = better;
    }
    paths.sort_by_key(|path| (latency_of(topology, path), path.clone()));
    paths.dedup();
    let jointness = jointness(topology, &paths);
    Joint { paths, jointness }
}

/// Makes more different paths of the same links: two paths that meet exchange their parts after that node.
fn recombined(topology: &Topology, paths: &[Vec<LinkId>]) -> Option<Vec<Vec<LinkId>>> {
    let different = |paths: &[Vec<LinkId>]| paths.iter().collect::<BTreeSet<_>>().len();
    let now = different(paths);
    if now == paths.len() {
        return None;
    }
    let head = |link: &LinkId| topology.ends(*link).map(|(_, head)| head);
    for (a, b) in (0..paths.len()).flat_map(|a| (0..a).map(move |b| (a, b))) {
        for (i, j) in (1..paths[a].len()).flat_map(|i| (1..paths[b].len()).map(move |j| (i, j))) {
            if head(&paths[a][i - 1]) == head(&paths[b][j - 1]) {
                let mut better = paths.to_vec();
                better[a] = [&paths[a][..i], &paths[b][j..]].concat();
                better[b] = [&paths[b][..j], &paths[a][i..]].concat();
                if different(&better) > now {
                    return Some(better);
                }
            }
        }
    }
    None
}

/// Delay of each link once for every use beyond the first.
pub(super) fn jointness(topology: &Topology, paths: &[Vec<LinkId>]) -> Span {
    let mut uses: Vec<LinkId> = paths.iter().flatten().copied().collect();
    uses.sort_unstable();
    let repeated = uses.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    latency_of(topology, &repeated.collect::<Vec<_>>())
}

/// A day: sums stay far from overflow.
const MOST_NANOS: u64 = 86_400_000_000_000;

struct Arc {
    tail: usize,
    head: usize,
    delay: i64,
    uses: u32,
}

impl Arc {
    /// Cost of one more use.
    fn forward(&self) -> Cost {
        (if self.uses > 0 { self.delay } else { 0 }, self.delay)
    }

    /// Refund of one use less.
    fn backward(&self) -> Cost {
        (if self.uses > 1 { -self.delay } else { 0 }, -self.delay)
    }
}

struct Network {
    nodes: usize,
    links: Vec<Arc>,
}

impl Network {
    /// Adds one unit of flow at least cost; false if there is no path.
    fn augment(&mut self, from: usize, to: usize) -> bool {
        // For each node: the cost to reach it, the link used, and whether it is used forwards.
        let mut reached: Vec<Option<(Cost, usize, bool)>> = vec![None; self.nodes];
        let mut cost: Vec<Option<Cost>> = vec![None; self.nodes];
        cost[from] = Some((0, 0));
        for _ in 0..self.nodes {
            let mut changed = false;
            for (at, link) in self.links.iter().enumerate() {
                let mut relax = |tail: usize, head: usize, price: Cost, forward: bool| {
                    let Some((jointness, delay)) = cost[tail] else { return };
                    let offer = (jointness + price.0, delay + price.1);
                    if cost[head].is_none_or(|known| offer < known) {
                        cost[head] = Some(offer);
                        reached[head] = Some((offer, at, forward));
                        changed = true;
                    }
                };
                relax(link.tail, link.head, link.forward(), true);
                if link.uses > 0 {
                    relax(link.head, link.tail, link.backward(), false);
                }
            }
            if !changed {
                break;
            }
        }
        if cost[to].is_none() {
            return false;
        }
        let mut node = to;
        while node != from {
            let Some((_, at, forward)) = reached[node] else { return false };
            let link = &mut self.links[at];
            if forward {
                link.uses += 1;
                node = link.tail;
            } else {
                link.uses -= 1;
                node = link.head;
            }
        }
        true
    }

    /// The flow as paths. A minimum-cost flow has no cycles.
    fn take_apart(&mut self, from: usize, to: usize) -> Vec<Vec<LinkId>> {
        let mut paths = Vec::new();
        loop {
            let (mut node, mut path) = (from, Vec::new());
            while node != to {
                // Prefer the least used link, so that paths separate where they can.
                let next =
                    self.links.iter().enumerate().filter(|(_, link)| link.tail == node && link.uses > 0);
                let Some((at, _)) = next.min_by_key(|(at, link)| (link.uses, *at)) else { return paths };
                self.links[at].uses -= 1;
                path.push(LinkId(at as u32));
                node = self.links[at].head;
            }
            paths.push(path);
        }
    }
}

/// Sum of the links' delays.
fn latency_of(topology: &Topology, links: &[LinkId]) -> Span {
    links.iter().filter_map(|link| topology.get(*link)).fold(Span::ZERO, |sum, link| sum + link.latency)
}
