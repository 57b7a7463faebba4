//! Receiver reports, and their use by the sender (MPMTP-AR §3.5 [R6]).
//!
//! The receiver spends a fraction of its incoming traffic on reports. The fraction falls while the paths' reliability
//! is steady, and rises when it changes. After every third report of a path, the sender updates the path's reliability
//! `R ← α·R + (1−α)·received/sent` and the load weights `w ← w·R/R̄`.

use std::collections::BTreeMap;

use anabranch_wire::{Frame, Fsn, PathId, Payload, Report};

use super::flight::Flight;
use crate::config::{Config, ReportConfig};
use crate::path::{Path, Paths};

/// Bytes of a report, with its share of a packet.
const REPORT_BYTES: f64 = 48.0;
/// The least and the largest fraction, and the first one.
const FRACTIONS: (f64, f64) = (0.01, 0.05);
const FIRST_FRACTION: f64 = 0.025;
/// Changes of reliability up to this do not count.
const STEADY: f64 = 0.05;

/// The state of sending reports, if this session does.
#[derive(Debug)]
pub(super) struct Reports(Option<Box<Reporter>>);

/// Decides when to report.
#[derive(Debug)]
struct Reporter {
    config: ReportConfig,
    fraction: f64,
    received: u64,
    last_share: f64,
    /// Packets of each path at its last report: received, and sent according to their numbers.
    reported: BTreeMap<PathId, (u64, u64)>,
    /// Paths whose report must be sent.
    pending: Vec<PathId>,
}

impl Reporter {
    fn is_due(&self, paths: usize) -> bool {
        self.received as f64 * self.fraction >= REPORT_BYTES * paths as f64
    }

    /// `bff ← max(1 %, (1−b)·bff)` while steady, `min((1+b)·bff, 5 %)` after a change.
    fn adapt(&mut self, share: f64) {
        let changed = (share - self.last_share).abs() > STEADY;
        let factor = if changed { 1.0 + self.config.b } else { 1.0 - self.config.b };
        self.fraction = (self.fraction * factor).clamp(FRACTIONS.0, FRACTIONS.1);
        self.last_share = share;
        self.received = 0;
    }

    /// Queues reports when the fraction allows them.
    fn prepare(&mut self, paths: &Paths) {
        let heard = |path: &&Path| !path.is_closing() && path.receipt().largest().is_some();
        let count = paths.iter().filter(heard).count();
        if count == 0 || !self.is_due(count) {
            return;
        }
        let before = std::mem::take(&mut self.reported);
        let mut shares = 0.0;
        for path in paths.iter().filter(heard) {
            let now = path.receipt().counts();
            shares += share_since(before.get(&path.id()).copied().unwrap_or_default(), now);
            self.reported.insert(path.id(), now);
        }
        self.adapt(shares / count as f64);
        self.pending = paths.iter().filter(heard).map(Path::id).collect();
    }
}

impl Reports {
    pub(super) fn new(config: &Config) -> Self {
        let reporter = |config| Reporter {
            config,
            fraction: FIRST_FRACTION,
            received: 0,
            last_share: 1.0,
            reported: BTreeMap::new(),
            pending: Vec::new(),
        };
        Self(config.reports.map(|config| Box::new(reporter(config))))
    }

    #[inline]
    pub(super) fn on_received(&mut self, bytes: usize) {
        if let Some(reporter) = &mut self.0 {
            reporter.received += bytes as u64;
        }
    }

    /// Queues reports when the fraction allows them.
    #[inline]
    pub(super) fn prepare(&mut self, paths: &Paths) {
        if let Some(reporter) = &mut self.0 {
            reporter.prepare(paths);
        }
    }

    #[inline]
    pub(super) fn are_pending(&self) -> bool {
        self.0.as_ref().is_some_and(|reporter| !reporter.pending.is_empty())
    }

    /// The next report.
    pub(super) fn next_frame<P: Payload>(&mut self, flight: &Flight<P>) -> Option<Frame<P>> {
        let id = self.0.as_mut()?.pending.pop()?;
        let path = &flight.paths[flight.paths.place_of(id)?];
        Some(Frame::Report(Report {
            path: id,
            bytes: path.receipt().bytes(),
            packets: path.receipt().packets(),
            highest_fsn: Fsn(path.receipt().largest().unwrap_or(0)),
            highest_tsn: flight.streams.highest_received(),
        }))
    }
}

pub(super) fn handle_report<P: Payload>(flight: &mut Flight<P>, report: &Report) {
    let alpha = flight.config.reports.unwrap_or_default().alpha;
    let Some(index) = flight.paths.place_of(report.path) else { return };
    if flight.paths.edit(index).feedback_mut().on_report(report, alpha) {
        update_weights(&mut flight.paths);
    }
}

/// Of the packets sent since the last report, the share that was received.
fn share_since((received, sent): (u64, u64), now: (u64, u64)) -> f64 {
    let sent = now.1.saturating_sub(sent);
    if sent == 0 { 1.0 } else { now.0.saturating_sub(received) as f64 / sent as f64 }
}

/// `w_i ← w_i · R_i / R̄`, scaled to a mean of 1.
fn update_weights(paths: &mut Paths) {
    let count = paths.len() as f64;
    let mean = paths.iter().map(|path| path.feedback().reliability()).sum::<f64>() / count;
    for path in paths.edit_all() {
        let feedback = path.feedback_mut();
        feedback.set_weight(feedback.weight() * (feedback.reliability() / mean.max(f64::MIN_POSITIVE)));
    }
    let sum = paths.iter().map(|path| path.feedback().weight()).sum::<f64>();
    for path in paths.edit_all() {
        let feedback = path.feedback_mut();
        feedback.set_weight((feedback.weight() * count / sum).clamp(1e-3, 1e3));
    }
}
