//! Overlays of many relays: cost of sensing, reaction to failed links, quality of estimates (scale: [S3], [S7]).
//!
//! Each relay runs the deployed [`Sensor`](anabranch_overlay::sense::Sensor); one controller runs the
//! [`Mesh`](anabranch_overlay::sense::Mesh) and the [`LinkMap`]. Between them is a [`World`]: relays in towns on a globe, with
//! access links and detours. Probes are a few packets a second, so links delay and lose them but have no queues. Packet
//! trains pass a [`Shaper`].
//!
//! ```text
//!   0 s      WARM_UP          + MEASURED        failures, one a second        ENOUGH after the last
//!   └ join ─────┴── traffic ─────┴── estimates ──────┴── times to react ──────────┘
//! ```

mod measure;
mod run;
mod shaper;
mod world;

use anabranch_overlay::sense::{LinkMap, RelayWay, WayLimits, best_ways, stretches};
use anabranch_wire::{Span, Time};

pub use shaper::Shaper;
pub use world::World;

use crate::scenario::Metrics;

/// The size of an overlay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverlayConfig {
    /// How many relays.
    pub relays: usize,
    /// How many neighbours each measures.
    pub neighbours: usize,
    /// How many links fail.
    pub failures: usize,
}

impl OverlayConfig {
    /// Eight neighbours, and thirty links that fail.
    pub fn of(relays: usize) -> Self {
        Self { relays, neighbours: 8, failures: 30 }
    }
}

/// An overlay at the end of its run.
#[derive(Clone, Debug)]
pub struct OverlayRun {
    /// The metrics, explained in `docs/explanation/overlay.md`.
    pub metrics: Metrics,
    map: LinkMap,
    now: Time,
    pairs: Vec<(usize, usize)>,
}

impl OverlayRun {
    /// Builds an overlay and runs it.
    pub fn new(config: OverlayConfig, seed: u64) -> Self {
        let world = World::new(config.relays, seed);
        let mut run = run::Runner::new(world, config, seed);
        let metrics = run.go();
        let pairs = run.some_pairs();
        let (map, now) = run.into_map();
        Self { metrics, map, now, pairs }
    }

    /// Chooses routes for a hundred pairs, as a controller does on request; returns how many routes it compared. The caller
    /// measures the time.
    pub fn choose_ways(&self) -> (usize, u64) {
        let looked = self.pairs.iter().map(|&pair| ways(&self.map, self.now, pair).1);
        (self.pairs.len(), looked.sum())
    }
}

/// The best routes between two nodes of a map, and how many were compared.
fn ways(map: &LinkMap, now: Time, (from, to): (usize, usize)) -> (Vec<RelayWay>, u64) {
    let (first, last) = (stretches(map, now, from, false), stretches(map, now, to, true));
    best_ways(&first, &last, |a, b| map.figures(now, a, b), WayLimits::default())
}

/// When traffic is measured from, and for how long.
const WARM_UP: Span = Span::from_secs(600);
const MEASURED: Span = Span::from_secs(600);
/// A failure that is not noticed by then counts as never noticed.
const ENOUGH: Span = Span::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_fails_once_whichever_of_its_ends_is_drawn() {
        let config = OverlayConfig { relays: 3, neighbours: 2, failures: 0 };
        let mut runner = run::Runner::new(World::new(3, 1), config, 1);
        (0..100).for_each(|_| runner.fail_some_link());
        assert_eq!(runner.failures.len(), 3, "there are three pairs of relays");
    }
}
