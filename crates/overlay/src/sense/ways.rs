//! The best routes over one or two relays.
//!
//! For one relay, every relay is tried once, so the work grows with their number. For two, the relays nearest to one
//! end are combined with those nearest to the other, which bounds the work. Longer chains have to be named by the
//! user. [`choose`](crate::select::choose) selects among the results so that they share few links.

use anabranch_wire::{Rate, Span};

use super::estimate::Figures;
use super::map::LinkMap;
use crate::select::Candidate;

/// How many routes to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayLimits {
    /// Routes in the result.
    pub most: usize,
    /// Relays near an end that are tried as the first or last of two.
    pub near: usize,
}

impl Default for WayLimits {
    fn default() -> Self {
        Self { most: 32, near: 16 }
    }
}

/// A route over relays.
#[derive(Clone, Debug, PartialEq)]
pub struct RelayWay {
    /// The relays' indices in the map, in the order in which packets pass them.
    pub relays: Vec<usize>,
    /// The figures of each stretch.
    pub stretches: Vec<Figures>,
    /// The figures of the whole route.
    pub figures: Figures,
}

/// Figures between `end` and every node of the map; with `back`, towards `end`.
pub fn stretches(map: &LinkMap, now: anabranch_wire::Time, end: usize, back: bool) -> Vec<Option<Figures>> {
    let ends = |at: usize| if back { (at, end) } else { (end, at) };
    (0..map.len()).map(|at| map.figures(now, ends(at).0, ends(at).1)).collect()
}

/// The best routes by RON's score, best first, and the number of routes tried. `first` has the segments to every relay,
/// `last` those from every relay on; relays without one of them are left out. `between` returns the segment from one
/// relay to another.
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
    /// The rate that its figures predict.
    pub fn score(&self) -> Rate {
        let Figures { rtt, loss, .. } = self.figures;
        let (links, capacity) = (Vec::new(), self.figures.rate());
        Candidate { name: String::new(), rtt, loss, capacity, links, silent_hops: 0 }.score()
    }
}
