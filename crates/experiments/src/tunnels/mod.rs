//! The tunnel against its best path: random networks with inner TCP and QUIC-like flows.
//!
//! A [`TunnelCell`] is a tunnel over two or three paths with one endless inner flow. It runs over each path alone, and over
//! all of them with `auto` and with each other lane. A cell fails if the 95 % interval of its ratio (`auto` over the best
//! path alone) lies below [`FLOOR`].

mod cell;

use crate::grid::ratio;
use crate::scenario::{Metrics, Spread};

pub use cell::{Inner, TunnelCell, TunnelRun};

/// The share of the best path's rate below which a cell fails, and the share of the best lane's from which `auto` counts as
/// having chosen it.
pub const FLOOR: f64 = 0.95;
/// The lanes compared, `auto` first.
pub const LANES: [&str; 3] = ["auto", "routed", "striped"];

/// The verdict on a cell. Rates are means over the seeds, in Mbit/s.
#[derive(Clone, Debug, PartialEq)]
pub struct TunnelVerdict {
    pub cell: TunnelCell,
    /// `auto` over the best path alone.
    pub vs_best: Spread,
    /// With each of [`LANES`].
    pub lanes: [f64; 3],
    /// Over each path alone.
    pub singles: Vec<f64>,
}

impl TunnelVerdict {
    /// Judges a cell by its runs; there is at least one.
    pub fn of(cell: TunnelCell, runs: &[TunnelRun]) -> Self {
        let spread =
            |rate: &dyn Fn(&TunnelRun) -> f64| Spread::of(&runs.iter().map(rate).collect::<Vec<_>>());
        let singles: Vec<Spread> =
            (0..cell.paths.len()).map(|path| spread(&|run| run.singles[path])).collect();
        let best = singles.iter().max_by(|a, b| a.mean.total_cmp(&b.mean));
        let auto = spread(&|run| run.lanes[0]);
        let vs_best = best.map_or(Spread::of(&[]), |best| ratio(&auto, best));
        let lanes = std::array::from_fn(|lane| spread(&|run| run.lanes[lane]).mean);
        Self { cell, vs_best, lanes, singles: singles.iter().map(|single| single.mean).collect() }
    }

    /// Whether the whole interval lies below the floor.
    pub fn fails(&self) -> bool {
        self.vs_best.mean + self.vs_best.ci95 < FLOOR
    }

    /// `auto` over the best lane.
    pub fn vs_lanes(&self) -> f64 {
        self.lanes[0] / self.lanes.iter().copied().fold(0.0, f64::max)
    }
}

/// The metrics of the grid: `cells`, `failing`, `below` (cells whose mean is below the floor), `worst_vs_best`,
/// `median_vs_best` and `chose_best` (the share of cells in which `auto` chose the best lane).
pub fn metrics(verdicts: &[TunnelVerdict]) -> Metrics {
    let mut ratios: Vec<f64> = verdicts.iter().map(|verdict| verdict.vs_best.mean).collect();
    ratios.sort_by(f64::total_cmp);
    let count =
        |of: &dyn Fn(&TunnelVerdict) -> bool| verdicts.iter().filter(|verdict| of(verdict)).count() as f64;
    let all = verdicts.len() as f64;
    let mut metrics = vec![
        ("cells", all),
        ("failing", count(&TunnelVerdict::fails)),
        ("below", count(&|verdict| verdict.vs_best.mean < FLOOR)),
        ("chose_best", count(&|verdict| verdict.vs_lanes() >= FLOOR) / all),
    ];
    if let (Some(worst), Some(median)) = (ratios.first(), ratios.get(ratios.len() / 2)) {
        metrics.extend([("worst_vs_best", *worst), ("median_vs_best", *median)]);
    }
    metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_fails_below_the_best_path_and_shows_whether_auto_chose_the_best_lane() {
        let cell = TunnelCell::draw(0);
        let cell = TunnelCell { paths: cell.paths[..2].to_vec(), ..cell };
        let run = |lanes| TunnelRun { lanes, singles: vec![10.0, 5.0] };
        let slow = TunnelVerdict::of(cell.clone(), &[run([9.0, 9.0, 8.0]), run([9.0, 9.0, 8.0])]);
        assert!(slow.fails() && slow.vs_lanes() >= 1.0);
        let fast = TunnelVerdict::of(cell, &[run([10.0, 10.0, 14.0]), run([10.0, 10.0, 14.0])]);
        assert!(!fast.fails() && fast.vs_lanes() < FLOOR);
        let metrics = metrics(&[slow, fast]);
        assert_eq!((metrics["failing"], metrics["chose_best"], metrics["worst_vs_best"]), (1.0, 0.5, 0.9));
    }

    #[test]
    fn no_cell_of_a_small_grid_is_slower_than_its_best_path() {
        let judge = |number| {
            let cell = TunnelCell::draw(number);
            let runs = [cell.run(1)];
            TunnelVerdict::of(cell, &runs)
        };
        let verdicts: Vec<_> = (0..4).map(judge).collect();
        let slow: Vec<_> = verdicts.iter().filter(|verdict| verdict.vs_best.mean < FLOOR).collect();
        assert!(slow.is_empty(), "{slow:#?}");
    }
}
