//! Keys of what sends: sessions, arrivals and sources of a constant rate.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::units::{FrequencyText, RateText, ShareText, SizeText, SpanText};
use super::{PathSpec, Profile, rules, schedulers};

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
    /// What the application writes, and when, counted from the flow's start: `[["0 s", "1 MB"], ["2 s", "10 kB"]]`. Then it ends.
    pub script: Option<Vec<ScriptEntry>>,
    /// Its stream is sent on every path.
    pub redundant: Option<bool>,
    /// The path agent opens and closes its paths, as it does over sockets: all direct ones race for the first place.
    pub agent: Option<AgentSpec>,
    /// It carries datagrams instead of a stream.
    pub datagrams: Option<DatagramSpec>,
    /// When it connects.
    pub start: Option<SpanText>,
    /// It connects at random so long after its start.
    pub start_within: Option<SpanText>,
    /// Each path beside the first opens at random so long after it connects, or as soon as it can be opened.
    pub paths_within: Option<SpanText>,
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

/// What the path agent of a session has to work with.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// How many of the paths lead through relays: the last ones. The others begin at an interface each.
    #[serde(default)]
    pub relays: u64,
    /// How many of these relays carry a path at the same time.
    #[serde(default)]
    pub at_once: u64,
    /// Interfaces that go and come, counted from the flow's start: `[["10 s", 1, false], ["20 s", 1, true]]`.
    #[serde(default)]
    pub interfaces: Vec<InterfaceEntry>,
}

/// The interface of a path, by the path's number from 1, is there from then on (`true`) or not.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub struct InterfaceEntry(pub SpanText, pub u64, pub bool);

/// So much is written so long after the flow's start.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub struct ScriptEntry(pub SpanText, pub SizeText);

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
    /// And the most parity, as a share of a block's datagrams; a block may always have one piece, be it of one datagram.
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
    /// The exponent of the tail of a Pareto distribution; 1.5 when left out.
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
    /// How both are distributed; exponentially when left out.
    pub bursts: Option<BurstShape>,
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
