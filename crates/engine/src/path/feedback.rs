//! The peer's view of a path: receiver reports (MPMTP-AR §3.5 [R6]), and the address at which it sees this end.

use std::net::SocketAddr;

use anabranch_wire::Report;

/// Reports of a path between two updates of its reliability.
const REPORTS_AN_UPDATE: u32 = 3;
/// The lowest reliability from reports, so that weights stay finite.
const LEAST_RELIABILITY: f64 = 1e-3;

/// The peer's view of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feedback {
    reliability: f64,
    weight: f64,
    /// Packets received and sent, as of the report that last updated the reliability.
    packets: u64,
    sent: u64,
    /// Reports since then.
    count: u32,
    /// This end's address as the peer last saw it.
    observed: Option<SocketAddr>,
}

impl Default for Feedback {
    fn default() -> Self {
        Self { reliability: 1.0, weight: 1.0, packets: 0, sent: 0, count: 0, observed: None }
    }
}

impl Feedback {
    /// Share of the packets that arrive; 1 without reports.
    pub(crate) fn reliability(&self) -> f64 {
        self.reliability
    }

    /// The path's load weight; the mean over all paths is 1.
    #[inline]
    pub(crate) fn weight(&self) -> f64 {
        self.weight
    }

    /// Handles a report: every third one updates `R ← α·R + (1−α)·received/sent`. True if it did.
    pub(crate) fn on_report(&mut self, report: &Report, alpha: f64) -> bool {
        self.count += 1;
        if self.count < REPORTS_AN_UPDATE {
            return false;
        }
        let highest = report.highest_fsn.0.saturating_add(1);
        let sent = highest.saturating_sub(self.sent);
        let received = report.packets.saturating_sub(self.packets);
        (self.packets, self.sent, self.count) = (report.packets, highest, 0);
        if sent == 0 {
            return false;
        }
        let share = (received as f64 / sent as f64).min(1.0);
        self.reliability = (alpha * self.reliability + (1.0 - alpha) * share).max(LEAST_RELIABILITY);
        true
    }

    pub(crate) fn set_weight(&mut self, weight: f64) {
        self.weight = weight;
    }

    pub(crate) fn observed(&self) -> Option<SocketAddr> {
        self.observed
    }

    pub(crate) fn set_observed(&mut self, address: SocketAddr) {
        self.observed = Some(address);
    }
}
