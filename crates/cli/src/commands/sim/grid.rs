//! `anabranch sim run grid`: random networks, each compared with its best single path.

use anabranch_engine::SchedulerKind;
use anabranch_experiments::grid::{Cell, CellRun, Verdict, metrics};
use anabranch_experiments::plots::Distributions;
use serde::Serialize;

use super::args::RunArgs;
use super::cells::{self, Charts, Grid, Report, judge};
use super::named::GRID;
use crate::context::Context;
use crate::errors::Failure;

const CELLS: std::ops::Range<u64> = 0..500;
const SEEDS: std::ops::Range<u64> = 1..11;

/// A listed cell.
#[derive(Serialize)]
struct Worst {
    vs_best_single: f64,
    ci95: f64,
    vs_sum: f64,
    fails: bool,
    cell: String,
    replay: String,
}

/// Runs the grid and writes the report.
pub(super) fn run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(GRID)?;
    let scheduler = args.scheduler.unwrap_or_default();
    let rule = args.rule();
    let draw = move |cell| Cell { rule, ..Cell::draw(cell) };
    let work = move |cell, seed| draw(cell).run(scheduler, seed);
    let verdict = |cell, runs: &[CellRun]| Verdict::of(draw(cell), runs);
    let grid = Grid { args, context, cells: CELLS, seeds: SEEDS };
    judge(grid, work, verdict, Verdict::is_decided, |verdicts| report(args, verdicts, scheduler))
}

fn report(args: &RunArgs, verdicts: &[Verdict], scheduler: SchedulerKind) -> Result<(), Failure> {
    let row = |verdict: &Verdict| Worst::of(verdict, args, scheduler);
    let worst = cells::worst(verdicts, |verdict| verdict.vs_best.mean, row);
    let report = Report { scenario: GRID, metrics: metrics(verdicts), worst };
    let charts = distributions(verdicts);
    cells::write(args, &report, table, || csv(verdicts), Charts { name: GRID, distributions: &charts })?;
    let failing = verdicts.iter().filter(|verdict| verdict.fails()).count();
    cells::outcome(failing, verdicts.len(), "cells are slower than their best path alone")
}

impl Worst {
    fn of(verdict: &Verdict, args: &RunArgs, scheduler: SchedulerKind) -> Self {
        let mut replay = cells::replay(GRID, verdict.cell.number, args);
        if scheduler != SchedulerKind::default() {
            replay.push_str(&format!(" --scheduler {scheduler}"));
        }
        Self {
            vs_best_single: verdict.vs_best.mean,
            ci95: verdict.vs_best.ci95,
            vs_sum: verdict.vs_sum,
            fails: verdict.fails(),
            cell: verdict.cell.to_string(),
            replay,
        }
    }
}

/// The distribution of cells by the rate of all paths, over the best single path and over the sum.
fn distributions(verdicts: &[Verdict]) -> Distributions {
    let of = |value: fn(&Verdict) -> f64| verdicts.iter().map(value).collect();
    let named = |name: &str, values| (name.to_owned(), values);
    let lines = vec![
        named("of the best single path", of(|verdict| verdict.vs_best.mean)),
        named("of the sum of all", of(|verdict| verdict.vs_sum)),
    ];
    Distributions::from([("goodput of all paths, as a multiple".to_owned(), lines)])
}

fn table(report: &Report<Worst>) -> String {
    let mut text = cells::figures(GRID, &report.metrics);
    text.push_str("the cells that gain least, as a share of their best single path\n");
    for worst in &report.worst {
        let mark = if worst.fails { "  slower" } else { "" };
        text.push_str(&format!("  {:.3} ± {:.3}{mark}  {}\n", worst.vs_best_single, worst.ci95, worst.cell));
        text.push_str(&format!("    {}\n", worst.replay));
    }
    text
}

fn csv(verdicts: &[Verdict]) -> String {
    let mut text = "cell,vs_best_single,ci95,vs_sum,redundancy,fails,tight,file\n".to_owned();
    for verdict in verdicts {
        let Verdict { cell, vs_best, vs_sum, spent } = verdict;
        let redundancy = spent.share();
        let (number, tight, file) = (cell.number, cell.tight, cell.file.is_some());
        let (mean, ci95, fails) = (vs_best.mean, vs_best.ci95, verdict.fails());
        text.push_str(&format!("{number},{mean},{ci95},{vs_sum},{redundancy},{fails},{tight},{file}\n"));
    }
    text
}
