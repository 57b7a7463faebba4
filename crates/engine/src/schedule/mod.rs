//! Chooses the path for each outgoing run of data: the last of mTCP's three decisions (§3.1.4 [M5]).
//!
//! The session calls a scheduler when something may be sent. It reads [`PathView`]s and does not change the session. Window
//! and pacing are already included in [`PathView::budget`]. Only paths that may carry data are listed: validated and not
//! failed; backup paths only when no other works, suspected ones only when nothing better is left.

mod blocking;
mod earliest_arrival;
mod scheduler;
mod simple;
mod usage;
mod weighted;

use std::fmt;
use std::str::FromStr;

pub use blocking::{Blest, Ecf};
pub use earliest_arrival::EarliestArrival;
pub use scheduler::{Decision, Item, PathView, Scheduler, SessionView};
pub use simple::{LeastFilled, MinRtt, Redundant, RoundRobin};
pub use usage::{Block, LeastConnections, LeastUsed, Utilization};
pub use weighted::{Adaptive, Weighted};

/// The schedulers that come with the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulerKind {
    /// The path where the data will arrive first, including the queue there.
    #[default]
    EarliestArrival,
    /// The path with the least share of its window in flight (mTCP [M5]).
    LeastFilled,
    /// One packet on each path in turn.
    RoundRobin,
    /// The lowest round-trip time with room.
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
    /// Each flow or stream on one path; a new one on the path with the fewest (PSMC [T3]).
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
    /// The requested name.
    pub name: String,
}

impl FromStr for SchedulerKind {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> Result<Self, UnknownScheduler> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        found.map(|(kind, _)| *kind).ok_or_else(|| UnknownScheduler { name: name.to_owned() })
    }
}

#[cfg(test)]
pub(crate) mod tests_support {
    use anabranch_wire::{PathId, Rate, Span, Time};

    use super::*;

    pub(crate) fn view(id: u32, window: u64) -> PathView {
        PathView {
            id: PathId(id),
            budget: window,
            room: window,
            ready_at: Time::ZERO,
            window,
            in_flight: 0,
            rtt: Span::from_millis(20),
            min_rtt: Span::from_millis(20),
            calm_rtt: Span::from_millis(20),
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
