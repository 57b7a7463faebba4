//! Runs the cells of a grid on all processors, judges them, and writes the report.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anabranch_experiments::plots::{Distributions, draw_distributions};
use anabranch_experiments::results::number;
use serde::Serialize;

use super::args::RunArgs;
use super::folder::Folder;
use super::jobs::{Crew, in_order};
use super::stop::{stop_on_interrupt, unless_stopped};
use crate::context::Context;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// Most seeds of an undecided cell.
const MOST_SEEDS: usize = 80;
/// How many of the worst cells are listed.
const LISTED: usize = 10;

pub(super) struct Grid<'a> {
    pub args: &'a RunArgs,
    pub context: &'a Context,
    /// The default cells.
    pub cells: std::ops::Range<u64>,
    /// The default seeds.
    pub seeds: std::ops::Range<u64>,
}

/// The report of a grid that lists its worst cells.
#[derive(Serialize)]
pub(super) struct Report<W> {
    pub scenario: &'static str,
    pub metrics: BTreeMap<String, f64>,
    pub worst: Vec<W>,
}

/// Runs each cell with each seed, judges a cell when all its seeds are complete, and reports the verdicts.
///
/// An undecided cell gets twice as many seeds, up to [`MOST_SEEDS`], unless the user named the seeds.
pub(super) fn judge<R: Send + 'static, V>(
    Grid { args, context, cells, seeds }: Grid<'_>,
    work: impl Fn(u64, u64) -> R + Send + Sync + 'static,
    mut verdict: impl FnMut(u64, &[R]) -> V,
    decides: impl Fn(&V) -> bool,
    report: impl FnOnce(&[V]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    args.plot.as_deref().map(Folder::prepare).transpose()?;
    let mut cells = args.cells.clone().map_or_else(|| cells.collect(), |cells| cells.0);
    let mut seeds = args.seeds.clone().map_or_else(|| seeds.collect(), |seeds| seeds.0);
    let mut wanted = seeds.len();
    let mut open: BTreeMap<u64, Vec<R>> = BTreeMap::new();
    let mut verdicts: BTreeMap<u64, V> = BTreeMap::new();
    let crew = Crew { stop: stop_on_interrupt(), ..Crew::new(args.thread_count(), !context.quiet) };
    let (work, mut done, mut all) = (Arc::new(work), 0, 0);
    while done == all && !cells.is_empty() {
        let jobs: Vec<(u64, u64)> =
            cells.iter().flat_map(|cell| seeds.iter().map(|seed| (*cell, *seed))).collect();
        all += jobs.len();
        let work = Arc::clone(&work);
        let work = move |(cell, seed): &(u64, u64), _: &dyn Fn(f64)| work(*cell, *seed);
        let is_last = args.seeds.is_some() || wanted >= MOST_SEEDS;
        done += in_order(jobs, &crew, work, &mut |(cell, _), run| {
            let runs = open.entry(*cell).or_default();
            runs.push(run);
            // If the user stops the command, incomplete cells are not judged.
            if runs.len() == wanted {
                let judged = verdict(*cell, runs);
                if is_last || decides(&judged) {
                    open.remove(cell);
                }
                verdicts.insert(*cell, judged);
            }
            Ok(())
        })?;
        cells = open.keys().copied().collect();
        seeds = (wanted as u64 + 1..=wanted as u64 * 2).collect();
        wanted *= 2;
    }
    let verdicts: Vec<V> = verdicts.into_values().collect();
    let outcome = if verdicts.is_empty() { Ok(()) } else { report(&verdicts) };
    unless_stopped(done, all)?;
    outcome
}

/// The cells whose value is least, in order.
pub(super) fn worst<V, W>(verdicts: &[V], value: impl Fn(&V) -> f64, row: impl Fn(&V) -> W) -> Vec<W> {
    let mut order: Vec<&V> = verdicts.iter().collect();
    order.sort_by(|a, b| value(a).total_cmp(&value(b)));
    order.into_iter().take(LISTED).map(row).collect()
}

/// A failure if some of the cells or cases fail; `what` completes "3 of 500 …".
pub(super) fn outcome(failing: usize, all: usize, what: &str) -> Result<(), Failure> {
    if failing == 0 { Ok(()) } else { Err(Failure::local(format!("{failing} of {all} {what}"))) }
}

/// Distributions to draw, and the name of the experiment.
#[derive(Clone, Copy)]
pub(super) struct Charts<'a> {
    pub name: &'a str,
    pub distributions: &'a Distributions,
}

/// Writes a report in the requested form, and draws its distributions.
pub(super) fn write<T: Serialize>(
    args: &RunArgs,
    report: &T,
    table: impl FnOnce(&T) -> String,
    csv: impl FnOnce() -> String,
    charts: Charts<'_>,
) -> Result<(), Failure> {
    if args.format.json {
        Stream::Stdout.json(report)?;
    } else if args.format.csv {
        out::print(&csv())?;
    } else {
        out::print(&table(report))?;
    }
    let draw = |folder: &Path| {
        Folder::prepare(folder)?.save_all(draw_distributions(charts.name, charts.distributions))
    };
    args.plot.as_deref().map_or(Ok(()), draw)
}

/// The metrics of a grid, a line each.
pub(super) fn figures(name: &str, metrics: &BTreeMap<String, f64>) -> String {
    let mut text = format!("{name}\n");
    for (name, value) in metrics {
        text.push_str(&format!("  {name:<24} {:>10}\n", number(*value)));
    }
    text
}

/// The command that runs a cell again, with the same seeds.
pub(super) fn replay(name: &str, cell: u64, args: &RunArgs) -> String {
    let mut replay = format!("anabranch sim run {name} --cells {cell}");
    if let Some(seeds) = &args.seeds {
        replay.push_str(&format!(" --seeds {seeds}"));
    }
    if let Some(rule) = args.cc {
        replay.push_str(&format!(" --cc {rule}"));
    }
    replay
}
