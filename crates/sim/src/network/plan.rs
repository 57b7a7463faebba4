//! The description of a network and its traffic, as plain values.
//!
//! Scenario files and generators produce a [`Plan`]; tests may write one directly.

use std::fmt;
use std::sync::Arc;

use anabranch_agent::GivenUp;
use anabranch_engine::Config;
use anabranch_link::{LinkConfig, LossModel, RateModel};
use anabranch_tunnel::entry::Lane;
use anabranch_wire::{Rate, Span, Time};

/// A network and its traffic.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The seed of all randomness. Each link and source has a generator of its own.
    pub seed: u64,
    /// Links, each in one direction. Their numbers are their indices here; their seeds follow from the plan's.
    pub links: Vec<LinkConfig>,
    /// Sessions that run once.
    pub flows: Vec<FlowPlan>,
    /// Sessions that carry packets of flows, from the start to the end.
    pub tunnels: Vec<TunnelPlan>,
    /// Sessions that come and go.
    pub arrivals: Vec<ArrivalPlan>,
    /// Packets without a session.
    pub bursts: Vec<BurstPlan>,
    /// Changes to links during the run.
    pub script: Vec<Change>,
    /// The limits at which a run ends early.
    pub limits: Limits,
}

/// How much a network may hold and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most packets queued or in flight at once. A network with more stops.
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

/// One session and its data, from the client to the server.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Its paths; it connects over the first, then opens the others. None in a tunnel.
    pub paths: Vec<PathPlan>,
    /// Earliest times of opening the others, after its start; empty for no delay.
    pub openings: Vec<Span>,
    /// Settings of both ends.
    pub config: Arc<Config>,
    /// Its data.
    pub supply: Supply,
    /// When it connects.
    pub start: Time,
    /// When it ends.
    pub stop: Time,
    /// The tunnel that carries it, instead of paths.
    pub tunnel: Option<InTunnel>,
    /// Whether its stream is sent on every path.
    pub redundant: bool,
    /// Lets the path agent open and close all its paths.
    pub agent: Option<Arc<AgentPlan>>,
}

/// The paths, relays and interfaces of a flow with a path agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPlan {
    /// How many of the flow's paths are direct, each from its own interface; the others lead through relays.
    pub direct: usize,
    /// How many relays are to carry a path at the same time.
    pub relays_at_once: usize,
    /// Changes of the client's interfaces, in order of time.
    pub interfaces: Vec<InterfaceChange>,
}

/// A client's interface comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceChange {
    /// Time after the flow's start.
    pub after: Span,
    /// The path from that interface.
    pub path: u32,
    /// Whether the interface exists from then on.
    pub is_up: bool,
}

/// A decision of the client's path agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Time after the flow's start.
    pub after: Span,
    pub what: Decision,
}

/// A decision of a path agent; paths and candidates are indices into the flow's direct and relayed paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Open a direct path.
    Open { path: u32 },
    /// Close a direct path.
    Close { path: u32 },
    /// Open a path through a relay.
    OpenThrough {
        /// The relay.
        candidate: usize,
    },
    /// Close the path through a relay.
    CloseThrough {
        /// The relay.
        candidate: usize,
        /// The reason.
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
    /// A session with endless data over these paths, from its start to its stop.
    pub fn bulk(paths: Vec<PathPlan>, config: impl Into<Arc<Config>>, (start, stop): (Time, Time)) -> Self {
        let (openings, config, supply) = (Vec::new(), config.into(), Supply::Bulk);
        Self { paths, openings, config, supply, start, stop, tunnel: None, redundant: false, agent: None }
    }

    /// Number of paths that its sessions see.
    pub fn sees_paths(&self) -> usize {
        if self.tunnel.is_some() { 1 } else { self.paths.len() }
    }
}

/// A session that carries packets of flows.
#[derive(Clone, Debug)]
pub struct TunnelPlan {
    pub paths: Vec<PathPlan>,
    /// Settings of both ends.
    pub config: Arc<Config>,
}

/// How a tunnel carries a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InTunnel {
    /// The tunnel, by number in the plan.
    pub tunnel: u32,
    /// The lane of its packets; `None` for the stream lane, for endless data and files.
    pub lane: Option<Lane>,
    /// Its packets are of TCP.
    pub is_tcp: bool,
}

/// The links of a path, in order, in both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathPlan {
    /// From the client to the server.
    pub forward: Vec<u32>,
    /// From the server to the client. If empty, packets arrive without delay.
    pub back: Vec<u32>,
}

/// An application's data.
#[derive(Clone, Debug, PartialEq)]
pub enum Supply {
    /// Endless data.
    Bulk,
    /// A number of bytes; then the session ends.
    File(u64),
    /// Data at a rate, in chunks.
    Steady {
        /// The rate.
        rate: Rate,
        /// Bytes of a chunk.
        chunk: u64,
    },
    /// Numbers of bytes with times after the start, in order; then the session ends.
    Script(Arc<[(Span, u64)]>),
    /// The packets and streams of a tunnel's flows.
    Tunnel,
    /// An endless series of datagrams.
    Datagrams {
        /// Time between two datagrams.
        pause: Span,
        /// Bytes of a datagram.
        size: usize,
    },
}

/// Sessions that arrive at random, transfer a file each and end.
#[derive(Clone, Debug)]
pub struct ArrivalPlan {
    /// Arrivals per second and length of each phase, repeated: a Poisson process with an alternating rate.
    pub phases: Vec<(f64, Span)>,
    /// The sizes of the files.
    pub sizes: Sizes,
    /// Paths of each session.
    pub paths: Vec<PathPlan>,
    /// Settings of both ends.
    pub config: Arc<Config>,
    /// Start of the first phase.
    pub start: Time,
    /// End of all arrivals.
    pub stop: Time,
}

/// The sizes of files, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// All files have this size.
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
    /// Time between two packets of a burst.
    pub every: Span,
    /// Bytes of each packet, without a link's overhead.
    pub packet: u32,
    /// Length of a burst.
    pub on: Duration,
    /// Length of the pause after it; [`Duration::Fixed`] zero for no pause.
    pub off: Duration,
    /// Start of the first burst.
    pub start: Time,
    /// End of all bursts.
    pub stop: Time,
}

/// A length of time, fixed or random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duration {
    /// Always the same.
    Fixed(Span),
    /// Exponential with this mean.
    Exponential(Span),
    /// Uniform between zero and twice this mean.
    Uniform(Span),
}

/// A change to a link.
#[derive(Clone, Debug)]
pub struct Change {
    pub at: Time,
    /// The link.
    pub link: u32,
    pub what: LinkChange,
}

/// Changes that a link with packets on it supports.
#[derive(Clone, Debug)]
pub enum LinkChange {
    /// Cut it, or repair it.
    Down(bool),
    /// Sets the rate.
    Rate(RateModel),
    Delay(Span),
    /// Sets the random loss.
    Loss(LossModel),
}
