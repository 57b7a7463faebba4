//! `anabranch-fuzz`: mutates the corpora and runs each target in turn.
//!
//! An input on which a target panics or takes too long is written to the target's corpus and named; then the program exits
//! with 1.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anabranch_fuzz::{Found, MOST, Mutator, TARGETS, Target, corpus, feed, inputs};
use clap::Parser;

/// Mutates the corpora and runs each target in turn.
#[derive(Parser)]
#[command(name = "cargo xtask fuzz")]
struct Options {
    /// Processor time of all targets together, in seconds.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Run only this target.
    #[arg(long, value_name = "NAME", value_parser = TARGETS.map(|(name, _)| name))]
    target: Option<String>,
    /// Another seed, other inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Processor time used by this process.
fn worked() -> Duration {
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    clock.now().map(Duration::from).expect("a process may read its own clock")
}

/// Runs one target for a while; returns the number of inputs, or the input on which it failed.
fn run((name, target): Target, seed: u64, time: Duration) -> Result<u64, Found> {
    let (known, mut mutator, begun) = (inputs(name), Mutator::new(seed), worked());
    let inputs = (0_u64..).map_while(move |count| {
        // Reading the clock for every input would be slow.
        let goes_on = count % 64 > 0 || worked() - begun < time;
        goes_on.then(|| mutator.next(&known))
    });
    feed(target, inputs, MOST)
}

fn main() -> ExitCode {
    let Options { seconds, target: only, seed } = Options::parse();
    let wanted = |(name, _): &Target| only.as_deref().is_none_or(|only| only == *name);
    let chosen: Vec<_> = TARGETS.into_iter().filter(wanted).collect();
    let each = Duration::from_secs(seconds) / chosen.len().max(1) as u32;
    for target in chosen {
        match run(target, seed, each) {
            Ok(count) => println!("{}: {count} inputs in {each:.1?}", target.0),
            Err(Found { input, hung }) => {
                let what = if hung { "did not end" } else { "panicked" };
                let file = corpus(target.0).join(format!("found-{seed}"));
                let written = fs::create_dir_all(corpus(target.0)).and_then(|()| fs::write(&file, input));
                eprintln!("{}: {what}; input in {} ({written:?})", target.0, file.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
