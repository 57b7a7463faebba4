//! Command-line arguments of `anabranch sim`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anabranch_engine::cc::RuleKind;
use anabranch_engine::{Config, SchedulerKind};
use anabranch_experiments::scenario::Setting;
use clap::Args;
use clap::builder::UnknownArgumentValueParser;

use super::named::{FAILURES, FAIRNESS, GRID};
use super::output::Format;
use crate::context::OUTPUT;
use crate::errors::Failure;
use crate::values::{one_of, whole};

/// Most simultaneous runs for each processor.
const MOST_A_PROCESSOR: usize = 4;

/// Arguments of a run or a sweep.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// A file or a built-in scenario
    #[arg(value_name = "SCENARIO")]
    pub scenario: String,
    /// Seeds, as 7, 1..20 or 1,4,9 [default: the scenario's own; for a grid two or more]
    #[arg(long, value_name = "SEEDS", allow_negative_numbers = true)]
    pub seeds: Option<Seeds>,
    /// Simultaneous runs, at most four for each processor [default: one]
    #[arg(long, value_name = "N", value_parser = whole(1..=u16::MAX))]
    pub threads: Option<u16>,
    /// Networks of `grid`, `fairness`, `losses` and `tunnels`, cases of `failures`, relays in `overlay`, written like seeds
    /// [default: all]
    #[arg(long, value_name = "CELLS")]
    pub cells: Option<Seeds>,
    /// The scheduler of `grid`; a scenario file has its own
    #[arg(long, value_name = "KIND")]
    pub scheduler: Option<SchedulerKind>,
    /// The window rule of sessions in `grid`, `fairness` and `failures`; a scenario file has its own
    #[arg(long, value_name = "RULE")]
    #[arg(value_parser = one_of::<RuleKind>(RuleKind::ALL.map(RuleKind::name)))]
    pub cc: Option<RuleKind>,
    /// Run `failures` with a redundant stream instead of a bulk stream
    #[arg(long)]
    pub redundant: bool,
    /// When paths of `failures` break, in seconds after the start [default: 0.3..6]
    #[arg(long, value_name = "FROM..TO")]
    pub after: Option<Moments>,
    /// End a run with an error after so many seconds [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = whole(1..=u64::MAX))]
    pub time_limit: Option<u64>,
    /// Write SVG charts into this directory
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub plot: Option<PathBuf>,
    /// Write every packet of a single run to this file, as pcapng or, with the extension .sqlog, as qlog
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub trace: Option<PathBuf>,
    /// Print and draw only these metrics, as a Markdown table; `*` stands for any part between dots
    #[arg(long = "metric", value_name = "NAME", conflicts_with_all = ["json", "csv"], help_heading = OUTPUT)]
    pub metrics: Vec<String>,
    /// How results are written
    #[command(flatten)]
    pub format: FormatArgs,
}

impl RunArgs {
    /// The window rule of a grid's sessions.
    pub(super) fn rule(&self) -> RuleKind {
        self.cc.unwrap_or(Config::default().cc.rule)
    }

    pub(super) fn thread_count(&self) -> usize {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or(all, |threads| (all * MOST_A_PROCESSOR).min(threads.into()))
    }

    /// Refuses the options that an experiment does not have.
    pub(super) fn without_trace(&self, name: &str) -> Result<(), Failure> {
        if self.cc.is_some() && !matches!(name, GRID | FAIRNESS | FAILURES) {
            return Err(Failure::usage(format!("`sim run {name}` has no --cc"))
                .hint("`grid`, `fairness` and `failures` have it"));
        }
        if self.scheduler.is_some() && name != GRID {
            return Err(Failure::usage(format!("`sim run {name}` has no --scheduler")).hint("`grid` has it"));
        }
        if name != FAILURES {
            self.without_failures()?;
        }
        if self.time_limit.is_some() {
            return Err(Failure::usage(format!("`sim run {name}` has no --time-limit"))
                .hint("its runs are short: `--cells` limits how many there are"));
        }
        if !self.metrics.is_empty() {
            return Err(Failure::usage(format!("`sim run {name}` has no --metric"))
                .hint("it prints a table of its own; --json and --csv have all figures"));
        }
        if self.trace.is_none() {
            return Ok(());
        }
        Err(Failure::usage(format!("`sim run {name}` has no --trace"))
            .hint("run a scenario file instead: `anabranch sim run FILE --trace FILE`"))
    }

    /// Refuses the options of grids.
    pub(super) fn without_grid(&self) -> Result<(), Failure> {
        let (option, whose) = match (&self.cells, self.scheduler, self.cc) {
            (Some(_), ..) => {
                ("--cells", "`sim run grid`, `fairness`, `losses`, `tunnels`, `failures` and `overlay`")
            }
            (_, Some(_), _) => ("--scheduler", "`sim run grid`"),
            (.., Some(_)) => ("--cc", "`sim run grid`, `fairness` and `failures`"),
            _ => return self.without_failures(),
        };
        Err(Failure::usage(format!("{option} belongs to {whose}"))
            .hint("a scenario's own settings are changed with `sim sweep SCENARIO --set KEY=VALUE`"))
    }

    /// Refuses the options of `failures`.
    fn without_failures(&self) -> Result<(), Failure> {
        let (option, hint) = if self.redundant {
            ("--redundant", "a flow of a scenario is redundant with `redundant = true`")
        } else if self.after.is_some() {
            (
                "--after",
                "a link of a scenario breaks with an event at a time: see docs/reference/scenarios.md",
            )
        } else {
            return Ok(());
        };
        Err(Failure::usage(format!("{option} belongs to `sim run failures`")).hint(hint))
    }
}

/// An interval, in seconds after the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments(pub f64, pub f64);

impl FromStr for Moments {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = |text: &str| text.parse().ok().filter(|seconds| (0.0..=3_600.0).contains(seconds));
        let moments = text.split_once("..").and_then(|(from, to)| Some(Self(seconds(from)?, seconds(to)?)));
        moments
            .filter(|moments| moments.0 <= moments.1)
            .ok_or_else(|| format!("`{text}` is not FROM..TO in seconds, an hour at most, as in 6..20"))
    }
}

impl fmt::Display for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.0, self.1)
    }
}

/// How results are written.
#[derive(Args, Clone, Copy, Debug)]
pub struct FormatArgs {
    /// JSON instead of text, a line for each event or result
    #[arg(long, conflicts_with = "csv", help_heading = OUTPUT)]
    pub json: bool,
    /// Comma-separated values instead of a table
    #[arg(long, help_heading = OUTPUT)]
    pub csv: bool,
}

impl FormatArgs {
    pub(super) fn format(self) -> Format {
        match (self.json, self.csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Table,
        }
    }
}

/// Arguments of `sim run`.
#[derive(Args, Debug)]
pub struct SingleArgs {
    /// Arguments shared with sweeps.
    #[command(flatten)]
    pub run: RunArgs,
    /// An option of sweeps, here only for its error message.
    #[arg(long = "set", hide = true, value_parser = UnknownArgumentValueParser::suggest(SETS_SWEEP))]
    set: Option<String>,
    /// An option of sweeps, here only for its error message.
    #[arg(long = "shard", hide = true, value_parser = UnknownArgumentValueParser::suggest(SHARD_SWEEP))]
    shard: Option<String>,
}

/// The hint for `--shard` of a run.
const SHARD_SWEEP: &str = "shards belong to sweeps: `anabranch sim sweep SCENARIO --set KEY=A,B --shard I/N`";
/// The hint for `--set` of a run.
const SETS_SWEEP: &str = "to change values, run `anabranch sim sweep SCENARIO --set KEY=VALUE`";

/// Arguments of `sim sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// Arguments shared with runs.
    #[command(flatten)]
    pub run: RunArgs,
    /// A key and its values, as flow.M.rule=lia,olia; may be repeated
    #[arg(long = "set", value_name = "KEY=A,B,…", required = true)]
    pub set: Vec<Setting>,
    /// Every n-th run from the i-th on, as 3/16
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
}

/// Arguments of `sim merge`.
#[derive(Args, Debug)]
pub struct MergeArgs {
    /// Files that `run --json` or `sweep --json` wrote
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Only these metrics, as a Markdown table; `*` stands for any part between dots
    #[arg(long = "metric", value_name = "NAME", conflicts_with_all = ["json", "csv"])]
    pub metrics: Vec<String>,
    /// The output format
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Arguments of `sim plot`.
#[derive(Args, Debug)]
pub struct PlotArgs {
    /// Files that `run --json` or `sweep --json` wrote
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Metrics to draw, a chart each; `*` stands for any part between dots
    #[arg(long = "metric", value_name = "NAME", default_value = "flow.*.goodput_mbit_s")]
    pub metrics: Vec<String>,
    /// Directory for the charts
    #[arg(long = "into", value_name = "DIR", default_value = ".", help_heading = OUTPUT)]
    pub into: PathBuf,
}

/// Seeds to run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

/// Most runs of one command.
pub(super) const MAX_RUNS: usize = 1_000_000;

impl std::fmt::Display for Seeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_a_row = self.0.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
        match (self.0.first(), self.0.last()) {
            (Some(first), Some(last)) if in_a_row && first < last => write!(f, "{first}..{last}"),
            _ => f.write_str(&self.0.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("`{text}` is not a number, a range or a list; write 7, 1..20 or 1,4,9");
        let many = || format!("`{text}` is too many; at most {MAX_RUNS}");
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wanted());
        let mut seeds = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once("..") {
                Some((first, last)) => (number(first)?, number(last.trim_start_matches('='))?),
                None => (number(part)?, number(part)?),
            };
            if last < first {
                return Err(wanted());
            }
            if last - first >= (MAX_RUNS - seeds.len()) as u64 {
                return Err(many());
            }
            seeds.extend(first..=last);
        }
        // A repeated run would count as another one.
        let mut sorted = seeds.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("`{text}` names {} twice; name each once", twice[0]));
        }
        Ok(Self(seeds))
    }
}

/// A part of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    /// How many parts there are.
    pub count: usize,
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            Some((_, count)) if count > 0 => {
                Err(format!("`{text}` is out of range: 1/{count} to {count}/{count}"))
            }
            _ => Err(format!("`{text}` is not a shard; write 3/16 for the third of sixteen")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_ranges_lists_or_single_numbers() {
        assert_eq!("1..4".parse(), Ok(Seeds(vec![1, 2, 3, 4])));
        assert_eq!("7".parse(), Ok(Seeds(vec![7])));
        assert_eq!("1,4..5".parse(), Ok(Seeds(vec![1, 4, 5])));
        for text in ["", "a", "5..1", "1..99999999999"] {
            assert!(text.parse::<Seeds>().is_err(), "{text}");
        }
        let told = |text: &str| text.parse::<Seeds>().unwrap_err();
        assert_eq!(told("1,2..4,3"), "`1,2..4,3` names 3 twice; name each once");
        assert_eq!(told("1..1000000000000"), "`1..1000000000000` is too many; at most 1000000");
        assert_eq!(told("1..1000000,7000000"), "`1..1000000,7000000` is too many; at most 1000000");
        for text in ["1..4", "7", "1,4,5"] {
            assert_eq!(text.parse::<Seeds>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn moments_are_two_times_in_order() {
        for text in ["6..20", "0.3..6", "0..0"] {
            assert_eq!(text.parse::<Moments>().unwrap().to_string(), text);
        }
        for text in ["", "6", "20..6", "-1..2", "0..3601", "NaN..1", "0..inf"] {
            assert!(text.parse::<Moments>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_counted_from_one() {
        assert_eq!("3/16".parse(), Ok(Shard { index: 3, count: 16 }));
        assert_eq!(Shard { index: 3, count: 16 }.to_string(), "3/16");
        let told = |text: &str| text.parse::<Shard>().unwrap_err();
        for text in ["0/4", "5/4"] {
            assert_eq!(told(text), format!("`{text}` is out of range: 1/4 to 4/4"));
        }
        for text in ["3", "a/b", "0/0", "1/0", "-1/4", "1/4/4"] {
            assert_eq!(told(text), format!("`{text}` is not a shard; write 3/16 for the third of sixteen"));
        }
    }
}
