//! Packets as the ends of a network see them, for traces.

use anabranch_engine::{PathInfo, Session};
use anabranch_wire::{Length, Message, Span, Time};

use super::packets::Destination;

/// A packet at the moment when a session sent or received it.
#[derive(Clone, Debug)]
pub struct Captured {
    /// When.
    pub at: Time,
    /// Whose: the place of the flow in the plan; flows of arrivals follow the plan's own.
    pub flow: usize,
    /// Which of the sessions that had this place one after the other, from 0.
    pub session: u32,
    /// Over which of the flow's paths, by its place in the plan.
    pub path: usize,
    /// Whether the packet is on its way to the server.
    pub to_server: bool,
    /// Whether it was sent now; else it was received now.
    pub sent: bool,
    /// UDP payload in bytes.
    pub size: u32,
    /// What it says.
    pub message: Message<Length>,
    /// How the sender finds its path, when it was sent now and the path has a window already.
    pub metrics: Option<PathMetrics>,
}

/// How a sender finds one of its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMetrics {
    /// Smoothed round-trip time, zero before the first sample.
    pub rtt: Span,
    /// Lowest round-trip time lately.
    pub min_rtt: Span,
    /// Variation of the round-trip time.
    pub rtt_variance: Span,
    /// Congestion window in bytes.
    pub window: u64,
    /// Bytes in flight, the packet's own included.
    pub in_flight: u64,
}

impl Captured {
    pub(super) fn new(
        at: Time,
        (to, sent): (Destination, bool),
        size: u32,
        message: &Message<Length>,
    ) -> Self {
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

    /// With how the session that sent it finds its path.
    pub(super) fn with_metrics(mut self, session: &Session<Length>) -> Self {
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
