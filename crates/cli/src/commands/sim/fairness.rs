//! `anabranch sim run fairness`: shared, partly shared and separate bottlenecks with background TCPs.

use std::collections::BTreeMap;

use anabranch_sim::fairness::{FairCell, FairRun, FairVerdict, metrics};
use anabranch_sim::scenario::Spread;
use serde::Serialize;

use super::jobs::{Crew, in_order};
use super::output::number;
use super::{RunArgs, Seeds};
use crate::commands::Context;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// The name under which the grid is run.
pub(super) const NAME: &str = "fairness";
/// What it shows, for `sim list`.
pub(super) const ABOUT: &str = "Fair where paths share a bottleneck with others, fast where they do not";

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

/// Runs the grid and writes its figures.
///
/// # Errors
/// When a cell is beyond its bounds, or output cannot be written.
pub(super) fn run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_drawing(NAME)?;
    if args.scheduler.is_some() {
        return Err(Failure::local("the fairness grid takes no --scheduler")
            .hint("sessions with more to send than goes fill all windows, whatever the scheduler"));
    }
    let cells = args.cells.clone().map_or_else(|| CELLS.collect(), |cells| cells.0);
    let seeds = args.seeds.clone().unwrap_or_else(|| Seeds(SEEDS.collect()));
    let jobs: Vec<(u64, u64)> =
        cells.iter().flat_map(|cell| seeds.0.iter().map(|seed| (*cell, *seed))).collect();
    let mut runs: Vec<FairRun> = Vec::with_capacity(seeds.0.len());
    let mut verdicts = Vec::with_capacity(cells.len());
    let work = |job: &(u64, u64), _: &dyn Fn(f64)| FairCell::draw(job.0).run(job.1);
    let crew = Crew::new(args.thread_count(), !context.quiet);
    in_order(jobs, &crew, work, &mut |job, run| {
        runs.push(run);
        if runs.len() == seeds.0.len() {
            verdicts.push(FairVerdict::of(FairCell::draw(job.0), &runs));
            runs.clear();
        }
        Ok(())
    })?;
    report(args, &verdicts)
}

fn report(args: &RunArgs, verdicts: &[FairVerdict]) -> Result<(), Failure> {
    let failing = verdicts.iter().filter(|verdict| verdict.fails()).map(|verdict| Failing::of(verdict, args));
    let report = Report { scenario: NAME, metrics: metrics(verdicts), failing: failing.collect() };
    if args.format.json {
        Stream::Stdout.json(&report)?;
    } else if args.format.csv {
        out::print(&csv(verdicts))?;
    } else {
        out::print(&table(&report))?;
    }
    if report.failing.is_empty() {
        return Ok(());
    }
    Err(Failure::local(format!(
        "{} of {} cells are beyond their bounds",
        report.failing.len(),
        verdicts.len()
    )))
}

fn late(ratio: Option<[Spread; 2]>) -> Option<f64> {
    ratio.map(|[_, late]| late.mean)
}

impl Failing {
    fn of(verdict: &FairVerdict, args: &RunArgs) -> Self {
        let mut replay = format!("anabranch sim run {NAME} --cells {}", verdict.cell.number);
        if let Some(seeds) = &args.seeds {
            replay.push_str(&format!(" --seeds {seeds}"));
        }
        let (shared, apart) = (late(verdict.shared), late(verdict.apart));
        Self { shared, apart, cell: verdict.cell.to_string(), replay }
    }
}

fn table(report: &Report) -> String {
    let mut text = format!("{NAME}\n");
    for (name, value) in &report.metrics {
        text.push_str(&format!("  {name:<24} {:>10}\n", number(*value)));
    }
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
