//! What commands report with `--json`, as types: the names here are what other programs rely on.
//!
//! `send` and `receive` write one [`Event`] a line while they run. `bench` and `demo` write one document at
//! the end: a [`BenchReport`], a [`DemoReport`]. Rates are of payload, in 10⁶ bits a second; `t_s` and
//! `seconds` are seconds since the start of the test; losses and shares go from 0 to 1.

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_transfer::{Offer, Summary};
use anabranch_wire::{Rate, Span};
use serde::Serialize;

use crate::errors::Failure;
use crate::ui::progress::{PathLine, PathState};

/// One line of a running command.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event<'a> {
    /// The share is open: whoever has this ticket can fetch it.
    Ticket {
        /// What to give to `anabranch receive`.
        ticket: &'a str,
        /// Seconds until it expires.
        expires_s: f64,
    },
    /// What the sender offers; nothing was written yet.
    Offer {
        /// Files in it.
        files: u64,
        /// Bytes of the files whose length is known.
        bytes: u64,
        /// How many files have no known length.
        endless: u64,
        /// The names at the top level, hidden ones first.
        names: Vec<OfferedName>,
        /// How many more there are.
        more_names: u64,
    },
    /// How it goes.
    Progress {
        /// Seconds since the start.
        t_s: f64,
        /// Bytes that are safe.
        bytes: u64,
        /// Bytes in all; null while unknown.
        bytes_total: Option<u64>,
        /// Smoothed rate of all paths.
        rate_mbit_s: f64,
        /// Seconds left; null while unknown.
        eta_s: Option<f64>,
        /// Seconds since the last byte came, once those are many; null while bytes come.
        stalled_s: Option<f64>,
        /// True while every path is lost and the other end is looked for again.
        waiting: bool,
        /// Every path.
        paths: &'a [PathLine],
    },
    /// Something happened that is not an error.
    Note {
        /// What.
        message: &'a str,
    },
    /// All of it arrived and was verified.
    Done(TransferReport),
    /// It failed.
    Error(&'a Failure),
}

/// One name at the top level of an offer, in the sender's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfferedName {
    /// The name, with invisible characters escaped.
    pub name: String,
    /// Whether it is a directory.
    pub directory: bool,
    /// Files in it, or 1.
    pub files: u64,
    /// The bytes of those whose length is known.
    pub bytes: u64,
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
        }
    }
}

/// A finished transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferReport {
    /// Files written, or sent.
    pub files: u64,
    /// Bytes of content, those of earlier attempts included.
    pub bytes: u64,
    /// Those of earlier attempts.
    pub bytes_resumed: u64,
    /// Things of the share that are never sent: sockets, links that lead out of it.
    pub left_out: u64,
    /// Files that the sender cannot read.
    pub missed: u64,
    /// How long this attempt took.
    pub seconds: f64,
    /// Content moved in this attempt, a second.
    pub goodput_mbit_s: f64,
    /// Whether every byte was checked against the sender's hash.
    pub verified: bool,
}

impl TransferReport {
    /// What was transferred, and how long it took.
    #[must_use]
    pub fn new(summary: &Summary, took: Duration) -> Self {
        let seconds = took.as_secs_f64();
        Self {
            files: summary.files,
            bytes: summary.bytes,
            bytes_resumed: summary.resumed,
            left_out: summary.left_out,
            missed: summary.missed,
            seconds,
            goodput_mbit_s: mbit_s(
                summary.bytes.saturating_sub(summary.resumed),
                Span::from_secs_f64(seconds),
            ),
            verified: true,
        }
    }
}

/// What `anabranch bench client --json` writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// What was asked for.
    pub start: BenchStart,
    /// What was received, interval by interval, in order and without gaps.
    pub intervals: Vec<Interval>,
    /// The whole test.
    pub end: Measured,
    /// Relays that were to be used and never gave a path.
    pub without_path: Vec<WithoutPath>,
}

/// A relay, or several one behind the other, through which there was no path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WithoutPath {
    /// As it was named: `KEY@ADDRESS`, several joined by `+`.
    pub relay: String,
    /// Why, for people.
    pub why: String,
}

/// What a test was asked to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchStart {
    /// This program's version.
    pub version: &'static str,
    /// The server's public key.
    pub server: String,
    /// True when the server sends.
    pub reverse: bool,
    /// Streams side by side.
    pub streams: u32,
    /// The scheduler's name; null when the server sends and so decides.
    pub scheduler: Option<String>,
    /// The congestion control's name, in the same way.
    pub cc: Option<String>,
}

/// What was received between two moments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The end of the interval.
    pub t_s: f64,
    /// What was received; each path as it was at the end, with the bytes that came over it in the interval; one
    /// that carried data before and is gone stays, as `closed`. A
    /// silence that lasts over the interval's end counts in full in the next.
    #[serde(flatten)]
    pub measured: Measured,
}

/// What was received in some time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// How long that was.
    pub seconds: f64,
    /// Bytes that the receiving application got.
    pub bytes: u64,
    /// The same as a rate.
    pub goodput_mbit_s: f64,
    /// The longest time in which it got nothing.
    pub longest_gap_ms: f64,
    /// Every pair of addresses that was used, with its bytes: those of all the paths that were opened between the
    /// two, one after the other, when their link came and went.
    pub paths: Vec<BenchPath>,
}

/// One path of a test, or several one after the other between the same addresses: then the newest that lives gives
/// all but the bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchPath {
    /// The client's interface, or its address where it has none.
    pub path: String,
    /// The client's address.
    pub local: Option<SocketAddr>,
    /// The server's.
    pub remote: SocketAddr,
    /// Bytes of data that came over it, those that wait for earlier ones included.
    pub bytes: u64,
    /// The same as a rate.
    pub rate_mbit_s: f64,
    /// Smoothed round-trip time as the client sees it; null before the first sample.
    pub rtt_ms: Option<f64>,
    /// Share of the client's packets lost since the path was opened; as far as missed here when the server sends.
    pub loss: Option<f64>,
    /// Whether it carries data; `closed` when it was given up and is not back.
    pub state: PathState,
    /// Why it carries nothing, or why it does though better ones are meant to; null while it is used as any other.
    pub why: Option<String>,
}

/// What `anabranch demo --json` writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoReport {
    /// Size of the file.
    pub bytes: u64,
    /// The paths, the fastest first.
    pub paths: Vec<DemoPath>,
    /// What came over the fastest of them alone, in the steady state: from a quarter to 95 % of the file.
    pub best_single_mbit_s: f64,
    /// What came over all of them together, in the steady state.
    pub multipath_mbit_s: f64,
    /// The sum of the paths' `payload_mbit_s`.
    pub sum_mbit_s: f64,
    /// The longest silence at the receiver after the fastest path was cut.
    pub failover_gap_ms: f64,
    /// What it may be: three times the longest smoothed round-trip time at the cut, at least 200 ms.
    pub failover_bound_ms: f64,
    /// Whether all files arrived as they were sent.
    pub verified: bool,
}

/// One path of the demo.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoPath {
    /// Its name.
    pub path: String,
    /// The link's rate, IP and UDP headers included.
    pub link_mbit_s: f64,
    /// What of it can be bytes of a file.
    pub payload_mbit_s: f64,
    /// Its round-trip time.
    pub rtt_ms: f64,
}

impl DemoReport {
    /// How much of the sum the transfer reached, 0 to 1.
    #[must_use]
    pub fn share_of_sum(&self) -> f64 {
        if self.sum_mbit_s > 0.0 { self.multipath_mbit_s / self.sum_mbit_s } else { 0.0 }
    }
}

/// The rate at which `bytes` passed in `span`, in 10⁶ bits a second.
#[must_use]
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
        assert_eq!((&json["event"], &json["bytes"]), (&"done".into(), &2.into()));
    }
}
