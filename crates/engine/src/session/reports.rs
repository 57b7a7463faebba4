//! Receiver reports and what the sender learns from them (MPMTP-AR §3.5 [R6]).
//!
//! The receiver spends a fraction of what it receives on reports; the fraction falls while the paths'
//! reliability stays the same and rises when it changes. After every third report of a path the sender
//! updates its reliability `R ← α·R + (1−α)·received/sent` and the load weights `w ← w·R/R̄`.

use std::collections::BTreeMap;

use anabranch_wire::{Frame, Fsn, PathId, Payload, Report};

use super::Session;
use crate::config::{Config, ReportConfig};
use crate::path::{PathState, ReportMemory};

/// Bytes that a report takes, roughly, its share of a packet included.
const REPORT_BYTES: f64 = 48.0;
const FRACTIONS: (f64, f64) = (0.01, 0.05);
const FIRST_FRACTION: f64 = 0.025;
/// A change of reliability up to this counts as none.
const STEADY: f64 = 0.05;
/// What a peer can bring a path's reliability down to: weights stay numbers.
const LEAST_RELIABILITY: f64 = 1e-3;
/// Reports of a path between two updates.
const REPORTS_AN_UPDATE: u32 = 3;

/// Decides when to report.
#[derive(Debug)]
pub(super) struct Reporter {
    config: ReportConfig,
    fraction: f64,
    received: u64,
    last_share: f64,
    /// Packets of each path at its last report: received, and sent as their numbers tell.
    told: BTreeMap<PathId, (u64, u64)>,
    /// Paths whose report is to be sent.
    pending: Vec<PathId>,
}

impl Reporter {
    /// One for a session that is to report.
    pub(super) fn new(config: &Config) -> Option<Box<Self>> {
        let reporter = |config| Self {
            config,
            fraction: FIRST_FRACTION,
            received: 0,
            last_share: 1.0,
            told: BTreeMap::new(),
            pending: Vec::new(),
        };
        config.reports.map(|config| Box::new(reporter(config)))
    }

    pub(super) fn on_received(&mut self, bytes: u64) {
        self.received += bytes;
    }

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
}

/// What share of the packets sent since the last report was received.
fn share_since((received, sent): (u64, u64), now: (u64, u64)) -> f64 {
    let sent = now.1.saturating_sub(sent);
    if sent == 0 { 1.0 } else { now.0.saturating_sub(received) as f64 / sent as f64 }
}

impl<P: Payload> Session<P> {
    /// Puts reports in line when the fraction allows for them.
    pub(super) fn prepare_reports(&mut self) {
        let Some(reporter) = &mut self.reporter else { return };
        let heard =
            |path: &&crate::path::Path| path.state != PathState::Closing && path.receipt.largest().is_some();
        let count = self.paths.iter().filter(heard).count();
        if count == 0 || !reporter.is_due(count) {
            return;
        }
        let told = std::mem::take(&mut reporter.told);
        let mut shares = 0.0;
        for path in self.paths.iter().filter(heard) {
            let now = path.receipt.counts();
            shares += share_since(told.get(&path.id).copied().unwrap_or_default(), now);
            reporter.told.insert(path.id, now);
        }
        reporter.adapt(shares / count as f64);
        reporter.pending = self.paths.iter().filter(heard).map(|path| path.id).collect();
    }

    pub(super) fn has_reports(&self) -> bool {
        self.reporter.as_ref().is_some_and(|reporter| !reporter.pending.is_empty())
    }

    /// The next report in line.
    pub(super) fn next_report(&mut self) -> Option<Frame<P>> {
        let id = self.reporter.as_mut()?.pending.pop()?;
        let path = self.path(id)?;
        Some(Frame::Report(Report {
            path: path.id,
            bytes: path.receipt.bytes,
            packets: path.receipt.packets,
            highest_fsn: Fsn(path.receipt.largest().unwrap_or(0)),
            highest_tsn: self.streams.highest_received(),
        }))
    }

    pub(super) fn handle_report(&mut self, report: &Report) {
        let alpha = self.config.reports.unwrap_or_default().alpha;
        let Some(index) = self.path_index(report.path) else { return };
        let path = &mut self.paths[index];
        let known = path.report;
        path.report.count += 1;
        if path.report.count < REPORTS_AN_UPDATE {
            return;
        }
        let sent = report.highest_fsn.0.saturating_add(1).saturating_sub(known.sent);
        let received = report.packets.saturating_sub(known.packets);
        path.report =
            ReportMemory { packets: report.packets, sent: report.highest_fsn.0.saturating_add(1), count: 0 };
        if sent == 0 {
            return;
        }
        let share = (received as f64 / sent as f64).min(1.0);
        path.reliability = (alpha * path.reliability + (1.0 - alpha) * share).max(LEAST_RELIABILITY);
        self.update_weights();
    }

    /// `w_i ← w_i · R_i / R̄`, normalised to a mean of 1.
    fn update_weights(&mut self) {
        let count = self.paths.len() as f64;
        let mean = self.paths.iter().map(|path| path.reliability).sum::<f64>() / count;
        for path in &mut self.paths {
            path.weight *= path.reliability / mean.max(f64::MIN_POSITIVE);
        }
        let sum = self.paths.iter().map(|path| path.weight).sum::<f64>();
        for path in &mut self.paths {
            path.weight = (path.weight * count / sum).clamp(1e-3, 1e3);
        }
    }
}
