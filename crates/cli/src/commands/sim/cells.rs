//! Runs the cells of a grid on all processors, judges them, and writes the report.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anabranch_experiments::plots::{Distributions, draw_distributions};
use anabranch_experiments::results::number;
use anabranch_experiments::scenario::Metrics;
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
/// How many of the worst cells are listed at least; those that fail are always listed.
const LISTED: usize = 10;

/// A grid and how it is run.
pub(super) struct Grid<'a> {
    pub args: &'a RunArgs,
    pub context: &'a Context,
    pub name: &'static str,
    /// The default cells.
    pub cells: Range<u64>,
    /// The default seeds.
    pub seeds: Range<u64>,
    /// Completes "3 of 500 …" if cells fail.
    pub failing: &'static str,
}

/// The verdict on a cell.
pub(super) trait Judged: Sized {
    /// Its row in the report.
    fn row(&self) -> Row;
    /// The metrics of the grid.
    fn metrics(all: &[Self]) -> Metrics;
    /// The distributions of the cells, for charts.
    fn distributions(all: &[Self]) -> Distributions;
}

/// A judged cell in a report.
pub(super) struct Row {
    /// The cell's number.
    pub number: u64,
    /// The network and its traffic in words.
    pub network: String,
    /// The lower, the worse.
    pub rank: f64,
    pub fails: bool,
    /// Whether more seeds would hardly change the verdict.
    pub is_decided: bool,
    /// Figures by name, the same names for every cell; `None` for those that this one does not have.
    pub figures: Vec<(&'static str, Option<f64>)>,
}

#[derive(Serialize)]
struct Report<'a> {
    scenario: &'static str,
    metrics: Metrics,
    worst: Vec<Listed<'a>>,
}

/// A listed cell.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    figures: BTreeMap<&'static str, Option<f64>>,
    fails: bool,
    cell: &'a str,
    replay: String,
}

/// Runs each cell with each seed, judges a cell when all its seeds are complete, and writes the report.
///
/// An undecided cell gets twice as many seeds, up to [`MOST_SEEDS`], unless the user named the seeds.
pub(super) fn judge<R: Send + 'static, V: Judged>(
    grid: &Grid<'_>,
    work: impl Fn(u64, u64) -> R + Send + Sync + 'static,
    mut verdict: impl FnMut(u64, &[R]) -> V,
) -> Result<(), Failure> {
    let Grid { args, context, .. } = grid;
    args.plot.as_deref().map(Folder::prepare).transpose()?;
    let mut cells = args.cells.clone().map_or_else(|| grid.cells.clone().collect(), |cells| cells.0);
    let mut seeds = args.seeds.clone().map_or_else(|| grid.seeds.clone().collect(), |seeds| seeds.0);
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
                if is_last || judged.row().is_decided {
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
    let outcome = if verdicts.is_empty() { Ok(()) } else { report(grid, &verdicts) };
    unless_stopped(done, all)?;
    outcome
}

/// Writes the report in the requested form, draws it, and fails if a cell does.
fn report<V: Judged>(grid: &Grid<'_>, verdicts: &[V]) -> Result<(), Failure> {
    let (args, scenario) = (grid.args, grid.name);
    let rows: Vec<Row> = verdicts.iter().map(V::row).collect();
    let failing = rows.iter().filter(|row| row.fails).count();
    let mut order: Vec<&Row> = rows.iter().collect();
    order.sort_by(|a, b| b.fails.cmp(&a.fails).then(a.rank.total_cmp(&b.rank)));
    let worst = order.iter().take(LISTED.max(failing)).map(|row| Listed {
        figures: row.figures.iter().copied().collect(),
        fails: row.fails,
        cell: &row.network,
        replay: replay(scenario, row.number, args),
    });
    let report = Report { scenario, metrics: V::metrics(verdicts), worst: worst.collect() };
    if args.format.json {
        Stream::Stdout.json(&report)?;
    } else if args.format.csv {
        out::print(&csv(&rows))?;
    } else {
        out::print(&table(&report))?;
    }
    if let Some(folder) = &args.plot {
        Folder::prepare(folder)?.save_all(draw_distributions(scenario, &V::distributions(verdicts)))?;
    }
    match failing {
        0 => Ok(()),
        _ => Err(Failure::local(format!("{failing} of {} {}", rows.len(), grid.failing))),
    }
}

/// The metrics, a line each, then the worst cells.
fn table(report: &Report<'_>) -> String {
    let mut text = format!("{}\n", report.scenario);
    for (name, value) in &report.metrics {
        text.push_str(&format!("  {name:<24} {:>10}\n", number(*value)));
    }
    text.push_str("the worst cells\n");
    for Listed { figures, fails, cell, replay } in &report.worst {
        for (name, value) in figures {
            text.push_str(&value.map_or(String::new(), |value| format!("  {name} {}", number(value))));
        }
        let mark = if *fails { "  fails" } else { "" };
        text.push_str(&format!("{mark}\n    {cell}\n    {replay}\n"));
    }
    text
}

/// A line for each cell.
fn csv(rows: &[Row]) -> String {
    let mut text = "cell".to_owned();
    for (name, _) in rows.first().into_iter().flat_map(|row| &row.figures) {
        text.push_str(&format!(",{name}"));
    }
    text.push_str(",fails,network\n");
    for Row { number, figures, fails, network, .. } in rows {
        text.push_str(&number.to_string());
        for (_, value) in figures {
            text.push_str(&value.map_or(",".to_owned(), |value| format!(",{value}")));
        }
        text.push_str(&format!(",{fails},\"{network}\"\n"));
    }
    text
}

/// The command that runs a cell again, with the same options.
fn replay(name: &str, cell: u64, args: &RunArgs) -> String {
    let mut replay = format!("anabranch sim run {name} --cells {cell}");
    let options = [
        ("seeds", args.seeds.as_ref().map(ToString::to_string)),
        ("scheduler", args.scheduler.map(|kind| kind.to_string())),
        ("cc", args.cc.map(|rule| rule.to_string())),
        ("after", args.after.map(|moments| moments.to_string())),
    ];
    for (option, value) in options {
        replay.push_str(&value.map_or(String::new(), |value| format!(" --{option} {value}")));
    }
    if args.redundant {
        replay.push_str(" --redundant");
    }
    replay
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_figure_that_a_cell_has_not_leaves_its_place_empty() {
        let row = |number, queue, fails| Row {
            number,
            network: "alone; 2.0 Mbit/s".to_owned(),
            rank: 1.0,
            fails,
            is_decided: true,
            figures: vec![("rate", Some(0.5)), ("queue", queue)],
        };
        let rows = [row(3, None, true), row(4, Some(2.0), false)];
        let lines = [
            "cell,rate,queue,fails,network",
            "3,0.5,,true,\"alone; 2.0 Mbit/s\"",
            "4,0.5,2,false,\"alone; 2.0 Mbit/s\"",
        ];
        assert_eq!(csv(&rows).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_cell_runs_again_with_the_same_options() {
        let args: RunArgs = parse(&["failures", "--cc", "lia", "--redundant", "--after", "6..20"]).unwrap();
        let wanted = "anabranch sim run failures --cells 7 --cc lia --after 6..20 --redundant";
        assert_eq!(replay("failures", 7, &args), wanted);
    }
}
