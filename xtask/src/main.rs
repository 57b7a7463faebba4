//! The steps of CI, runnable by hand: `cargo xtask ci`, or one step by name.
//!
//! `.ci/run` prepares a bare machine and then calls `cargo xtask ci`; nothing is checked elsewhere.

mod book;
mod cargo;
mod deb;
mod deny;
#[cfg(test)]
mod examples;
mod guided;
mod limits;
mod outcome;
mod pages;
mod papers;
mod purity;
mod same;
mod shape;

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use cargo::{cargo, command};
use outcome::{Done, Outcome};

/// One step: its name and what it does.
type Step = (&'static str, fn() -> Outcome);

/// The exit code of a single step that could not check everything.
const SKIPPED: u8 = 3;

/// The steps of `ci`, the quick ones first.
const STEPS: [Step; 8] = [
    ("fmt", || fmt().map(all)),
    ("purity", || purity::check().map(all)),
    ("shape", || shape::check_findings().map(all)),
    ("pages", || pages::check(Path::new(".")).and_then(|()| limits::check(Path::new("."))).map(all)),
    ("deny", deny::check),
    ("clippy", || clippy().map(all)),
    ("test", || test().map(all)),
    ("package", deb::check),
];

fn all((): ()) -> Done {
    Done::All
}

const USAGE: &str = "\
Usage: cargo xtask STEP

  ci       every step below, in this order; stops at the first failure, and lists skipped checks at the end.
           Clippy itself compiles the tests here, so that the code is compiled once
  fmt      the code is formatted
  purity   crates without I/O depend on nothing that does I/O
  shape    no function, struct, file or circle of imports is too large; `shape [CRATE…]` checks these crates, and counts
           lines and words too
  pages    every link of the pages leads somewhere, and every limit on the page about security names its test
  deny     licences, sources and advisories of dependencies; needs cargo-deny. As a single step it exits with 3
           when something could not be checked
  clippy   no warnings
  test     every test of the workspace: cargo test --workspace
  package  a Debian package of the tests' binary, installed into an empty directory, runs

  book     checks the pages and builds them as a book in target/book; not part of ci
  reference
           writes the generated pages in docs/reference again; not part of ci
  deb      Debian packages of the optimised program and of its debug information, in target/deb; not part of ci
  papers [NAME…]
           run the papers' experiments without results in target/papers, or these; then write all tables and
           drawings to docs/notebook/figures; not part of ci
  same     a seed gives the same bytes in debug and release, on one thread and two; not part of ci
  soak     the simulator's random tests with ten times as many seeds or more; some ten minutes; not part of ci
  fuzz [--seconds N] [--target NAME] [--seed N]
           hostile bytes for every decoder, the handshake and the session: libFuzzer looks for inputs that reach more
           code, and the corpora keep them; needs a C++ compiler; not part of ci";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    // The checkout may have moved since this program was built.
    let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let workspace = Path::new(&package).join("..");
    if let Err(why) = env::set_current_dir(&workspace) {
        eprintln!("xtask: cannot enter the workspace {}: {why}", workspace.display());
        return ExitCode::FAILURE;
    }
    match words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("fuzz", options)) => {
            return exit_code("fuzz", guided_options(options).and_then(|options| guided::run(&options)));
        }
        Some(("papers", names)) => return exit_code("papers", papers::run(names)),
        Some(("shape", packages)) => return exit_code("shape", shape::check(packages)),
        _ => {}
    }
    let steps: Vec<Step> = match &words[..] {
        [word] if word == "ci" => STEPS.into_iter().map(once_compiled).collect(),
        [word] if word == "same" => vec![("same", || same::check().map(all))],
        [word] if word == "soak" => vec![("soak", || soak().map(all))],
        [word] if word == "book" => vec![("book", || book::build().map(all))],
        [word] if word == "reference" => vec![("reference", || reference().map(all))],
        [word] if word == "deb" => vec![("deb", || deb::build().map(all))],
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
    // Listed at the end, where users look.
    skipped.iter().for_each(|skipped| eprintln!("xtask: {skipped}"));
    ExitCode::from(code(is_ci, !skipped.is_empty()))
}

/// The exit code when nothing failed. `ci` passes on a machine without a network, but a single skipped step does not.
fn code(is_ci: bool, skipped: bool) -> u8 {
    if skipped && !is_ci { SKIPPED } else { 0 }
}

/// The options of `fuzz`.
fn guided_options(words: &[String]) -> Result<guided::Options, String> {
    let mut options = guided::Options { seconds: 60, target: None, seed: 1 };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().and_then(|value| value.parse().ok());
            value.ok_or_else(|| format!("{word} takes a number"))
        };
        match word.as_str() {
            "--seconds" => options.seconds = number()?,
            "--seed" => options.seed = number()?,
            "--target" => options.target = words.next().cloned(),
            _ => return Err(format!("{word:?} is no option of fuzz")),
        }
    }
    Ok(options)
}

fn exit_code(name: &str, outcome: Result<(), String>) -> ExitCode {
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

/// The step of `ci` in place of this one. `cargo clippy` would check every library, which the tests then compile; so clippy
/// compiles the tests.
fn once_compiled(step: Step) -> Step {
    match step.0 {
        "clippy" => ("clippy", || compile_by_clippy().map(all)),
        "test" => ("test", || by_clippy(&["test", "--workspace"]).and_then(run_tests).map(all)),
        _ => step,
    }
}

/// The benchmarks come by themselves: with `--all-targets`, examples would be compiled as tests, and then again.
fn compile_by_clippy() -> Result<(), String> {
    for targets in [&[][..], &["--benches"]] {
        let mut command = by_clippy(&["test", "--workspace", "--no-run"])?;
        let status =
            command.args(targets).status().map_err(|error| format!("cannot start cargo: {error}"))?;
        if !status.success() {
            return Err(format!("the tests, compiled by clippy: {status}"));
        }
    }
    Ok(())
}

/// Cargo with clippy as the compiler of the workspace. Warnings are errors.
fn by_clippy(args: &[&str]) -> Result<Command, String> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map_err(|error| format!("cannot start rustc: {error}"))?.stdout;
    let driver = Path::new(String::from_utf8_lossy(&sysroot).trim()).join("bin/clippy-driver");
    if !driver.exists() {
        return Err("clippy is not installed: rustup component add clippy".into());
    }
    let mut command = command(args);
    command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("RUSTFLAGS", "-Dwarnings");
    Ok(command)
}

fn test() -> Result<(), String> {
    run_tests(command(&["test", "--workspace"]))
}

/// Runs three tests for each core at a time, because those with sockets and processes mostly wait.
fn run_tests(mut command: Command) -> Result<(), String> {
    if env::var_os("RUST_TEST_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env("RUST_TEST_THREADS", (3 * cores).to_string());
    }
    let status = command.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`cargo test --workspace`: {status}")) }
}

/// Writes the generated pages again. The test that compares them writes them if it finds this variable.
fn reference() -> Result<(), String> {
    let mut command = command(&["test", "--quiet", "--package", "anabranch", "--test", "reference"]);
    let status = command.env("ANABRANCH_WRITE_REFERENCE", "1").status();
    let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the pages were not written: {status}")) }
}

/// Random tests and the seeds that a soak runs; their modules read the variable that this passes.
const SOAKS: [(&str, &str); 2] =
    [("random_operations::no_invariant_breaks", "0..20000"), ("failover::silence", "0..1000")];

fn soak() -> Result<(), String> {
    for (tests, seeds) in SOAKS {
        let mut command = command(&["test", "--package", "anabranch-sim", "--test", "all", tests]);
        let status = command.env("ANABRANCH_SEEDS", seeds).status();
        let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
        if !status.success() {
            return Err(format!("{tests} with the seeds {seeds}: {status}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_checks_pass_only_in_ci() {
        assert_eq!([code(true, true), code(true, false), code(false, false)], [0, 0, 0]);
        assert_eq!(code(false, true), SKIPPED);
    }
}
