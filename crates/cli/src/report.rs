//! What commands report with `--json`, as types: the names here are what other programs rely on.
//!
//! `send` and `receive` write one [`Event`] a line while they run. `bench` and `demo` write one document at
//! the end: a [`BenchReport`], a [`DemoReport`]. Rates are of payload, in 10⁶ bits a second; `t_s` and
//! `seconds` are seconds since the start of the test; losses and shares go from 0 to 1.

use anabranch_wire::{Rate, Span};
use serde::Serialize;

use crate::errors::Failure;
use crate::ui::progress::{PathLine, ProgressSnapshot};

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

/// A finished transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransferReport {
    /// Files written, or sent.
    pub files: u64,
    /// Bytes of content, those of earlier attempts included.
    pub bytes: u64,
    /// How long this attempt took.
    pub seconds: f64,
    /// Content moved in this attempt, a second.
    pub goodput_mbit_s: f64,
    /// Whether every byte was checked against the sender's hash.
    pub verified: bool,
}

/// What `anabranch bench client --json` writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// What was asked for.
    pub start: BenchStart,
    /// What was received, interval by interval, in order and without gaps.
    pub intervals: Vec<Interval>,
    /// The whole test.
    pub end: BenchEnd,
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
    /// The scheduler's name.
    pub scheduler: String,
    /// The congestion control's name.
    pub cc: String,
}

/// What was received between two moments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The end of the interval.
    pub t_s: f64,
    /// Its length.
    pub seconds: f64,
    /// Bytes that the receiving application got in it.
    pub bytes: u64,
    /// The same as a rate.
    pub goodput_mbit_s: f64,
    /// Every path at the end of the interval.
    pub paths: Vec<PathLine>,
}

/// A whole test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchEnd {
    /// Its length.
    pub seconds: f64,
    /// Bytes that the receiving application got.
    pub bytes: u64,
    /// The same as a rate.
    pub goodput_mbit_s: f64,
    /// The longest time in which the receiving application got nothing.
    pub longest_gap_ms: f64,
    /// Every path at the end.
    pub paths: Vec<PathLine>,
}

/// What `anabranch demo --json` writes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoReport {
    /// Size of the file.
    pub bytes: u64,
    /// What each path would carry alone, of payload.
    pub paths: Vec<DemoPath>,
    /// The fastest of them alone.
    pub best_single_mbit_s: f64,
    /// All of them together, once under way.
    pub multipath_mbit_s: f64,
    /// The sum of what the paths can carry, counted in payload.
    pub sum_mbit_s: f64,
    /// The longest silence at the receiver after the fastest path was cut.
    pub failover_gap_ms: f64,
    /// Whether both files arrived as they were sent.
    pub verified: bool,
}

/// One path of the demo.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DemoPath {
    /// Its name.
    pub path: String,
    /// The link's rate, headers included.
    pub link_mbit_s: f64,
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

/// Turns what a receiver counts into intervals.
///
/// Fed with snapshots (at least one an interval) it cuts an interval at the first snapshot at or past each
/// multiple of its length, so a late snapshot makes a longer interval, never a wrong rate.
pub struct Recorder {
    every: Span,
    cut_at: Span,
    last: ProgressSnapshot,
    intervals: Vec<Interval>,
}

impl Recorder {
    /// A recorder with intervals of length `every`, at least a millisecond; the test starts at `first`.
    #[must_use]
    pub fn new(every: Span, first: ProgressSnapshot) -> Self {
        let every = every.max(Span::from_millis(1));
        Self { every, cut_at: first.elapsed + every, last: first, intervals: Vec::new() }
    }

    /// Takes in a snapshot; gives the interval that it ended, if it did.
    pub fn record(&mut self, now: &ProgressSnapshot) -> Option<&Interval> {
        if now.elapsed < self.cut_at {
            return None;
        }
        while self.cut_at <= now.elapsed {
            self.cut_at += self.every;
        }
        self.cut(now);
        self.intervals.last()
    }

    /// Ends the test at `now`, with the longest silence that the receiver saw.
    #[must_use]
    pub fn finish(mut self, now: ProgressSnapshot, longest_gap: Span) -> (Vec<Interval>, BenchEnd) {
        if now.elapsed > self.last.elapsed {
            self.cut(&now);
        }
        let seconds = self.intervals.iter().map(|interval| interval.seconds).sum();
        let bytes = self.intervals.iter().map(|interval| interval.bytes).sum();
        let end = BenchEnd {
            seconds,
            bytes,
            goodput_mbit_s: mbit_s(bytes, Span::from_secs_f64(seconds)),
            longest_gap_ms: longest_gap.as_millis_f64(),
            paths: now.paths,
        };
        (self.intervals, end)
    }

    fn cut(&mut self, now: &ProgressSnapshot) {
        let lasted = now.elapsed.saturating_sub(self.last.elapsed);
        let bytes = now.bytes_moved().saturating_sub(self.last.bytes_moved());
        self.intervals.push(Interval {
            t_s: now.elapsed.as_secs_f64(),
            seconds: lasted.as_secs_f64(),
            bytes,
            goodput_mbit_s: mbit_s(bytes, lasted),
            paths: now.paths.clone(),
        });
        self.last = now.clone();
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
    use crate::ui::progress::PathState;

    fn at(millis: u64, bytes_done: u64) -> ProgressSnapshot {
        let path = PathLine {
            label: "wlan0".into(),
            rate_mbit_s: 8.0,
            rtt_ms: Some(10.0),
            loss: Some(0.0),
            share: 1.0,
            state: PathState::Active,
        };
        ProgressSnapshot {
            elapsed: Span::from_millis(millis),
            bytes_done,
            bytes_resumed: 0,
            bytes_total: None,
            paths: vec![path],
        }
    }

    #[test]
    fn intervals_cover_the_test_without_gap_or_overlap() {
        let mut recorder = Recorder::new(Span::from_secs(1), at(0, 0));
        for step in 1..=25 {
            recorder.record(&at(100 * step, 100_000 * step));
        }
        let (intervals, end) = recorder.finish(at(2_500, 2_500_000), Span::from_millis(120));
        assert_eq!(intervals.iter().map(|i| i.t_s).collect::<Vec<_>>(), [1.0, 2.0, 2.5]);
        assert_eq!(intervals.iter().map(|i| i.bytes).collect::<Vec<_>>(), [1_000_000, 1_000_000, 500_000]);
        assert!(intervals.iter().all(|i| (i.goodput_mbit_s - 8.0).abs() < 1e-9));
        assert_eq!((end.bytes, end.seconds, end.goodput_mbit_s), (2_500_000, 2.5, 8.0));
        assert_eq!(end.longest_gap_ms, 120.0);
    }

    #[test]
    fn a_late_snapshot_makes_a_longer_interval_and_the_next_one_is_on_time_again() {
        let mut recorder = Recorder::new(Span::from_secs(1), at(0, 0));
        assert!(recorder.record(&at(900, 900_000)).is_none());
        let late = recorder.record(&at(3_400, 3_400_000)).unwrap().clone();
        assert_eq!((late.seconds, late.goodput_mbit_s), (3.4, 8.0));
        assert!(recorder.record(&at(3_900, 3_900_000)).is_none());
        assert_eq!(recorder.record(&at(4_000, 4_000_000)).unwrap().seconds, 0.6);
    }

    #[test]
    fn bytes_before_the_start_do_not_count() {
        let mut recorder = Recorder::new(Span::from_secs(1), at(500, 7_000_000));
        assert_eq!(recorder.record(&at(1_500, 8_000_000)).unwrap().bytes, 1_000_000);
        let (intervals, end) = recorder.finish(at(1_500, 8_000_000), Span::ZERO);
        assert_eq!((intervals.len(), end.bytes), (1, 1_000_000));
    }

    #[test]
    fn the_bench_report_has_the_keys_that_others_rely_on() {
        let start = BenchStart {
            version: "0",
            server: "ab1".into(),
            reverse: false,
            streams: 1,
            scheduler: "earliest-arrival".into(),
            cc: "cubic".into(),
        };
        let mut recorder = Recorder::new(Span::from_secs(1), at(0, 0));
        recorder.record(&at(1_000, 1_000_000));
        let (intervals, end) = recorder.finish(at(1_000, 1_000_000), Span::ZERO);
        let json = serde_json::to_value(BenchReport { start, intervals, end }).unwrap();
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
            paths: vec![DemoPath { path: "fast".into(), link_mbit_s: 50.0, rtt_ms: 10.0 }],
            best_single_mbit_s: 48.0,
            multipath_mbit_s: 95.0,
            sum_mbit_s: 96.0,
            failover_gap_ms: 80.0,
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
        let done = TransferReport { files: 1, bytes: 2, seconds: 1.0, goodput_mbit_s: 3.0, verified: true };
        let json = serde_json::to_value(Event::Done(done)).unwrap();
        assert_eq!((&json["event"], &json["bytes"]), (&"done".into(), &2.into()));
    }
}
