//! Overlays of many relays: what sensing costs, how soon a failed link is known, how good estimates are (issues of scale in [S3], [S7]).
//!
//! Each relay runs the [`Sensor`](anabranch_overlay::sense::Sensor) that is deployed, and one controller keeps the
//! [`Mesh`](anabranch_overlay::sense::Mesh) and the [`LinkMap`]. Between them is a [`World`]: relays in towns on a globe, with access links and detours.
//! Probes are a few packets a second, so for them links are a delay and a loss, without queues; packet trains pass a [`Shaper`].
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

/// What an overlay is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverlayConfig {
    /// How many relays.
    pub relays: usize,
    /// How many each measures.
    pub neighbours: usize,
    /// Links that fail.
    pub failures: usize,
}

impl OverlayConfig {
    /// Eight neighbours, and thirty links that fail.
    #[must_use]
    pub fn of(relays: usize) -> Self {
        Self { relays, neighbours: 8, failures: 30 }
    }
}

/// An overlay at the end of its run.
#[derive(Clone, Debug)]
pub struct OverlayRun {
    /// What was found; see `docs/explanation/overlay.md` for each.
    pub metrics: Metrics,
    map: LinkMap,
    now: Time,
    pairs: Vec<(usize, usize)>,
}

impl OverlayRun {
    /// Builds an overlay and runs it.
    #[must_use]
    pub fn new(config: OverlayConfig, seed: u64) -> Self {
        let world = World::new(config.relays, seed);
        let mut run = run::Run::new(world, config, seed);
        let metrics = run.go();
        let pairs = run.some_pairs();
        let (map, now) = run.into_map();
        Self { metrics, map, now, pairs }
    }

    /// Chooses ways for a hundred pairs, as a controller does when it is asked; gives how many ways were looked at. What that takes is for those
    /// who have a clock.
    #[must_use]
    pub fn choose_ways(&self) -> (usize, u64) {
        let looked = self.pairs.iter().map(|&pair| ways(&self.map, self.now, pair).1);
        (self.pairs.len(), looked.sum())
    }
}

/// The best ways between two nodes of a map, and how many were looked at.
fn ways(map: &LinkMap, now: Time, (from, to): (usize, usize)) -> (Vec<RelayWay>, u64) {
    let (first, last) = (stretches(map, now, from, false), stretches(map, now, to, true));
    best_ways(&first, &last, |a, b| map.figures(now, a, b), WayLimits::default())
}

/// When traffic is measured from, and for how long.
const WARM_UP: Span = Span::from_secs(600);
const MEASURED: Span = Span::from_secs(600);
/// A failure that nobody noticed by then is never noticed.
const ENOUGH: Span = Span::from_secs(20);
