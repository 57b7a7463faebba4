//! What CI runs, runnable by hand: `cargo xtask ci`, or one step of it by name.
//!
//! `.ci/run` prepares a bare machine and then calls `cargo xtask ci`; nothing is checked anywhere else.

mod deny;
#[cfg(test)]
mod limits;
mod miri;
mod papers;
mod purity;
mod same;
mod shape;

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// One step: its name and what it does.
type Step = (&'static str, fn() -> Outcome);

/// What became of a step; an error says what failed.
type Outcome = Result<Done, String>;

/// How much of a step was done.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Done {
    All,
    /// Something could not be checked here, and why.
    Skipped(String),
}

/// The exit code of a step run by itself that could not check everything.
const SKIPPED: u8 = 3;

/// The steps of `ci`, the quick ones first.
const STEPS: [Step; 5] = [
    ("fmt", || fmt().map(all)),
    ("purity", || purity::check().map(all)),
    ("deny", deny::check),
    ("clippy", || clippy().map(all)),
    ("test", || test().map(all)),
];

fn all((): ()) -> Done {
    Done::All
}

const USAGE: &str = "\
Usage: cargo xtask STEP

  ci       every step below, in this order; stops at the first that fails, and says at the end what was skipped
  fmt      the code is formatted
  purity   crates without I/O depend on nothing that does I/O
  deny     licences, sources and advisories of dependencies; needs cargo-deny. By itself it exits with 3 when
           something could not be checked
  clippy   no warnings
  test     every test of the workspace

  papers [NAME…]
           the papers' experiments that have no results in target/papers yet, or these; then all tables and drawings
           in docs/notebook/figures; no part of ci
  shape [CRATE…]
           functions, structs, files and circles of imports that are too large, in all crates or these; no part of ci
  miri     unit tests of the data structures of crates without I/O under Miri, some ten minutes; no part of ci
  same     a seed gives the same bytes in debug and release, on one thread and two; no part of ci
  fuzz [--seconds N] [--target NAME] [--seed N]
           hostile bytes for every decoder, the handshake and the session; no part of ci";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if let Some(("fuzz", options)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return fuzz(options);
    }
    // As it is now, not as it was when this was built: a checkout may have moved since.
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let workspace = Path::new(&package).join("..");
    if let Err(why) = env::set_current_dir(&workspace) {
        eprintln!("xtask: cannot enter the workspace {}: {why}", workspace.display());
        return ExitCode::FAILURE;
    }
    match words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("papers", names)) => return told("papers", papers::run(names)),
        Some(("shape", packages)) => return told("shape", shape::check(packages)),
        _ => {}
    }
    let steps: Vec<Step> = match &words[..] {
        [word] if word == "ci" => STEPS.to_vec(),
        [word] if word == "miri" => vec![("miri", || miri::check().map(all))],
        [word] if word == "same" => vec![("same", || same::check().map(all))],
        [word] => STEPS.into_iter().filter(|(name, _)| name == word).collect(),
        _ => Vec::new(),
    };
    if steps.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let is_ci = steps.len() > 1;
    let mut skipped = Vec::new();
    for (name, step) in steps {
        let started = Instant::now();
        match step() {
            Err(why) => {
                eprintln!("xtask: {name} failed: {why}");
                return ExitCode::FAILURE;
            }
            Ok(Done::All) => eprintln!("xtask: {name} ok, {:.0} s", started.elapsed().as_secs_f64()),
            Ok(Done::Skipped(why)) => skipped.push(format!("{name} SKIPPED: {why}")),
        }
    }
    // Again at the end, where it is seen.
    skipped.iter().for_each(|skipped| eprintln!("xtask: {skipped}"));
    ExitCode::from(code(is_ci, !skipped.is_empty()))
}

/// The exit code when nothing failed: a machine without a network can run all of `ci`, but no step by itself passes for done that was not.
fn code(is_ci: bool, skipped: bool) -> u8 {
    if skipped && !is_ci { SKIPPED } else { 0 }
}

/// Runs the fuzz targets with the options given.
fn fuzz(options: &[String]) -> ExitCode {
    let mut words = vec!["run", "--release", "--quiet", "--package", "anabranch-fuzz", "--"];
    words.extend(options.iter().map(String::as_str));
    told("fuzz", cargo(&words))
}

fn told(name: &str, outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {name} failed: {why}");
            ExitCode::FAILURE
        }
    }
}

fn fmt() -> Result<(), String> {
    cargo(&["fmt", "--all", "--check"])
}

fn clippy() -> Result<(), String> {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn test() -> Result<(), String> {
    cargo(&["test", "--workspace"])
}

/// Runs cargo, the one that runs us, and waits for it.
fn cargo(args: &[&str]) -> Result<(), String> {
    let status = command(args).status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`cargo {}`: {status}", args.join(" "))) }
}

/// Runs cargo and gives what it printed.
fn cargo_output(args: &[&str]) -> Result<String, String> {
    let output = command(args).output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("`cargo {}`: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_passes_in_ci_alone() {
        assert_eq!([code(true, true), code(true, false), code(false, false)], [0, 0, 0]);
        assert_eq!(code(false, true), SKIPPED);
    }
}
