//! The cost of speed: stream bytes that were sent again without need.

use std::iter::Sum;

use anabranch_engine::{PathInfo, SessionStats};

/// Stream bytes that a session sent, and those of them that were not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// All bytes, counted each time they were sent.
    pub sent: u64,
    /// Copies sent over a faster path.
    pub copied: u64,
    /// Upper bound of bytes retransmitted although they had arrived.
    pub early: u64,
    /// Bytes that arrived as duplicates.
    pub twice: u64,
}

impl Spent {
    /// The sender's bytes so far, over paths that both ends still have.
    pub fn of((stats, sending): (SessionStats, &[PathInfo]), receiving: &[PathInfo]) -> Self {
        Self {
            sent: sending.iter().map(|path| path.stats.data_sent).sum(),
            copied: stats.bytes_copied,
            early: sending.iter().map(|path| path.stats.spurious_losses * u64::from(path.mtu)).sum(),
            twice: receiving.iter().map(|path| path.stats.data_duplicate).sum(),
        }
    }

    /// The share that was not needed: copies plus early retransmissions, or duplicates if they are more.
    pub fn share(&self) -> f64 {
        self.twice.max(self.copied + self.early) as f64 / self.sent.max(1) as f64
    }
}

impl Sum for Spent {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            sent: sum.sent + one.sent,
            copied: sum.copied + one.copied,
            early: sum.early + one.early,
            twice: sum.twice + one.twice,
        })
    }
}
