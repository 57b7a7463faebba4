//! `anabranch sim run tunnels`: inner flows of a tunnel, against their best path and in each lane.

use std::collections::BTreeMap;

use anabranch_experiments::plots::Distributions;
use anabranch_experiments::scenario::Spread;
use anabranch_experiments::tunnels::{FLOOR, LANES, TunnelCell, TunnelRun, TunnelVerdict, metrics};
use serde::Serialize;

use super::args::RunArgs;
use super::cells::{self, Charts, Grid, Report, judge};
use super::named::TUNNELS;
use crate::context::Context;
use crate::errors::Failure;

const CELLS: std::ops::Range<u64> = 0..300;
const SEEDS: std::ops::Range<u64> = 1..4;

/// A listed cell.
#[derive(Serialize)]
struct Worst {
    vs_best: f64,
    ci95: f64,
    fails: bool,
    lanes: BTreeMap<&'static str, f64>,
    singles: Vec<f64>,
    cell: String,
    replay: String,
}

/// Runs the grid and writes the report.
pub(super) fn run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(TUNNELS)?;
    if args.scheduler.is_some() {
        return Err(Failure::usage("the tunnel grid takes no --scheduler")
            .hint("the tunnel's lanes choose the path of each packet"));
    }
    let work = |cell, seed| TunnelCell::draw(cell).run(seed);
    let verdict = |cell, runs: &[TunnelRun]| TunnelVerdict::of(TunnelCell::draw(cell), runs);
    let grid = Grid { args, context, cells: CELLS, seeds: SEEDS };
    judge(grid, work, verdict, |_: &TunnelVerdict| true, |verdicts| report(args, verdicts))
}

fn report(args: &RunArgs, verdicts: &[TunnelVerdict]) -> Result<(), Failure> {
    let row = |verdict: &TunnelVerdict| Worst::of(verdict, args);
    let worst = cells::worst(verdicts, |verdict| verdict.vs_best.mean, row);
    let report = Report { scenario: TUNNELS, metrics: metrics(verdicts), worst };
    let line = |name: &str, value: fn(&TunnelVerdict) -> f64| {
        (name.to_owned(), verdicts.iter().map(value).collect())
    };
    let lines = vec![
        line("over the best path alone", |verdict| verdict.vs_best.mean),
        line("over the best lane", TunnelVerdict::vs_lanes),
    ];
    let charts = Distributions::from([("rate with auto".to_owned(), lines)]);
    cells::write(args, &report, table, || csv(verdicts), Charts { name: TUNNELS, distributions: &charts })?;
    let failing = verdicts.iter().filter(|verdict| verdict.fails()).count();
    cells::outcome(failing, verdicts.len(), &format!("cells are below {FLOOR} of their best path"))
}

impl Worst {
    fn of(verdict: &TunnelVerdict, args: &RunArgs) -> Self {
        Self {
            vs_best: verdict.vs_best.mean,
            ci95: verdict.vs_best.ci95,
            fails: verdict.fails(),
            lanes: LANES.into_iter().zip(verdict.lanes).collect(),
            singles: verdict.singles.clone(),
            cell: verdict.cell.to_string(),
            replay: cells::replay(TUNNELS, verdict.cell.number, args),
        }
    }
}

fn table(report: &Report<Worst>) -> String {
    let mut text = cells::figures(TUNNELS, &report.metrics);
    text.push_str(
        "the worst cells: auto over the best path alone; Mbit/s of each lane and over each path alone\n",
    );
    for worst in &report.worst {
        let mark = if worst.fails { "  fails" } else { "" };
        let rates =
            |rates: &[f64]| rates.iter().map(|rate| format!("{rate:.2}")).collect::<Vec<_>>().join(" ");
        let lanes: Vec<String> = worst.lanes.iter().map(|(name, rate)| format!("{name} {rate:.2}")).collect();
        let (lanes, singles) = (lanes.join(", "), rates(&worst.singles));
        text.push_str(&format!("  {:.2} ± {:.2}{mark}  {}\n", worst.vs_best, worst.ci95, worst.cell));
        text.push_str(&format!("    {lanes}; alone {singles}\n    {}\n", worst.replay));
    }
    text
}

fn csv(verdicts: &[TunnelVerdict]) -> String {
    let mut text = format!("cell,vs_best,ci95,vs_lanes,{},best_single,fails\n", LANES.join(","));
    for verdict in verdicts {
        let (number, Spread { mean, ci95, .. }) = (verdict.cell.number, verdict.vs_best);
        let lanes = verdict.lanes.map(|rate| rate.to_string()).join(",");
        let best = verdict.singles.iter().copied().fold(0.0, f64::max);
        let (vs_lanes, fails) = (verdict.vs_lanes(), verdict.fails());
        text.push_str(&format!("{number},{mean},{ci95},{vs_lanes},{lanes},{best},{fails}\n"));
    }
    text
}
