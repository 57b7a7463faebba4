//! The keys of a scenario file and what each means; defaults are applied when it is built.

mod sources;
mod topology;

use std::collections::BTreeMap;
use std::fmt;

use anabranch_engine::SchedulerKind;
use anabranch_engine::cc::RuleKind;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

pub use self::sources::*;
pub use self::topology::*;
use super::units::{QueueText, RateText, ShareText, SizeText, SpanText};

/// A whole file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Its name in results; the file's own when left out.
    #[serde(default)]
    pub name: String,
    /// What it shows: its line in `sim list`.
    #[serde(default)]
    pub about: String,
    /// The seed when none is given on the command line.
    #[serde(default = "one")]
    pub seed: u64,
    /// When it ends.
    pub duration: SpanText,
    /// What is measured begins here.
    pub warm_up: Option<SpanText>,
    /// How often windows, round-trip times and queues are looked at: a 200th of the time measured when left out.
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
    /// Where a path's first slow start ends, in packets; at the first loss when left out.
    pub initial_ssthresh: Option<u64>,
    /// A receive buffer of this size from the start; without, it grows as needed.
    pub receive_buffer: Option<SizeText>,
    /// Which path acknowledgements return on.
    pub acks: Option<Acks>,
    /// Which paths count as one flow.
    pub coupling: Option<CouplingKind>,
    /// By what paths that share a bottleneck are found.
    pub detector: Option<DetectorKind>,
    /// Packets can be marked instead of dropped, by an `aqm` (RFC 3168).
    pub ecn: Option<bool>,
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
    /// On none: they arrive at once, and neither wait behind data nor are lost, as in the data centres of htsim.
    Outside,
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

/// By what paths that share a bottleneck are found.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum DetectorKind {
    /// Losses at the same moments (mTCP).
    Losses,
    /// One-way delays of the same kind (RFC 8382).
    Delays,
    /// Round trips that rise and fall together.
    Waves,
    /// Waves, and losses where these say nothing.
    Both,
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

/// Active queue management.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Aqm {
    /// None: a packet is dropped where there is no room for it.
    None,
    /// CoDel with a target of 5 ms and an interval of 100 ms (RFC 8289).
    Codel,
}

/// What a link has unless it says otherwise.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq)]
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
    /// How the queue is kept short.
    pub aqm: Option<Aqm>,
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
    /// How the queue is kept short, both ways.
    pub aqm: Option<Aqm>,
    /// What differs on the way back.
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
    #[must_use]
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

/// Something that happens to a link.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventSpec {
    /// When.
    pub at: SpanText,
    /// To which link; all but loss is changed both ways unless `way` says otherwise.
    pub link: String,
    /// One way only.
    pub way: Option<Way>,
    /// Cut it (true) or mend it (false).
    pub down: Option<bool>,
    /// Another rate.
    pub rate: Option<RateText>,
    /// Another delay.
    pub delay: Option<SpanText>,
    /// Another loss, on the way there unless `way` says otherwise.
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
