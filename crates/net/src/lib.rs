//! The network driver and the async API of Anabranch: [`Endpoint`], [`Session`], [`Stream`].
//!
//! The engine and the path agent decide; this crate has the sockets, the clock and the tasks:
//!
//! - Each local address has one UDP socket, bound to its interface and shared by all sessions. Each socket has a task
//!   that receives in batches, opens packets in place and passes them to their session's engine.
//! - Each session has a task that sleeps until the engine's next deadline. Whichever task changes a session also sends
//!   the engine's output, sealed in batches.
//! - Sockets and paths follow the machine's addresses as they come and go.
//!
//! ```no_run
//! use anabranch_net::{Config, Endpoint, EndpointConfig, NodeKey, Target};
//! use tokio::io::AsyncWriteExt;
//!
//! # async fn run(key: NodeKey, target: Target) -> Result<(), Box<dyn std::error::Error>> {
//! let endpoint = Endpoint::bind(EndpointConfig::new(key)).await?;
//! let session = endpoint.connect(&target, Config::default()).await?;
//! let mut stream = session.open_stream().await?;
//! stream.write_all(b"over every path there is").await?;
//! stream.shutdown().await?;
//! session.close().await;
//! # Ok(())
//! # }
//! ```

mod address_policy;
mod authorize;
mod buffers;
mod by_source;
mod clock;
mod connect;
mod door;
mod endpoint;
mod fault;
mod foreign;
mod handshake;
pub mod interfaces;
mod lasting;
mod obstacle;
mod pids;
mod places;
mod receive;
mod relayed;
mod resets;
mod session;
pub mod socket;
mod stream;
mod tap;
mod turns;

pub use address_policy::AddressPolicy;
pub use authorize::{Authorize, DenyAll, Verdict};
pub use clock::Clock;
pub use connect::{ConnectError, Tried};
pub use endpoint::{Addresses, Endpoint, EndpointConfig, EndpointStats, Limits, SocketInfo, Target};
pub use foreign::{Foreign, ForeignRun, Outlet};
pub use lasting::Lasting;
pub use obstacle::Obstacle;
pub use relayed::Chain;
pub use session::{Datagram, Events, Session, SessionError};
pub use stream::Stream;
pub use tap::{Seen, Tap};

pub use anabranch_agent::{Named, Permission, Reaches, may_try};
pub use anabranch_engine::{
    AbandonReason, AckPolicy, CloseReason, Config, DatagramMode, DatagramSource, Decision, Ecn, Event,
    IdleReason, Item, Meter, PathChange, PathError, PathInfo, PathOrigin, PathReport, PathRule, PathRules,
    PathState, PathStats, PathView, Pattern, Prefix, Priority, Protection, Pulled, ReportConfig,
    ReservedPath, Route, Scheduler, SchedulerKind, SessionStats, SessionView, Standing, SuppressionLimits,
    Terms, cc, suppress,
};
pub use anabranch_secure::{
    CapturedSession, Limits as KeyLimits, NodeKey, PublicKey, Refusal, ResetKey, ShareId, Ticket,
    TicketSecret,
};
pub use anabranch_wire::{PathId, PathUse, Pid, Rate, Span, StreamId, Time};
