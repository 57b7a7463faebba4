//! `anabranch sim run failures`: paths break in seven ways; does the session continue?

use std::collections::BTreeMap;

use anabranch_experiments::failure::{Case, MOMENTS, Outcome, metrics};
use anabranch_experiments::plots::Distributions;
use serde::Serialize;

use super::args::RunArgs;
use super::cells;
use super::folder::Folder;
use super::jobs::{Crew, in_order};
use super::named::FAILURES;
use super::stop::{stop_on_interrupt, unless_stopped};
use crate::context::Context;
use crate::errors::Failure;

const CASES: std::ops::Range<u64> = 0..1000;

#[derive(Serialize)]
struct Report {
    scenario: &'static str,
    metrics: BTreeMap<String, f64>,
    breaches: Vec<Breach>,
}

/// A case that violates a bound.
#[derive(Serialize)]
struct Breach {
    broken: Vec<String>,
    case: String,
    replay: String,
}

/// Runs the cases and writes the report.
pub(super) fn run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(FAILURES)?;
    if args.seeds.is_some() || args.scheduler.is_some() {
        return Err(Failure::usage("the failures take no --seeds and no --scheduler")
            .hint("the number of a case is its seed: `--cells 0..69` runs the first seventy"));
    }
    args.plot.as_deref().map(Folder::prepare).transpose()?;
    let cases = args.cells.clone().map_or_else(|| CASES.collect(), |cells| cells.0);
    let mut runs: Vec<(Case, Outcome)> = Vec::with_capacity(cases.len());
    let run = if args.redundant { Case::run_redundant } else { Case::run };
    let moments = args.after.map_or(MOMENTS, |moments| (moments.0, moments.1));
    let rule = args.rule();
    let draw = move |number| Case { rule, ..Case::draw_within(number, moments) };
    let work = move |number: &u64, _: &dyn Fn(f64)| run(&draw(*number));
    let crew = Crew { stop: stop_on_interrupt(), ..Crew::new(args.thread_count(), !context.quiet) };
    let all = cases.len();
    let done = in_order(cases, &crew, work, &mut |number, outcome| {
        runs.push((draw(*number), outcome));
        Ok(())
    })?;
    let outcome = if runs.is_empty() { Ok(()) } else { report(args, &runs) };
    unless_stopped(done, all)?;
    outcome
}

fn report(args: &RunArgs, runs: &[(Case, Outcome)]) -> Result<(), Failure> {
    let broken = runs.iter().filter(|(_, outcome)| !outcome.is_clean());
    let redundant = if args.redundant { " --redundant" } else { "" };
    let after = args.after.map_or(String::new(), |moments| format!(" --after {moments}"));
    let rule = args.cc.map_or(String::new(), |rule| format!(" --cc {rule}"));
    let options = format!("{redundant}{after}{rule}");
    let breaches: Vec<Breach> = broken.map(|(case, outcome)| Breach::of(case, outcome, &options)).collect();
    let report = Report { scenario: FAILURES, metrics: metrics(runs), breaches };
    cells::write(
        args,
        &report,
        table,
        || csv(runs),
        cells::Charts { name: FAILURES, distributions: &distributions(runs) },
    )?;
    cells::outcome(report.breaches.len(), runs.len(), "cases violate a bound")
}

/// The distribution of gaps in delivery, for each kind of break.
fn distributions(runs: &[(Case, Outcome)]) -> Distributions {
    let mut kinds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (case, outcome) in runs {
        kinds.entry(case.how.name()).or_default().push(outcome.gap.as_secs_f64() * 1e3);
    }
    let lines = kinds.into_iter().map(|(kind, gaps)| (kind.to_owned(), gaps)).collect();
    Distributions::from([("gap of delivery, ms".to_owned(), lines)])
}

impl Breach {
    fn of(case: &Case, outcome: &Outcome, options: &str) -> Self {
        let replay = format!("anabranch sim run {FAILURES}{options} --cells {}", case.number);
        Self { broken: outcome.breaches(case), case: case.to_string(), replay }
    }
}

fn table(report: &Report) -> String {
    let mut text = cells::figures(FAILURES, &report.metrics);
    for breach in &report.breaches {
        for broken in &breach.broken {
            text.push_str(&format!("  {broken}\n"));
        }
        text.push_str(&format!("    {}\n    {}\n", breach.case, breach.replay));
    }
    text
}

fn csv(runs: &[(Case, Outcome)]) -> String {
    let mut text = "case,break,gap_ms,allowed_ms,living_share,restored_share,clean\n".to_owned();
    for (case, outcome) in runs {
        let Outcome { gap, allowed, living_share, restored_share, .. } = outcome;
        let (gap, allowed) = (gap.as_secs_f64() * 1e3, allowed.as_secs_f64() * 1e3);
        let (number, how, clean) = (case.number, case.how.name(), outcome.is_clean());
        text.push_str(&format!("{number},{how},{gap},{allowed},{living_share},{restored_share},{clean}\n"));
    }
    text
}
