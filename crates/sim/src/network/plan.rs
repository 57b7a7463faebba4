//! What a network is made of: everything the core has to be told before a run, as plain values.
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
    /// Decides everything that is left to chance. Each link and source draws from a generator of its own.
    pub seed: u64,
    /// Links, each in one direction; elsewhere they are named by their place here. Their seeds are set
    /// from the plan's.
    pub links: Vec<LinkConfig>,
    /// Sessions that run once.
    pub flows: Vec<FlowPlan>,
    /// Sessions that come and go.
    pub arrivals: Vec<ArrivalPlan>,
    /// Packets without a session.
    pub bursts: Vec<BurstPlan>,
    /// What changes while it runs.
    pub script: Vec<Change>,
    /// Where a run ends early.
    pub limits: Limits,
}

/// How much a network may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most packets that wait or are under way at once. A network with more stops.
    pub packets: usize,
    /// Most sessions of all sources of arrivals that are open at once. Further ones are refused.
    pub sessions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { packets: 10_000_000, sessions: 200_000 }
    }
}

/// One session and what it carries, from the client to the server.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Its paths; it connects over the first and opens the others then.
    pub paths: Vec<PathPlan>,
    /// How long after its start each of these others is opened at the earliest; without, as soon as can be.
    pub openings: Vec<Span>,
    /// Settings of both ends.
    pub config: Arc<Config>,
    /// What it carries.
    pub supply: Supply,
    /// When it connects.
    pub start: Time,
    /// When it vanishes.
    pub stop: Time,
    /// Its paths are routes of one path, below the session.
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
    /// How many paths its sessions know of.
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
    /// How many wait at the receiver for earlier ones; `None` when they are handed up as they come.
    pub buffer: Option<BufferSize>,
    /// The routes as the receiver sees them.
    pub lanes: Vec<Lane>,
    /// How long acknowledgements take.
    pub back: Span,
}

/// The links of a path, in order, both ways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathPlan {
    /// From the client to the server.
    pub forward: Vec<u32>,
    /// From the server to the client. Where it is empty, packets arrive at once.
    pub back: Vec<u32>,
}

/// What an application has to send.
#[derive(Clone, Debug, PartialEq)]
pub enum Supply {
    /// As much as goes.
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
    /// Bytes at moments after its start, in order of time; then the session ends.
    Script(Arc<[(Span, u64)]>),
    /// Datagrams of one size, one after the other without an end.
    Datagrams {
        /// From one to the next.
        pause: Span,
        /// Bytes of each.
        size: usize,
    },
}

/// Sessions that arrive at random moments, carry a file each and end.
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
    /// All alike.
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

/// A length of time that may be left to chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duration {
    /// Always the same.
    Fixed(Span),
    /// Exponential with this mean.
    Exponential(Span),
    /// Anything between nothing and twice this mean.
    Uniform(Span),
}

/// Something that happens to a link.
#[derive(Clone, Debug)]
pub struct Change {
    /// When.
    pub at: Time,
    /// Which link.
    pub link: u32,
    /// What.
    pub what: LinkChange,
}

/// What can be changed of a link while packets are on it.
#[derive(Clone, Debug)]
pub enum LinkChange {
    /// Cut it, or mend it.
    Down(bool),
    /// Another rate.
    Rate(RateModel),
    /// Another delay.
    Delay(Span),
    /// Another random loss.
    Loss(LossModel),
}
