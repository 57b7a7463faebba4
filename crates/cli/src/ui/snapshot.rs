//! The state of a transfer, as every display shows it.

use anabranch_wire::{Rate, Span};
use serde::Serialize;

/// The state of a transfer at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressSnapshot {
    /// Time since the transfer began.
    pub elapsed: Span,
    /// Bytes of content that are safe, including those of an earlier attempt.
    pub bytes_done: u64,
    /// Bytes from an earlier attempt: they count as done but not toward the rate.
    pub bytes_resumed: u64,
    /// Bytes of content that crossed the paths in this attempt, those of an unfinished block included.
    pub bytes_moved: u64,
    /// Bytes of content in all; `None` while unknown (standard input).
    pub bytes_total: Option<u64>,
    /// Whether every path is lost and the command is looking for the other end again.
    pub waiting: bool,
    /// The session's paths, in the order to show them.
    pub paths: Vec<PathLine>,
    /// The receivers of a sender; empty for other commands.
    pub receivers: Vec<ReceiverLine>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ReceiverLine {
    /// Its number, by order of arrival from 1.
    pub number: u64,
    pub address: String,
    /// Its transfer.
    pub total: Total,
}

impl ReceiverLine {
    /// Its number and address.
    pub fn label(&self) -> String {
        format!("{}: {}", self.number, self.address)
    }
}

impl ProgressSnapshot {
    /// The receivers to show one by one: all, if there are several.
    pub fn several_receivers(&self) -> &[ReceiverLine] {
        if self.receivers.len() > 1 { &self.receivers } else { &[] }
    }
}

/// A path, as the display shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathLine {
    /// Its name for people: the interface, the relay, the remote address.
    #[serde(rename = "path")]
    pub label: String,
    /// Payload rate in 10⁶ bits a second.
    pub rate_mbit_s: f64,
    /// Smoothed round-trip time in milliseconds; `None` before the first sample.
    pub rtt_ms: Option<f64>,
    /// Share of packets lost, 0 to 1; the receiver counts gaps. `None` before the first packet.
    pub loss: Option<f64>,
    /// This path's share of the total rate, 0 to 1; `None` while no path has a rate.
    pub share: Option<f64>,
    /// Whether it carries data.
    pub state: PathState,
    /// Why the path is idle, or why it is used despite being a backup; `None` in normal use.
    pub why: Option<String>,
}

/// Whether a path carries data, in the engine's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathState {
    /// Challenged, not yet answered.
    Validating,
    /// Carries data.
    Active,
    /// Its acknowledgements are overdue, so its data is also sent over other paths.
    Suspect,
    /// Taken out of use and probed (mTCP §3.4.2 [M12]).
    Failed,
    /// Given up; packets in flight still count.
    Closing,
    /// A backup for when other paths fail.
    Standby,
    /// Closed; only the report of a whole test still lists it.
    Closed,
}

/// The whole transfer, as shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// Bytes that are safe.
    pub bytes_done: u64,
    /// Bytes in all, if known.
    pub bytes_total: Option<u64>,
    /// The rate of the last seconds; `None` before the first measurement and while nothing arrives.
    pub rate: Option<Rate>,
    /// The time left, or why it is unknown.
    pub outlook: Outlook,
}

/// How long a transfer will still take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outlook {
    /// Unknown: it has just begun, its length is unknown, or it is complete.
    Unknown,
    /// Seconds left at the present rate.
    Left(f64),
    /// Nothing was transferred yet: the data of an earlier attempt is being compared.
    Comparing,
    /// No byte has arrived for this many seconds.
    Stalled(f64),
    /// Every path is lost, and the command is looking for the other end again.
    Waiting,
}

impl Total {
    /// The share that is done, 0 to 1; 1 for an empty transfer. `None` while the length is unknown.
    pub fn fraction(&self) -> Option<f64> {
        let total = self.bytes_total?;
        Some(if total == 0 { 1.0 } else { (self.bytes_done as f64 / total as f64).min(1.0) })
    }
}

impl Outlook {
    /// Seconds left, if they are known.
    pub fn eta_s(self) -> Option<f64> {
        if let Self::Left(seconds) = self { Some(seconds) } else { None }
    }

    /// Seconds since the last byte, if that is long ago.
    pub fn stalled_s(self) -> Option<f64> {
        if let Self::Stalled(seconds) = self { Some(seconds) } else { None }
    }
}
