//! What the grids of drawn networks have in common: each cell with each seed on all processors, judged once all its
//! seeds are there, and how that is written.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::jobs::{Crew, in_order};
use super::output::number;
use super::plots::{Distributions, draw_distributions};
use super::{RunArgs, Seeds, stop_on_interrupt};
use crate::commands::Context;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// Cells and seeds that are run unless others are asked for.
pub(super) struct Usual {
    pub cells: std::ops::Range<u64>,
    pub seeds: std::ops::Range<u64>,
}

/// The judgements of all cells that are complete, and of how many runs how many were done.
pub(super) struct Judged<V> {
    pub verdicts: Vec<V>,
    pub done: usize,
    pub all: usize,
}

/// Runs each cell with each seed; judges a cell when all its seeds are there.
pub(super) fn judge<R: Send + 'static, V>(
    args: &RunArgs,
    context: &Context,
    usual: Usual,
    work: impl Fn(u64, u64) -> R + Send + Sync + 'static,
    mut verdict: impl FnMut(u64, &[R]) -> V,
) -> Result<Judged<V>, Failure> {
    let cells = args.cells.clone().map_or_else(|| usual.cells.collect(), |cells| cells.0);
    let seeds = args.seeds.clone().unwrap_or_else(|| Seeds(usual.seeds.collect()));
    let jobs: Vec<(u64, u64)> =
        cells.iter().flat_map(|cell| seeds.0.iter().map(|seed| (*cell, *seed))).collect();
    let mut runs: Vec<R> = Vec::with_capacity(seeds.0.len());
    let mut verdicts = Vec::with_capacity(cells.len());
    let crew = Crew { stop: stop_on_interrupt(), ..Crew::new(args.thread_count(), !context.quiet) };
    let (all, mut under_way) = (jobs.len(), None);
    let work = move |(cell, seed): &(u64, u64), _: &dyn Fn(f64)| work(*cell, *seed);
    let done = in_order(jobs, &crew, work, &mut |(cell, _), run| {
        // Of the last cells before the user stopped, some seeds may be missing: these are not judged.
        if under_way.replace(*cell) != Some(*cell) {
            runs.clear();
        }
        runs.push(run);
        if runs.len() == seeds.0.len() {
            verdicts.push(verdict(*cell, &runs));
            runs.clear();
        }
        Ok(())
    })?;
    Ok(Judged { verdicts, done, all })
}

/// Writes a report in the form that was asked for, and draws what is distributed.
pub(super) fn write<T: Serialize>(
    args: &RunArgs,
    report: &T,
    (table, csv): (impl FnOnce(&T) -> String, impl FnOnce() -> String),
    drawn: (&str, &Distributions),
) -> Result<(), Failure> {
    if args.format.json {
        Stream::Stdout.json(report)?;
    } else if args.format.csv {
        out::print(&csv())?;
    } else {
        out::print(&table(report))?;
    }
    let draw = |folder: &Path| draw_distributions(drawn.0, drawn.1, folder);
    args.plot.as_deref().map_or(Ok(()), draw)
}

/// The figures of a grid, a line each, under its name.
pub(super) fn figures(name: &str, metrics: &BTreeMap<String, f64>) -> String {
    let mut text = format!("{name}\n");
    for (name, value) in metrics {
        text.push_str(&format!("  {name:<24} {:>10}\n", number(*value)));
    }
    text
}

/// The command that runs a cell again, with the seeds that were asked for.
pub(super) fn replay(name: &str, cell: u64, args: &RunArgs) -> String {
    let mut replay = format!("anabranch sim run {name} --cells {cell}");
    if let Some(seeds) = &args.seeds {
        replay.push_str(&format!(" --seeds {seeds}"));
    }
    replay
}
