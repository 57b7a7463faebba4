//! Turns a receiver's samples into intervals and adds the client's view of each path.
//!
//! When a path fails it is closed, and later another may open between the same two addresses. The report has
//! one row for all paths of such a pair: their bytes together, and the state of the newest open one, or
//! `closed`.

use std::collections::BTreeMap;

use anabranch_wire::Span;

use super::protocol::{PathBytes, Sample};
use super::watch::SeenPath;
use crate::report::{BenchPath, Interval, Measured, mbit_s};
use crate::ui::paths::{Direction, loss, rtt_ms, state, why};
use crate::ui::snapshot::PathState;

/// Collects samples and divides them into intervals.
///
/// An interval lasts from one sample to the next. A late sample gives a longer interval, never a wrong rate.
pub struct Recorder {
    /// True if the client sends, so the client's counters know the losses.
    sending: bool,
    last: Sample,
    /// Every path seen so far, with its latest state and its bytes.
    seen: BTreeMap<u32, (SeenPath, u64)>,
    longest_gap: Span,
    intervals: Vec<Interval>,
}

impl Recorder {
    /// A recorder for a test in which the client is `sending`.
    pub fn new(sending: bool) -> Self {
        Self {
            sending,
            last: Sample::default(),
            seen: BTreeMap::new(),
            longest_gap: Span::ZERO,
            intervals: Vec::new(),
        }
    }

    /// Adds a sample and the client's view of the paths. Returns the interval that the sample ends, if time
    /// has passed.
    pub fn record(&mut self, sample: Sample, seen: Vec<SeenPath>) -> Option<&Interval> {
        let lasted = Span::from_micros(sample.elapsed_us.saturating_sub(self.last.elapsed_us));
        if lasted.is_zero() {
            return None;
        }
        let gap = Span::from_micros(sample.gap_us);
        self.longest_gap = self.longest_gap.max(gap);
        let paths = self.paths(&sample.paths, seen, lasted);
        // Data counts when it arrives. If it counted when it is in order, a short interval that ends a wait for a missing
        // packet would have more than the links carry.
        let bytes = paths.iter().map(|path| path.bytes).sum();
        self.intervals.push(Interval {
            t_s: Span::from_micros(sample.elapsed_us).as_secs_f64(),
            measured: measured(lasted, bytes, gap, paths),
        });
        self.last = sample;
        self.intervals.last()
    }

    /// True before the first interval.
    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// Ends the test.
    pub fn finish(self) -> (Vec<Interval>, Measured) {
        let lasted = Span::from_micros(self.last.elapsed_us);
        let each = self.seen.values().filter(|(_, bytes)| *bytes > 0);
        let paths = self.rows(each.map(|(path, bytes)| (path, *bytes)), lasted);
        let end = measured(lasted, self.last.bytes, self.longest_gap, paths);
        (self.intervals, end)
    }

    fn paths(&mut self, counted: &[PathBytes], seen: Vec<SeenPath>, lasted: Span) -> Vec<BenchPath> {
        self.seen.values_mut().for_each(|(path, _)| path.gone = true);
        for path in seen {
            let bytes = self.seen.get(&path.info.id.0).map_or(0, |(_, bytes)| *bytes);
            self.seen.insert(path.info.id.0, (path, bytes));
        }
        let counted: BTreeMap<u32, u64> = counted.iter().map(|path| (path.id, path.bytes)).collect();
        let mut moved = BTreeMap::new();
        for (id, (_, bytes)) in &mut self.seen {
            let total = counted.get(id).map_or(*bytes, |total| (*bytes).max(*total));
            moved.insert(*id, total - *bytes);
            *bytes = total;
        }
        // Leave out paths that closed before they carried anything.
        let shown = self.seen.iter().filter(|(_, (path, bytes))| !path.gone || *bytes > 0);
        self.rows(shown.map(|(id, (path, _))| (path, moved[id])), lasted)
    }

    /// One row for all paths of a pair of addresses.
    fn rows<'a>(&self, paths: impl Iterator<Item = (&'a SeenPath, u64)>, lasted: Span) -> Vec<BenchPath> {
        let mut pairs: Vec<(&SeenPath, u64)> = Vec::new();
        for (path, bytes) in paths {
            match pairs.iter_mut().find(|(known, _)| is_same_pair(known, path)) {
                Some((known, sum)) => {
                    *sum += bytes;
                    if liveness(path) >= liveness(known) {
                        *known = path;
                    }
                }
                None => pairs.push((path, bytes)),
            }
        }
        pairs.into_iter().map(|(path, bytes)| self.row(path, bytes, lasted)).collect()
    }

    fn row(&self, path: &SeenPath, bytes: u64, lasted: Span) -> BenchPath {
        BenchPath {
            path: path.place.label.clone(),
            local: path.place.local,
            remote: path.info.route.remote,
            bytes,
            rate_mbit_s: mbit_s(bytes, lasted),
            rtt_ms: rtt_ms(&path.info),
            loss: loss(if self.sending { Direction::Out } else { Direction::In }, &path.info.stats),
            state: state_now(path),
            why: if path.gone { None } else { why(&path.info) },
        }
    }
}

/// True for paths between the same two addresses through the same relays. The local port may differ.
fn is_same_pair(one: &SeenPath, other: &SeenPath) -> bool {
    let pair = |path: &SeenPath| (path.place.local.map(|local| local.ip()), path.info.route.remote);
    pair(one) == pair(other) && one.place.label == other.place.label && one.place.relays == other.place.relays
}

fn state_now(path: &SeenPath) -> PathState {
    if path.gone { PathState::Closed } else { state(&path.info) }
}

/// Ranks the paths of one pair: the row shows the state of the highest.
fn liveness(path: &SeenPath) -> u8 {
    match state_now(path) {
        PathState::Closed => 0,
        PathState::Closing => 1,
        PathState::Validating => 2,
        PathState::Failed | PathState::Suspect => 3,
        PathState::Standby | PathState::Active => 4,
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
    use std::net::SocketAddr;

    use anabranch_engine::PathStats;

    use super::super::watch::Place;
    use super::*;
    use crate::ui::paths::test;

    fn seen(id: u32) -> SeenPath {
        seen_at(id, &format!("eth{id}"), 7)
    }

    fn seen_at(id: u32, label: &str, port: u16) -> SeenPath {
        let local = Some(SocketAddr::from(([10, 0, 0, 7], port)));
        let place = Place { label: label.into(), local, relays: Vec::new() };
        SeenPath { info: test::info(id, PathStats::default()), place, gone: false }
    }

    fn told(paths: &[BenchPath]) -> Vec<(&str, u64, PathState)> {
        paths.iter().map(|path| (path.path.as_str(), path.bytes, path.state)).collect()
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
    fn an_interval_has_the_bytes_of_its_paths_even_if_a_missing_packet_held_them_back() {
        let mut recorder = Recorder::new(true);
        let waits = recorder.record(sample(100, 0, 100, &[(0, 50_000)]), vec![seen(0)]).unwrap();
        assert_eq!(waits.measured.bytes, 50_000);
        let fills = recorder.record(sample(200, 100_000, 100, &[(0, 100_000)]), vec![seen(0)]).unwrap();
        assert_eq!((fills.measured.bytes, fills.measured.goodput_mbit_s), (50_000, 4.0));
        // Bytes that still wait at the end do not count.
        recorder.record(sample(300, 120_000, 0, &[(0, 150_000)]), vec![seen(0)]);
        assert_eq!(recorder.finish().1.bytes, 120_000);
    }

    #[test]
    fn each_path_has_its_bytes_even_when_it_is_gone_at_the_end() {
        let mut recorder = Recorder::new(true);
        recorder.record(sample(1_000, 300, 0, &[(0, 100), (2, 200)]), vec![seen(0), seen(2), seen(4)]);
        let second = recorder.record(sample(2_000, 400, 0, &[(2, 300)]), vec![seen(2), seen(4)]).unwrap();
        let (active, closed) = (PathState::Active, PathState::Closed);
        assert_eq!(
            told(&second.measured.paths),
            [("eth0", 0, closed), ("eth2", 100, active), ("eth4", 0, active)]
        );
        let (_, end) = recorder.finish();
        assert_eq!(told(&end.paths), [("eth0", 100, closed), ("eth2", 300, active)]);
    }

    #[test]
    fn the_paths_that_one_pair_of_addresses_had_are_one_row_with_all_their_bytes() {
        let mut recorder = Recorder::new(false);
        recorder.record(sample(1_000, 500, 0, &[(0, 500)]), vec![seen_at(0, "eth0", 7)]);
        let lost = SeenPath { gone: true, ..seen_at(0, "eth0", 7) };
        let without = recorder.record(sample(2_000, 600, 0, &[(0, 600)]), vec![lost]).unwrap();
        assert_eq!(told(&without.measured.paths), [("eth0", 100, PathState::Closed)]);
        // The receiver reports the first path once more, long after the client has forgotten it.
        let again = vec![seen_at(6, "eth0", 8), seen_at(8, "eth1", 8)];
        let back = recorder.record(sample(3_000, 700, 0, &[(0, 620), (6, 80)]), again).unwrap();
        let rows = [("eth0", 100, PathState::Active), ("eth1", 0, PathState::Active)];
        assert_eq!(told(&back.measured.paths), rows);
        let (_, end) = recorder.finish();
        assert_eq!(told(&end.paths), [("eth0", 700, PathState::Active)]);
        assert_eq!(end.paths[0].local.unwrap().port(), 8);
    }

    #[test]
    fn samples_of_one_moment_make_no_interval() {
        let mut recorder = Recorder::new(false);
        assert!(recorder.record(sample(0, 0, 0, &[]), Vec::new()).is_none());
        assert!(recorder.record(sample(10, 5, 0, &[]), Vec::new()).is_some());
        assert!(recorder.record(sample(10, 5, 0, &[]), Vec::new()).is_none());
    }
}
