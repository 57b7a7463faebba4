//! Chooses the path for each outgoing run of data: the last of mTCP's three decisions (§3.1.4 [M5]).
//!
//! Called by the session when something may be sent; reads [`PathView`]s and changes nothing of the
//! session. Window and pacing are already folded into [`PathView::budget`]. Only paths that may carry
//! data are shown: validated and not failed; backup paths only when no other works, suspects only when nothing
//! better is left.

mod blocking;
mod earliest_arrival;
mod simple;
mod usage;
mod weighted;

use std::fmt;
use std::str::FromStr;

use anabranch_wire::{PathId, Rate, Span, Time};
use smallvec::SmallVec;

pub use blocking::{Blest, Ecf};
pub use earliest_arrival::EarliestArrival;
pub use simple::{LeastFilled, MinRtt, Redundant, RoundRobin};
pub use usage::{Block, LeastConnections, LeastUsed, Utilization};
pub use weighted::{Adaptive, Weighted};

/// What a scheduler may know of a path.
#[derive(Clone, Copy, Debug)]
pub struct PathView {
    /// The path.
    pub id: PathId,
    /// Bytes that window and pacing let it send now.
    pub budget: u64,
    /// When pacing lets it send again; in the past when it is the window that holds it back.
    pub ready_at: Time,
    /// Congestion window in bytes.
    pub window: u64,
    /// Bytes in flight: `pipe_i` of [M3].
    pub in_flight: u64,
    /// Smoothed round-trip time, queueing included.
    pub rtt: Span,
    /// Lowest round-trip time lately.
    pub min_rtt: Span,
    /// Mean deviation of the round-trip time.
    pub rtt_variance: Span,
    /// What the path delivers: the measured rate, or window a round trip where that is more in slow start.
    pub rate: Rate,
    /// Largest packet in bytes.
    pub mtu: u64,
    /// Bytes sent so far, for schedulers that even out use.
    pub bytes_sent: u64,
    /// Load weight, 1 when all paths are alike (MPMTP-AR §3.5 [R6]).
    pub weight: f64,
}

impl PathView {
    /// Share of the window in flight: `pipe_i / cwnd_i` of [M5].
    #[must_use]
    pub fn fill(&self) -> f64 {
        self.in_flight as f64 / self.window.max(1) as f64
    }
}

/// What a scheduler may know of the session.
#[derive(Clone, Copy, Debug)]
pub struct SessionView {
    /// The time.
    pub now: Time,
    /// An application waits for room to write: more follows what is waiting.
    pub more_expected: bool,
    /// The peer's receive window: bytes that may be on their way or waiting there at the same time.
    pub window: u64,
}

/// What is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Bytes that wait behind one decision: all that is missing, or all that is new.
    pub bytes: u64,
    /// It was sent before and is missing.
    pub resend: bool,
    /// Type of service, 0 to 15; streams are 0.
    pub class: u8,
    /// Hash of the inner flow of a datagram; of streams, the number of the stream.
    pub flow: u32,
}

/// A scheduler's answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Send up to `run` bytes on this path before asking again.
    Send {
        /// Where.
        path: PathId,
        /// Bytes.
        run: u64,
    },
    /// Send it on the first of these, and copies on the others as they have room.
    Duplicate(SmallVec<[PathId; 4]>),
    /// Send nothing now; ask again at this time or when something changes.
    Wait(Time),
}

/// A rule that spreads data over paths. Implement it to bring your own.
pub trait Scheduler: Send {
    /// Chooses for one item. `paths` is sorted by id and never empty; at least one has a budget.
    fn pick(&mut self, session: &SessionView, paths: &[PathView], item: &Item) -> Decision;
}

/// The schedulers that come with the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Where the data will arrive first, given what is queued there.
    #[default]
    EarliestArrival,
    /// The path with the least share of its window in flight (mTCP [M5]).
    LeastFilled,
    /// One packet on each path in turn.
    RoundRobin,
    /// The lowest round-trip time that has room.
    MinRtt,
    /// Everything on every path.
    Redundant,
    /// The least bytes sent for a path's load weight (MPMTP-AR [R10]); weights need receiver reports.
    Utilization,
    /// Packets in the ratio of the rates (PSMC [T3], SAFIRE [S5]).
    Weighted,
    /// Packets in the ratio of the last two observation windows (PSMC Algorithm 1 [T3]).
    Adaptive,
    /// The fewest bytes sent (PSMC [T3]).
    LeastUsed,
    /// Each flow or stream on one path, a new one where the fewest are (PSMC [T3]).
    LeastConnections,
    /// Blocks of 64 KiB in turn (PSMC [T3]).
    Block,
    /// Blocking estimation (Ferlin et al. 2016).
    Blest,
    /// Earliest completion first (Lim et al. 2017).
    Ecf,
}

impl SchedulerKind {
    /// Every kind with its name.
    pub const ALL: [(Self, &'static str); 13] = [
        (Self::EarliestArrival, "earliest-arrival"),
        (Self::LeastFilled, "least-filled"),
        (Self::RoundRobin, "round-robin"),
        (Self::MinRtt, "min-rtt"),
        (Self::Redundant, "redundant"),
        (Self::Utilization, "utilization"),
        (Self::Weighted, "weighted"),
        (Self::Adaptive, "adaptive"),
        (Self::LeastUsed, "least-used"),
        (Self::LeastConnections, "least-connections"),
        (Self::Block, "block"),
        (Self::Blest, "blest"),
        (Self::Ecf, "ecf"),
    ];

    /// A scheduler of this kind.
    #[must_use]
    pub fn build(self) -> Box<dyn Scheduler> {
        match self {
            Self::EarliestArrival => Box::new(EarliestArrival),
            Self::LeastFilled => Box::new(LeastFilled),
            Self::RoundRobin => Box::<RoundRobin>::default(),
            Self::MinRtt => Box::new(MinRtt),
            Self::Redundant => Box::new(Redundant),
            Self::Utilization => Box::new(Utilization),
            Self::Weighted => Box::<Weighted>::default(),
            Self::Adaptive => Box::<Adaptive>::default(),
            Self::LeastUsed => Box::new(LeastUsed),
            Self::LeastConnections => Box::<LeastConnections>::default(),
            Self::Block => Box::<Block>::default(),
            Self::Blest => Box::new(Blest),
            Self::Ecf => Box::<Ecf>::default(),
        }
    }
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// The name is not one of [`SchedulerKind::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no scheduler {name:?}; there are {}", SchedulerKind::ALL.map(|(_, name)| name).join(", "))]
pub struct UnknownScheduler {
    /// The name asked for.
    pub name: String,
}

impl FromStr for SchedulerKind {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> Result<Self, UnknownScheduler> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| *kind).ok_or_else(|| UnknownScheduler { name: name.to_owned() })
    }
}

/// The paths that may send now.
fn open(paths: &[PathView]) -> impl Iterator<Item = &PathView> + Clone {
    paths.iter().filter(|path| path.budget > 0)
}

/// How much a path may send before the scheduler is asked again: a batch that the driver can hand to the
/// system at once, but never more than a quarter of the window, so that paths take turns.
pub(crate) fn run_length(path: &PathView) -> u64 {
    path.budget.min(path.window / 4).clamp(path.mtu, 64 * 1024)
}

#[cfg(test)]
pub(crate) mod tests_support {
    use super::*;

    pub(crate) fn view(id: u32, window: u64) -> PathView {
        PathView {
            id: PathId(id),
            budget: window,
            ready_at: Time::ZERO,
            window,
            in_flight: 0,
            rtt: Span::from_millis(20),
            min_rtt: Span::from_millis(20),
            rtt_variance: Span::from_millis(1),
            rate: Rate::from_mbit(10.0),
            mtu: 1400,
            bytes_sent: 0,
            weight: 1.0,
        }
    }

    pub(crate) fn session() -> SessionView {
        SessionView { now: Time::ZERO, more_expected: true, window: 100_000_000 }
    }

    pub(crate) fn item() -> Item {
        Item { bytes: 1400, resend: false, class: 0, flow: 0 }
    }
}
