//! The keys of a scenario file and what each means; defaults are applied when it is built.

use std::collections::BTreeMap;

use anabranch_engine::SchedulerKind;
use anabranch_engine::cc::RuleKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::units::{FrequencyText, QueueText, RateText, ShareText, SizeText, SpanText};

/// A whole file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// One line for `sim list`.
    #[serde(default)]
    pub name: String,
    /// What it shows, for people.
    #[serde(default)]
    pub about: String,
    /// The seed when none is given on the command line.
    #[serde(default = "one")]
    pub seed: u64,
    /// When it ends.
    pub duration: SpanText,
    /// What is measured begins here.
    pub warm_up: Option<SpanText>,
    /// How often windows, round-trip times and queues are looked at.
    pub sample: Option<SpanText>,
    /// Settings of all flows that do not say otherwise.
    #[serde(default)]
    pub transport: Transport,
    /// What links have that do not say otherwise.
    #[serde(default)]
    pub links: LinkDefaults,
    /// A generated network.
    pub topology: Option<Topology>,
    /// Cables.
    #[serde(default)]
    pub link: Vec<LinkSpec>,
    /// Sessions.
    #[serde(default)]
    pub flow: Vec<FlowSpec>,
    /// Sessions between the hosts of a generated network.
    #[serde(default)]
    pub traffic: Vec<TrafficSpec>,
    /// Sessions that come and go.
    #[serde(default)]
    pub arrivals: Vec<ArrivalSpec>,
    /// Packets of no session.
    #[serde(default)]
    pub cbr: Vec<CbrSpec>,
    /// What changes.
    #[serde(default)]
    pub event: Vec<EventSpec>,
    /// Who looks for shared bottlenecks from outside of a session.
    #[serde(default)]
    pub detector: Vec<DetectorSpec>,
    /// What the result has to be.
    #[serde(default)]
    pub expect: BTreeMap<String, Bound>,
}

fn one() -> u64 {
    1
}

/// The names of the window rules, for the schema.
fn rules(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": RuleKind::ALL.map(RuleKind::name) })
}

/// The names of the schedulers, for the schema.
fn schedulers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": SchedulerKind::ALL.map(|(_, name)| name) })
}

/// How sessions behave.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transport {
    /// `tcp`, as in the papers, or `default`, as deployed.
    pub profile: Option<Profile>,
    /// The window rule.
    #[serde(default)]
    #[schemars(schema_with = "rules")]
    pub rule: Option<String>,
    /// The scheduler.
    #[serde(default)]
    #[schemars(schema_with = "schedulers")]
    pub scheduler: Option<String>,
    /// Data is bound to a path before it may send, so much on each at most (MPMTP-AR [R5]); `0 B` or nothing: not before.
    pub early_binding: Option<SizeText>,
    /// An acknowledgement for so many packets.
    pub ack_every: Option<u32>,
    /// And at the latest after this time.
    pub max_ack_delay: Option<SpanText>,
    /// The shortest retransmission timeout.
    pub rto_min: Option<SpanText>,
    /// Where slow start begins, in packets.
    pub initial_window: Option<u64>,
    /// A receive buffer of this size from the start; without, it grows as needed.
    pub receive_buffer: Option<SizeText>,
    /// Which path acknowledgements return on.
    pub acks: Option<Acks>,
    /// Which paths count as one flow.
    pub coupling: Option<CouplingKind>,
    /// Receiver reports, from which load weights follow; none when left out.
    pub reports: Option<Reports>,
    /// Paths that are left out though they work (mTCP [M10]); none when left out.
    pub leave_out: Option<LeaveOut>,
}

/// Which paths are left out though they work (mTCP §3.4.1 [M10]).
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaveOut {
    /// ω: those that are slower than the fastest by this factor.
    pub slower_than: Option<f64>,
    /// d: of those that share a bottleneck, all but so many.
    pub sharing_beyond: Option<usize>,
}

/// Receiver reports.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reports {
    /// α, the weight of what was known of a path's reliability.
    pub alpha: f64,
    /// b, how fast the share of the bandwidth that reports take follows.
    pub b: f64,
}

/// Which path acknowledgements return on.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Acks {
    /// On that of the packets they acknowledge.
    SamePath,
    /// All on one, which is elected anew when it falls silent.
    Primary,
    /// All on the one with the lowest round-trip time.
    Fastest,
}

/// Which paths count as one flow.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum CouplingKind {
    /// Those that share a bottleneck by evidence.
    Adaptive,
    /// All of them.
    Fixed,
}

/// The engine's two profiles.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// As a TCP of the papers.
    #[default]
    Tcp,
    /// As deployed.
    Default,
}

/// What a link has unless it says otherwise.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkDefaults {
    /// Rate on the wire.
    pub rate: Option<RateText>,
    /// One way.
    pub delay: Option<SpanText>,
    /// Where packets wait.
    pub queue: Option<QueueText>,
    /// Random loss on the wire.
    pub loss: Option<ShareText>,
    /// Drop at random in the last three places.
    pub random_drop: Option<bool>,
}

/// A cable: a link in either direction.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// For paths, events and results.
    pub name: String,
    /// The nodes at its ends; a link without any fits anywhere in a path.
    pub between: Option<[String; 2]>,
    /// Rate on the wire, both ways.
    pub rate: Option<RateText>,
    /// One way, both ways.
    pub delay: Option<SpanText>,
    /// Where packets wait, both ways.
    pub queue: Option<QueueText>,
    /// Random loss on the wire, on the way there.
    pub loss: Option<ShareText>,
    /// Drop at random in the last three places.
    pub random_drop: Option<bool>,
    /// What differs on the way back.
    pub back: Option<LinkDefaults>,
}

/// One link, or several in a row.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PathSpec {
    /// One link.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl PathSpec {
    /// The names of the links.
    #[must_use]
    pub fn links(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
    }
}

/// A session, or several alike.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowSpec {
    /// For results.
    pub name: String,
    /// How many of them.
    pub count: Option<u64>,
    /// Its paths, each a link or a list of links from the sender on.
    pub paths: Option<Vec<PathSpec>>,
    /// Where it starts, when its paths are to be found: the fewest links.
    pub from: Option<String>,
    /// Where it ends.
    pub to: Option<String>,
    /// A file of this size; without end when left out.
    pub size: Option<SizeText>,
    /// The application makes data at this rate.
    pub rate: Option<RateText>,
    /// Its stream is sent on every path.
    pub redundant: Option<bool>,
    /// It carries datagrams instead of a stream.
    pub datagrams: Option<DatagramSpec>,
    /// When it connects.
    pub start: Option<SpanText>,
    /// It connects at random so long after its start.
    pub start_within: Option<SpanText>,
    /// When it vanishes.
    pub stop: Option<SpanText>,
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
    /// Its paths are routes of one path below the session, as under a TCP; packets go over them in turn.
    pub striping: Option<Striping>,
    /// Each of its sessions goes over one of the paths, the one that promises it most (SAFIRE [S2]).
    pub flow_routing: Option<bool>,
}

/// Datagrams of one size at a constant rate, and what is done so that they arrive (PSMC [T8]).
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatagramSpec {
    /// Of their data.
    pub rate: RateText,
    /// Bytes of each.
    pub size: SizeText,
    /// What is done so that they arrive.
    #[serde(default)]
    pub mode: DatagramModeSpec,
    /// Protected ones: most in a block, 1 to 32.
    pub block: Option<u8>,
    /// And how long a block stays open at most.
    pub patience: Option<SpanText>,
    /// And the most parity, as a share of the datagrams.
    pub most: Option<ShareText>,
    /// And whether there is parity for what the busiest path carries, lost or not.
    pub outlive_path: Option<bool>,
}

/// What is done so that datagrams arrive.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DatagramModeSpec {
    /// Nothing.
    #[default]
    Once,
    /// They are sent on every path.
    Redundant,
    /// Parity follows them.
    Protected,
}

/// How packets are striped over routes below a session (PSMC [T3, T6], SAFIRE [S5]).
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Striping {
    /// How many packets each route gets.
    pub scheme: StripingScheme,
    /// Whether packets wait for earlier ones at the other end.
    #[serde(default)]
    pub buffer: ReorderBuffer,
    /// With a fixed buffer, how many may wait.
    pub packets: Option<u64>,
}

/// How many packets each route gets.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum StripingScheme {
    /// One in turn.
    RoundRobin,
    /// In the ratio of their rates.
    Weighted,
}

/// Whether packets wait for earlier ones at the other end.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ReorderBuffer {
    /// They are handed up as they come.
    #[default]
    None,
    /// As many as the double buffer's rule says (PSMC §III.C).
    Adaptive,
    /// Always as many as `packets` says.
    Fixed,
}

/// Sessions that arrive at random.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrivalSpec {
    /// For results.
    pub name: String,
    /// Paths of each, as of a flow.
    pub paths: Option<Vec<PathSpec>>,
    /// Where they start, when their path is to be found.
    pub from: Option<String>,
    /// Where they end.
    pub to: Option<String>,
    /// Arrivals a second, one rate after the other.
    pub rate: Vec<FrequencyText>,
    /// How long each rate lasts.
    pub phase: Option<SpanText>,
    /// Mean size of their files.
    pub size: SizeText,
    /// How sizes are distributed.
    #[serde(default)]
    pub sizes: SizeShape,
    /// The exponent of a Pareto tail.
    pub shape: Option<f64>,
    /// When the first may come.
    pub start: Option<SpanText>,
    /// None comes after.
    pub stop: Option<SpanText>,
    /// See [`Transport`].
    pub profile: Option<Profile>,
    /// See [`Transport`].
    #[serde(default)]
    #[schemars(schema_with = "rules")]
    pub rule: Option<String>,
}

/// The distribution of file sizes.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum SizeShape {
    /// All alike.
    Fixed,
    /// Exponential.
    Exponential,
    /// Pareto.
    #[default]
    Pareto,
}

/// Packets at a constant rate, in bursts or without a pause.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CbrSpec {
    /// For results.
    pub name: String,
    /// The links they cross.
    pub path: PathSpec,
    /// Rate on the wire within a burst.
    pub rate: RateText,
    /// Size of each packet on the wire.
    pub packet: Option<SizeText>,
    /// Mean length of a burst; without end when left out.
    pub on: Option<SpanText>,
    /// Mean length of the pause after it.
    pub off: Option<SpanText>,
    /// How both are distributed.
    #[serde(default)]
    pub bursts: BurstShape,
    /// When it begins.
    pub start: Option<SpanText>,
    /// When it ends.
    pub stop: Option<SpanText>,
}

/// The distribution of bursts and pauses.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum BurstShape {
    /// All alike.
    Fixed,
    /// Exponential.
    #[default]
    Exponential,
    /// Uniform up to twice the mean.
    Uniform,
}

/// Something that happens to a link.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventSpec {
    /// When.
    pub at: SpanText,
    /// To which link, both ways unless `way` says otherwise.
    pub link: String,
    /// One way only.
    pub way: Option<Way>,
    /// Cut it (true) or mend it (false).
    pub down: Option<bool>,
    /// Another rate.
    pub rate: Option<RateText>,
    /// Another delay.
    pub delay: Option<SpanText>,
    /// Another loss.
    pub loss: Option<ShareText>,
}

/// mTCP's detector of shared congestion, fed with the moments at which a flow's paths reduce their windows, to the
/// `sample`; it changes nothing of the session.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetectorSpec {
    /// For results.
    pub name: String,
    /// Whose first two paths it watches.
    pub flow: String,
    /// Events less than this apart may be one congestion; 200 ms when left out.
    pub interval: Option<SpanText>,
    /// The share of events in common from which on paths share: 0.5 when left out.
    pub threshold: Option<f64>,
    /// The chance of a wrong verdict that is put up with: 0.05 when left out.
    pub zeta: Option<f64>,
    /// How the search for a lag counts in the waiting time: `counted` when left out.
    pub lag: Option<LagSpec>,
    /// The last 64 events within two minutes count, unless this is false: then all.
    pub forgets: Option<bool>,
}

/// How the search for a lag counts.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum LagSpec {
    /// The chance of a wrong verdict is divided by the number of chances that the search gives.
    Counted,
    /// Not at all, as mTCP has it.
    AsPrinted,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// As the link was declared.
    There,
    /// The other way.
    Back,
}

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

/// What a metric has to be.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// At least.
    pub min: Option<f64>,
    /// At most.
    pub max: Option<f64>,
    /// At least another metric.
    pub above: Option<String>,
    /// At most another metric.
    pub below: Option<String>,
}
