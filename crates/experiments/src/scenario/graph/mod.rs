//! Nodes and cables by name, and the paths between them.

mod shortest;

use std::collections::BTreeMap;

use anabranch_link::LinkConfig;

use super::error::{ScenarioError, nearest, some_of};
use anabranch_sim::chance::Chance;
use anabranch_sim::network::PathPlan;

/// A cable: two links, `2n` and `2n + 1` of the plan.
#[derive(Clone, Debug)]
pub(crate) struct Cable {
    pub name: String,
    pub nodes: Option<[usize; 2]>,
    /// The generated cable of a host.
    pub of_host: bool,
    pub links: [LinkConfig; 2],
}

/// A network by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    nodes: BTreeMap<String, usize>,
    pub cables: Vec<Cable>,
    by_name: BTreeMap<String, usize>,
    /// For each node its cables and the nodes at their other ends.
    neighbours: Vec<Vec<(u32, usize)>>,
    /// The same for transit nodes only: nodes with more than one cable.
    onward: Vec<Vec<(u32, usize)>>,
    /// The generated hosts.
    pub hosts: Vec<usize>,
}

/// A route: cables, each with whether it is crossed backwards.
type Way = Vec<(u32, bool)>;

impl Graph {
    /// The node with this name, which is created if necessary.
    pub(crate) fn node(&mut self, name: &str) -> usize {
        if let Some(node) = self.nodes.get(name) {
            return *node;
        }
        let node = self.neighbours.len();
        self.nodes.insert(name.to_owned(), node);
        self.neighbours.push(Vec::new());
        self.onward.push(Vec::new());
        node
    }

    pub(crate) fn find_node(&self, name: &str) -> Option<usize> {
        self.nodes.get(name).copied()
    }

    pub(crate) fn host(&mut self, name: &str) -> usize {
        let host = self.node(name);
        self.hosts.push(host);
        host
    }

    pub(crate) fn find_cable(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn add_cable(&mut self, name: String, nodes: Option<[usize; 2]>, links: [LinkConfig; 2]) {
        let index = self.cables.len();
        if let Some([a, b]) = nodes {
            self.neighbours[a].push((index as u32, b));
            self.neighbours[b].push((index as u32, a));
            self.lead_on(a);
            self.lead_on(b);
        }
        self.by_name.insert(name.clone(), index);
        self.cables.push(Cable { name, nodes, of_host: false, links });
    }

    /// The cable with this name.
    pub(crate) fn cable(&self, key: &str, name: &str) -> Result<usize, ScenarioError> {
        self.find_cable(name).ok_or_else(|| unknown(key, "link", name, self.by_name.keys()))
    }

    fn existing_node(&self, key: &str, name: &str) -> Result<usize, ScenarioError> {
        self.nodes.get(name).copied().ok_or_else(|| unknown(key, "node", name, self.nodes.keys()))
    }

    /// A path over these cables in order. Cables with nodes have to follow each other without a loop; cables without nodes
    /// fit anywhere.
    pub(crate) fn path_over(&self, key: &str, names: &[String]) -> Result<PathPlan, ScenarioError> {
        if names.is_empty() {
            return Err(ScenarioError::new(key, "a path without links").hint("name at least one link"));
        }
        let mut way = Way::new();
        let mut visited: Vec<usize> = Vec::new();
        let cables: Vec<usize> = names.iter().map(|name| self.cable(key, name)).collect::<Result<_, _>>()?;
        for (position, cable) in cables.iter().enumerate() {
            let name = &names[position];
            if way.iter().any(|(seen, _)| *seen as usize == *cable) {
                return Err(loops(key, &format!("crosses link \"{name}\" twice")));
            }
            let Some([a, b]) = self.cables[*cable].nodes else {
                way.push((*cable as u32, false));
                continue;
            };
            let next = cables.get(position + 1).and_then(|next| self.cables[*next].nodes);
            let backwards = match visited.last() {
                Some(last) if *last == a => false,
                Some(last) if *last == b => true,
                Some(_) => {
                    let message =
                        format!("link \"{name}\" does not begin where \"{}\" ends", names[position - 1]);
                    return Err(ScenarioError::new(key, message).hint(self.between(*cable, &cables)));
                }
                // The first link is crossed so that the next one can follow.
                None => next.is_some_and(|next| next.contains(&a) && !next.contains(&b)),
            };
            let (from, to) = if backwards { (b, a) } else { (a, b) };
            if visited.is_empty() {
                visited.push(from);
            }
            if visited.contains(&to) {
                return Err(loops(key, &format!("comes back to a node over link \"{name}\"")));
            }
            visited.push(to);
            way.push((*cable as u32, backwards));
        }
        Ok(plan(&way))
    }

    /// The remedy for a link that does not follow the one before it.
    fn between(&self, cable: usize, cables: &[usize]) -> String {
        let ends = |cable: usize| self.cables[cable].nodes.unwrap_or([usize::MAX; 2]);
        let joins =
            |other: &&usize| **other != cable && ends(**other).iter().any(|end| ends(cable).contains(end));
        if cables.iter().any(|other| joins(&other)) {
            return "list the links in order from the sender on".to_owned();
        }
        let name = |node: usize| {
            self.nodes.iter().find(|(_, known)| **known == node).map_or("", |(name, _)| name.as_str())
        };
        let [a, b] = ends(cable).map(name);
        format!("it joins \"{a}\" and \"{b}\", which no other link of the path does: name the links between")
    }

    /// The two nodes of these names.
    pub(crate) fn ends(
        &self,
        key: &dyn Fn(&str) -> String,
        (from, to): (&str, &str),
    ) -> Result<(usize, usize), ScenarioError> {
        let start = self.existing_node(&key("from"), from)?;
        let end = self.existing_node(&key("to"), to)?;
        if start == end {
            return Err(ScenarioError::new(key("to"), format!("\"{from}\" is both ends of the path"))
                .hint("name two different nodes"));
        }
        Ok((start, end))
    }

    /// Up to `most` different shortest paths, chosen at random.
    pub(crate) fn shortest(
        &self,
        key: &dyn Fn(&str) -> String,
        (from, to): (&str, &str),
        (most, chance): (usize, &mut Chance),
    ) -> Result<Vec<PathPlan>, ScenarioError> {
        let (start, end) = self.ends(key, (from, to))?;
        let key = key("to");
        let paths = self.shortest_between(start, end, most, chance);
        if paths.is_empty() {
            let message = format!("node \"{to}\" cannot be reached from \"{from}\"");
            return Err(
                ScenarioError::new(key, message).hint("join them by links with `between = [\"…\", \"…\"]`")
            );
        }
        Ok(paths)
    }

    /// The path over these nodes, each a neighbour of the one before.
    pub(crate) fn path_along(&self, nodes: &[usize]) -> PathPlan {
        let mut way = Way::new();
        for pair in nodes.windows(2) {
            if let Some((cable, _)) = self.neighbours[pair[0]].iter().find(|(_, next)| *next == pair[1]) {
                way.push((*cable, self.is_backwards(*cable, pair[0])));
            }
        }
        plan(&way)
    }

    /// Hosts that share a switch with this one, in order.
    pub(crate) fn host_neighbours(&self, host: usize) -> Vec<usize> {
        let switches = self.neighbours[host].iter().flat_map(|(_, switch)| &self.neighbours[*switch]);
        let mut found: Vec<usize> = switches
            .map(|(_, node)| *node)
            .filter(|node| *node != host && self.hosts.binary_search(node).is_ok())
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn plan(way: &Way) -> PathPlan {
    let there = way.iter().map(|(cable, backwards)| cable * 2 + u32::from(*backwards));
    let back = way.iter().rev().map(|(cable, backwards)| cable * 2 + u32::from(!*backwards));
    PathPlan { forward: there.collect(), back: back.collect() }
}

fn loops(key: &str, how: &str) -> ScenarioError {
    ScenarioError::new(key, format!("the path has a loop: it {how}"))
        .hint("a path visits each node and link once")
}

/// The error for an unknown name.
pub(crate) fn unknown<'a>(
    key: &str,
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'a String>,
) -> ScenarioError {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let hint = match nearest(name, &known) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if known.is_empty() && what == "node" => {
            "the scenario has no nodes: give its links ends, as `between = [\"a\", \"b\"]`, or name links with `paths`"
                .to_owned()
        }
        None if known.is_empty() => format!("the scenario has no {what}s"),
        None => format!("there are {}", some_of(&known)),
    };
    ScenarioError::new(key, format!("there is no {what} \"{name}\"")).hint(hint)
}
