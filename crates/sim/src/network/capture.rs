//! Records of packets that sessions send and receive, for traces.

use anabranch_engine::{PathInfo, Session};
use anabranch_wire::{Message, Span, Time};

use super::load::Load;
use super::packets::Destination;

/// A packet when a session sent or received it.
#[derive(Clone, Debug)]
pub struct Captured {
    /// When.
    pub at: Time,
    /// Its flow, by number in the plan; flows of arrivals follow.
    pub flow: usize,
    /// Which of the successive sessions of this flow, from 0.
    pub session: u32,
    /// The path, by number in the plan.
    pub path: usize,
    /// Whether the packet is on its way to the server.
    pub to_server: bool,
    /// Whether it was sent; otherwise it was received.
    pub sent: bool,
    /// UDP payload in bytes.
    pub size: u32,
    /// Its content.
    pub message: Message<Load>,
    /// The sender's metrics of the path, if it was sent and the path has a window.
    pub metrics: Option<PathMetrics>,
}

/// A sender's metrics of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMetrics {
    /// Smoothed round-trip time, zero before the first sample.
    pub rtt: Span,
    /// Lowest recent round-trip time.
    pub min_rtt: Span,
    /// Variation of the round-trip time.
    pub rtt_variance: Span,
    /// Congestion window in bytes.
    pub window: u64,
    /// Bytes in flight, the packet's own included.
    pub in_flight: u64,
}

impl Captured {
    pub(super) fn new(at: Time, (to, sent): (Destination, bool), size: u32, message: &Message<Load>) -> Self {
        Self {
            at,
            flow: to.flow as usize,
            session: to.generation,
            path: usize::from(to.path),
            to_server: to.end == 1,
            sent,
            size,
            message: message.clone(),
            metrics: None,
        }
    }

    /// Adds the sender's metrics of the path.
    pub(super) fn with_metrics(mut self, session: &Session<Load>) -> Self {
        if let Message::Packet(packet) = &self.message {
            self.metrics = session
                .paths()
                .iter()
                .find(|info| info.id == packet.path && info.window > 0)
                .map(PathMetrics::of);
        }
        self
    }
}

impl PathMetrics {
    fn of(info: &PathInfo) -> Self {
        Self {
            rtt: info.rtt,
            min_rtt: info.min_rtt,
            rtt_variance: info.rtt_variance,
            window: info.window,
            in_flight: info.in_flight,
        }
    }
}
