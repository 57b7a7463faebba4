//! The experiments that draw random networks: what is run of each cell, and its row in the report.

use std::collections::BTreeMap;

use anabranch_experiments::failure::{self, Case, MOMENTS, Outcome};
use anabranch_experiments::fairness::{self, FairCell, FairRun, FairVerdict};
use anabranch_experiments::grid::{self, Cell, CellRun, Verdict};
use anabranch_experiments::losses::{self, LossCell, LossRun, LossVerdict};
use anabranch_experiments::plots::Distributions;
use anabranch_experiments::scenario::{Metrics, Spread};
use anabranch_experiments::tunnels::{self, LANES, TunnelCell, TunnelRun, TunnelVerdict};

use super::args::RunArgs;
use super::cells::{Grid, Judged, Row, judge};
use super::named::{FAILURES, FAIRNESS, GRID, LOSSES, TUNNELS};
use crate::context::Context;
use crate::errors::Failure;

/// Runs `grid`: random networks, each compared with its best single path.
pub(super) fn run_grid(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(GRID)?;
    let (scheduler, rule) = (args.scheduler.unwrap_or_default(), args.rule());
    let draw = move |cell| Cell { rule, ..Cell::draw(cell) };
    let work = move |cell, seed| draw(cell).run(scheduler, seed);
    let verdict = |cell, runs: &[CellRun]| Verdict::of(draw(cell), runs);
    let failing = "cells are slower than their best path alone";
    judge(&Grid { args, context, name: GRID, cells: 0..500, seeds: 1..11, failing }, work, verdict)
}

/// Runs `fairness`: shared, partly shared and separate bottlenecks with background TCPs.
pub(super) fn run_fairness(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(FAIRNESS)?;
    let rule = args.rule();
    let draw = move |cell| FairCell { rule, ..FairCell::draw(cell) };
    let work = move |cell, seed| draw(cell).run(seed);
    let verdict = |cell, runs: &[FairRun]| FairVerdict::of(draw(cell), runs);
    let failing = "cells are beyond their bounds";
    judge(&Grid { args, context, name: FAIRNESS, cells: 0..60, seeds: 1..4, failing }, work, verdict)
}

/// Runs `losses`: the window rule `auto` against `cubic` and `bbr`, under losses and next to neighbours.
pub(super) fn run_losses(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(LOSSES)?;
    let work = |cell, seed| LossCell::draw(cell).run(seed);
    let verdict = |cell, runs: &[LossRun]| LossVerdict::of(LossCell::draw(cell), runs);
    let failing = "cells are beyond their bounds";
    judge(&Grid { args, context, name: LOSSES, cells: 0..300, seeds: 1..3, failing }, work, verdict)
}

/// Runs `tunnels`: inner flows of a tunnel, against their best path and in each lane.
pub(super) fn run_tunnels(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(TUNNELS)?;
    let work = |cell, seed| TunnelCell::draw(cell).run(seed);
    let verdict = |cell, runs: &[TunnelRun]| TunnelVerdict::of(TunnelCell::draw(cell), runs);
    let failing = "cells are slower than their best path alone";
    judge(&Grid { args, context, name: TUNNELS, cells: 0..300, seeds: 1..4, failing }, work, verdict)
}

/// Runs `failures`: paths break in seven ways; does the session continue?
pub(super) fn run_failures(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(FAILURES)?;
    if args.seeds.is_some() {
        return Err(Failure::usage("the failures take no --seeds")
            .hint("the number of a case is its seed: `--cells 0..69` runs the first seventy"));
    }
    let run: fn(&Case) -> Outcome = if args.redundant { Case::run_redundant } else { Case::run };
    let moments = args.after.map_or(MOMENTS, |moments| (moments.0, moments.1));
    let rule = args.rule();
    let draw = move |number| Case { rule, ..Case::draw_within(number, moments) };
    let work = move |number, _: u64| run(&draw(number));
    let verdict = |number, runs: &[Outcome]| (draw(number), runs[0]);
    let failing = "cases violate a bound";
    judge(&Grid { args, context, name: FAILURES, cells: 0..1000, seeds: 0..1, failing }, work, verdict)
}

impl Judged for Verdict {
    fn row(&self) -> Row {
        Row {
            number: self.cell.number,
            network: self.cell.to_string(),
            rank: self.vs_best.mean,
            fails: self.fails(),
            is_decided: self.is_decided(),
            figures: vec![
                ("vs_best_single", Some(self.vs_best.mean)),
                ("ci95", Some(self.vs_best.ci95)),
                ("vs_sum", Some(self.vs_sum)),
                ("redundancy", Some(self.spent.share())),
            ],
        }
    }

    fn metrics(all: &[Self]) -> Metrics {
        grid::metrics(all)
    }

    fn distributions(all: &[Self]) -> Distributions {
        let of = |value: fn(&Self) -> f64| -> Vec<f64> { all.iter().map(value).collect() };
        let lines = [
            ("of the best single path", of(|verdict| verdict.vs_best.mean)),
            ("of the sum of all", of(|verdict| verdict.vs_sum)),
        ];
        chart("goodput of all paths, as a multiple", lines)
    }
}

/// The mean of a ratio after a detector can decide.
fn late(ratio: Option<[Spread; 2]>) -> Option<f64> {
    ratio.map(|[_, late]| late.mean)
}

impl Judged for FairVerdict {
    fn row(&self) -> Row {
        let (shared, apart) = (late(self.shared), late(self.apart));
        let above = shared.map_or(f64::INFINITY, |shared| fairness::MOST / shared);
        let below = apart.map_or(f64::INFINITY, |apart| apart / fairness::LEAST);
        let count = |number: usize| Some(number as f64);
        Row {
            number: self.cell.number,
            network: self.cell.to_string(),
            rank: above.min(below),
            fails: self.fails(),
            is_decided: true,
            figures: vec![
                ("shared", shared),
                ("apart", apart),
                ("pairs_shared", count(self.found.0)),
                ("found", count(self.found.1)),
                ("pairs_apart", count(self.mistaken.0)),
                ("mistaken", count(self.mistaken.1)),
            ],
        }
    }

    fn metrics(all: &[Self]) -> Metrics {
        fairness::metrics(all)
    }

    fn distributions(all: &[Self]) -> Distributions {
        let of = |value: fn(&Self) -> Option<f64>| -> Vec<f64> { all.iter().filter_map(value).collect() };
        let lines =
            [("shared", of(|verdict| late(verdict.shared))), ("apart", of(|verdict| late(verdict.apart)))];
        chart("rate over its due", lines)
    }
}

impl Judged for LossVerdict {
    fn row(&self) -> Row {
        let [auto, cubic, bbr] = self.carried;
        Row {
            number: self.cell.number,
            network: self.cell.to_string(),
            rank: self.neighbours.map_or(self.rate, |neighbours| neighbours.min(self.rate)),
            fails: self.fails(),
            is_decided: true,
            figures: vec![
                ("rate", Some(self.rate)),
                ("neighbours", self.neighbours),
                ("queue", self.queue),
                ("auto", Some(auto.mbit)),
                ("cubic", Some(cubic.mbit)),
                ("bbr", Some(bbr.mbit)),
                ("lost_auto", Some(auto.lost)),
                ("lost_cubic", Some(cubic.lost)),
                ("lost_bbr", Some(bbr.lost)),
            ],
        }
    }

    fn metrics(all: &[Self]) -> Metrics {
        losses::metrics(all)
    }

    fn distributions(all: &[Self]) -> Distributions {
        let rates = |alone: bool| -> Vec<f64> {
            let alike = all.iter().filter(move |verdict| verdict.neighbours.is_none() == alone);
            alike.map(|verdict| verdict.rate).collect()
        };
        let lines = [
            ("alone, over the better of cubic and bbr", rates(true)),
            ("next to neighbours, over cubic", rates(false)),
            ("the neighbours, over those of cubic", all.iter().filter_map(|one| one.neighbours).collect()),
        ];
        chart("rate with auto", lines)
    }
}

impl Judged for TunnelVerdict {
    fn row(&self) -> Row {
        let best = self.singles.iter().copied().fold(0.0, f64::max);
        let mut figures = vec![
            ("vs_best", Some(self.vs_best.mean)),
            ("ci95", Some(self.vs_best.ci95)),
            ("vs_lanes", Some(self.vs_lanes())),
            ("best_single", Some(best)),
        ];
        figures.extend(LANES.into_iter().zip(self.lanes.map(Some)));
        Row {
            number: self.cell.number,
            network: self.cell.to_string(),
            rank: self.vs_best.mean,
            fails: self.fails(),
            is_decided: true,
            figures,
        }
    }

    fn metrics(all: &[Self]) -> Metrics {
        tunnels::metrics(all)
    }

    fn distributions(all: &[Self]) -> Distributions {
        let of = |value: fn(&Self) -> f64| -> Vec<f64> { all.iter().map(value).collect() };
        let lines = [
            ("over the best path alone", of(|verdict| verdict.vs_best.mean)),
            ("over the best lane", of(Self::vs_lanes)),
        ];
        chart("rate with auto", lines)
    }
}

impl Judged for (Case, Outcome) {
    fn row(&self) -> Row {
        let (case, outcome) = self;
        let (gap, allowed) = (outcome.gap.as_millis_f64(), outcome.allowed.as_millis_f64());
        let (living, restored) = (outcome.living_share, outcome.restored_share);
        Row {
            number: case.number,
            network: case.to_string(),
            rank: (allowed / gap).min(living).min(restored),
            fails: !outcome.is_clean(),
            is_decided: true,
            figures: vec![
                ("gap_ms", Some(gap)),
                ("allowed_ms", Some(allowed)),
                ("living_share", Some(living)),
                ("restored_share", Some(restored)),
            ],
        }
    }

    fn metrics(all: &[Self]) -> Metrics {
        failure::metrics(all)
    }

    /// The gaps in delivery, for each kind of break.
    fn distributions(all: &[Self]) -> Distributions {
        let mut kinds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (case, outcome) in all {
            kinds.entry(case.how.name()).or_default().push(outcome.gap.as_millis_f64());
        }
        chart("gap of delivery, ms", kinds)
    }
}

/// A chart of distributions by name.
fn chart<'a>(of: &str, lines: impl IntoIterator<Item = (&'a str, Vec<f64>)>) -> Distributions {
    let lines = lines.into_iter().map(|(name, values)| (name.to_owned(), values)).collect();
    Distributions::from([(of.to_owned(), lines)])
}
