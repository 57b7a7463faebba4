//! The scoreboard's input to the controller.

use std::fmt;

use anabranch_wire::{Rate, Span, Time};

/// The contents of an ack for one path. An ack frame that covers many packets is one sample.
#[derive(Clone, Copy, Debug)]
pub struct AckSample {
    /// When the ack arrived.
    pub now: Time,
    /// Bytes it acknowledged for the first time on this path.
    pub acked_bytes: u64,
    /// The latest round-trip sample: `now` minus the send time of the newest packet acknowledged.
    pub rtt: Span,
    /// Bytes outstanding on the path before this ack, including `acked_bytes`.
    pub in_flight: u64,
    /// The delivery rate measured by the newest acknowledged packet, if it could measure one.
    pub delivery_rate: Option<Rate>,
    /// True when this ack covers a packet sent after the previous round ended: a new round begins.
    pub round_start: bool,
    /// True when the application's data limited the delivery rate.
    pub app_limited: bool,
    /// True when the window, or pacing towards it, limited the sender; windows grow only then.
    pub window_limited: bool,
    /// Packets newly reported with a congestion-experienced mark.
    pub ce_marks: u64,
}

/// Losses found together on one path, or congestion-experienced marks reported together.
#[derive(Clone, Copy, Debug)]
pub struct LossEvent {
    /// When they were found.
    pub now: Time,
    /// Bytes declared lost; for marks, the bytes marked.
    pub lost_bytes: u64,
    /// Bytes outstanding before the lost ones are subtracted.
    pub in_flight: u64,
    /// When the newest of the lost (or marked) packets was sent.
    pub sent_at: Time,
}

/// The cause of a path's losses, as `auto` judges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossCause {
    /// Full queues: each episode of losses reduces the window. Always so under other rules.
    #[default]
    Queues,
    /// The wire: losses do not reduce the window below what the delivery rate needs.
    Wire,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Queues => "full queues",
            Self::Wire => "the wire",
        })
    }
}
