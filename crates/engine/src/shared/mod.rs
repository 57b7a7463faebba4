//! Which paths share a bottleneck, judged from what the data itself shows: nothing is ever probed.
//!
//! Three methods stand behind one interface, [`SharedCongestion`]:
//!
//! - [`FastRetransmits`]: paths that lose at the same moments (mTCP §3.2 [M8]). Says *shared* or *separate*, with a
//!   bounded chance of a false *shared*, after as many losses as that takes.
//! - [`DelayStatistics`]: paths whose one-way delays are of the same kind (RFC 8382). Needs no losses, and the peer's help.
//! - [`DelayWaves`]: paths whose delays rise and fall at the same time: one-way where the peer helps, round trips where it does not.
//!
//! The help are times of arrival in acknowledgements, of which [`OneWayDelays`] makes delays.
//!
//! Beside them two tell early which paths do not share: [`FullQueues`] from single losses, [`LoneLosses`] from very many.
//!
//! All keep a bounded history and forget: a verdict holds for the evidence of the last while. [`Groups`]
//! turns verdicts on pairs into groups of paths.

mod delays;
mod groups;
mod lone_losses;
mod losses;
mod one_way;
mod queues;
mod waves;

use anabranch_wire::{PathId, Span, Time};

pub use delays::DelayStatistics;
pub use groups::{GroupReason, Groups};
pub use lone_losses::{LoneLosses, Toll};
pub use losses::{FastRetransmits, Lag};
pub use one_way::{OneWay, OneWayDelays};
pub use queues::FullQueues;
pub use waves::DelayWaves;

/// What the evidence says of two paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Not enough to tell.
    #[default]
    Undecided,
    /// They share a bottleneck.
    Shared,
    /// They do not.
    Separate,
}

/// What one packet told of its path.
#[derive(Clone, Copy, Debug)]
pub struct DelaySample {
    /// When the acknowledgement came, or the packet arrived.
    pub now: Time,
    /// Its delay, queues included. Only changes matter: clocks need not agree, and a round trip will do.
    pub delay: Span,
}

/// Collects evidence and judges pairs of paths. Unknown paths are added as they are named.
pub trait SharedCongestion: Send {
    /// Packets of one congestion event on a path were found lost: it entered fast retransmit.
    fn on_congestion(&mut self, now: Time, path: PathId);

    /// A packet arrived.
    fn on_delay(&mut self, path: PathId, sample: &DelaySample);

    /// So many packets were found lost.
    fn on_lost(&mut self, path: PathId, packets: u64);

    /// The smoothed round-trip time of a path; from the first call on the path is watched.
    fn on_rtt(&mut self, now: Time, path: PathId, rtt: Span);

    /// A path is gone.
    fn forget(&mut self, path: PathId);

    /// Judges two different paths.
    fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict;
}
