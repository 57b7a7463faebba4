//! Generated networks: torus, dumbbell, parking lot, FatTree, BCube [P6].

use anabranch_link::LinkConfig;

use super::error::ScenarioError;
use super::graph::Graph;
use super::model::Topology;
use anabranch_sim::chance::Chance;
use anabranch_sim::network::PathPlan;

/// Most cables of a generated network.
const MAX_CABLES: usize = 1_000_000;

/// Makes the links of a cable from its name and whether it belongs to a host.
pub(crate) type Maker<'a> = &'a dyn Fn(&str, bool) -> Result<[LinkConfig; 2], ScenarioError>;

/// Builds a network.
pub(crate) fn generate(topology: &Topology, make: Maker<'_>) -> Result<Graph, ScenarioError> {
    check(topology)?;
    let mut builder = Builder { graph: Graph::default(), make };
    match topology {
        Topology::Torus { links } => builder.torus(*links)?,
        Topology::Dumbbell { hosts, .. } => builder.dumbbell(*hosts)?,
        Topology::ParkingLot { hops } => builder.parking_lot(*hops)?,
        Topology::FatTree { k, .. } => builder.fat_tree(*k)?,
        Topology::Bcube { n, k, .. } => builder.bcube(*n, *k)?,
    }
    Ok(builder.graph)
}

fn check(topology: &Topology) -> Result<(), ScenarioError> {
    let (key, ok, bound) = match topology {
        Topology::Torus { links } => ("links", (2..=26).contains(links), "2 to 26"),
        Topology::Dumbbell { hosts, .. } => ("hosts", (1..=100_000).contains(hosts), "1 to 100000"),
        Topology::ParkingLot { hops } => ("hops", (1..=1000).contains(hops), "1 to 1000"),
        Topology::FatTree { k, .. } => {
            ("k", (2..=32).contains(k) && k % 2 == 0, "an even number from 2 to 32")
        }
        Topology::Bcube { n, .. } if !(2..=64).contains(n) => ("n", false, "2 to 64"),
        Topology::Bcube { n, k, .. } => {
            let levels = k.saturating_add(1);
            let hosts = u32::try_from(levels).ok().and_then(|levels| n.checked_pow(levels));
            let cables = hosts.and_then(|hosts| hosts.checked_mul(levels));
            let ok = *k <= 8 && cables.is_some_and(|cables| cables <= MAX_CABLES);
            ("k", ok, "at most 8, and so small that n^(k+1)·(k+1) ≤ 1000000")
        }
    };
    if ok {
        return Ok(());
    }
    Err(ScenarioError::new(format!("topology.{key}"), "out of range")
        .hint(format!("{key} has to be {bound}")))
}

struct Builder<'a> {
    graph: Graph,
    make: Maker<'a>,
}

impl Builder<'_> {
    fn cable(&mut self, name: String, (a, b): (usize, usize), of_host: bool) -> Result<(), ScenarioError> {
        let links = (self.make)(&name, of_host)?;
        self.graph.add_cable(name, Some([a, b]), links);
        self.graph.cables.last_mut().into_iter().for_each(|cable| cable.of_host = of_host);
        Ok(())
    }

    fn torus(&mut self, count: usize) -> Result<(), ScenarioError> {
        for index in 0..count {
            let name = char::from(b'A' + index as u8).to_string();
            let links = (self.make)(&name, false)?;
            self.graph.add_cable(name, None, links);
        }
        Ok(())
    }

    fn dumbbell(&mut self, hosts: usize) -> Result<(), ScenarioError> {
        let (left, right) = (self.graph.node("left"), self.graph.node("right"));
        self.cable("core".to_owned(), (left, right), false)?;
        for index in 0..hosts {
            let (sender, receiver) =
                (self.graph.host(&format!("s{index}")), self.graph.host(&format!("r{index}")));
            self.cable(format!("left.{index}"), (sender, left), true)?;
            self.cable(format!("right.{index}"), (right, receiver), true)?;
        }
        Ok(())
    }

    fn parking_lot(&mut self, hops: usize) -> Result<(), ScenarioError> {
        for index in 0..hops {
            let ends = (self.graph.node(&format!("n{index}")), self.graph.node(&format!("n{}", index + 1)));
            self.cable(format!("hop{index}"), ends, false)?;
        }
        Ok(())
    }

    /// k pods of k/2 edge and k/2 aggregation switches; (k/2)² core switches, each joined to every pod.
    fn fat_tree(&mut self, k: usize) -> Result<(), ScenarioError> {
        let half = k / 2;
        for pod in 0..k {
            for edge in 0..half {
                let switch = self.graph.node(&format!("edge{}", pod * half + edge));
                for port in 0..half {
                    let number = (pod * half + edge) * half + port;
                    let host = self.graph.host(&format!("h{number}"));
                    self.cable(format!("host.{number}"), (host, switch), true)?;
                }
                for up in 0..half {
                    let above = self.graph.node(&format!("agg{}", pod * half + up));
                    self.cable(format!("edge.{}.{up}", pod * half + edge), (switch, above), false)?;
                }
            }
            for up in 0..half {
                let switch = self.graph.node(&format!("agg{}", pod * half + up));
                for port in 0..half {
                    let core = self.graph.node(&format!("core{}", up * half + port));
                    self.cable(format!("core.{}.{port}", pod * half + up), (switch, core), false)?;
                }
            }
        }
        Ok(())
    }

    /// Host number written with k + 1 digits to base n; at level l it shares a switch with the hosts that
    /// differ in digit l alone.
    fn bcube(&mut self, n: usize, k: usize) -> Result<(), ScenarioError> {
        let hosts = n.pow(k as u32 + 1);
        for host in 0..hosts {
            self.graph.host(&format!("h{host}"));
        }
        for level in 0..=k {
            let weight = n.pow(level as u32);
            for host in 0..hosts {
                let group = host / (weight * n) * weight + host % weight;
                let ends = (
                    self.graph.node(&format!("h{host}")),
                    self.graph.node(&format!("switch{level}.{group}")),
                );
                self.cable(format!("level{level}.{host}"), ends, true)?;
            }
        }
        Ok(())
    }
}

/// A BCube of k + 1 levels of switches with n ports.
pub(crate) struct Bcube<'a> {
    pub graph: &'a Graph,
    pub n: usize,
    pub k: usize,
}

impl Bcube<'_> {
    /// The edge-disjoint paths between two hosts, one for each of the given levels (Guo et al., SIGCOMM 2009, BuildPathSet).
    ///
    /// The path of a level corrects that digit first, then the others in turn. If the digit is already right, the path takes a
    /// detour over a random neighbour and corrects that digit last.
    pub(crate) fn paths(
        &self,
        (from, to): (usize, usize),
        levels: impl Iterator<Item = usize>,
        chance: &mut Chance,
    ) -> Vec<PathPlan> {
        let Self { graph, n, k } = *self;
        let digit = |host: usize, level: usize| host / n.pow(level as u32) % n;
        let with = |host: usize, level: usize, value: usize| {
            let weight = n.pow(level as u32);
            host - digit(host, level) * weight + value * weight
        };
        let mut paths = Vec::new();
        for first in levels {
            let mut order: Vec<usize> = (0..=k).map(|step| (first + (k + 1) - step) % (k + 1)).collect();
            let (mut host, mut hosts) = (from, vec![from]);
            if digit(from, first) == digit(to, first) {
                let other = (digit(from, first) + 1 + chance.below(n - 1)) % n;
                host = with(host, first, other);
                hosts.push(host);
                order.rotate_left(1);
            }
            for level in order {
                if digit(host, level) != digit(to, level) {
                    host = with(host, level, digit(to, level));
                    hosts.push(host);
                }
            }
            paths.push(over_switches(graph, n, &hosts));
        }
        paths
    }
}

fn over_switches(graph: &Graph, n: usize, hosts: &[usize]) -> PathPlan {
    let mut nodes = vec![hosts[0]];
    for pair in hosts.windows(2) {
        let mut weight = 1;
        while pair[0] / weight % n == pair[1] / weight % n {
            weight *= n;
        }
        let level =
            std::iter::successors(Some(1), |at| Some(at * n)).position(|at| at == weight).unwrap_or(0);
        let group = pair[0] / (weight * n) * weight + pair[0] % weight;
        if let Some(switch) = graph.find_node(&format!("switch{level}.{group}")) {
            nodes.push(switch);
        }
        nodes.push(pair[1]);
    }
    graph.path_along(&nodes)
}
