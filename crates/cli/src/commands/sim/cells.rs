//! What the grids of drawn networks have in common: each cell with each seed on all processors, judged once all its
//! seeds are there, and how that is written.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anabranch_experiments::plots::{Distributions, draw_distributions};
use anabranch_experiments::results::number;
use serde::Serialize;

use super::folder::Folder;
use super::jobs::{Crew, in_order};
use super::{RunArgs, stop_on_interrupt};
use crate::commands::Context;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// Seeds of a cell that none of its results decides before.
const MOST_SEEDS: usize = 80;

/// Cells and seeds, from 1 on, that are run unless others are asked for.
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

/// Runs each cell with each seed; judges a cell when all its seeds are there. Where they do not decide and no others were asked
/// for, it gets as many seeds again as it had, up to [`MOST_SEEDS`] in all, and is judged by all of them.
pub(super) fn judge<R: Send + 'static, V>(
    args: &RunArgs,
    context: &Context,
    usual: Usual,
    work: impl Fn(u64, u64) -> R + Send + Sync + 'static,
    (mut verdict, decides): (impl FnMut(u64, &[R]) -> V, impl Fn(&V) -> bool),
) -> Result<Judged<V>, Failure> {
    args.plot.as_deref().map(Folder::prepare).transpose()?;
    let mut cells = args.cells.clone().map_or_else(|| usual.cells.collect(), |cells| cells.0);
    let mut seeds = args.seeds.clone().map_or_else(|| usual.seeds.collect(), |seeds| seeds.0);
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
            // Of the last cells before the user stopped, some seeds may be missing: these are not judged.
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
    Ok(Judged { verdicts: verdicts.into_values().collect(), done, all })
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
    let draw = |folder: &Path| Folder::prepare(folder)?.save_all(draw_distributions(drawn.0, drawn.1));
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
