//! `anabranch-fuzz [--seconds N] [--target NAME] [--seed N]`: mutates the corpora and feeds the targets, in turn.
//!
//! An input that makes a target panic is written to its corpus and named; then the program ends with 1.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs};

use anabranch_fuzz::{Mutator, TARGETS, Target, corpus};

fn option(name: &str) -> Option<String> {
    env::args().skip_while(|word| word != name).nth(1)
}

fn known(target: &str) -> Vec<Vec<u8>> {
    let files = fs::read_dir(corpus(target)).into_iter().flatten().flatten();
    let mut paths: Vec<_> = files.map(|file| file.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

/// Runs one target for a while; how often, or the input that made it panic.
fn run((name, target): Target, seed: u64, time: Duration) -> Result<u64, Vec<u8>> {
    let (known, mut mutator, begun) = (known(name), Mutator::new(seed), Instant::now());
    let mut count = 0;
    while begun.elapsed() < time {
        for _ in 0..64 {
            let input = mutator.next(&known);
            catch_unwind(AssertUnwindSafe(|| target(&input))).map_err(|_| input)?;
            count += 1;
        }
    }
    Ok(count)
}

fn main() -> ExitCode {
    let number = |name, default| option(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seconds, seed) = (number("--seconds", 60), number("--seed", 1));
    let only = option("--target");
    let chosen: Vec<_> =
        TARGETS.into_iter().filter(|(name, _)| only.as_deref().is_none_or(|o| o == *name)).collect();
    let each = Duration::from_secs(seconds) / chosen.len().max(1) as u32;
    for target in chosen {
        match run(target, seed, each) {
            Ok(count) => println!("{}: {count} inputs in {each:.1?}", target.0),
            Err(input) => {
                let file = corpus(target.0).join(format!("found-{seed}"));
                let written = fs::create_dir_all(corpus(target.0)).and_then(|()| fs::write(&file, input));
                eprintln!("{}: panicked; input in {} ({written:?})", target.0, file.display());
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
