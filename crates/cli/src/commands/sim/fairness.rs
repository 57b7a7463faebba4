//! `anabranch sim run fairness`: shared, partly shared and separate bottlenecks with background TCPs.

use std::collections::BTreeMap;

use anabranch_experiments::fairness::{FairCell, FairRun, FairVerdict, metrics};
use anabranch_experiments::plots::Distributions;
use anabranch_experiments::scenario::Spread;
use serde::Serialize;

use super::args::RunArgs;
use super::cells::{self, Charts, Grid, judge};
use super::named::FAIRNESS;
use crate::context::Context;
use crate::errors::Failure;

const CELLS: std::ops::Range<u64> = 0..60;
const SEEDS: std::ops::Range<u64> = 1..4;

#[derive(Serialize)]
struct Report {
    scenario: &'static str,
    metrics: BTreeMap<String, f64>,
    failing: Vec<Failing>,
}

/// A cell beyond its bounds.
#[derive(Serialize)]
struct Failing {
    shared: Option<f64>,
    apart: Option<f64>,
    cell: String,
    replay: String,
}

/// Runs the grid and writes the report.
pub(super) fn run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(FAIRNESS)?;
    if args.scheduler.is_some() {
        return Err(Failure::usage("the fairness grid takes no --scheduler")
            .hint("its sessions always fill all windows, whatever the scheduler"));
    }
    let rule = args.rule();
    let draw = move |cell| FairCell { rule, ..FairCell::draw(cell) };
    let work = move |cell, seed| draw(cell).run(seed);
    let verdict = |cell, runs: &[FairRun]| FairVerdict::of(draw(cell), runs);
    let grid = Grid { args, context, cells: CELLS, seeds: SEEDS };
    judge(grid, work, verdict, |_: &FairVerdict| true, |verdicts| report(args, verdicts))
}

fn report(args: &RunArgs, verdicts: &[FairVerdict]) -> Result<(), Failure> {
    let failing = verdicts.iter().filter(|verdict| verdict.fails()).map(|verdict| Failing::of(verdict, args));
    let report = Report { scenario: FAIRNESS, metrics: metrics(verdicts), failing: failing.collect() };
    cells::write(
        args,
        &report,
        table,
        || csv(verdicts),
        Charts { name: FAIRNESS, distributions: &distributions(verdicts) },
    )?;
    cells::outcome(report.failing.len(), verdicts.len(), "cells are beyond their bounds")
}

fn late(ratio: Option<[Spread; 2]>) -> Option<f64> {
    ratio.map(|[_, late]| late.mean)
}

/// The distribution of cells by the session's rate over its fair rate, with and without shared bottlenecks.
fn distributions(verdicts: &[FairVerdict]) -> Distributions {
    let shared = verdicts.iter().filter_map(|verdict| late(verdict.shared)).collect();
    let apart = verdicts.iter().filter_map(|verdict| late(verdict.apart)).collect();
    let lines = vec![("shared".to_owned(), shared), ("apart".to_owned(), apart)];
    Distributions::from([("rate over its due".to_owned(), lines)])
}

impl Failing {
    fn of(verdict: &FairVerdict, args: &RunArgs) -> Self {
        let replay = cells::replay(FAIRNESS, verdict.cell.number, args);
        let (shared, apart) = (late(verdict.shared), late(verdict.apart));
        Self { shared, apart, cell: verdict.cell.to_string(), replay }
    }
}

fn table(report: &Report) -> String {
    let mut text = cells::figures(FAIRNESS, &report.metrics);
    for failing in &report.failing {
        let tell =
            |what: &str, ratio: Option<f64>| ratio.map_or(String::new(), |it| format!("{what} {it:.2}  "));
        let (shared, apart) = (tell("shared", failing.shared), tell("apart", failing.apart));
        text.push_str(&format!("  {shared}{apart}{}\n    {}\n", failing.cell, failing.replay));
    }
    text
}

fn csv(verdicts: &[FairVerdict]) -> String {
    let mut text = "cell,shared,apart,pairs_shared,found,pairs_apart,mistaken,fails\n".to_owned();
    for verdict in verdicts {
        let tell = |ratio| late(ratio).map_or(String::new(), |it| it.to_string());
        let (shared, apart, number) = (tell(verdict.shared), tell(verdict.apart), verdict.cell.number);
        let ((pairs, found), (others, mistaken)) = (verdict.found, verdict.mistaken);
        let fails = verdict.fails();
        text.push_str(&format!("{number},{shared},{apart},{pairs},{found},{others},{mistaken},{fails}\n"));
    }
    text
}
