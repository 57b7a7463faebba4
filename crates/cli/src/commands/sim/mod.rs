//! `anabranch sim`: experiments in virtual time, on the engine that is deployed.

mod args;
mod axis;
mod cells;
mod chart;
mod columns;
mod compare;
mod failures;
mod fairness;
mod folder;
mod grid;
mod jobs;
mod merge;
mod output;
mod overlay;
mod plots;
mod qlog;
mod sheet;
mod trace;
mod usage;

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_sim::scenario::{self, BUILTIN, Scenario, ScenarioError, Setting, variants};
use clap::{Args, Subcommand};

use super::Context;
use crate::errors::{Failure, Kind};
use crate::interrupt;
use crate::ui::out;

use args::MAX_RUNS;
pub use args::{FormatArgs, MergeArgs, PlotArgs, RunArgs, Seeds, Shard, SweepArgs};
use folder::Folder;
use jobs::{Crew, Job, Wanted, run_jobs};

const EXAMPLES: &str = "\
Examples:
  anabranch sim list                                       what comes along
  anabranch sim run nsdi11-fig14 --seeds 1..20             means and 95 % intervals
  anabranch sim run mine.toml --json | jq .metrics
  anabranch sim run grid --cells 0..499 --seeds 1..10      never slower than one path?
  anabranch sim run failures --cells 0..999                is every break bridged?
  anabranch sim run overlay --cells 50,500                 what do so many relays cost each other?
  anabranch sim sweep mine.toml --set 'flow.M.rule=lia,olia' --seeds 1..20 --shard 1/4 --json > part1
  anabranch sim merge part1 part2 part3 part4
  anabranch sim merge part1 --metric 'flow.*.pkt_s'        a Markdown table with a row a variant
  anabranch sim run nsdi11-fig17 --plot drawings           rates, windows, queues over time, as SVG
  anabranch sim plot part1 part2 --metric jain             bars with error bars over seeds
  anabranch sim compare sockets                            the simulator against real sockets
  anabranch sim run mine.toml --trace mine.pcapng          for Wireshark
  anabranch sim run mine.toml --trace mine.sqlog           for qvis
  anabranch sim schema > scenario.schema.json              for editors that check TOML";

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
    /// Draw results that were written as JSON
    Plot(PlotArgs),
    /// Run a scenario in virtual time and over real sockets, and compare
    Compare(compare::CompareArgs),
    /// List the scenarios that come along
    List,
    /// Print the JSON Schema of scenario files
    Schema,
}

impl SimArgs {
    /// Whether networks are run.
    #[must_use]
    pub fn simulates(&self) -> bool {
        matches!(self.command, SimCommand::Run(_) | SimCommand::Sweep(_))
    }

    /// Whether results go out as JSON.
    #[must_use]
    pub fn json(&self) -> bool {
        match &self.command {
            SimCommand::Run(args) => args.format.json,
            SimCommand::Sweep(args) => args.run.format.json,
            SimCommand::Merge(args) => args.format.json,
            SimCommand::Compare(args) => args.json,
            SimCommand::Plot(_) | SimCommand::List | SimCommand::Schema => false,
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
        SimCommand::Run(args) if args.scenario == failures::NAME => failures::run(args, context),
        SimCommand::Run(args) if args.scenario == fairness::NAME => fairness::run(args, context),
        SimCommand::Run(args) if args.scenario == overlay::NAME => overlay::run(args, context),
        SimCommand::Run(args) => run_once(args, &[], None, context),
        SimCommand::Sweep(args) => run_once(&args.run, &args.set, args.shard, context),
        SimCommand::Merge(args) => merge::run(args, context),
        SimCommand::Plot(args) => plots::run(args, context),
        SimCommand::Compare(args) => compare::run(args),
        SimCommand::List => list(),
        SimCommand::Schema => out::print(&format!("{:#}\n", scenario::schema())),
    }
}

fn list() -> Result<(), Failure> {
    let mut text = String::new();
    for (name, about) in [
        (grid::NAME, grid::ABOUT),
        (failures::NAME, failures::ABOUT),
        (fairness::NAME, fairness::ABOUT),
        (overlay::NAME, overlay::ABOUT),
    ] {
        text.push_str(&format!("{name:<24} {about}\n"));
    }
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
    for variant in variants {
        let variant = Arc::new(variant);
        for seed in &seeds.0 {
            jobs.push(Job { variant: Arc::clone(&variant), seed: *seed, run: jobs.len() });
        }
    }
    if let Some(shard) = shard {
        jobs = jobs.into_iter().skip(shard.index - 1).step_by(shard.count).collect();
    }
    if args.trace.is_some() && jobs.len() != 1 {
        return Err(
            Failure::local(format!("a trace of {} runs", jobs.len())).hint("give one seed and no sweep")
        );
    }
    let mut folder = args.plot.as_deref().map(Folder::prepare).transpose()?;
    let crew = Crew { stop: stop_on_interrupt(), ..Crew::new(args.thread_count(), !context.quiet) };
    let wanted = Wanted { course: args.plot.is_some(), trace: args.trace.clone() };
    let mut writer = output::Writer::new(args.format.format());
    let mut album = folder.as_ref().map(|_| plots::Album::default());
    let all = jobs.len();
    let done = run_jobs(jobs, &crew, wanted, &mut |done| {
        if let Some(album) = &mut album {
            album.add(&done.run, done.course);
        }
        writer.add(done.run)
    })?;
    let outcome = writer.finish();
    if let (Some(album), Some(folder)) = (album, &mut folder) {
        album.write(folder)?;
    }
    unless_stopped(done, all)?;
    outcome
}

/// The failure of a command that the user stopped before all was done.
fn unless_stopped(done: usize, all: usize) -> Result<(), Failure> {
    if done >= all {
        return Ok(());
    }
    let message = format!("stopped after {done} of {all} runs");
    Err(Failure::new(Kind::Interrupted, message).hint("what was complete has been written"))
}

/// Becomes true when the user wants to stop. A second Ctrl-C ends the program at once.
fn stop_on_interrupt() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let listen = move || {
        // Without a runtime, or without a thread, Ctrl-C does what it does by default: it ends the program.
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            interrupt::requested().await;
            told.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        });
    };
    let _ = std::thread::Builder::new().spawn(listen);
    stop
}

/// A scenario by its file or its name.
fn load(name: &str) -> Result<Scenario, Failure> {
    let known = BUILTIN.iter().find(|(known, _)| *known == name);
    let text = match known {
        Some((_, text)) => (*text).to_owned(),
        None => {
            let bytes = read(Path::new(name)).map_err(|error| {
                let failure = Failure::file("read", Path::new(name), &error);
                if Path::new(name).extension().is_some() {
                    return failure;
                }
                failure.hint("`anabranch sim list` names the scenarios that come along")
            })?;
            text_of(Path::new(name), bytes)?
        }
    };
    Scenario::parse(&text, name).map_err(|error| mistake(&error))
}

/// Largest scenario file in bytes: what is larger is no scenario.
const MAX_FILE: u64 = 16 << 20;

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if read as u64 > MAX_FILE {
        return Err(std::io::Error::other("it is larger than 16 MiB, which no scenario is"));
    }
    Ok(bytes)
}

/// What a file holds as text; where it is none, the failure names the line.
fn text_of(path: &Path, bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count();
        let byte = error.as_bytes()[good];
        Failure::local(format!("cannot read {}:{line}: the byte {byte:#04x} is not UTF-8", path.display()))
            .hint("save it as UTF-8")
    })
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
        let jobs = || {
            let variants = variants(&base, &settings).unwrap().into_iter().map(Arc::new);
            variants
                .flat_map(|variant| {
                    (1..4).map(move |seed| Job { variant: Arc::clone(&variant), seed, run: 0 })
                })
                .collect()
        };
        let lines = |threads| {
            let mut lines = Vec::new();
            let mut add = |done: jobs::Done| {
                lines.push(out::json_line(&done.run.without_usage()));
                Ok(())
            };
            assert_eq!(run_jobs(jobs(), &Crew::new(threads, false), Wanted::default(), &mut add), Ok(6));
            lines
        };
        let alone = lines(1);
        assert_eq!(alone.len(), 6);
        assert_eq!(alone, lines(2));
    }

    #[test]
    fn who_stops_it_keeps_what_is_complete() {
        let base = Scenario::parse(include_str!("test.toml"), "test").unwrap();
        let variant = Arc::new(variants(&base, &[]).unwrap().remove(0));
        let jobs = (1..200).map(|seed| Job { variant: Arc::clone(&variant), seed, run: 0 }).collect();
        let crew = Crew::new(2, false);
        let mut seeds = Vec::new();
        let done = run_jobs(jobs, &crew, Wanted::default(), &mut |done| {
            seeds.push(done.run.seed);
            crew.stop.store(true, Ordering::Relaxed);
            Ok(())
        });
        let done = done.unwrap();
        assert!((1..100).contains(&done) && seeds.len() == done && seeds.is_sorted(), "{done} {seeds:?}");
    }

    #[test]
    fn what_is_no_scenario_at_all_is_told_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        std::fs::write(file("binary.toml"), [0_u8, 159, 146, 150]).unwrap();
        std::fs::write(file("empty.toml"), "").unwrap();
        std::fs::write(file("huge.toml"), vec![b'#'; MAX_FILE as usize + 1]).unwrap();
        let told = |name: &str| load(name).unwrap_err().to_string();
        for name in [file("binary.toml"), file("huge.toml"), file("missing.toml"), file("")] {
            assert!(told(&name).starts_with(&format!("cannot read {name}")), "{}", told(&name));
        }
        std::fs::write(file("latin.toml"), b"# links\n[[link]]\nname = \"caf\xe9\"\n").unwrap();
        let latin = load(&file("latin.toml")).unwrap_err();
        let place = format!("cannot read {}:3: the byte 0xe9 is not UTF-8", file("latin.toml"));
        assert_eq!((latin.message, latin.hint.as_deref()), (place, Some("save it as UTF-8")));
        assert!(told(&file("empty.toml")).contains("`duration` is missing"));
        assert!(load("nsdi11-fig99").unwrap_err().hint.unwrap().contains("sim list"));
    }
}
