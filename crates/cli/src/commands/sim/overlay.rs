//! `anabranch sim run overlay`: cost and reaction time of sensing, in overlays of any size.

use std::collections::BTreeMap;

use anabranch_experiments::overlay::{OverlayConfig, OverlayRun};
use anabranch_experiments::results::RunRecord;
use anabranch_experiments::scenario::{Metrics, Outcome};

use super::args::{RunArgs, Seeds};
use super::jobs::{Crew, in_order};
use super::named::OVERLAY;
use super::output::Writer;
use super::stop::{stop_on_interrupt, unless_stopped};
use super::usage;
use crate::context::Context;
use crate::errors::Failure;

const SIZES: [u64; 3] = [50, 500, 5_000];
const LARGEST: u64 = 100_000;
/// The most that a relay may send for sensing, in kbit/s.
const BUDGET: f64 = 20.0;
/// How often routes are chosen, to measure the time of one choice.
const TURNS: u32 = 5;

/// One overlay: the number of its run, how many relays it has, and its seed.
type Job = (usize, u64, u64);

/// Runs the overlays and writes their results.
pub(super) fn run(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    args.without_trace(OVERLAY)?;
    if args.plot.is_some() {
        return Err(
            Failure::usage("`sim run overlay` draws nothing").hint("`sim plot` draws what `--json` writes")
        );
    }
    let sizes = args.cells.clone().map_or_else(|| SIZES.to_vec(), |cells| cells.0);
    if let Some(size) = sizes.iter().find(|size| !(2..=LARGEST).contains(*size)) {
        return Err(Failure::usage(format!("an overlay of {size} relays"))
            .hint(format!("`--cells` says how many relays there are: 2 to {LARGEST}")));
    }
    let seeds = args.seeds.clone().unwrap_or_else(|| Seeds(vec![1]));
    let pairs = sizes.iter().flat_map(|size| seeds.0.iter().map(|seed| (*size, *seed)));
    let jobs: Vec<Job> = pairs.enumerate().map(|(run, (relays, seed))| (run, relays, seed)).collect();
    let crew = Crew { stop: stop_on_interrupt(), ..Crew::new(args.thread_count(), !context.quiet) };
    let (all, mut writer) = (jobs.len(), Writer::new(args.format.format(), ""));
    let work = |job: &Job, _: &dyn Fn(f64)| run_one(*job);
    let done = in_order(jobs, &crew, work, &mut |_, run| writer.add(run))?;
    let outcome = writer.finish();
    unless_stopped(done, all)?;
    outcome
}

fn run_one((run, relays, seed): Job) -> RunRecord {
    let overlay = OverlayRun::new(OverlayConfig::of(relays as usize), seed);
    let before = usage::thread_cpu();
    let pairs: usize = (0..TURNS).map(|_| overlay.choose_ways().0).sum();
    let mut metrics = overlay.metrics;
    if let (Some(before), Some(after)) = (before, usage::thread_cpu()) {
        let micros = after.saturating_sub(before).as_secs_f64() * 1e6 / pairs as f64;
        metrics.insert("run.choice_us".into(), micros);
    }
    let set = BTreeMap::from([("relays".to_owned(), relays.to_string())]);
    let expect = expected(&metrics).to_vec();
    RunRecord { scenario: OVERLAY.to_owned(), seed, run, set, metrics, expect }
}

/// Each relay keeps its budget, and each failed link is noticed.
fn expected(metrics: &Metrics) -> [Outcome; 2] {
    let value = |name: &str| metrics.get(name).copied();
    let failures = value("failures").unwrap_or(0.0);
    let outcome = |name: &str, bound: String, is_kept: &dyn Fn(f64) -> bool| {
        let value = value(name);
        Outcome { name: name.to_owned(), value, bound, ok: is_kept(value.unwrap_or(0.0)) }
    };
    [
        outcome("sensing_kbit_s.max", format!("≤ {BUDGET}"), &|most| most <= BUDGET),
        outcome("failures_known", format!("≥ {failures}"), &|known| known >= failures),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_over_its_budget_or_with_an_unnoticed_failure_is_not_as_expected() {
        let kept = |most: f64, known: f64| {
            let metrics = [("sensing_kbit_s.max", most), ("failures", 30.0), ("failures_known", known)];
            let metrics = metrics.map(|(name, value)| (name.to_owned(), value));
            expected(&BTreeMap::from(metrics)).map(|outcome| outcome.ok)
        };
        assert_eq!([kept(20.0, 30.0), kept(20.5, 29.0)], [[true, true], [false, false]]);
    }
}
