//! Keys of generated networks and of the traffic between their hosts.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::super::units::{QueueText, RateText, ShareText, SpanText};
use super::{Profile, rules, schedulers};

/// A generated network; its links have the settings of `[links]`.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// Links `A`, `B`, … in a ring of bottlenecks; flow `n` goes over two neighbours.
    Torus {
        /// How many links.
        links: usize,
    },
    /// Hosts on both sides with a link each, and the link `core` in the middle.
    Dumbbell {
        /// Hosts on each side.
        hosts: usize,
        /// Rate of the hosts' links.
        access_rate: RateText,
        /// Their delay.
        access_delay: Option<SpanText>,
    },
    /// Routers in a row, with the links `hop0`, `hop1`, … between them.
    ParkingLot {
        /// How many links in the row.
        hops: usize,
    },
    /// Three layers of switches with k ports: k³/4 hosts.
    FatTree {
        /// Ports of a switch; even.
        k: usize,
        /// The queue of a host towards its switch. Default: that of all links.
        host_queue: Option<QueueText>,
    },
    /// n^(k+1) hosts with k + 1 interfaces, at switches with n ports.
    Bcube {
        /// Ports of a switch.
        n: usize,
        /// The number of levels minus one.
        k: usize,
        /// The queue of a host towards its switches. Default: that of all links.
        host_queue: Option<QueueText>,
    },
}

/// All keys of [`Topology`]. Reading them one by one gives errors the right line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyKeys {
    kind: TopologyKind,
    links: Option<usize>,
    hosts: Option<usize>,
    access_rate: Option<RateText>,
    access_delay: Option<SpanText>,
    hops: Option<usize>,
    k: Option<usize>,
    n: Option<usize>,
    host_queue: Option<QueueText>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TopologyKind {
    Torus,
    Dumbbell,
    ParkingLot,
    FatTree,
    Bcube,
}

impl TopologyKind {
    /// The keys of a topology of this kind.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Torus => &["links"],
            Self::Dumbbell => &["hosts", "access_rate", "access_delay"],
            Self::ParkingLot => &["hops"],
            Self::FatTree => &["k", "host_queue"],
            Self::Bcube => &["n", "k", "host_queue"],
        }
    }
}

impl TopologyKeys {
    /// Refuses keys of other kinds.
    fn check<E: de::Error>(&self, own: &'static [&'static str]) -> Result<(), E> {
        let given = [
            ("links", self.links.is_some()),
            ("hosts", self.hosts.is_some()),
            ("access_rate", self.access_rate.is_some()),
            ("access_delay", self.access_delay.is_some()),
            ("hops", self.hops.is_some()),
            ("k", self.k.is_some()),
            ("n", self.n.is_some()),
            ("host_queue", self.host_queue.is_some()),
        ];
        match given.into_iter().find(|(key, given)| *given && !own.contains(key)) {
            Some((key, _)) => Err(E::unknown_field(key, own)),
            None => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for Topology {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let keys = TopologyKeys::deserialize(from)?;
        keys.check(keys.kind.keys())?;
        let TopologyKeys { access_delay, host_queue, .. } = keys;
        let size = |key, size: Option<usize>| size.ok_or_else(|| de::Error::missing_field(key));
        Ok(match keys.kind {
            TopologyKind::Torus => Self::Torus { links: size("links", keys.links)? },
            TopologyKind::Dumbbell => {
                let access_rate = keys.access_rate.ok_or_else(|| de::Error::missing_field("access_rate"))?;
                Self::Dumbbell { hosts: size("hosts", keys.hosts)?, access_rate, access_delay }
            }
            TopologyKind::ParkingLot => Self::ParkingLot { hops: size("hops", keys.hops)? },
            TopologyKind::FatTree => Self::FatTree { k: size("k", keys.k)?, host_queue },
            TopologyKind::Bcube => Self::Bcube { n: size("n", keys.n)?, k: size("k", keys.k)?, host_queue },
        })
    }
}

/// Sessions between the hosts of a generated network.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrafficSpec {
    /// Its name in results.
    pub name: String,
    /// Pairs of hosts.
    pub pattern: Pattern,
    /// Flows from each host.
    pub flows: Option<usize>,
    /// The share of hosts that send.
    pub share: Option<ShareText>,
    /// Most paths of each flow: shortest paths, chosen at random.
    pub paths: Option<usize>,
    /// How paths are chosen.
    #[serde(default)]
    pub routing: Routing,
    /// Each connects at random within this time.
    pub start_within: Option<SpanText>,
    /// Each further path opens at random within this time after that. Default: at once.
    pub paths_within: Option<SpanText>,
    /// See [`Transport`].
    pub profile: Option<Profile>,
    /// See [`Transport`].
    #[serde(default)]
    #[schemars(schema_with = "rules")]
    pub rule: Option<String>,
    /// See [`Transport`].
    #[serde(default)]
    #[schemars(schema_with = "schedulers")]
    pub scheduler: Option<String>,
}

/// How paths between hosts are chosen.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// Shortest paths at random; several paths in a BCube are its disjoint ones in random order.
    #[default]
    Random,
    /// BCube only: paths in the order of its levels, so that all hosts correct the same digit first.
    InOrder,
}

/// Pairs of hosts.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Each host sends to one other, and each receives one flow.
    Permutation,
    /// Each host sends to others at random.
    Random,
    /// Each host sends to its neighbours: hosts at the same switches.
    Neighbours,
}
