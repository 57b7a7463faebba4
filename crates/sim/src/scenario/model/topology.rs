//! Keys of generated networks and of the traffic between their hosts.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::units::{QueueText, RateText, ShareText, SpanText};
use super::{Profile, rules, schedulers};

/// A generated network; its links have what `[links]` says.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
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
