//! Fairness: a session is fair if its paths share a bottleneck, and fast if they do not.
//!
//! A [`FairCell`] is a network in which the paths of a session share all, some or none of their bottlenecks. Every
//! bottleneck also has background TCPs. The cell runs with a session over each path alone and over all together:
//! - Paths that share a bottleneck should together take no more than the best of them alone ([`MOST`]).
//! - Paths with bottlenecks of their own should reach nearly the sum ([`LEAST`]).
//!
//! A cell fails if the 95 % interval of a ratio lies beyond its bound. The verdicts of the detectors of shared bottlenecks
//! are counted as well.

mod cell;
mod run;

use crate::scenario::{Metrics, Spread};
use anabranch_sim::Spent;

pub use cell::{Bottleneck, FairCell, FairPath};
pub use run::FairRun;

/// The most that paths with a shared bottleneck may take together, as a multiple of the best of them alone.
pub const MOST: f64 = 1.1;
/// The least that paths with separate bottlenecks must reach together, as a share of the sum.
pub const LEAST: f64 = 0.9;

/// The verdict on a cell. Ratios are of means over the seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct FairVerdict {
    pub cell: FairCell,
    /// On the shared bottleneck: all paths together over the best alone, before and after a detector can decide; `None` if
    /// no paths share.
    pub shared: Option<[Spread; 2]>,
    /// Over the bottlenecks of a single path: all together over the sum; `None` without such bottlenecks.
    pub apart: Option<[Spread; 2]>,
    /// Pairs of paths that share a bottleneck, and those found within 30 s, over all seeds.
    pub found: (usize, usize),
    /// Pairs without a shared bottleneck, and those wrongly found at any time, over all seeds.
    pub mistaken: (usize, usize),
    /// Bytes sent by all runs over all paths, needed and not.
    pub spent: Spent,
}

impl FairVerdict {
    /// Judges a cell by its runs; there is at least one.
    pub fn of(cell: FairCell, runs: &[FairRun]) -> Self {
        let crossed: Vec<Vec<usize>> =
            (0..cell.bottlenecks.len()).map(|index| cell.crossing(index).collect()).collect();
        let (several, single): (Vec<_>, Vec<_>) = crossed.iter().partition(|paths| paths.len() > 1);
        let both = |of: &[&Vec<usize>]| (!of.is_empty()).then(|| [ratio(runs, of, 0), ratio(runs, of, 1)]);
        let sum = |pairs: fn(&FairRun) -> (usize, usize)| {
            runs.iter().map(pairs).fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1))
        };
        let (shared, apart) = (both(&several), both(&single));
        let (found, mistaken) = (sum(|run| run.shared), sum(|run| run.apart));
        Self { shared, apart, found, mistaken, cell, spent: runs.iter().map(|run| run.spent).sum() }
    }

    /// Whether a whole interval lies beyond its bound.
    pub fn fails(&self) -> bool {
        let greedy = self.shared.is_some_and(|[_, late]| late.mean - late.ci95 > MOST);
        greedy || self.apart.is_some_and(|[_, late]| late.mean + late.ci95 < LEAST)
    }
}

/// The rate of all paths together through these bottlenecks, over the sum of the best path alone through each.
fn ratio(runs: &[FairRun], bottlenecks: &[&Vec<usize>], when: usize) -> Spread {
    let spread = |of: &dyn Fn(&FairRun) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>());
    let best = |paths: &Vec<usize>| {
        let mean = |path: &usize| runs.iter().map(|run| run.singles[*path][when]).sum::<f64>();
        let best = paths.iter().max_by(|a, b| mean(a).total_cmp(&mean(b)));
        best.copied().unwrap_or_default()
    };
    let best: Vec<usize> = bottlenecks.iter().map(|paths| best(paths)).collect();
    let below = spread(&|run| best.iter().map(|path| run.singles[*path][when]).sum());
    let above = spread(&|run| bottlenecks.iter().copied().flatten().map(|path| run.parts[*path][when]).sum());
    crate::grid::ratio(&above, &below)
}

/// The metrics of the grid.
///
/// `cells`, `failing`; the ratios `shared_mean`, `shared_worst` (highest), `apart_mean`, `apart_worst` (lowest), and the same
/// with `early_` for the time before a detector decides; `found_in_30_s` and `false_positives` as shares of the pairs;
/// `redundancy`, the share of bytes that were sent without need.
pub fn metrics(verdicts: &[FairVerdict]) -> Metrics {
    let mut metrics = Metrics::new();
    let mut put = |name: String, value: f64| {
        if value.is_finite() {
            metrics.insert(name, value);
        }
    };
    put("cells".to_owned(), verdicts.len() as f64);
    put("failing".to_owned(), verdicts.iter().filter(|verdict| verdict.fails()).count() as f64);
    for (when, prefix) in ["early_", ""].into_iter().enumerate() {
        let shared: Vec<f64> =
            verdicts.iter().filter_map(|verdict| Some(verdict.shared?[when].mean)).collect();
        let apart: Vec<f64> = verdicts.iter().filter_map(|verdict| Some(verdict.apart?[when].mean)).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        put(format!("{prefix}shared_mean"), mean(&shared));
        put(format!("{prefix}shared_worst"), shared.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        put(format!("{prefix}apart_mean"), mean(&apart));
        put(format!("{prefix}apart_worst"), apart.iter().copied().fold(f64::INFINITY, f64::min));
    }
    let share = |of: fn(&FairVerdict) -> (usize, usize)| {
        let sum = verdicts.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        sum.1 as f64 / sum.0 as f64
    };
    put("found_in_30_s".to_owned(), share(|verdict| verdict.found));
    put("false_positives".to_owned(), share(|verdict| verdict.mistaken));
    put("redundancy".to_owned(), verdicts.iter().map(|verdict| verdict.spent).sum::<Spent>().share());
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(singles: [f64; 3], parts: [f64; 3]) -> FairRun {
        let both = |values: [f64; 3]| values.map(|value| [value, value]).to_vec();
        FairRun {
            singles: both(singles),
            parts: both(parts),
            shared: (1, 1),
            apart: (2, 0),
            spent: Spent::default(),
        }
    }

    /// Two paths over one bottleneck, the third over another.
    fn cell() -> FairCell {
        let mut cell = FairCell::draw(1);
        cell.paths.sort_by_key(|path| path.bottleneck);
        cell
    }

    #[test]
    fn what_is_shared_is_held_against_the_best_path_and_what_is_not_against_the_sum() {
        let verdict = FairVerdict::of(cell(), &[run([4.0, 5.0, 8.0], [2.0, 3.0, 6.0])]);
        assert_eq!(verdict.shared.map(|[_, late]| late.mean), Some(1.0));
        assert_eq!(verdict.apart.map(|[_, late]| late.mean), Some(0.75));
        assert!(verdict.fails());
        let metrics = metrics(&[verdict]);
        assert_eq!((metrics["failing"], metrics["found_in_30_s"]), (1.0, 1.0));
        let stalled = FairVerdict::of(cell(), &[run([4.0, 5.0, 8.0], [2.0, 3.0, 0.0])]);
        assert!(stalled.fails(), "the path of its own carries nothing");
    }

    #[test]
    fn a_session_that_takes_as_much_as_two_is_greedy() {
        let verdict = FairVerdict::of(cell(), &[run([5.0, 5.0, 8.0], [5.0, 5.0, 8.0])]);
        assert!(verdict.fails());
        let fair = FairVerdict::of(cell(), &[run([5.0, 5.0, 8.0], [2.5, 2.5, 8.0])]);
        assert!(!fair.fails());
    }
}
