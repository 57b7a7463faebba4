//! Sessions between the hosts of a generated network: pairs of hosts, and their paths.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use anabranch_wire::{Span, Time};

use super::{Builder, Group, MAX_FLOWS, MAX_PATHS, Settings, Times, check_openings};
use crate::scenario::error::{ScenarioError, in_range};
use crate::scenario::generate::Bcube;
use crate::scenario::model::{Pattern, Routing, Topology, TrafficSpec};
use anabranch_sim::network::{FlowPlan, PathPlan};

/// Most hosts for patterns in which each host chooses among all others.
const MAX_MIXED: usize = 20_000;

impl Builder<'_> {
    pub(super) fn traffic(&mut self, spec: &TrafficSpec) -> Result<(), ScenarioError> {
        let name = format!("traffic.{}", spec.name);
        let key = |key: &str| format!("{name}.{key}");
        let hosts = self.graph.hosts.clone();
        if hosts.len() < 2 {
            return Err(ScenarioError::new(key("pattern"), "there are no hosts")
                .hint("add a [topology] of kind \"fat-tree\", \"bcube\" or \"dumbbell\""));
        }
        let paths = spec.paths.unwrap_or(1);
        in_range((1..=MAX_PATHS).contains(&paths), key("paths"), format!("1 to {MAX_PATHS}"))?;
        let cube = matches!(self.file.topology, Some(Topology::Bcube { .. }));
        if spec.routing == Routing::InOrder && !cube {
            return Err(ScenarioError::new(key("routing"), "only a BCube has paths in an order")
                .hint("take `routing` out, or use a [topology] of kind \"bcube\""));
        }
        self.check_times(&key, Times { within: spec.start_within, ..Times::default() })?;
        let within = spec.start_within.map_or(Span::ZERO, |within| within.0);
        check_openings(&key, spec.paths_within, self.built.end.since(Time::ZERO + within))?;
        let mut pairs = self.pairs(spec, &hosts)?;
        let before = self.built.plan.flows.len();
        if (before + pairs.len()) as u64 > MAX_FLOWS {
            let said = if spec.flows.is_some() { "flows" } else { "pattern" };
            let message = format!("{} flows, {} with those before", pairs.len(), before + pairs.len());
            return Err(ScenarioError::new(key(said), message).hint(format!(
                "a scenario has at most {MAX_FLOWS} flows: fewer others, or a smaller `share` of hosts that send"
            )));
        }
        pairs.truncate(self.most_pairs);
        let mut senders: Vec<usize> = pairs.iter().map(|(from, _)| *from).collect();
        senders.dedup();
        let settings =
            Settings { profile: spec.profile, rule: spec.rule.as_ref(), scheduler: spec.scheduler.as_ref() };
        // One config for each number of paths, shared by the flows.
        let mut configs = BTreeMap::new();
        for (from, to) in &pairs {
            let found = self.host_paths(spec, (*from, *to), paths);
            let found = self.returned(found);
            let config = match configs.entry(found.len()) {
                Entry::Occupied(known) => Arc::clone(known.get()),
                Entry::Vacant(place) => {
                    Arc::clone(place.insert(Arc::new(self.config(&name, settings, found.len())?)))
                }
            };
            let start = Time::ZERO + within.mul_f64(self.chance.unit());
            let openings = self.openings(spec.paths_within, found.len());
            let flow = FlowPlan::bulk(found, config, (start, Time::NEVER));
            self.built.plan.flows.push(FlowPlan { openings, ..flow });
        }
        let group = Group { name: spec.name.clone(), count: pairs.len(), senders: senders.len() };
        self.built.groups.push(group);
        Ok(())
    }

    fn host_paths(&mut self, spec: &TrafficSpec, pair: (usize, usize), most: usize) -> Vec<PathPlan> {
        match self.file.topology {
            Some(Topology::Bcube { n, k, .. }) if spec.routing == Routing::InOrder => {
                // Levels whose digit is already right come last: their paths take a detour.
                let differs =
                    |level: &usize| pair.0 / n.pow(*level as u32) % n != pair.1 / n.pow(*level as u32) % n;
                let (mut levels, detours): (Vec<_>, Vec<_>) = (0..=k).rev().partition(differs);
                levels.extend(detours);
                let cube = Bcube { graph: &self.graph, n, k };
                cube.paths(pair, levels.into_iter().take(most), &mut self.chance)
            }
            Some(Topology::Bcube { n, k, .. }) if most > 1 => {
                let mut levels: Vec<usize> = (0..=k).collect();
                self.chance.shuffle(&mut levels);
                let cube = Bcube { graph: &self.graph, n, k };
                cube.paths(pair, levels.into_iter().take(most), &mut self.chance)
            }
            _ => self.graph.shortest_between(pair.0, pair.1, most, &mut self.chance),
        }
    }

    /// Pairs of sender and receiver, by sender.
    fn pairs(&mut self, spec: &TrafficSpec, hosts: &[usize]) -> Result<Vec<(usize, usize)>, ScenarioError> {
        let key = |key: &str| format!("traffic.{}.{key}", spec.name);
        let flows = spec.flows.unwrap_or(1);
        if spec.pattern != Pattern::Permutation && hosts.len() > MAX_MIXED {
            return Err(ScenarioError::new(key("pattern"), format!("{} hosts", hosts.len())).hint(format!(
                "each looks at all others: at most {MAX_MIXED} hosts, or the pattern \"permutation\""
            )));
        }
        let share = spec.share.map_or(1.0, |share| share.0);
        let count = (share * hosts.len() as f64 + 0.5) as usize;
        if flows == 0 {
            return Err(ScenarioError::new(key("flows"), "no flows a host").hint("at least 1"));
        }
        if flows.saturating_mul(count) as u64 > MAX_FLOWS {
            let (what, less) =
                if flows > 1 { ("flows", "fewer `flows`") } else { ("pattern", "fewer hosts") };
            let message = format!("{flows} flows a host from {count} hosts");
            return Err(ScenarioError::new(key(what), message).hint(format!(
                "a scenario has at most {MAX_FLOWS} flows: {less}, or a smaller `share` of hosts that send"
            )));
        }
        if count == 0 {
            return Err(ScenarioError::new(key("share"), "no host sends").hint(format!(
                "at least \"{:.3} %\" of {} hosts",
                100.0 / hosts.len() as f64,
                hosts.len()
            )));
        }
        if spec.pattern == Pattern::Permutation {
            if flows > 1 {
                return Err(ScenarioError::new(key("flows"), "a permutation has one flow a host")
                    .hint("take `flows` out, or use the pattern \"random\""));
            }
            // A random cycle through all hosts, so that no host sends to itself.
            let mut order = hosts.to_vec();
            self.chance.shuffle(&mut order);
            let next = order[1..].iter().chain(&order[..1]);
            return Ok(order.iter().copied().zip(next.copied()).take(count).collect());
        }
        let mut senders = hosts.to_vec();
        if count < hosts.len() {
            self.chance.shuffle(&mut senders);
            senders.truncate(count);
        }
        let mut pairs = Vec::new();
        for sender in senders {
            let mut others = match spec.pattern {
                Pattern::Neighbours => self.graph.host_neighbours(sender),
                _ => hosts.iter().copied().filter(|host| *host != sender).collect(),
            };
            if others.is_empty() {
                return Err(ScenarioError::new(key("pattern"), "a host has no neighbours")
                    .hint("use a larger [topology], or the pattern \"permutation\""));
            }
            if others.len() < flows {
                return Err(ScenarioError::new(key("flows"), format!("{flows} flows a host"))
                    .hint(format!("a host has only {} others to send to", others.len())));
            }
            self.chance.shuffle(&mut others);
            pairs.extend(others.into_iter().take(flows).map(|other| (sender, other)));
        }
        Ok(pairs)
    }
}
