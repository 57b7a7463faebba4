//! Never slower than one path: random networks, each compared with its best single path.
//!
//! A [`Cell`] is a network of two to four paths and its traffic, drawn from a number. It runs over each path alone and over
//! all together, with the same window rule, receive buffer and seeds. The *best single path* is the one with the highest
//! mean over the seeds. A cell fails if the 95 % interval of its ratio (all paths over the best one) lies below [`FLOOR`].

mod cell;
mod run;

use crate::scenario::{Metrics, Spread};
use anabranch_sim::Spent;

pub use cell::{Cell, CellPath};
pub use run::CellRun;

/// The share of the best single path's rate below which a cell fails.
pub const FLOOR: f64 = 0.95;

/// The verdict on a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub cell: Cell,
    /// All paths over the best single one, with the half width of its 95 % interval.
    pub vs_best: Spread,
    /// All paths over the sum of the single ones.
    pub vs_sum: f64,
    /// Bytes sent by all runs over all paths, needed and not.
    pub spent: Spent,
}

impl Verdict {
    /// Judges a cell by its runs; there is at least one.
    pub fn of(cell: Cell, runs: &[CellRun]) -> Self {
        let single = |path: usize| Spread::of(&runs.iter().map(|run| run.singles[path]).collect::<Vec<_>>());
        let singles: Vec<Spread> = (0..cell.paths.len()).map(single).collect();
        let best = singles.iter().max_by(|a, b| a.mean.total_cmp(&b.mean));
        let multi = Spread::of(&runs.iter().map(|run| run.multi).collect::<Vec<_>>());
        let sum: f64 = singles.iter().map(|single| single.mean).sum();
        let spent = runs.iter().map(|run| run.spent).sum();
        let vs_best = best.map_or(Spread::of(&[]), |best| ratio(&multi, best));
        Self { cell, vs_best, vs_sum: multi.mean / sum, spent }
    }

    /// Whether the whole interval lies on one side of the floor, so that more seeds would hardly change the verdict.
    pub fn is_decided(&self) -> bool {
        self.fails() || self.vs_best.mean - self.vs_best.ci95 >= FLOOR
    }

    /// Whether the whole interval lies below the floor.
    pub fn fails(&self) -> bool {
        self.vs_best.mean + self.vs_best.ci95 < FLOOR
    }
}

/// The ratio of two means that vary independently; its interval is first order in both. `above` may be zero.
pub(crate) fn ratio(above: &Spread, below: &Spread) -> Spread {
    let mean = above.mean / below.mean;
    Spread { runs: above.runs, mean, ci95: libm::hypot(above.ci95, mean * below.ci95) / below.mean }
}

/// The metrics of the grid: `cells`, `failing`, `worst_vs_best_single`, `median_vs_sum` (cells with ample receive
/// buffers), `redundancy` (of the bytes of all cells) and `redundancy_worst` (of those of a cell).
pub fn metrics(verdicts: &[Verdict]) -> Metrics {
    let mut metrics = Metrics::new();
    let mut put = |name: &str, value: f64| {
        metrics.insert(name.to_owned(), value);
    };
    let count = verdicts.len() as f64;
    put("cells", count);
    put("failing", verdicts.iter().filter(|verdict| verdict.fails()).count() as f64);
    let means = verdicts.iter().map(|verdict| verdict.vs_best.mean);
    put("worst_vs_best_single", means.fold(f64::INFINITY, f64::min));
    let ample = verdicts.iter().filter(|verdict| !verdict.cell.tight);
    let mut shares: Vec<f64> = ample.map(|verdict| verdict.vs_sum).collect();
    shares.sort_by(f64::total_cmp);
    if let Some(middle) = shares.get(shares.len() / 2) {
        put("median_vs_sum", *middle);
    }
    let spent = verdicts.iter().map(|verdict| verdict.spent);
    put("redundancy", spent.clone().sum::<Spent>().share());
    put("redundancy_worst", spent.map(|spent| spent.share()).fold(0.0, f64::max));
    metrics
}

#[cfg(test)]
mod tests {
    use anabranch_engine::SchedulerKind;

    use super::*;

    fn run(multi: f64, singles: [f64; 2]) -> CellRun {
        CellRun { multi, singles: singles.to_vec(), spent: Spent::default() }
    }

    fn two_paths() -> Cell {
        let cell = Cell::draw(0);
        Cell { paths: cell.paths[..2].to_vec(), tight: false, ..cell }
    }

    #[test]
    fn a_cell_fails_only_when_its_whole_interval_lies_below_the_floor() {
        let steady = [run(9.0, [10.0, 5.0]), run(9.0, [10.0, 5.0])];
        assert!(Verdict::of(two_paths(), &steady).fails());
        let unsure = [run(8.0, [10.0, 5.0]), run(10.0, [10.0, 5.0])];
        let unsure = Verdict::of(two_paths(), &unsure);
        assert!(!unsure.fails() && !unsure.is_decided());
        assert!(Verdict::of(two_paths(), &steady).is_decided());
        let stalled = [run(0.0, [10.0, 5.0]), run(0.0, [9.0, 5.0])];
        assert!(Verdict::of(two_paths(), &stalled).fails(), "all paths together carry nothing");
    }

    #[test]
    fn the_best_single_path_is_best_on_average_not_in_each_run() {
        let runs = [run(10.0, [10.0, 4.0]), run(10.0, [10.0, 12.0])];
        let verdict = Verdict::of(two_paths(), &runs);
        assert_eq!(verdict.vs_best.mean, 1.0);
        assert!((verdict.vs_sum - 10.0 / 18.0).abs() < 1e-9);
        let metrics = metrics(&[verdict]);
        assert_eq!((metrics["cells"], metrics["worst_vs_best_single"]), (1.0, 1.0));
    }

    #[test]
    fn no_cell_of_a_small_grid_is_slower_than_its_best_path() {
        let judge = |number| {
            let cell = Cell::draw(number);
            let runs: Vec<_> = (1..3).map(|seed| cell.run(SchedulerKind::default(), seed)).collect();
            Verdict::of(cell, &runs)
        };
        let slow: Vec<_> = (0..8).map(judge).filter(Verdict::fails).collect();
        assert!(slow.is_empty(), "{slow:#?}");
    }
}
