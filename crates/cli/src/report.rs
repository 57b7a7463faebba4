//! The types of `--json` output; other programs rely on their names.
//!
//! Transfers write one [`Event`] per line while they run (`docs/reference/events.md`). `bench` and `demo` write one
//! document at the end: a [`BenchReport`] or a [`DemoReport`]. Rates count payload, in 10⁶ bits a second; `t_s` and `seconds` are seconds
//! since the start of the test; losses and shares range from 0 to 1.

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_transfer::{Offer, Summary};
use anabranch_wire::{Rate, Span};
use serde::Serialize;

use crate::errors::Failure;
use crate::ui::snapshot::{PathLine, PathState, ReceiverLine};

/// One line of output of a running command.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event<'a> {
    /// The share is open: whoever has this ticket can fetch it.
    Ticket {
        /// The ticket for `anabranch receive`.
        ticket: &'a str,
        /// Seconds until it expires.
        expires_s: f64,
    },
    /// The sender's offer; nothing has been written yet.
    Offer {
        /// Number of files.
        files: u64,
        /// Total size in bytes of the files with a known length.
        bytes: u64,
        /// Number of files without a known length.
        endless: u64,
        /// The names at the top level, hidden ones first.
        names: Vec<OfferedName>,
        /// Number of names left out.
        more_names: u64,
        /// The room that the files lack; null if all fit.
        shortage: Option<Shortage>,
    },
    /// The progress so far.
    Progress {
        /// Seconds since the start.
        t_s: f64,
        /// Bytes received, verified and written.
        bytes: u64,
        /// Bytes in all; null while unknown.
        bytes_total: Option<u64>,
        /// Smoothed rate of all paths.
        rate_mbit_s: f64,
        /// Estimated seconds left; null while unknown.
        eta_s: Option<f64>,
        /// Seconds since the last byte arrived, if that is long ago; null while bytes arrive.
        stalled_s: Option<f64>,
        /// True while every path is lost and the command is looking for the other end again.
        waiting: bool,
        paths: &'a [PathLine],
        /// The receivers of a sender.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        receivers: Vec<ReceiverReport<'a>>,
    },
    /// A notice that is not an error.
    Note {
        /// Its text.
        message: &'a str,
    },
    /// All data arrived and was verified.
    Done(TransferReport),
    /// The command failed.
    Error(&'a Failure),
}

/// The progress of one receiver.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReceiverReport<'a> {
    /// Its number, by order of arrival from 1.
    pub receiver: u64,
    pub address: &'a str,
    pub bytes: u64,
    /// Bytes in all; null while unknown.
    pub bytes_total: Option<u64>,
    /// Its rate; 0 while unknown.
    pub rate_mbit_s: f64,
    /// Estimated seconds left; null while unknown.
    pub eta_s: Option<f64>,
    /// Seconds since its last byte, if that is long ago.
    pub stalled_s: Option<f64>,
}

impl<'a> From<&'a ReceiverLine> for ReceiverReport<'a> {
    fn from(line: &'a ReceiverLine) -> Self {
        let total = &line.total;
        Self {
            receiver: line.number,
            address: &line.address,
            bytes: total.bytes_done,
            bytes_total: total.bytes_total,
            rate_mbit_s: total.rate.map_or(0.0, Rate::as_mbit),
            eta_s: total.outlook.eta_s(),
            stalled_s: total.outlook.stalled_s(),
        }
    }
}

/// The room that the files of an offer lack on the target's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shortage {
    /// Number of files that do not fit.
    pub files: u64,
    /// Bytes that all files together still need.
    pub needed: u64,
    /// Bytes free.
    pub free: u64,
    /// Number of further files that fit only if they have not changed, or if holes take no room.
    pub unsure: u64,
}

/// One name at the top level of an offer, as the sender gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfferedName {
    /// The name, with invisible characters escaped.
    pub name: String,
    pub directory: bool,
    /// Number of files in it, or 1.
    pub files: u64,
    /// Total size in bytes of those with a known length.
    pub bytes: u64,
}

impl From<anabranch_transfer::Shortage> for Shortage {
    fn from(found: anabranch_transfer::Shortage) -> Self {
        Self { files: found.files, needed: found.needed, free: found.free, unsure: found.unsure }
    }
}

impl From<&Offer> for Event<'_> {
    fn from(offer: &Offer) -> Self {
        let name = |offered: &anabranch_transfer::OfferedName| OfferedName {
            name: offered.name.to_string(),
            directory: offered.is_directory,
            files: offered.files,
            bytes: offered.bytes,
        };
        Self::Offer {
            files: offer.files,
            bytes: offer.bytes,
            endless: offer.endless,
            names: offer.names.iter().map(name).collect(),
            more_names: offer.more_names,
            shortage: offer.shortage.map(Shortage::from),
        }
    }
}

/// A finished transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferReport {
    /// Files written, or sent.
    pub files: u64,
    /// Files that the receiver had already.
    pub skipped: u64,
    /// Bytes of content, including those of earlier attempts.
    pub bytes: u64,
    /// Bytes from earlier attempts.
    pub bytes_resumed: u64,
    /// Those of the files that are hard links of others.
    pub hard_links: u64,
    /// Entries of the share that are never sent: sockets, links that lead out of it.
    pub left_out: u64,
    /// Entries that a copy removed because the source does not have them.
    pub removed: u64,
    /// Links that a copy made, and kept files whose mode or time it changed.
    pub updated: u64,
    /// Files that the sender cannot read.
    pub missed: u64,
    /// How long this attempt took.
    pub seconds: f64,
    /// Rate of content moved in this attempt.
    pub goodput_mbit_s: f64,
    /// Whether every file, also of those that were there already, was checked against the sender's hash.
    pub verified: bool,
}

impl TransferReport {
    /// The amount and duration of the transfer.
    pub fn new(summary: &Summary, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        Self {
            files: summary.files,
            skipped: summary.skipped,
            bytes: summary.bytes,
            bytes_resumed: summary.resumed,
            hard_links: summary.hard_links,
            left_out: summary.left_out,
            removed: summary.removed,
            updated: summary.updated,
            missed: summary.missed,
            seconds,
            goodput_mbit_s: mbit_s(
                summary.moved.min(summary.bytes.saturating_sub(summary.resumed)),
                Span::from_secs_f64(seconds),
            ),
            verified: summary.unchecked == 0,
        }
    }
}

/// The output of `anabranch bench client --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// The requested test.
    pub start: BenchStart,
    /// Amounts received in each interval, in order and without gaps.
    pub intervals: Vec<Interval>,
    /// The whole test.
    pub end: Measured,
    /// Requested relays through which no path opened.
    pub without_path: Vec<WithoutPath>,
}

/// A relay, or a chain of relays, through which no path opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WithoutPath {
    /// Its name in the request: `KEY@ADDRESS`, with chained relays joined by `+`.
    pub relay: String,
    /// The reason, as text.
    pub why: String,
}

/// The parameters of a test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchStart {
    /// This program's version.
    pub version: &'static str,
    /// The server's public key.
    pub server: String,
    /// Whether the server sends.
    pub reverse: bool,
    /// Number of parallel streams.
    pub streams: u32,
    /// The scheduler's name; null when the server sends and chooses it.
    pub scheduler: Option<String>,
    /// The congestion control's name; null when the server sends and chooses it.
    pub cc: Option<String>,
}

/// The data received between two moments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The end of the interval.
    pub t_s: f64,
    /// The data received. Each path has its state at the end of the interval and its bytes within the interval; a path
    /// that carried data before and is gone remains, as `closed`. A silence that continues past the end of the
    /// interval counts in full in the next.
    #[serde(flatten)]
    pub measured: Measured,
}

/// The data received in a period.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Length of the period.
    pub seconds: f64,
    /// In an interval, new bytes received over all paths; in the whole test, bytes delivered to the receiving application.
    pub bytes: u64,
    /// The corresponding rate.
    pub goodput_mbit_s: f64,
    /// The longest time without a delivery to the application.
    pub longest_gap_ms: f64,
    /// Every pair of addresses in use, with its bytes: the sum over all paths opened between the two as their link
    /// came and went.
    pub paths: Vec<BenchPath>,
}

/// A path of a test, or several successive ones between the same addresses: bytes are summed, and all other values
/// come from the newest live path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchPath {
    /// The client's interface, or its address if the interface is unknown.
    pub path: String,
    /// The client's address.
    pub local: Option<SocketAddr>,
    /// The server's address.
    pub remote: SocketAddr,
    /// Bytes of data received over it, including those that wait for earlier ones.
    pub bytes: u64,
    /// The corresponding rate.
    pub rate_mbit_s: f64,
    /// Smoothed round-trip time measured by the client; null before the first sample.
    pub rtt_ms: Option<f64>,
    /// Share of the client's packets lost since the path was opened; when the server sends, the share missing at the
    /// client.
    pub loss: Option<f64>,
    /// Whether it carries data; `closed` if it was given up and has not returned.
    pub state: PathState,
    /// Why it is idle, or why it is used although better paths are preferred; null in normal use.
    pub why: Option<String>,
}

/// The output of `anabranch demo --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoReport {
    /// Size of the file.
    pub bytes: u64,
    /// The paths, the fastest first.
    pub paths: Vec<DemoPath>,
    /// Rate over the fastest path alone, in the steady state: from a quarter to 95 % of the file.
    pub best_single_mbit_s: f64,
    /// Rate over all paths together, in the steady state.
    pub multipath_mbit_s: f64,
    /// The sum of the paths' `payload_mbit_s`.
    pub sum_mbit_s: f64,
    /// The longest silence at the receiver after the fastest path was cut.
    pub failover_gap_ms: f64,
    /// The longest allowed silence: three times the longest smoothed round-trip time at the cut, at least 200 ms.
    pub failover_bound_ms: f64,
    /// Whether all received files equal the originals.
    pub verified: bool,
}

/// One path of the demo.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoPath {
    /// Its name.
    pub path: String,
    /// The link's rate, IP and UDP headers included.
    pub link_mbit_s: f64,
    /// The part of that rate available for bytes of a file.
    pub payload_mbit_s: f64,
    /// Its round-trip time.
    pub rtt_ms: f64,
}

impl DemoReport {
    /// How much of the sum the transfer reached, 0 to 1.
    pub fn share_of_sum(&self) -> f64 {
        if self.sum_mbit_s > 0.0 { self.multipath_mbit_s / self.sum_mbit_s } else { 0.0 }
    }
}

/// The rate of `bytes` in `span`, in 10⁶ bits a second.
pub fn mbit_s(bytes: u64, span: Span) -> f64 {
    Rate::from_bytes_in(bytes, span).as_mbit()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_bench_report_has_the_keys_that_others_rely_on() {
        let start = BenchStart {
            version: "0",
            server: "ab1".into(),
            reverse: false,
            streams: 1,
            scheduler: Some("earliest-arrival".into()),
            cc: Some("cubic".into()),
        };
        let path = BenchPath {
            path: "wlan0".into(),
            local: Some("10.0.0.7:5".parse().unwrap()),
            remote: "203.0.113.9:4433".parse().unwrap(),
            bytes: 1_000_000,
            rate_mbit_s: 8.0,
            rtt_ms: Some(10.0),
            loss: Some(0.0),
            state: PathState::Active,
            why: None,
        };
        let end = Measured {
            seconds: 1.0,
            bytes: 1_000_000,
            goodput_mbit_s: 8.0,
            longest_gap_ms: 1.0,
            paths: vec![path],
        };
        let interval = Interval { t_s: 1.0, measured: end.clone() };
        let intervals = vec![interval];
        let without_path = vec![WithoutPath { relay: "ab1@192.0.2.1:4600".into(), why: "gone".into() }];
        let json = serde_json::to_value(BenchReport { start, intervals, end, without_path }).unwrap();
        assert_eq!(json["without_path"][0]["why"], "gone");
        assert_eq!(json["end"]["goodput_mbit_s"], 8.0);
        assert_eq!(json["intervals"][0]["t_s"], 1.0);
        assert_eq!(json["intervals"][0]["bytes"], 1_000_000);
        assert_eq!(json["intervals"][0]["paths"][0]["path"], "wlan0");
        assert_eq!(json["intervals"][0]["paths"][0]["rtt_ms"], 10.0);
    }

    #[test]
    fn the_demo_report_has_the_keys_that_others_rely_on() {
        let report = DemoReport {
            bytes: 33_554_432,
            paths: vec![DemoPath {
                path: "fast".into(),
                link_mbit_s: 50.0,
                payload_mbit_s: 47.7,
                rtt_ms: 10.0,
            }],
            best_single_mbit_s: 48.0,
            multipath_mbit_s: 95.0,
            sum_mbit_s: 96.0,
            failover_gap_ms: 80.0,
            failover_bound_ms: 200.0,
            verified: true,
        };
        assert!((report.share_of_sum() - 0.99).abs() < 0.01);
        let json = serde_json::to_value(report).unwrap();
        for key in ["best_single_mbit_s", "multipath_mbit_s", "sum_mbit_s", "failover_gap_ms"] {
            assert!(json[key].is_f64(), "{key}");
        }
        assert_eq!(json["verified"], true);
    }

    #[test]
    fn every_event_names_itself() {
        let failure = Failure::local("no space left").hint("free some");
        let events = [
            (serde_json::to_value(Event::Ticket { ticket: "t", expires_s: 60.0 }), "ticket"),
            (serde_json::to_value(Event::Note { message: "m" }), "note"),
            (serde_json::to_value(Event::Error(&failure)), "error"),
        ];
        for (event, name) in events {
            assert_eq!(event.unwrap()["event"], name);
        }
        let done = TransferReport::new(
            &Summary { files: 1, bytes: 2, ..Summary::default() },
            Duration::from_secs(1),
        );
        let json = serde_json::to_value(Event::Done(done)).unwrap();
        assert_eq!(
            (&json["event"], &json["bytes"], &json["verified"]),
            (&"done".into(), &2.into(), &true.into())
        );
        let kept = Summary { skipped: 1, unchecked: 1, ..Summary::default() };
        assert!(!TransferReport::new(&kept, Duration::from_secs(1)).verified);
    }
}
