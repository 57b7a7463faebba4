//! Turns what a receiver counts into intervals, with what the client sees of each path.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anabranch_engine::PathInfo;
use anabranch_net::Session;
use anabranch_wire::Span;

use super::protocol::{PathBytes, Sample};
use crate::node;
use crate::report::{BenchPath, Interval, Measured, mbit_s};
use crate::ui::paths::{Direction, loss, rtt_ms, state};

/// A path as the client sees it.
#[derive(Clone, Debug)]
pub struct SeenPath {
    info: PathInfo,
    local: Option<SocketAddr>,
    label: String,
}

/// The paths of a session now.
#[must_use]
pub fn seen_paths(session: &Session) -> Vec<SeenPath> {
    let seen = |info: PathInfo| {
        let label = node::local_name(session, &info.route).unwrap_or_else(|| info.id.to_string());
        SeenPath { label, local: session.local_address(&info.route), info }
    };
    session.paths().into_iter().map(seen).collect()
}

/// Takes samples and makes intervals of them.
///
/// An interval lasts from one sample to the next, however late that one is: a late sample makes a longer
/// interval, never a wrong rate.
pub struct Recorder {
    /// The client sends: it knows what is lost.
    sending: bool,
    last: Sample,
    /// Every path that was seen, as it was then, with its bytes so far.
    seen: BTreeMap<u32, (SeenPath, u64)>,
    longest_gap: Span,
    intervals: Vec<Interval>,
}

impl Recorder {
    /// A recorder for a test in which the client is `sending`.
    #[must_use]
    pub fn new(sending: bool) -> Self {
        Self {
            sending,
            last: Sample::default(),
            seen: BTreeMap::new(),
            longest_gap: Span::ZERO,
            intervals: Vec::new(),
        }
    }

    /// Takes a sample and the client's view of the paths; gives the interval that it ends, if time has passed.
    pub fn record(&mut self, sample: Sample, seen: Vec<SeenPath>) -> Option<&Interval> {
        let lasted = Span::from_micros(sample.elapsed_us.saturating_sub(self.last.elapsed_us));
        if lasted.is_zero() {
            return None;
        }
        let gap = Span::from_micros(sample.gap_us);
        self.longest_gap = self.longest_gap.max(gap);
        let bytes = sample.bytes.saturating_sub(self.last.bytes);
        let paths = self.paths(&sample.paths, seen, lasted);
        self.intervals.push(Interval {
            t_s: Span::from_micros(sample.elapsed_us).as_secs_f64(),
            measured: measured(lasted, bytes, gap, paths),
        });
        self.last = sample;
        self.intervals.last()
    }

    /// Ends the test.
    #[must_use]
    pub fn finish(self) -> (Vec<Interval>, Measured) {
        let lasted = Span::from_micros(self.last.elapsed_us);
        let each = self.seen.values().filter(|(_, bytes)| *bytes > 0);
        let paths = each.map(|(path, bytes)| self.path(path, *bytes, lasted)).collect();
        let end = measured(lasted, self.last.bytes, self.longest_gap, paths);
        (self.intervals, end)
    }

    fn paths(&mut self, counted: &[PathBytes], seen: Vec<SeenPath>, lasted: Span) -> Vec<BenchPath> {
        let mut paths = Vec::new();
        for path in seen {
            let id = path.info.id.0;
            let total = counted.iter().find(|counted| counted.id == id).map_or(0, |counted| counted.bytes);
            let before = self.seen.get(&id).map_or(0, |(_, bytes)| *bytes);
            paths.push(self.path(&path, total.saturating_sub(before), lasted));
            self.seen.insert(id, (path, total.max(before)));
        }
        paths
    }

    fn path(&self, path: &SeenPath, bytes: u64, lasted: Span) -> BenchPath {
        BenchPath {
            path: path.label.clone(),
            local: path.local,
            remote: path.info.route.remote,
            bytes,
            rate_mbit_s: mbit_s(bytes, lasted),
            rtt_ms: rtt_ms(&path.info),
            loss: loss(if self.sending { Direction::Out } else { Direction::In }, &path.info.stats),
            state: state(&path.info),
        }
    }
}

fn measured(lasted: Span, bytes: u64, longest_gap: Span, paths: Vec<BenchPath>) -> Measured {
    Measured {
        seconds: lasted.as_secs_f64(),
        bytes,
        goodput_mbit_s: mbit_s(bytes, lasted),
        longest_gap_ms: longest_gap.as_millis_f64(),
        paths,
    }
}

#[cfg(test)]
mod tests {
    use anabranch_engine::PathStats;

    use super::*;
    use crate::ui::paths::test;

    fn seen(id: u32) -> SeenPath {
        SeenPath { info: test::info(id, PathStats::default()), local: None, label: format!("eth{id}") }
    }

    fn sample(millis: u64, bytes: u64, gap_ms: u64, paths: &[(u32, u64)]) -> Sample {
        let paths = paths.iter().map(|(id, bytes)| PathBytes { id: *id, bytes: *bytes }).collect();
        Sample { elapsed_us: millis * 1000, bytes, gap_us: gap_ms * 1000, paths, last: false }
    }

    #[test]
    fn intervals_cover_the_test_without_gap_or_overlap() {
        let mut recorder = Recorder::new(true);
        recorder.record(sample(1_000, 1_000_000, 10, &[(0, 1_000_000)]), vec![seen(0)]);
        recorder.record(sample(3_500, 3_500_000, 120, &[(0, 3_500_000)]), vec![seen(0)]);
        recorder.record(sample(4_000, 4_000_000, 5, &[(0, 4_000_000)]), vec![seen(0)]);
        let (intervals, end) = recorder.finish();
        assert_eq!(
            intervals.iter().map(|i| (i.t_s, i.measured.seconds)).collect::<Vec<_>>(),
            [(1.0, 1.0), (3.5, 2.5), (4.0, 0.5)]
        );
        assert!(intervals.iter().all(|i| (i.measured.goodput_mbit_s - 8.0).abs() < 1e-9));
        assert_eq!((end.bytes, end.seconds, end.goodput_mbit_s), (4_000_000, 4.0, 8.0));
        assert_eq!((end.longest_gap_ms, intervals[2].measured.longest_gap_ms), (120.0, 5.0));
    }

    #[test]
    fn each_path_has_its_bytes_even_when_it_is_gone_at_the_end() {
        let mut recorder = Recorder::new(true);
        recorder.record(sample(1_000, 300, 0, &[(0, 100), (2, 200)]), vec![seen(0), seen(2), seen(4)]);
        let second = recorder.record(sample(2_000, 400, 0, &[(2, 300)]), vec![seen(2), seen(4)]).unwrap();
        assert_eq!(second.measured.paths.iter().map(|path| path.bytes).collect::<Vec<_>>(), [100, 0]);
        let (_, end) = recorder.finish();
        let all: Vec<_> = end.paths.iter().map(|path| (path.path.as_str(), path.bytes)).collect();
        assert_eq!(all, [("eth0", 100), ("eth2", 300)]);
    }

    #[test]
    fn samples_of_one_moment_make_no_interval() {
        let mut recorder = Recorder::new(false);
        assert!(recorder.record(sample(0, 0, 0, &[]), Vec::new()).is_none());
        assert!(recorder.record(sample(10, 5, 0, &[]), Vec::new()).is_some());
        assert!(recorder.record(sample(10, 5, 0, &[]), Vec::new()).is_none());
    }
}
