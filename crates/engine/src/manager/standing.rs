//! The current use of a path, and the reason why it carries nothing.

use std::fmt;

use anabranch_wire::{PathId, PathUse, bytes_in_words};

/// The current use of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may carry data.
    InUse,
    /// It carries data only because no better path works.
    StandsIn,
    /// It carries none.
    Idle(IdleReason),
}

/// Why a path carries no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleReason {
    /// The peer has not answered on it yet.
    Proving,
    /// Its acknowledgements are overdue.
    Overdue,
    /// It answers but is useless.
    Held(Fault),
    /// It was silent for too long and failed.
    Failed,
    /// The user of either end restricts its use, and better paths work.
    Kept(PathUse),
    /// Its byte cap is used up.
    CapReached {
        /// The cap in bytes.
        cap: u64,
    },
    /// It shares a bottleneck with a faster path (mTCP §3.4.1 [M10]).
    SharesBottleneck { with: PathId },
    /// It is far slower than the fastest (mTCP §3.4.1 [M10]).
    TooSlow {
        /// The fastest.
        than: PathId,
    },
    /// It is being closed.
    Closing,
}

/// The fault of a path that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It delivers far less than before.
    Stalls,
    /// It loses a fifth of what it carries.
    Loses,
    /// After a silence it answers far later than before.
    AnswersLate,
    /// Its queue is so long that data on faster paths has to wait for it.
    Bloated,
}

impl Standing {
    pub(crate) const CLOSING: Self = Self::Idle(IdleReason::Closing);

    /// A word for JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InUse => "in-use",
            Self::StandsIn => "stands-in",
            Self::Idle(reason) => reason.as_str(),
        }
    }

    /// True when it may carry data.
    pub fn is_used(self) -> bool {
        !matches!(self, Self::Idle(_))
    }
}

impl IdleReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Proving => "proving",
            Self::Overdue => "overdue",
            Self::Held(Fault::Stalls) => "stalls",
            Self::Held(Fault::Loses) => "loses",
            Self::Held(Fault::AnswersLate) => "answers-late",
            Self::Held(Fault::Bloated) => "bloated",
            Self::Failed => "failed",
            Self::Kept(PathUse::Overflow) => "overflow",
            Self::Kept(PathUse::Normal | PathUse::Backup) => "backup",
            Self::Kept(PathUse::Metered) => "metered",
            Self::Kept(PathUse::Standby) => "standby",
            Self::CapReached { .. } => "cap-reached",
            Self::SharesBottleneck { .. } => "shares-bottleneck",
            Self::TooSlow { .. } => "too-slow",
            Self::Closing => "closing",
        }
    }
}

/// For people.
impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse => f.write_str("in use"),
            Self::StandsIn => f.write_str("stands in: no better path works"),
            Self::Idle(reason) => reason.fmt(f),
        }
    }
}

impl fmt::Display for IdleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proving => f.write_str("no answer yet"),
            Self::Overdue => f.write_str("acknowledgements overdue"),
            Self::Held(fault) => write!(f, "held back: {fault}"),
            Self::Failed => f.write_str("silent"),
            Self::Kept(PathUse::Overflow) => f.write_str("overflow: the primary paths have room"),
            Self::Kept(PathUse::Normal | PathUse::Backup) => f.write_str("backup: a primary path works"),
            Self::Kept(PathUse::Metered) => f.write_str("metered: another path works"),
            Self::Kept(PathUse::Standby) => f.write_str("standby: wanted for probes only"),
            Self::CapReached { cap } => write!(f, "its {} are used up", bytes_in_words(*cap)),
            Self::SharesBottleneck { with } => {
                write!(f, "shares a bottleneck with {with}, which is faster")
            }
            Self::TooSlow { than } => write!(f, "far slower than {than}"),
            Self::Closing => f.write_str("being closed"),
        }
    }
}

/// For people.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stalls => "it stalls",
            Self::Loses => "it loses too much",
            Self::AnswersLate => "it answers late",
            Self::Bloated => "a queue stands before it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_path_says_why() {
        let reasons = [
            (IdleReason::CapReached { cap: 500_000_000 }, "its 500 MB are used up"),
            (IdleReason::CapReached { cap: 30_000 }, "its 30.0 kB are used up"),
            (IdleReason::TooSlow { than: PathId(2) }, "far slower than path 2"),
            (IdleReason::Kept(PathUse::Backup), "backup: a primary path works"),
            (IdleReason::Held(Fault::Bloated), "held back: a queue stands before it"),
        ];
        for (reason, text) in reasons {
            assert_eq!(Standing::Idle(reason).to_string(), text);
        }
        assert!(Standing::StandsIn.is_used() && !Standing::Idle(IdleReason::Failed).is_used());
    }
}
