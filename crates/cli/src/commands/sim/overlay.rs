//! `anabranch sim run overlay`: cost and reaction time of sensing, in overlays of any size.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_experiments::overlay::{OverlayConfig, OverlayRun};
use anabranch_experiments::results::number;
use serde::Serialize;

use super::args::{RunArgs, Seeds};
use super::jobs::{Crew, in_order};
use super::named::OVERLAY;
use super::stop::{stop_on_interrupt, unless_stopped};
use super::usage;
use crate::context::Context;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

const SIZES: [u64; 3] = [50, 500, 5_000];
const LARGEST: u64 = 100_000;
/// The most that a relay may send for sensing, in kbit/s.
const BUDGET: f64 = 20.0;
/// How often routes are chosen, to measure the time of one choice.
const TURNS: u32 = 5;

#[derive(Serialize)]
struct Run {
    scenario: &'static str,
    relays: u64,
    seed: u64,
    metrics: BTreeMap<String, f64>,
}

/// Runs the overlays and writes the report.
pub(super) fn run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(OVERLAY)?;
    if args.plot.is_some() {
        return Err(Failure::usage("`sim run overlay` draws nothing")
            .hint("`--csv` writes its figures for a program that does"));
    }
    let sizes = args.cells.clone().map_or_else(|| SIZES.to_vec(), |cells| cells.0);
    if let Some(size) = sizes.iter().find(|size| !(2..=LARGEST).contains(*size)) {
        return Err(Failure::usage(format!("an overlay of {size} relays"))
            .hint(format!("`--cells` says how many relays there are: 2 to {LARGEST}")));
    }
    let seeds = args.seeds.clone().unwrap_or_else(|| Seeds(vec![1]));
    let jobs: Vec<(u64, u64)> =
        sizes.iter().flat_map(|size| seeds.0.iter().map(|seed| (*size, *seed))).collect();
    let crew = Crew { stop: stop_on_interrupt(), ..Crew::new(args.thread_count(), !context.quiet) };
    let (all, mut runs) = (jobs.len(), Vec::new());
    let done = in_order(jobs, &crew, |job, _: &dyn Fn(f64)| run_one(*job), &mut |_, run| {
        runs.push(run);
        Ok(())
    })?;
    let outcome = if runs.is_empty() { Ok(()) } else { report(args, &runs) };
    unless_stopped(done, all)?;
    outcome
}

fn run_one((relays, seed): (u64, u64)) -> Run {
    let overlay = OverlayRun::new(OverlayConfig::of(relays as usize), seed);
    let before = usage::thread_cpu();
    let pairs: usize = (0..TURNS).map(|_| overlay.choose_ways().0).sum();
    let mut metrics = overlay.metrics;
    if let (Some(before), Some(after)) = (before, usage::thread_cpu()) {
        let micros = after.saturating_sub(before).as_secs_f64() * 1e6 / pairs as f64;
        metrics.insert("run.choice_us".into(), micros);
    }
    Run { scenario: OVERLAY, relays, seed, metrics }
}

fn report(args: &RunArgs, runs: &[Run]) -> Result<(), Failure> {
    if args.format.json {
        for run in runs {
            Stream::Stdout.json(run)?;
        }
    } else if args.format.csv {
        out::print(&csv(runs))?;
    } else {
        out::print(&table(runs))?;
    }
    let broken = |run: &&Run| {
        let metric = |name: &str| run.metrics.get(name).copied().unwrap_or(0.0);
        metric("sensing_kbit_s.max") > BUDGET || metric("failures_known") < metric("failures")
    };
    match runs.iter().find(broken) {
        None => Ok(()),
        Some(run) => Err(Failure::local(format!(
            "with {} relays and seed {} the budget was not kept, or a failed link not found",
            run.relays, run.seed
        ))),
    }
}

fn names(runs: &[Run]) -> BTreeSet<&String> {
    runs.iter().flat_map(|run| run.metrics.keys()).collect()
}

/// A line for each metric, a column for each run.
fn table(runs: &[Run]) -> String {
    let row = |name: &str, value: &dyn Fn(&Run) -> String| {
        let values: String = runs.iter().map(|run| format!(" {:>12}", value(run))).collect();
        format!("{name:<28}{values}\n")
    };
    let mut text = row("relays", &|run| run.relays.to_string()) + &row("seed", &|run| run.seed.to_string());
    for name in names(runs) {
        text.push_str(&row(name, &|run| {
            run.metrics.get(name).map_or("-".to_owned(), |value| number(*value))
        }));
    }
    text
}

fn csv(runs: &[Run]) -> String {
    let names = names(runs);
    let mut text = "relays,seed".to_owned();
    names.iter().for_each(|name| text.push_str(&format!(",{name}")));
    for run in runs {
        text.push_str(&format!("\n{},{}", run.relays, run.seed));
        for name in &names {
            text.push_str(&run.metrics.get(*name).map_or(",".to_owned(), |value| format!(",{value}")));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_a_run_has_not_leaves_its_place_empty() {
        let run = |relays, metrics: &[(&str, f64)]| Run {
            scenario: OVERLAY,
            relays,
            seed: 3,
            metrics: metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        };
        let runs = [run(50, &[("b", 2.0)]), run(500, &[("a", 1.5), ("b", 4.0)])];
        assert_eq!(csv(&runs), "relays,seed,a,b\n50,3,,2\n500,3,1.5,4\n");
        let told = table(&runs);
        let rows: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
        let wanted = [["relays", "50", "500"], ["seed", "3", "3"], ["a", "-", "1.500"], ["b", "2", "4"]];
        assert_eq!(rows, wanted);
    }
}
