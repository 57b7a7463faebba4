//! The description of a network and its traffic, as plain values.
//!
//! Scenario files and generators end up as a [`Plan`]; tests may write one by hand.

use std::fmt;
use std::sync::Arc;

use anabranch_agent::GivenUp;
use anabranch_engine::{BufferSize, Config, Lane};
use anabranch_link::{LinkConfig, LossModel, RateModel};
use anabranch_wire::{Rate, Span, Time};

/// A network and what goes on in it.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The seed of all randomness. Each link and source has a generator of its own.
    pub seed: u64,
    /// Links, each in one direction. Their numbers are their indices here; their seeds follow from the plan's.
    pub links: Vec<LinkConfig>,
    /// Sessions that run once.
    pub flows: Vec<FlowPlan>,
    /// Sessions that come and go.
    pub arrivals: Vec<ArrivalPlan>,
    /// Packets without a session.
    pub bursts: Vec<BurstPlan>,
    /// Changes to links during the run.
    pub script: Vec<Change>,
    /// Where a run ends early.
    pub limits: Limits,
}

/// How much a network may hold and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most packets that wait or are under way at once. A network with more stops.
    pub packets: usize,
    /// Most sessions of all sources of arrivals that are open at once. Further ones are refused.
    pub sessions: usize,
    /// Most events: packets that cross a link, and calls of sessions and sources. A network with more stops.
    pub events: u64,
}

/// A limit of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// [`Limits::packets`].
    Packets,
    /// [`Limits::events`].
    Events,
}

impl Default for Limits {
    fn default() -> Self {
        Self { packets: 10_000_000, sessions: 200_000, events: 100_000_000_000 }
    }
}

/// One session and what it carries, from the client to the server.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Its paths; it connects over the first and then opens the others.
    pub paths: Vec<PathPlan>,
    /// The earliest times at which the others open, after its start; empty for as soon as possible.
    pub openings: Vec<Span>,
    /// Settings of both ends.
    pub config: Arc<Config>,
    /// Its data.
    pub supply: Supply,
    /// When it connects.
    pub start: Time,
    /// When it ends.
    pub stop: Time,
    /// Its paths are routes below the session, which sees one path.
    pub striping: Option<StripingPlan>,
    /// Its stream is sent on every path.
    pub redundant: bool,
    /// The path agent opens and closes its paths, the first included.
    pub agent: Option<Arc<AgentPlan>>,
}

/// What the path agent of a flow has to work with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPlan {
    /// How many of the flow's paths are direct, each from an interface of its own; the others lead through relays.
    pub direct: usize,
    /// How many of the relays are to carry a path at the same time.
    pub relays_at_once: usize,
    /// What happens to the client's interfaces, in order of time.
    pub interfaces: Vec<InterfaceChange>,
}

/// An interface of the client goes, or comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceChange {
    /// How long after the flow's start.
    pub after: Span,
    /// The path that begins there.
    pub path: u32,
    /// Whether it is there from then on.
    pub is_up: bool,
}

/// A decision of the client's path agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// How long after the flow's start.
    pub after: Span,
    /// What.
    pub what: Decision,
}

/// What a path agent decides; paths and candidates are named by their place among the flow's direct and relayed paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Open a direct path.
    Open {
        /// Which.
        path: u32,
    },
    /// Close a direct path.
    Close {
        /// Which.
        path: u32,
    },
    /// Open a path through a relay.
    OpenThrough {
        /// Which.
        candidate: usize,
    },
    /// Close the path through a relay.
    CloseThrough {
        /// Which.
        candidate: usize,
        /// Why.
        why: GivenUp,
    },
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path } => write!(f, "open direct path {path}"),
            Self::Close { path } => write!(f, "close direct path {path}"),
            Self::OpenThrough { candidate } => write!(f, "open a path through relay {candidate}"),
            Self::CloseThrough { candidate, why } => {
                write!(f, "close the path through relay {candidate}: {why}")
            }
        }
    }
}

impl FlowPlan {
    /// How many paths its sessions have.
    #[must_use]
    pub fn sees_paths(&self) -> usize {
        if self.striping.is_some() { 1 } else { self.paths.len() }
    }
}

/// How packets are striped over routes below a session.
#[derive(Clone, Debug)]
pub struct StripingPlan {
    /// How many packets each route gets in turn, in proportion.
    pub weights: Vec<i64>,
    /// The reorder buffer at the receiver; `None` to deliver packets as they arrive.
    pub buffer: Option<BufferSize>,
    /// The routes, for the reorder buffer.
    pub lanes: Vec<Lane>,
    /// How long acknowledgements take.
    pub back: Span,
}

/// The links of a path, in order, both ways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathPlan {
    /// From the client to the server.
    pub forward: Vec<u32>,
    /// From the server to the client. If empty, packets arrive at once.
    pub back: Vec<u32>,
}

/// The data of an application.
#[derive(Clone, Debug, PartialEq)]
pub enum Supply {
    /// Endless data.
    Bulk,
    /// So many bytes; then the session ends.
    File(u64),
    /// Bytes at a rate, a chunk of so many at a time.
    Steady {
        /// How fast the application makes data.
        rate: Rate,
        /// In chunks of so many bytes.
        chunk: u64,
    },
    /// Bytes at times after its start, in order; then the session ends.
    Script(Arc<[(Span, u64)]>),
    /// Datagrams of one size, without end.
    Datagrams {
        /// From one to the next.
        pause: Span,
        /// Bytes of each.
        size: usize,
    },
}

/// Sessions that arrive at random, carry a file each and end.
#[derive(Clone, Debug)]
pub struct ArrivalPlan {
    /// Arrivals a second and for how long, over and over: a Poisson process whose rate alternates.
    pub phases: Vec<(f64, Span)>,
    /// How large the files are.
    pub sizes: Sizes,
    /// Paths of each session.
    pub paths: Vec<PathPlan>,
    /// Settings of both ends.
    pub config: Arc<Config>,
    /// The first phase begins then.
    pub start: Time,
    /// Nothing arrives from then on.
    pub stop: Time,
}

/// The sizes of files, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// All equal.
    Fixed(u64),
    /// Exponential with this mean.
    Exponential(f64),
    /// Pareto with this mean and shape; the shape is above 1.
    Pareto {
        /// The mean.
        mean: f64,
        /// The exponent of the tail.
        shape: f64,
    },
}

/// Packets of one size at a constant rate, in bursts.
#[derive(Clone, Debug)]
pub struct BurstPlan {
    /// The links they cross, in order.
    pub links: Vec<u32>,
    /// From one packet of a burst to the next.
    pub every: Span,
    /// Bytes of each packet, without what a link adds.
    pub packet: u32,
    /// How long a burst lasts.
    pub on: Duration,
    /// How long the pause after it lasts; [`Duration::Fixed`] zero for none.
    pub off: Duration,
    /// The first burst begins then.
    pub start: Time,
    /// Nothing is sent from then on.
    pub stop: Time,
}

/// A length of time, fixed or random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duration {
    /// Always the same.
    Fixed(Span),
    /// Exponential with this mean.
    Exponential(Span),
    /// Anything between nothing and twice this mean.
    Uniform(Span),
}

/// A change to a link.
#[derive(Clone, Debug)]
pub struct Change {
    /// When.
    pub at: Time,
    /// Which link.
    pub link: u32,
    /// What.
    pub what: LinkChange,
}

/// Changes to a link that may hold packets.
#[derive(Clone, Debug)]
pub enum LinkChange {
    /// Cut it, or repair it.
    Down(bool),
    /// Another rate.
    Rate(RateModel),
    /// Another delay.
    Delay(Span),
    /// Another random loss.
    Loss(LossModel),
}
