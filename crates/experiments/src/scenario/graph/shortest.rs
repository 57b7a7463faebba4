//! Shortest paths between two nodes, by the number of cables.

use std::collections::BTreeMap;

use super::{Graph, Way, plan};
use anabranch_sim::chance::Chance;
use anabranch_sim::network::PathPlan;

/// The distance to the end of each node on a shortest path, in cables.
type Distances = BTreeMap<usize, usize>;

impl Graph {
    /// Up to `most` different shortest paths, chosen at random; empty if the end cannot be reached.
    pub(crate) fn shortest_between(
        &self,
        start: usize,
        end: usize,
        most: usize,
        chance: &mut Chance,
    ) -> Vec<PathPlan> {
        let Some(distances) = self.distances(start, end) else { return Vec::new() };
        let mut found: Vec<Way> = Vec::new();
        // Walks at random until enough different paths are found; there may be fewer.
        for _ in 0..most * 24 {
            let way = self.walk((start, end), &distances, chance);
            if !found.contains(&way) {
                found.push(way);
            }
            if found.len() == most {
                break;
            }
        }
        found.iter().map(plan).collect()
    }

    /// Records with its neighbours that a node with a new cable is a transit node.
    pub(super) fn lead_on(&mut self, node: usize) {
        let cables = &self.neighbours[node];
        let new = match cables.len() {
            0 | 1 => return,
            // With one cable, the node was not a transit node.
            2 => &cables[..],
            many => &cables[many - 1..],
        };
        for (cable, other) in new {
            let onward = &mut self.onward[*other];
            let place = onward.partition_point(|(known, _)| known < cable);
            onward.insert(place, (*cable, node));
        }
    }

    /// The neighbours of a node that a path between two nodes may visit: transit nodes, and those two.
    fn around(&self, node: usize, (start, end): (usize, usize)) -> impl Iterator<Item = (u32, usize)> {
        let last = [start, end].into_iter().filter_map(move |last| match self.neighbours[last][..] {
            [(cable, at)] if at == node => Some((cable, last)),
            _ => None,
        });
        self.onward[node].iter().copied().chain(last)
    }

    /// The distances of all nodes on shortest paths: a search from both ends until they meet, then back to the start.
    fn distances(&self, start: usize, end: usize) -> Option<Distances> {
        let ends = (start, end);
        let mut distances = Distances::from([(end, 0)]);
        let mut from_start = Distances::from([(start, 0)]);
        let (mut near, mut far) = (vec![end], vec![vec![start]]);
        let mut steps = 0;
        while !far[far.len() - 1].iter().any(|node| distances.contains_key(node)) {
            let outer = &far[far.len() - 1];
            if near.is_empty() || outer.is_empty() {
                return None;
            }
            if near.len() < outer.len() {
                steps += 1;
                near = self.next_layer(&near, ends, &mut distances, steps);
            } else {
                let layer = self.next_layer(outer, ends, &mut from_start, far.len());
                far.push(layer);
            }
        }
        for layer in far.iter().rev().skip(1) {
            steps += 1;
            for node in layer {
                if self.around(*node, ends).any(|(_, next)| distances.get(&next) == Some(&(steps - 1))) {
                    distances.insert(*node, steps);
                }
            }
        }
        Some(distances)
    }

    /// The unseen neighbours of a layer, recorded with their distance.
    fn next_layer(
        &self,
        layer: &[usize],
        ends: (usize, usize),
        seen: &mut Distances,
        distance: usize,
    ) -> Vec<usize> {
        let mut next_layer = Vec::new();
        for node in layer {
            for (_, next) in self.around(*node, ends) {
                seen.entry(next).or_insert_with(|| {
                    next_layer.push(next);
                    distance
                });
            }
        }
        next_layer
    }

    fn walk(&self, ends: (usize, usize), distances: &Distances, chance: &mut Chance) -> Way {
        let (mut node, mut way) = (ends.0, Way::new());
        while node != ends.1 {
            let here = distances.get(&node).copied().unwrap_or(0);
            let is_nearer = |(_, next): &(u32, usize)| distances.get(next).is_some_and(|there| *there < here);
            let nearer: Vec<_> = self.around(node, ends).filter(is_nearer).collect();
            if nearer.is_empty() {
                break;
            }
            let (cable, next) = nearer[chance.below(nearer.len())];
            way.push((cable, self.is_backwards(cable, node)));
            node = next;
        }
        way
    }

    pub(super) fn is_backwards(&self, cable: u32, from: usize) -> bool {
        self.cables[cable as usize].nodes.is_some_and(|[a, _]| a != from)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_link::LinkConfig;
    use proptest::prelude::*;

    use super::*;

    fn graph(nodes: usize, cables: &[(usize, usize)]) -> Graph {
        let mut graph = Graph::default();
        (0..nodes).for_each(|node| _ = graph.node(&format!("n{node}")));
        for (index, (a, b)) in cables.iter().enumerate().filter(|(_, (a, b))| a != b) {
            let links = [LinkConfig::default(), LinkConfig::default()];
            graph.add_cable(format!("c{index}"), Some([a % nodes, b % nodes]), links);
        }
        graph
    }

    /// The distance to the end from every node.
    fn search(graph: &Graph, end: usize) -> Distances {
        let (mut distances, mut queue) = (Distances::from([(end, 0)]), vec![end]);
        let mut at = 0;
        while at < queue.len() {
            for (_, next) in &graph.neighbours[queue[at]] {
                if !distances.contains_key(next) {
                    distances.insert(*next, distances[&queue[at]] + 1);
                    queue.push(*next);
                }
            }
            at += 1;
        }
        distances
    }

    proptest! {
        #[test]
        fn layers_from_both_ends_find_what_a_search_of_everything_finds(
            nodes in 2_usize..12,
            cables in proptest::collection::vec((0_usize..12, 0_usize..12), 1..24),
            (start, end) in (0_usize..12, 0_usize..12),
        ) {
            let cables: Vec<_> = cables.iter().map(|(a, b)| (a % nodes, b % nodes)).collect();
            let (start, end) = (start % nodes, end % nodes);
            prop_assume!(start != end);
            let graph = graph(nodes, &cables);
            let wanted = search(&graph, end);
            let found = graph.distances(start, end);
            prop_assert_eq!(found.as_ref().map(|found| found[&start]), wanted.get(&start).copied());
            for (node, distance) in found.iter().flatten() {
                prop_assert_eq!(Some(distance), wanted.get(node), "of node {}", node);
            }
            // Every shortest path can be found.
            let Some(found) = found else { return Ok(()) };
            let nearer = |known: &Distances, node: usize| {
                let near = |next: &usize| known.get(next).is_some_and(|there| *there < known[&node]);
                graph.neighbours[node].iter().map(|(_, next)| *next).filter(near).collect::<Vec<_>>()
            };
            let mut layer = vec![start];
            while let Some(node) = layer.pop() {
                prop_assert_eq!(nearer(&found, node), nearer(&wanted, node));
                layer.extend(nearer(&found, node));
            }
        }
    }
}
