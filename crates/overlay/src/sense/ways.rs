//! The best ways over one or two relays, among all that there are.
//!
//! One relay: every relay is looked at once, so the work grows with their number. Two: the relays next to the one end with those next to the
//! other, so that work is bounded. Longer chains are for those who name them. What comes out goes to
//! [`choose`](crate::select::choose), which sees to it that ways do not share too much.

use anabranch_wire::{Rate, Span};

use super::estimate::Figures;
use super::map::LinkMap;
use crate::select::{Candidate, Link, Topology};

/// How many ways are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayLimits {
    /// Ways that come out.
    pub most: usize,
    /// Relays next to an end that are tried as the first or last of two.
    pub near: usize,
}

impl Default for WayLimits {
    fn default() -> Self {
        Self { most: 32, near: 16 }
    }
}

/// A way over relays.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayWay {
    /// Their places in the map, in the order in which packets pass them.
    pub relays: Vec<usize>,
    /// Each stretch of it.
    pub stretches: Vec<Figures>,
    /// The whole.
    pub figures: Figures,
}

/// Figures between `end` and every node of the map; with `back`, towards it.
#[must_use]
pub fn stretches(map: &LinkMap, now: anabranch_wire::Time, end: usize, back: bool) -> Vec<Option<Figures>> {
    let ends = |at: usize| if back { (at, end) } else { (end, at) };
    (0..map.len()).map(|at| map.figures(now, ends(at).0, ends(at).1)).collect()
}

/// The best ways by RON's score, best first, and how many were looked at. `first` are the stretches to every relay, `last` those from every
/// relay on; relays without one of them are left out. `between` tells the stretch from one relay to another.
#[must_use]
pub fn best_ways(
    first: &[Option<Figures>],
    last: &[Option<Figures>],
    between: impl Fn(usize, usize) -> Option<Figures>,
    limits: WayLimits,
) -> (Vec<RelayWay>, u64) {
    let mut looked_at = 0;
    let mut ways: Vec<(Rate, RelayWay)> = Vec::new();
    let mut offer = |relays: Vec<usize>, stretches: Vec<Figures>| {
        looked_at += 1;
        let Some(figures) = stretches.iter().copied().reduce(|a, b| a.then(&b)) else { return };
        if figures.loss < 1.0 {
            let way = RelayWay { relays, stretches, figures };
            ways.push((way.score(), way));
        }
        if ways.len() >= limits.most.max(1) * 4 {
            keep_best(&mut ways, limits.most);
        }
    };
    for (at, stretches) in first.iter().zip(last).enumerate() {
        if let (Some(to), Some(on)) = stretches {
            offer(vec![at], vec![*to, *on]);
        }
    }
    let ends = nearest(last, limits.near);
    for a in nearest(first, limits.near) {
        for &b in ends.iter().filter(|b| **b != a) {
            if let (Some(to), Some(over), Some(on)) = (first[a], between(a, b), last[b]) {
                offer(vec![a, b], vec![to, over, on]);
            }
        }
    }
    keep_best(&mut ways, limits.most);
    (ways.into_iter().map(|(_, way)| way).collect(), looked_at)
}

fn keep_best(ways: &mut Vec<(Rate, RelayWay)>, most: usize) {
    ways.sort_by(|(a, x), (b, y)| {
        let shorter = x.figures.rtt.cmp(&y.figures.rtt);
        b.cmp(a).then(shorter).then_with(|| x.relays.cmp(&y.relays))
    });
    ways.truncate(most);
}

fn nearest(stretches: &[Option<Figures>], count: usize) -> Vec<usize> {
    let known = stretches.iter().enumerate().filter_map(|(at, known)| known.map(|known| (at, known)));
    let alive = known.filter(|(_, figures)| figures.loss < 1.0);
    let mut near: Vec<(Span, usize)> = alive.map(|(at, figures)| (figures.rtt, at)).collect();
    if near.len() > count {
        near.select_nth_unstable(count);
        near.truncate(count);
    }
    near.sort_unstable();
    near.into_iter().map(|(_, at)| at).collect()
}

impl RelayWay {
    /// The rate that its figures foretell.
    #[must_use]
    pub fn score(&self) -> Rate {
        let Figures { rtt, loss, .. } = self.figures;
        let (links, capacity) = (Vec::new(), self.figures.rate());
        Candidate { name: String::new(), rtt, loss, capacity, links, silent_hops: 0 }.score()
    }

    /// The way as a candidate. Its stretches become links between nodes of these names, first, relays and last: ways over the same relay
    /// share a link.
    #[must_use]
    pub fn candidate(&self, topology: &mut Topology, (name, stops): (&str, &[String])) -> Candidate {
        let nodes: Vec<_> = stops.iter().map(|stop| topology.node(stop)).collect();
        let links = nodes.windows(2).zip(&self.stretches).map(|(ends, figures)| {
            let latency = figures.rtt / 2;
            (
                topology.link(
                    ends[0],
                    ends[1],
                    Link { latency, loss: figures.loss, capacity: figures.rate() },
                ),
                latency,
            )
        });
        let links = links.collect();
        let Figures { rtt, loss, .. } = self.figures;
        Candidate { name: name.to_owned(), rtt, loss, capacity: self.figures.rate(), links, silent_hops: 0 }
    }
}
