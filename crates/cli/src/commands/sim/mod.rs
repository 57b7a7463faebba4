//! `anabranch sim`: experiments in virtual time, with the deployed engine.

mod args;
mod cells;
mod compare;
mod folder;
mod grids;
mod jobs;
mod load;
mod merge;
mod named;
mod output;
mod overlay;
mod plots;
mod qlog;
mod stop;
mod trace;
mod usage;

use std::sync::Arc;

use anabranch_experiments::plots::Album;
use anabranch_experiments::results::{COSTS, matches};
use anabranch_experiments::scenario::{self, BUILTIN, Scenario, Setting, Variant, variants};
use clap::{Args, Subcommand};

use crate::context::Context;
use crate::errors::Failure;
use crate::ui::out;

use args::MAX_RUNS;
pub use args::{MergeArgs, PlotArgs, RunArgs, Seeds, Shard, SingleArgs, SweepArgs};
use folder::Folder;
use jobs::{Crew, Job, Traced, Wanted, run_jobs};
use load::{load, mistake, wrong_setting};
use named::{FAILURES, FAIRNESS, GRID, LOSSES, NAMED, OVERLAY, TUNNELS, is_named};
use output::no_metric;
use stop::{stop_on_interrupt, unless_stopped};

const EXAMPLES: &str = "\
Examples:
  anabranch sim list                                       built-in scenarios
  anabranch sim run nsdi11-fig14 --seeds 1..20             means and 95 % intervals
  anabranch sim run mine.toml --json | jq .metrics
  anabranch sim run grid --cells 0..499 --seeds 1..10      never slower than one path?
  anabranch sim run failures --cells 0..999                does the session survive every break?
  anabranch sim run overlay --cells 50,500                 cost of sensing with so many relays
  anabranch sim sweep mine.toml --set 'flow.M.rule=lia,olia' --seeds 1..20 --shard 1/4 --json > part1
  anabranch sim merge part1 part2 part3 part4
  anabranch sim merge part1 --metric 'flow.*.pkt_s'        a Markdown table of variants
  anabranch sim run mine.toml --metric 'flow.*.pkt_s'      only these metrics
  anabranch sim run nsdi11-fig17 --plot drawings           rates, windows, queues over time, as SVG
  anabranch sim plot part1 part2 --metric jain             bars with error bars over seeds
  anabranch sim compare sockets                            the simulator against real sockets
  anabranch sim run mine.toml --trace mine.pcapng          for Wireshark
  anabranch sim run mine.toml --trace mine.sqlog           for qvis
  anabranch sim schema > scenario.schema.json              for editors that check TOML";

/// Exit codes of experiments.
const EXIT_CODES: &str = "\
Exit codes:
  0    done, all bounds kept
  1    a bound of [expect], grid, fairness, losses, tunnels, failures or overlay is violated, or the
       results of compare differ by more than --within; or the command failed: a
       mistake in a scenario, results that cannot be read, a file that cannot be
       written. Standard error has the reason
  2    wrong command line: an option, a value, a --set that is not valid for the
       scenario, a --metric that no run has
  3    compare: the connection over sockets was lost
  130  interrupted; complete runs have been written";

/// Run experiments in virtual time
///
/// A scenario has links, flows, events and expected results. The same seed gives the same result on every machine.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct SimArgs {
    #[command(subcommand)]
    pub command: SimCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run a scenario, once or with several seeds
    #[command(after_long_help = EXIT_CODES)]
    Run(SingleArgs),
    /// Run every combination of some settings, or a part of them
    #[command(after_long_help = EXIT_CODES)]
    Sweep(SweepArgs),
    /// Merge the parts of a sweep
    #[command(after_long_help = EXIT_CODES)]
    Merge(MergeArgs),
    /// Draw results that were written as JSON
    #[command(after_long_help = EXIT_CODES)]
    Plot(PlotArgs),
    /// Run a scenario in virtual time and over real sockets, and compare
    #[command(after_long_help = EXIT_CODES)]
    Compare(compare::CompareArgs),
    /// List the built-in scenarios
    List,
    /// Print the JSON Schema of scenario files
    Schema,
}

impl SimArgs {
    /// How many networks may run at the same time.
    pub fn at_once(&self) -> usize {
        match &self.command {
            SimCommand::Run(SingleArgs { run, .. }) if !is_named(&run.scenario) => {
                run.thread_count().min(run.seeds.as_ref().map_or(1, |seeds| seeds.0.len()))
            }
            SimCommand::Run(SingleArgs { run, .. }) | SimCommand::Sweep(SweepArgs { run, .. }) => {
                run.thread_count()
            }
            _ => 0,
        }
    }
}

/// Runs the command.
pub fn run(args: &SimArgs, context: &Context) -> Result<(), Failure> {
    match &args.command {
        SimCommand::Run(args) => run_named(&args.run, context),
        SimCommand::Sweep(args) => run_all(&args.run, &args.set, args.shard, context),
        SimCommand::Merge(args) => merge::run(args, context),
        SimCommand::Plot(args) => plots::run(args, context),
        SimCommand::Compare(args) => compare::run(args, context),
        SimCommand::List => list(),
        SimCommand::Schema => out::print(&format!("{:#}\n", scenario::schema())),
    }
}

fn run_named(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    match args.scenario.as_str() {
        GRID => grids::run_grid(args, context),
        FAILURES => grids::run_failures(args, context),
        FAIRNESS => grids::run_fairness(args, context),
        LOSSES => grids::run_losses(args, context),
        TUNNELS => grids::run_tunnels(args, context),
        OVERLAY => overlay::run(args, context),
        _ => run_all(args, &[], None, context),
    }
}

/// The names of all built-in scenarios.
pub fn scenario_names() -> impl Iterator<Item = &'static str> {
    NAMED.iter().chain(BUILTIN).map(|(name, _)| *name)
}

fn list() -> Result<(), Failure> {
    let mut text = String::new();
    for (name, about) in NAMED {
        text.push_str(&format!("{name:<24} {about}\n"));
    }
    for (name, toml) in BUILTIN {
        let scenario = Scenario::parse(toml, name).map_err(|error| mistake(&error))?;
        text.push_str(&format!("{name:<24} {}\n", scenario.about()));
    }
    out::print(&text)
}

fn run_all(
    args: &RunArgs,
    settings: &[Setting],
    shard: Option<Shard>,
    context: &Context,
) -> Result<(), Failure> {
    args.without_grid()?;
    let base = load(&args.scenario)?;
    let seeds = args.seeds.clone().unwrap_or_else(|| Seeds(vec![base.seed()]));
    let variants = variants(&base, settings).map_err(|error| wrong_setting(&error))?;
    if variants.len().saturating_mul(seeds.0.len()) > MAX_RUNS {
        return Err(Failure::usage(format!("more than {MAX_RUNS} runs")).hint("take fewer seeds or values"));
    }
    check_metrics(&args.metrics, &variants)?;
    let mut jobs = Vec::new();
    for variant in variants {
        let variant = Arc::new(variant);
        for seed in &seeds.0 {
            jobs.push(Job { variant: Arc::clone(&variant), seed: *seed, run: jobs.len() });
        }
    }
    if let Some(shard) = shard {
        let all = jobs.len();
        jobs = jobs.into_iter().skip(shard.index - 1).step_by(shard.count).collect();
        if jobs.is_empty() && !context.quiet {
            out::error(&format!("{} {}\n", context.paint.yellow("warning:"), no_runs(shard, all)));
        }
    }
    if args.trace.is_some() && jobs.len() != 1 {
        return Err(
            Failure::usage(format!("a trace of {} runs", jobs.len())).hint("give one seed and no sweep")
        );
    }
    let is_same = |trace: &std::path::PathBuf| {
        trace.canonicalize().is_ok_and(|trace| {
            std::path::Path::new(&args.scenario).canonicalize().is_ok_and(|it| it == trace)
        })
    };
    if args.trace.as_ref().is_some_and(is_same) {
        return Err(Failure::usage("the trace would overwrite the scenario")
            .hint("name another file, such as --trace run.pcapng"));
    }
    let mut folder = args.plot.as_deref().map(Folder::prepare).transpose()?;
    let crew = Crew { stop: stop_on_interrupt(), ..Crew::new(args.thread_count(), !context.quiet) };
    let trace = args.trace.as_deref().map(|path| Traced::to(path, &crew.stop));
    let time_limit = args.time_limit.map(std::time::Duration::from_secs);
    let wanted = Wanted { course: args.plot.is_some(), trace: trace.clone(), time_limit };
    let mut writer = output::Writer::new(args.format.format(), base.about()).of_metrics(&args.metrics);
    let mut album = folder.as_ref().map(|_| Album::default());
    let all = jobs.len();
    let done = run_jobs(jobs, &crew, wanted, &mut |done| {
        if let Some(album) = &mut album {
            album.add(&done.run, done.course);
        }
        writer.add(done.run)
    });
    // The trace of a failed or stopped run is completed, too.
    let traced = trace.map_or(Ok(()), |trace| trace.finish());
    let done = done?;
    traced?;
    let outcome = writer.finish();
    if let (Some(album), Some(folder)) = (album, &mut folder) {
        folder.save_all(album.draw(&args.metrics))?;
    }
    unless_stopped(done, all).map_err(|failure| match args.trace {
        Some(_) => failure.hint("the trace has all packets until then"),
        None => failure,
    })?;
    outcome
}

/// Checks that each pattern names a metric of some variant, before anything runs.
fn check_metrics(patterns: &[String], variants: &[Variant]) -> Result<(), Failure> {
    let mut left: Vec<&String> = patterns.iter().collect();
    left.retain(|pattern| !COSTS.iter().any(|name| matches(pattern, name)));
    for variant in variants {
        if left.is_empty() {
            return Ok(());
        }
        let names = variant.scenario.metric_names().map_err(|error| mistake(&error))?;
        left.retain(|pattern| !names.iter().any(|name| matches(pattern, name)));
    }
    let unknown = |pattern: &&String| {
        Err(no_metric(pattern).hint("without --metric all are printed, with their names"))
    };
    left.first().map_or(Ok(()), unknown)
}

/// The warning for an empty shard. It is not an error: the size of a cluster's job array may be fixed.
fn no_runs(shard: Shard, all: usize) -> String {
    let runs = if all == 1 { "1 run".to_owned() } else { format!("{all} runs") };
    format!("shard {shard} of {runs} is empty: it has nothing to do and adds nothing to `sim merge`")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::commands::test::parse;
    use crate::context::Global;
    use crate::errors::Kind;

    #[test]
    fn a_run_is_alone_unless_it_has_several_seeds_or_networks() {
        for (words, at_once) in [
            (&["run", "s.toml", "--threads", "2"][..], 1),
            (&["run", "s.toml", "--threads", "2", "--seeds", "1..9"], 2),
            (&["run", "s.toml", "--threads", "1", "--seeds", "1..9"], 1),
            (&["run", "grid", "--threads", "2"], 2),
            (&["sweep", "s.toml", "--threads", "2", "--set", "seed=1"], 2),
            (&["list"], 0),
        ] {
            assert_eq!(parse::<SimArgs>(words).map(|args| args.at_once()).ok(), Some(at_once), "{words:?}");
        }
    }

    #[test]
    fn exit_codes_are_told_where_runs_are_and_are_those_of_failures() {
        use clap::Args as _;
        let mut command = SimArgs::augment_args(clap::Command::new("sim"));
        assert!(command.render_long_help().to_string().contains(EXIT_CODES.lines().last().unwrap()));
        for name in ["run", "sweep", "merge", "plot", "compare"] {
            let help = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            for kind in [Kind::Local, Kind::Usage, Kind::Unreachable, Kind::Interrupted] {
                assert!(help.contains(&format!("\n  {:<5}", kind.exit_code())), "{name}: {kind:?}");
            }
        }
    }

    #[test]
    fn a_trace_that_cannot_be_written_ends_the_run_with_the_reason() {
        let args: RunArgs = parse(&["two-links", "--trace", "/dev/full"]).unwrap();
        let failure = run_all(&args, &[], None, &Context::new(&Global::default())).unwrap_err();
        assert!(failure.message.starts_with("cannot write /dev/full: "), "{}", failure.message);
    }

    #[test]
    fn a_trace_of_a_run_that_is_stopped_has_whole_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pcapng");
        let stop = Arc::new(AtomicBool::new(false));
        let trace = Traced::to(&path, &stop);
        let link = "[[link]]\nname = \"l\"\nrate = \"1 Mbit/s\"\n";
        let flow = "[[flow]]\nname = \"f\"\npaths = [\"l\"]\n";
        let base = Scenario::parse(&format!("duration = \"20 h\"\n{link}{flow}"), "s").unwrap();
        let variant = Arc::new(variants(&base, &[]).unwrap().remove(0));
        let jobs = vec![Job { variant, seed: 1, run: 0 }];
        let crew = Crew { stop: Arc::clone(&stop), ..Crew::new(1, false) };
        let wanted = Wanted { trace: Some(trace.clone()), ..Wanted::default() };
        let (file, ends) = (path.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !file.metadata().is_ok_and(|meta| meta.len() > 100_000) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert_eq!(run_jobs(jobs, &crew, wanted, &mut |_| Ok(())), Ok(0));
        trace.finish().unwrap();
        let written = std::fs::read(&path).unwrap();
        let mut reader = pcap_file::pcapng::PcapNgReader::new(&written[..]).unwrap();
        let mut blocks = 0;
        while let Some(block) = reader.next_block() {
            block.unwrap();
            blocks += 1;
        }
        assert!(blocks > 500, "{blocks}");
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
    fn a_metric_that_no_variant_has_is_refused_before_anything_runs() {
        let base = Scenario::parse(include_str!("test.toml"), "test").unwrap();
        let variants = variants(&base, &["transport.rule=mptcp,reno".parse().unwrap()]).unwrap();
        let check = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
            check_metrics(&patterns, &variants).map_err(|failure| (failure.kind, failure.message))
        };
        assert_eq!(check(&["flow.*.goodput_mbit_s", "run.cpu_s", "jain"]), Ok(()));
        let message = "no run has a metric \"flow.M.goodput\"".to_owned();
        assert_eq!(check(&["jain", "flow.M.goodput"]), Err((Kind::Usage, message)));
    }

    #[test]
    fn a_share_without_runs_is_told_and_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tiny.toml");
        std::fs::write(&file, include_str!("test.toml")).unwrap();
        let sweep = |shard: &str| {
            let set = ["--set", "transport.rule=mptcp,reno", "--json", "--shard", shard];
            let args: SweepArgs = parse(&[&[file.to_str().unwrap()], &set[..]].concat()).unwrap();
            run_all(&args.run, &args.set, args.shard, &Context::new(&Global::default()))
        };
        assert_eq!(sweep("3/3"), Ok(()));
        let told = no_runs(Shard { index: 3, count: 3 }, 2);
        assert!(told.starts_with("shard 3/3 of 2 runs is empty: "), "{told}");
    }
}
