//! Keys of sources: sessions, arrivals and plain packets.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::units::{FrequencyText, RateText, ShareText, SizeText, SpanText};
use super::{PathSpec, Profile, rules, schedulers};

/// A session, or several of the same kind.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowSpec {
    /// Its name in results.
    pub name: String,
    /// How many of them.
    pub count: Option<u64>,
    /// Its paths: each a link, or a list of links from the sender on.
    pub paths: Option<Vec<PathSpec>>,
    /// The node it starts from, instead of `paths`: it takes the fewest links.
    pub from: Option<String>,
    /// The node it goes to.
    pub to: Option<String>,
    /// A file of this size. Default: endless data.
    pub size: Option<SizeText>,
    /// The application produces data at this rate.
    pub rate: Option<RateText>,
    /// The writes of the application: times after the flow's start, and sizes: `[["0 s", "1 MB"], ["2 s", "10 kB"]]`.
    pub script: Option<Vec<ScriptEntry>>,
    /// Its stream is sent on every path.
    pub redundant: Option<bool>,
    /// The path agent opens and closes its paths, as it does over sockets: all direct ones race for the first place.
    pub agent: Option<AgentSpec>,
    /// It carries datagrams instead of a stream.
    pub datagrams: Option<DatagramSpec>,
    /// When it connects.
    pub start: Option<SpanText>,
    /// It connects at random within this time after its start.
    pub start_within: Option<SpanText>,
    /// Each further path opens at random within this time after the session connects. Default: at once.
    pub paths_within: Option<SpanText>,
    /// When it ends.
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
    /// The tunnel that carries it, instead of paths.
    pub tunnel: Option<String>,
    /// The lane of its packets in the tunnel. Default: `auto`.
    pub lane: Option<LaneSpec>,
}

/// The paths of the path agent.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// How many of the paths lead through relays: the last ones. Each other path begins at its own interface.
    #[serde(default)]
    pub relays: u64,
    /// How many of these relays carry a path at the same time.
    #[serde(default)]
    pub at_once: u64,
    /// Changes of interfaces, after the flow's start: `[["10 s", 1, false], ["20 s", 1, true]]`.
    #[serde(default)]
    pub interfaces: Vec<InterfaceEntry>,
}

/// From this time on, the interface of a path (numbered from 1) is available (`true`) or not.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub struct InterfaceEntry(pub SpanText, pub u64, pub bool);

/// A write: when, after the flow's start, and how much.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub struct ScriptEntry(pub SpanText, pub SizeText);

/// Datagrams of one size at a constant rate, and their protection (PSMC [T8]).
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DatagramSpec {
    /// Rate of their data.
    pub rate: RateText,
    /// Bytes of each.
    pub size: SizeText,
    /// Their protection.
    #[serde(default)]
    pub mode: DatagramModeSpec,
    /// With protection: most datagrams of a block, 1 to 32.
    pub block: Option<u8>,
    /// With protection: how long a block stays open at most.
    pub patience: Option<SpanText>,
    /// With protection: the most parity, as a share of a block's datagrams. A block may always have one piece.
    pub most: Option<ShareText>,
    /// With protection: whether parity covers the loss of the busiest path.
    pub outlive_path: Option<bool>,
}

/// Protection of datagrams.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DatagramModeSpec {
    /// None.
    #[default]
    Once,
    /// Sent on every path.
    Redundant,
    /// Followed by parity.
    Protected,
}

/// A session that carries the packets of flows through the tunnel's core, with the settings of a deployed one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TunnelSpec {
    /// Its name in results.
    pub name: String,
    /// Its paths, as for a flow.
    pub paths: Option<Vec<PathSpec>>,
    /// The node it starts from, instead of `paths`.
    pub from: Option<String>,
    /// The node it goes to.
    pub to: Option<String>,
    /// The window rule of its paths. Default: that of a deployed tunnel.
    #[serde(default)]
    #[schemars(schema_with = "rules")]
    pub rule: Option<String>,
    /// Striped packets are put in order at the far end (PSMC [T6]). Default: true.
    pub reorder: Option<bool>,
    /// Whether `auto` puts TCP flows into the stream lane. Default: true.
    pub streams: Option<bool>,
}

/// How the packets of a flow travel through a tunnel.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum LaneSpec {
    /// The tunnel chooses.
    #[default]
    Auto,
    /// As a stream: the tunnel ends the TCP connection.
    Stream,
    /// On one path (SAFIRE [S2]).
    Routed,
    /// Over all paths (PSMC [T1]).
    Striped,
    /// On the path with the lowest round-trip time.
    LowLatency,
    /// A copy on every path.
    Redundant,
}

/// Sessions that arrive at random.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArrivalSpec {
    /// Its name in results.
    pub name: String,
    /// Paths of each session, as for a flow.
    pub paths: Option<Vec<PathSpec>>,
    /// The node they start from, instead of `paths`.
    pub from: Option<String>,
    /// The node they go to.
    pub to: Option<String>,
    /// Arrival rates, one after the other.
    pub rate: Vec<FrequencyText>,
    /// How long each rate lasts.
    pub phase: Option<SpanText>,
    /// Mean file size.
    pub size: SizeText,
    /// The distribution of sizes.
    #[serde(default)]
    pub sizes: SizeShape,
    /// The exponent of a Pareto distribution. Default: 1.5.
    pub shape: Option<f64>,
    /// When arrivals begin.
    pub start: Option<SpanText>,
    /// When arrivals end.
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
    /// All equal.
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
    /// Its name in results.
    pub name: String,
    /// The links they cross.
    pub path: PathSpec,
    /// Rate on the wire within a burst.
    pub rate: RateText,
    /// Size of each packet on the wire.
    pub packet: Option<SizeText>,
    /// Mean length of a burst. Default: endless.
    pub on: Option<SpanText>,
    /// Mean length of the pause after it.
    pub off: Option<SpanText>,
    /// The distribution of both. Default: exponential.
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
    /// All equal.
    Fixed,
    /// Exponential.
    #[default]
    Exponential,
    /// Uniform up to twice the mean.
    Uniform,
}
