//! The keys of a scenario file. Defaults are applied when it is built.

mod rate;
mod sources;
mod topology;

use std::collections::BTreeMap;
use std::fmt;

use anabranch_engine::SchedulerKind;
use anabranch_engine::cc::RuleKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

pub use self::rate::RateSpec;
pub use self::sources::*;
pub use self::topology::*;
use super::units::{QueueText, RateText, ShareText, SizeText, SpanText};

/// A whole file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Its name in results. Default: the name of the file.
    #[serde(default)]
    pub name: String,
    /// Its description in `sim list`.
    #[serde(default)]
    pub about: String,
    /// The seed, unless the command line gives one.
    #[serde(default = "one")]
    pub seed: u64,
    /// When the run ends.
    pub duration: SpanText,
    /// When measuring begins.
    pub warm_up: Option<SpanText>,
    /// The interval between samples of windows, round-trip times and queues. Default: a 200th of the measured time.
    pub sample: Option<SpanText>,
    /// Default settings of all flows.
    #[serde(default)]
    pub transport: Transport,
    /// Default settings of all links.
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
    /// Sessions that carry the packets of flows.
    #[serde(default)]
    pub tunnel: Vec<TunnelSpec>,
    /// Sessions between the hosts of a generated network.
    #[serde(default)]
    pub traffic: Vec<TrafficSpec>,
    /// Sessions that come and go.
    #[serde(default)]
    pub arrivals: Vec<ArrivalSpec>,
    /// Plain packets without a session.
    #[serde(default)]
    pub cbr: Vec<CbrSpec>,
    /// Changes to links.
    #[serde(default)]
    pub event: Vec<EventSpec>,
    /// Detectors of shared bottlenecks outside of sessions.
    #[serde(default)]
    pub detector: Vec<DetectorSpec>,
    /// Bounds on the results.
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
    /// Most data that is bound to a path before the path may send it (MPMTP-AR [R5]). Default: `0 B`.
    pub early_binding: Option<SizeText>,
    /// One acknowledgement for so many packets.
    pub ack_every: Option<u32>,
    /// The longest delay of an acknowledgement.
    pub max_ack_delay: Option<SpanText>,
    /// The shortest retransmission timeout.
    pub rto_min: Option<SpanText>,
    /// The initial window, in packets.
    pub initial_window: Option<u64>,
    /// The window at which a path's first slow start ends, in packets. Default: at the first loss.
    pub initial_ssthresh: Option<u64>,
    /// A fixed receive buffer. Default: it grows as needed.
    pub receive_buffer: Option<SizeText>,
    /// Which path acknowledgements return on.
    pub acks: Option<Acks>,
    /// Which paths count as one flow.
    pub coupling: Option<CouplingKind>,
    /// The evidence for shared bottlenecks.
    pub detector: Option<DetectorKind>,
    /// An `aqm` marks packets instead of dropping them (RFC 3168).
    pub ecn: Option<bool>,
    /// Receiver reports, which set load weights. Default: none.
    pub reports: Option<Reports>,
    /// Working paths that are not used (mTCP [M10]). Default: none.
    pub leave_out: Option<LeaveOut>,
}

/// Working paths that are not used (mTCP §3.4.1 [M10]).
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaveOut {
    /// ω: paths that are slower than the fastest by this factor.
    pub slower_than: Option<f64>,
    /// d: paths beyond so many that share a bottleneck.
    pub sharing_beyond: Option<usize>,
}

/// Receiver reports.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reports {
    /// α, the weight of a path's earlier reliability.
    pub alpha: f64,
    /// b, how fast the bandwidth of reports adapts.
    pub b: f64,
}

/// Which path acknowledgements return on.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Acks {
    /// On the path of the packets they acknowledge.
    SamePath,
    /// All on one path; another is elected if it falls silent.
    Primary,
    /// All on the path with the lowest round-trip time.
    Fastest,
    /// On no link: they arrive at once, without queues or loss, as in the data centres of htsim.
    Outside,
}

/// Which paths count as one flow.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum CouplingKind {
    /// Paths that share a bottleneck by evidence.
    Adaptive,
    /// All paths.
    Fixed,
}

/// By what paths that share a bottleneck are found.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DetectorKind {
    /// Losses at the same time (mTCP).
    Losses,
    /// Similar one-way delays (RFC 8382).
    Delays,
    /// Round-trip times that rise and fall together.
    Waves,
    /// Waves, or losses if waves do not decide.
    Both,
}

/// The engine's two profiles.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// A TCP of the papers.
    #[default]
    Tcp,
    /// The deployed engine.
    Default,
}

/// Active queue management.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Aqm {
    /// None: a packet is dropped if the queue is full.
    None,
    /// CoDel with a target of 5 ms and an interval of 100 ms (RFC 8289).
    Codel,
}

/// Default settings of links.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LinkDefaults {
    /// Rate on the wire.
    pub rate: Option<RateSpec>,
    /// Delay of one direction.
    pub delay: Option<SpanText>,
    /// Length of the queue.
    pub queue: Option<QueueText>,
    /// Random loss on the wire.
    pub loss: Option<ShareText>,
    /// Drop at random in the last three places.
    pub random_drop: Option<bool>,
    /// Active queue management.
    pub aqm: Option<Aqm>,
}

/// A cable: a link in each direction.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Its name in paths, events and results.
    pub name: String,
    /// The nodes at its ends. A link without nodes fits anywhere in a path.
    pub between: Option<[String; 2]>,
    /// Rate on the wire, in both directions.
    pub rate: Option<RateSpec>,
    /// Delay of one direction, in both.
    pub delay: Option<SpanText>,
    /// Length of the queue, in both directions.
    pub queue: Option<QueueText>,
    /// Random loss on the wire, there only.
    pub loss: Option<ShareText>,
    /// Drop at random in the last three places.
    pub random_drop: Option<bool>,
    /// Active queue management, in both directions.
    pub aqm: Option<Aqm>,
    /// Different settings of the direction back.
    pub back: Option<LinkDefaults>,
}

/// One link, or several in a row.
#[derive(Clone, Debug, JsonSchema)]
#[schemars(untagged)]
pub enum PathSpec {
    /// One link.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl PathSpec {
    /// The names of the links.
    pub fn links(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
    }
}

impl<'de> Deserialize<'de> for PathSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(PathVisitor)
    }
}

struct PathVisitor;

impl<'de> Visitor<'de> for PathVisitor {
    type Value = PathSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a link or a list of links")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<PathSpec, E> {
        Ok(PathSpec::One(name.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<PathSpec, A::Error> {
        let mut links = Vec::new();
        while let Some(name) = names.next_element()? {
            links.push(name);
        }
        Ok(PathSpec::Many(links))
    }
}

/// A change to a link.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventSpec {
    /// When.
    pub at: SpanText,
    /// The link. Without `way`, loss changes there only, everything else in both directions.
    pub link: String,
    /// One direction only.
    pub way: Option<Way>,
    /// Cut it (true) or mend it (false).
    pub down: Option<bool>,
    /// Another rate.
    pub rate: Option<RateText>,
    /// Another delay.
    pub delay: Option<SpanText>,
    /// Another loss; without `way` there only.
    pub loss: Option<ShareText>,
}

/// mTCP's detector of shared congestion, applied to the times at which a flow's paths reduce their windows, rounded to a
/// `sample`. It does not influence the session.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DetectorSpec {
    /// Its name in results.
    pub name: String,
    /// The flow whose first two paths it watches.
    pub flow: String,
    /// Events less than this apart may be the same congestion. Default: 200 ms.
    pub interval: Option<SpanText>,
    /// The share of common events from which paths count as sharing. Default: 0.5.
    pub threshold: Option<f64>,
    /// The accepted probability of a wrong verdict. Default: 0.05.
    pub zeta: Option<f64>,
    /// How the search for a lag counts in the waiting time. Default: `counted`.
    pub lag: Option<LagSpec>,
    /// Whether only the last 64 events within two minutes count. Default: true.
    pub forgets: Option<bool>,
}

/// How the search for a lag counts.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum LagSpec {
    /// The probability of a wrong verdict is divided by the number of lags tried.
    Counted,
    /// Not at all, as mTCP has it.
    AsPrinted,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The direction in which the link was declared.
    There,
    /// The other direction.
    Back,
}

/// The bounds of a metric.
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
