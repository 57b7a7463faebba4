//! `anabranch sim`: experiments in virtual time, on the engine that is deployed.

mod grid;
mod jobs;
mod merge;
mod output;
mod usage;

use std::path::Path;
use std::str::FromStr;

use anabranch_engine::SchedulerKind;
use anabranch_sim::scenario::{BUILTIN, Scenario, ScenarioError, Setting, variants};
use clap::{Args, Subcommand};

use super::Context;
use crate::args::OUTPUT;
use crate::errors::Failure;
use crate::ui::out;

use jobs::{Job, run_jobs};
use output::Format;

const EXAMPLES: &str = "\
Examples:
  anabranch sim list                                       what comes along
  anabranch sim run nsdi11-fig14 --seeds 1..20             means and 95 % intervals
  anabranch sim run mine.toml --json | jq .metrics
  anabranch sim run grid --cells 0..499 --seeds 1..10      never slower than one path?
  anabranch sim sweep mine.toml --set 'flow.M.rule=lia,olia' --seeds 1..20 --shard 1/4 --json > part1
  anabranch sim merge part1 part2 part3 part4";

/// Run experiments in virtual time
///
/// A scenario is a text file: links, flows, what happens, what is expected. It runs the engine that is deployed,
/// over modelled links, without a clock: the same seed gives the same result on every machine.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SimArgs {
    /// What to do
    #[command(subcommand)]
    pub command: SimCommand,
}

/// What `sim` can do.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run a scenario, once or with several seeds
    Run(RunArgs),
    /// Run every combination of some settings, or a share of them
    Sweep(SweepArgs),
    /// Put the parts of a sweep together
    Merge(MergeArgs),
    /// List the scenarios that come along
    List,
}

/// What one run or many need.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// A file, or the name of a scenario that comes along
    #[arg(value_name = "SCENARIO")]
    pub scenario: String,
    /// Seeds, as 7, 1..20 or 1,4,9; the scenario's own when left out
    #[arg(long, value_name = "SEEDS")]
    pub seeds: Option<Seeds>,
    /// Runs at the same time; as many as there are processors when left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Which networks of `grid` to run, as seeds are written; 0..499 when left out
    #[arg(long, value_name = "CELLS")]
    pub cells: Option<Seeds>,
    /// How `grid` spreads data over paths; a scenario file says it itself
    #[arg(long, value_name = "NAME")]
    pub scheduler: Option<SchedulerKind>,
    /// How results are written
    #[command(flatten)]
    pub format: FormatArgs,
}

impl RunArgs {
    fn thread_count(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(all, usize::from)
    }

    /// The options that only the grid knows are an error elsewhere.
    fn without_grid(&self) -> Result<(), Failure> {
        let option = match (&self.cells, self.scheduler) {
            (Some(_), _) => "--cells",
            (_, Some(_)) => "--scheduler",
            _ => return Ok(()),
        };
        Err(Failure::local(format!("{option} belongs to `sim run grid`"))
            .hint("a scenario's own settings are changed with `sim sweep SCENARIO --set KEY=VALUE`"))
    }
}

/// How results are written.
#[derive(Args, Clone, Copy, Debug)]
pub struct FormatArgs {
    /// One JSON object a run instead of a table
    #[arg(long, conflicts_with = "csv", help_heading = OUTPUT)]
    pub json: bool,
    /// One line of comma-separated values a run instead of a table
    #[arg(long, help_heading = OUTPUT)]
    pub csv: bool,
}

impl FormatArgs {
    fn format(self) -> Format {
        match (self.json, self.csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Table,
        }
    }
}

/// What a sweep needs.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// As of a run.
    #[command(flatten)]
    pub run: RunArgs,
    /// A key and the values it takes, as flow.M.rule=lia,olia; may be given several times
    #[arg(long = "set", value_name = "KEY=A,B,…", required = true)]
    pub set: Vec<Setting>,
    /// Only every n-th run, from the i-th on, as 3/16
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
}

/// What to put together.
#[derive(Args, Debug)]
pub struct MergeArgs {
    /// Files that `sweep --json` wrote
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<std::path::PathBuf>,
    /// How the whole is written
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Seeds to run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

/// Most runs of one command.
const MAX_RUNS: usize = 1_000_000;

impl std::fmt::Display for Seeds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let in_a_row = self.0.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        match (self.0.first(), self.0.last()) {
            (Some(first), Some(last)) if in_a_row && first < last => write!(f, "{first}..{last}"),
            _ => f.write_str(&self.0.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("`{text}` names no seeds; write 7, 1..20 or 1,4,9");
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wanted());
        let mut seeds = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once("..") {
                Some((first, last)) => (number(first)?, number(last.trim_start_matches('='))?),
                None => (number(part)?, number(part)?),
            };
            if last < first || last - first >= MAX_RUNS as u64 {
                return Err(wanted());
            }
            seeds.extend(first..=last);
        }
        Ok(Self(seeds))
    }
}

/// A share of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    /// How many shares there are.
    pub count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => Err(format!("`{text}` is no share; write 3/16 for the third of sixteen")),
        }
    }
}

impl SimArgs {
    /// Whether results go out as JSON.
    #[must_use]
    pub fn json(&self) -> bool {
        match &self.command {
            SimCommand::Run(args) => args.format.json,
            SimCommand::Sweep(args) => args.run.format.json,
            SimCommand::Merge(args) => args.format.json,
            SimCommand::List => false,
        }
    }
}

/// Does what was asked for.
///
/// # Errors
/// When a scenario has a mistake, a bound was not kept, or output cannot be written.
pub fn run(args: &SimArgs, context: &Context) -> Result<(), Failure> {
    match &args.command {
        SimCommand::Run(args) if args.scenario == grid::NAME => grid::run(args, context),
        SimCommand::Run(args) => run_once(args, &[], None, context),
        SimCommand::Sweep(args) => run_once(&args.run, &args.set, args.shard, context),
        SimCommand::Merge(args) => merge::run(args),
        SimCommand::List => list(),
    }
}

fn list() -> Result<(), Failure> {
    let mut text = format!("{:<24} {}\n", grid::NAME, grid::ABOUT);
    for (name, toml) in BUILTIN {
        let scenario = Scenario::parse(toml, name).map_err(|error| mistake(&error))?;
        text.push_str(&format!("{name:<24} {}\n", scenario.about()));
    }
    out::print(&text)
}

fn run_once(
    args: &RunArgs,
    settings: &[Setting],
    shard: Option<Shard>,
    context: &Context,
) -> Result<(), Failure> {
    args.without_grid()?;
    let base = load(&args.scenario)?;
    let seeds = args.seeds.clone().unwrap_or_else(|| Seeds(vec![base.seed()]));
    let variants = variants(&base, settings).map_err(|error| mistake(&error))?;
    if variants.len().saturating_mul(seeds.0.len()) > MAX_RUNS {
        return Err(Failure::local(format!("more than {MAX_RUNS} runs")).hint("take fewer seeds or values"));
    }
    let mut jobs = Vec::new();
    for variant in &variants {
        jobs.extend(seeds.0.iter().map(|seed| Job { variant, seed: *seed }));
    }
    if let Some(shard) = shard {
        jobs = jobs.into_iter().skip(shard.index - 1).step_by(shard.count).collect();
    }
    let mut writer = output::Writer::new(args.format.format());
    run_jobs(&jobs, args.thread_count(), !context.quiet, &mut |run| writer.add(run))?;
    writer.finish()
}

/// A scenario by its file or its name.
fn load(name: &str) -> Result<Scenario, Failure> {
    let known = BUILTIN.iter().find(|(known, _)| *known == name);
    let text = match known {
        Some((_, text)) => (*text).to_owned(),
        None => std::fs::read_to_string(name).map_err(|error| {
            let failure = Failure::file("read", Path::new(name), &error);
            if Path::new(name).extension().is_some() {
                return failure;
            }
            failure.hint("`anabranch sim list` names the scenarios that come along")
        })?,
    };
    Scenario::parse(&text, name).map_err(|error| mistake(&error))
}

/// A mistake in a scenario, for the user.
fn mistake(error: &ScenarioError) -> Failure {
    let (hint, bare) = (error.hint.clone(), ScenarioError { hint: String::new(), ..error.clone() });
    let failure = Failure::local(bare.to_string());
    if hint.is_empty() { failure } else { failure.hint(hint) }
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
        for text in ["1..4", "7", "1,4,5"] {
            assert_eq!(text.parse::<Seeds>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn shares_are_counted_from_one() {
        assert_eq!("3/16".parse(), Ok(Shard { index: 3, count: 16 }));
        for text in ["0/4", "5/4", "3", "a/b"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_mistake_names_the_line_and_says_what_to_do() {
        let error = Scenario::parse("duration = \"1 s\"\ndurations = 2\n", "x.toml").unwrap_err();
        let failure = mistake(&error);
        assert!(failure.message.starts_with("x.toml:2: durations: unknown key"), "{failure}");
        assert!(failure.hint.unwrap().contains("`duration`"));
    }

    #[test]
    fn one_thread_and_two_write_the_same() {
        let base = Scenario::parse(include_str!("test.toml"), "test").unwrap();
        let settings = ["transport.rule=mptcp,reno".parse().unwrap()];
        let variants = variants(&base, &settings).unwrap();
        let jobs: Vec<Job<'_>> =
            variants.iter().flat_map(|variant| (1..4).map(move |seed| Job { variant, seed })).collect();
        let lines = |threads| {
            let mut lines = Vec::new();
            let mut add = |run: output::Run| {
                lines.push(out::json_line(&run.without_usage()));
                Ok(())
            };
            run_jobs(&jobs, threads, false, &mut add).unwrap();
            lines
        };
        let alone = lines(1);
        assert_eq!(alone.len(), 6);
        assert_eq!(alone, lines(2));
    }
}
