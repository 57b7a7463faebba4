//! Detectors outside of sessions: mTCP's rule [M8], applied to a flow's paths.

use anabranch_engine::{SharedCongestion, Verdict};
use anabranch_wire::{PathId, Time};

use super::sheet::Sheet;
use crate::scenario::build::Detector;
use anabranch_sim::network::Network;

/// A running detector.
pub(super) struct Observer {
    detector: Detector,
    begin: Time,
    /// Window reductions of each path so far.
    reductions: [Option<u64>; 2],
    /// When it first decided that the paths share, and that they do not.
    said: [Option<Time>; 2],
}

/// The flow's first two paths.
const PAIR: [u32; 2] = [0, 1];

impl Observer {
    pub(super) fn new(detector: Detector, begin: Time) -> Self {
        Self { detector, begin, reductions: [None; 2], said: [None; 2] }
    }

    /// Takes a sample.
    pub(super) fn look(&mut self, network: &mut Network) {
        let now = network.now();
        let rule = &mut self.detector.rule;
        let mut changed = false;
        for info in network.paths(self.detector.flow, false) {
            let Some(known) = self.reductions.get_mut(info.route.socket as usize) else { continue };
            let path = PathId(info.route.socket);
            rule.on_rtt(now, path, info.rtt);
            let reductions = info.stats.congestion_events;
            if known.replace(reductions).is_some_and(|known| reductions > known) {
                rule.on_congestion(now, path);
                changed = true;
            }
        }
        if changed {
            let verdict = rule.verdict(now, PathId(PAIR[0]), PathId(PAIR[1]));
            let said = match verdict {
                Verdict::Shared => &mut self.said[0],
                Verdict::Separate => &mut self.said[1],
                Verdict::Undecided => return,
            };
            said.get_or_insert(now);
        }
    }

    /// The metrics: `ratio` and `events` at the end; `shared_s` and `separate_s`, if it decided so, from the end of the warm-up.
    pub(super) fn tell(&self, sheet: &mut Sheet, now: Time) {
        let mut place = sheet.of("detector", &self.detector.name);
        let found = self.detector.rule.correlation(now, PathId(PAIR[0]), PathId(PAIR[1]));
        place.put("ratio", found.map(|found| found.ratio));
        place.put("events", found.map(|found| found.events as f64));
        for (key, said) in ["shared_s", "separate_s"].into_iter().zip(self.said) {
            place.put(key, said.map(|at| at.since(self.begin).as_secs_f64()));
        }
    }
}
