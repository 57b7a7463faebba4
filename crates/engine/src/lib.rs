//! The multipath session: one flow over every path, as a pure state machine.
//!
//! A [`Session`] takes typed messages in and gives typed messages out. Time is an argument; it has no socket, clock,
//! thread or randomness. The same code runs in the simulator, in emulation and deployed.
//!
//! ```text
//! app write -> stream::send -> schedule picks a path -> path (window, pacing) -> session::sending -> Transmit
//! Arrival -> session::incoming -> path notes the number -> stream::recv -> app read
//!                                       \-> acknowledgement -> path::scoreboard -> congestion control
//! ```

mod bottleneck;
mod config;
mod control;
mod datagram;
mod event;
mod inbox;
mod manager;
mod path;
mod rare_queue;
mod reorder;
mod route;
mod schedule;
mod session;
mod state;
mod stats;
mod stream;

pub use anabranch_cc as cc;
pub use bottleneck::{
    DelaySample, DelayStatistics, DelayWaves, FastRetransmits, FullQueues, GroupReason, Groups, Lag, OneWay,
    OneWayDelays, SharedCongestion, Verdict,
};
pub use config::{
    AckConfig, AckPolicy, Config, Coupling, DatagramConfig, Detector, FailureConfig, MemoryConfig, MtuConfig,
    ReportConfig,
};
pub use datagram::{DatagramMode, DatagramSource, Protection, Pulled};
pub use event::{AbandonReason, CloseReason, Event, PathChange, PidChange, PidSource, ProtocolError};
pub use manager::{
    Fault, IdleReason, Meter, PathOrigin, PathReport, PathRule, PathRules, Pattern, Prefix, Priority,
    Standing, Suppression, SuppressionLimits, Terms, suppress,
};
pub use path::PathState;
pub use reorder::{BufferSize, DoubleBuffer, Lane, least_size};
pub use route::{Arrival, Ecn, Init, Route, Transmit};
pub use schedule::{
    Adaptive, Blest, Block, Decision, EarliestArrival, Ecf, Item, LeastConnections, LeastFilled, LeastUsed,
    MinRtt, PathView, Redundant, RoundRobin, Scheduler, SchedulerKind, SessionView, UnknownScheduler,
    Utilization, Weighted,
};
pub use session::{DatagramError, PathError, ReservedPath, Session};
pub use state::State;
pub use stats::{PathInfo, PathStats, PathWindow, SessionStats};
pub use stream::{MemoryBudget, Read, Reservation, StreamError};
