//! What sessions spend on being quick: stream bytes that leave more than once without need.

use std::iter::Sum;

use anabranch_engine::{PathInfo, SessionStats};

/// Stream bytes that a session sent, and what of them may have been without need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// All, each as often as it left.
    pub sent: u64,
    /// Copies over a faster path, whatever became of them and of what they are copies of.
    pub copied: u64,
    /// At most what was taken for lost, and so sent again, although it arrived.
    pub early: u64,
    /// What arrived again, for whatever reason.
    pub twice: u64,
}

impl Spent {
    /// What the end that sends has sent by now, by paths that both ends still know.
    #[must_use]
    pub fn of((stats, sending): (SessionStats, &[PathInfo]), receiving: &[PathInfo]) -> Self {
        Self {
            sent: sending.iter().map(|path| path.stats.data_sent).sum(),
            copied: stats.bytes_copied,
            early: sending.iter().map(|path| path.stats.spurious_losses * u64::from(path.mtu)).sum(),
            twice: receiving.iter().map(|path| path.stats.data_duplicate).sum(),
        }
    }

    /// The share that was without need: all copies and what was sent again too early, or what arrived again where that is
    /// more, as when a path is in doubt.
    #[must_use]
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
