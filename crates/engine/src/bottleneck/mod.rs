//! Detects which paths share a bottleneck, from the session's own traffic: nothing is probed.
//!
//! Three methods implement [`SharedCongestion`]:
//!
//! - [`FastRetransmits`]: paths that lose at the same times (mTCP §3.2 [M8]). It returns *shared* or *separate* after
//!   enough losses to bound the chance of a false *shared*.
//! - [`DelayStatistics`]: paths whose one-way delays have similar statistics (RFC 8382). It needs no losses, but the peer's
//!   help.
//! - [`DelayWaves`]: paths whose delays rise and fall together: one-way delays with the peer's help, otherwise round trips.
//!
//! The peer's help are arrival times in acknowledgements, from which [`OneWayDelays`] computes delays.
//!
//! Two more detectors find early which paths do not share: [`FullQueues`] from single losses, [`LoneLosses`] from heavy
//! ones.
//!
//! All have a bounded history and forget: a verdict is valid for recent evidence. [`Groups`] turns verdicts on pairs into
//! groups of paths.

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
pub use lone_losses::{LoneLosses, LossCounts};
pub use losses::{FastRetransmits, Lag};
pub use one_way::{OneWay, OneWayDelays};
pub use queues::FullQueues;
pub use waves::DelayWaves;

/// The evidence on two paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Not enough evidence.
    #[default]
    Undecided,
    /// They share a bottleneck.
    Shared,
    /// They do not share a bottleneck.
    Separate,
}

/// A path's delay as measured by one packet.
#[derive(Clone, Copy, Debug)]
pub struct DelaySample {
    /// When the acknowledgement, or the packet, arrived.
    pub now: Time,
    /// Its delay, including queues. Only changes matter: clocks need not agree, and a round trip will do.
    pub delay: Span,
}

/// Collects evidence and judges pairs of paths. Unknown paths are added when first named.
pub trait SharedCongestion: Send {
    /// Handles a congestion event on a path: it entered fast retransmit.
    fn on_congestion(&mut self, now: Time, path: PathId);

    /// Handles the delay of a packet.
    fn on_delay(&mut self, path: PathId, sample: &DelaySample);

    /// Handles the loss of this many packets.
    fn on_lost(&mut self, path: PathId, packets: u64);

    /// Handles the smoothed round-trip time of a path; its first call starts to watch the path.
    fn on_rtt(&mut self, now: Time, path: PathId, rtt: Span);

    fn forget(&mut self, path: PathId);

    /// Judges two different paths.
    fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict;
}
