//! Losses and queues: the window rule `auto` against `cubic` and `bbr`, on random networks with and without neighbours.
//!
//! A [`LossCell`] is a session over one to three paths, each with a bottleneck of its own that may lose packets on the wire.
//! Half of the cells have a background TCP on each bottleneck. The cell runs with each of [`RULES`]. Alone, `auto` should
//! carry [`LEAST`] of the better of the others. Next to neighbours, it should carry [`SHARE`] of what `cubic` carries, and
//! leave them [`SHARE`] of what `cubic` leaves.

mod cell;
mod run;

use anabranch_cc::RuleKind;

use crate::scenario::Metrics;

pub use cell::{LossCell, LossPath};
pub use run::{Carried, LossRun};

/// The rules compared, `auto` first.
pub const RULES: [RuleKind; 3] = [RuleKind::Auto, RuleKind::Cubic, RuleKind::Bbr];
/// The least share of the better of the other rules that `auto` carries alone.
pub const LEAST: f64 = 0.95;
/// The least share of `cubic`'s rate that it has next to neighbours, and that they keep.
pub const SHARE: f64 = 0.9;

/// The verdict on a cell. Rates are means over the seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct LossVerdict {
    pub cell: LossCell,
    /// Rates, queues and losses with each of [`RULES`].
    pub carried: [Carried; 3],
    /// The rate of `auto` over the better of the others alone, or over `cubic`'s next to neighbours.
    pub rate: f64,
    /// The rate of neighbours next to `auto`, over their rate next to `cubic`; `None` without neighbours.
    pub neighbours: Option<f64>,
    /// The largest mean queue of a path alone, as a multiple of its bound; `None` with neighbours.
    pub queue: Option<f64>,
}

impl LossVerdict {
    /// Judges a cell by its runs; there is at least one.
    pub fn of(cell: LossCell, runs: &[LossRun]) -> Self {
        let carried: [Carried; 3] = std::array::from_fn(|rule| Carried::mean(runs, rule));
        let [auto, cubic, bbr] = &carried;
        let alone = cell.neighbour.is_none();
        let best = if alone { cubic.mbit.max(bbr.mbit) } else { cubic.mbit };
        let neighbours = (!alone).then(|| auto.neighbours / cubic.neighbours);
        let queue = alone.then_some(auto.queue);
        Self { rate: auto.mbit / best, neighbours, queue, carried, cell }
    }

    /// Whether a rate lies below its bound.
    pub fn fails(&self) -> bool {
        let least = if self.neighbours.is_some() { SHARE } else { LEAST };
        self.rate < least || self.neighbours.is_some_and(|neighbours| neighbours < SHARE)
    }
}

/// The metrics of the grid: `cells`, `failing`, `alone_median` and `alone_worst` (over the better of the others),
/// `queue_median` (as a multiple of the bound), `share_median`, `share_worst`, `neighbours_median` and
/// `neighbours_worst` (over those with `cubic`).
pub fn metrics(verdicts: &[LossVerdict]) -> Metrics {
    let mut metrics = Metrics::new();
    let mut put = |name: &str, value: f64| {
        metrics.insert(name.to_owned(), value);
    };
    put("cells", verdicts.len() as f64);
    put("failing", verdicts.iter().filter(|verdict| verdict.fails()).count() as f64);
    let rates = |alone: bool| {
        let alike = verdicts.iter().filter(move |verdict| verdict.neighbours.is_none() == alone);
        alike.map(|verdict| verdict.rate).collect()
    };
    let columns: [(&str, Vec<f64>); 4] = [
        ("alone", rates(true)),
        ("share", rates(false)),
        ("neighbours", verdicts.iter().filter_map(|verdict| verdict.neighbours).collect()),
        ("queue", verdicts.iter().filter_map(|verdict| verdict.queue).collect()),
    ];
    for (name, mut values) in columns {
        values.sort_by(f64::total_cmp);
        let (Some(first), Some(last)) = (values.first(), values.last()) else { continue };
        put(&format!("{name}_worst"), if name == "queue" { *last } else { *first });
        put(&format!("{name}_median"), values[values.len() / 2]);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rates: [f64; 3], neighbours: [f64; 3]) -> LossRun {
        let carried =
            |rule: usize| Carried { mbit: rates[rule], neighbours: neighbours[rule], queue: 0.5, lost: 0.0 };
        LossRun(std::array::from_fn(carried))
    }

    #[test]
    fn alone_the_better_of_the_others_counts_and_next_to_neighbours_cubic() {
        let alone = (0..).map(LossCell::draw).find(|cell| cell.neighbour.is_none()).expect("half of them");
        let shared = (0..).map(LossCell::draw).find(|cell| cell.neighbour.is_some()).expect("half of them");
        let alone = LossVerdict::of(alone, &[run([9.0, 5.0, 10.0], [0.0; 3])]);
        assert_eq!((alone.rate, alone.neighbours, alone.fails()), (0.9, None, true));
        let shared = LossVerdict::of(shared, &[run([5.0, 5.0, 10.0], [4.0, 5.0, 1.0])]);
        assert_eq!((shared.rate, shared.neighbours, shared.fails()), (1.0, Some(0.8), true));
        let metrics = metrics(&[alone, shared]);
        assert_eq!(
            (metrics["failing"], metrics["neighbours_worst"], metrics["queue_median"]),
            (2.0, 0.8, 0.5)
        );
    }
}
