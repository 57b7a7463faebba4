//! `anabranch sim run losses`: the window rule `auto` against `cubic` and `bbr`, under losses and next to neighbours.

use anabranch_experiments::losses::{LossCell, LossRun, LossVerdict, metrics};
use anabranch_experiments::plots::Distributions;
use serde::Serialize;

use super::args::RunArgs;
use super::cells::{self, Charts, Grid, Report, judge};
use super::named::LOSSES;
use crate::context::Context;
use crate::errors::Failure;

const CELLS: std::ops::Range<u64> = 0..300;
const SEEDS: std::ops::Range<u64> = 1..3;

/// A listed cell.
#[derive(Serialize)]
struct Worst {
    rate: f64,
    neighbours: Option<f64>,
    queue: Option<f64>,
    fails: bool,
    cell: String,
    replay: String,
}

/// Runs the grid and writes the report.
pub(super) fn run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(LOSSES)?;
    if args.scheduler.is_some() {
        return Err(Failure::usage("the loss grid takes no --scheduler")
            .hint("its sessions always fill all windows, whatever the scheduler"));
    }
    let work = |cell, seed| LossCell::draw(cell).run(seed);
    let verdict = |cell, runs: &[LossRun]| LossVerdict::of(LossCell::draw(cell), runs);
    let grid = Grid { args, context, cells: CELLS, seeds: SEEDS };
    judge(grid, work, verdict, |_: &LossVerdict| true, |verdicts| report(args, verdicts))
}

/// The worse of a cell's two ratios.
fn least(verdict: &LossVerdict) -> f64 {
    verdict.neighbours.map_or(verdict.rate, |neighbours| neighbours.min(verdict.rate))
}

fn report(args: &RunArgs, verdicts: &[LossVerdict]) -> Result<(), Failure> {
    let worst = cells::worst(verdicts, least, |verdict| Worst::of(verdict, args));
    let report = Report { scenario: LOSSES, metrics: metrics(verdicts), worst };
    let charts = distributions(verdicts);
    cells::write(args, &report, table, || csv(verdicts), Charts { name: LOSSES, distributions: &charts })?;
    let failing = verdicts.iter().filter(|verdict| verdict.fails()).count();
    cells::outcome(failing, verdicts.len(), "cells are beyond their bounds")
}

/// The distribution of cells by each ratio.
fn distributions(verdicts: &[LossVerdict]) -> Distributions {
    let rates = |alone: bool| {
        let alike = verdicts.iter().filter(move |verdict| verdict.neighbours.is_none() == alone);
        alike.map(|verdict| verdict.rate).collect()
    };
    let neighbours = verdicts.iter().filter_map(|verdict| verdict.neighbours).collect();
    let lines = [
        ("alone, over the better of cubic and bbr", rates(true)),
        ("next to neighbours, over cubic", rates(false)),
        ("the neighbours, over those of cubic", neighbours),
    ];
    let lines = lines.map(|(name, values)| (name.to_owned(), values)).to_vec();
    Distributions::from([("rate with auto".to_owned(), lines)])
}

impl Worst {
    fn of(verdict: &LossVerdict, args: &RunArgs) -> Self {
        Self {
            rate: verdict.rate,
            neighbours: verdict.neighbours,
            queue: verdict.queue,
            fails: verdict.fails(),
            cell: verdict.cell.to_string(),
            replay: cells::replay(LOSSES, verdict.cell.number, args),
        }
    }
}

fn table(report: &Report<Worst>) -> String {
    let mut text = cells::figures(LOSSES, &report.metrics);
    text.push_str(
        "the worst cells: rate with auto over the others', neighbours' rate over that next to cubic\n",
    );
    for worst in &report.worst {
        let neighbours = worst.neighbours.map_or(String::new(), |it| format!("  neighbours {it:.2}"));
        let mark = if worst.fails { "  beyond its bounds" } else { "" };
        text.push_str(&format!("  {:.2}{neighbours}{mark}  {}\n", worst.rate, worst.cell));
        text.push_str(&format!("    {}\n", worst.replay));
    }
    text
}

fn csv(verdicts: &[LossVerdict]) -> String {
    let mut text =
        "cell,rate,neighbours,queue,auto,cubic,bbr,lost_auto,lost_cubic,lost_bbr,fails\n".to_owned();
    for verdict in verdicts {
        let or_none = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let (number, rate, fails) = (verdict.cell.number, verdict.rate, verdict.fails());
        let (neighbours, queue) = (or_none(verdict.neighbours), or_none(verdict.queue));
        let [auto, cubic, bbr] = verdict.carried.map(|carried| carried.mbit);
        let lost = verdict.carried.map(|carried| carried.lost.to_string()).join(",");
        text.push_str(&format!("{number},{rate},{neighbours},{queue},{auto},{cubic},{bbr},{lost},{fails}\n"));
    }
    text
}
