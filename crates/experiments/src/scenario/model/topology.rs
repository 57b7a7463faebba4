//! Keys of generated networks and of the traffic between their hosts.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{self, Deserializer, IntoDeserializer};

use super::super::units::{QueueText, RateText, ShareText, SpanText};
use super::{Profile, rules, schedulers};

/// A generated network; its links have what `[links]` says.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// Links `A`, `B`, … in a ring of bottlenecks; flow `n` goes over two neighbours.
    Torus {
        /// How many links.
        links: usize,
    },
    /// `left` and `right` hosts with a link each, and the link `core` in the middle.
    Dumbbell {
        /// Hosts on each side.
        hosts: usize,
        /// Rate of the hosts' links.
        access_rate: RateText,
        /// Their delay.
        access_delay: Option<SpanText>,
    },
    /// Routers in a row, `hop0`, `hop1`, … between them.
    ParkingLot {
        /// How many links in the row.
        hops: usize,
    },
    /// Three layers of switches with k ports: k³/4 hosts.
    FatTree {
        /// Ports of a switch; even.
        k: usize,
        /// The queue of a host towards its switch, where it differs.
        host_queue: Option<QueueText>,
    },
    /// n^(k+1) hosts with k + 1 interfaces, at switches with n ports.
    Bcube {
        /// Ports of a switch.
        n: usize,
        /// Levels, less one.
        k: usize,
        /// The queue of a host towards its switches, where it differs.
        host_queue: Option<QueueText>,
    },
}

/// All keys of [`Topology`], each read where it stands: so a mistake in one is told with its line.
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
    /// The keys that a topology of this kind has.
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

/// The keys that a topology has whose kind is called so; `None` where none is.
pub(crate) fn keys_of(kind: &str) -> Option<&'static [&'static str]> {
    let name: StrDeserializer<'_, de::value::Error> = kind.into_deserializer();
    TopologyKind::deserialize(name).ok().map(TopologyKind::keys)
}

impl TopologyKeys {
    /// The keys that are there and belong to other kinds than this one.
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
    /// For results.
    pub name: String,
    /// Who talks to whom.
    pub pattern: Pattern,
    /// Flows that each host opens.
    pub flows: Option<usize>,
    /// The share of hosts that open any.
    pub share: Option<ShareText>,
    /// Most paths of each flow, of the shortest ones at random.
    pub paths: Option<usize>,
    /// How paths are chosen.
    #[serde(default)]
    pub routing: Routing,
    /// Each connects at random within this time.
    pub start_within: Option<SpanText>,
    /// And opens each path beside the first at random so long after that, or as soon as it can.
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
    /// Of the shortest paths at random; several in BCube: its disjoint ones, in random order.
    #[default]
    Random,
    /// BCube only: always its paths in the order of its levels, so that all hosts correct the same digit first.
    InOrder,
}

/// Who talks to whom.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Each host to one other, each receiving one flow.
    Permutation,
    /// Each host to others at random.
    Random,
    /// Each host to its neighbours: hosts at the same switches.
    Neighbours,
}
