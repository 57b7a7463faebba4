//! `cargo xtask fuzz`: libFuzzer on every target, guided by the compiler's coverage counters.
//!
//! Each target begins with its corpus. At the end the smallest set of inputs that reaches the same code goes to the file
//! `reached.hex` of the corpus, which `cargo test` replays. An input on which a target fails goes to the corpus as well.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo::{cargo_output, command};

/// Flags for the counters that libFuzzer reads.
const COVERAGE: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    // The name by which crates recognise a fuzzer.
    "--cfg=fuzzing",
];
const TARGET_DIRECTORY: &str = "target/guided";
/// Longest input, in bytes.
const LONGEST: u32 = 2048;
/// Largest file of kept inputs, in bytes. The shortest come first.
const MOST_KEPT: usize = 200_000;

/// Options of the command.
pub struct Options {
    /// Time of all targets together, in seconds.
    pub seconds: u64,
    /// Only this target.
    pub target: Option<String>,
    /// Seed of the first target; each next one has the next.
    pub seed: u64,
}

/// Builds the program, runs each target and keeps what it reached.
pub fn run(options: &Options) -> Result<(), String> {
    let program = build()?;
    let corpora = Path::new("crates/fuzz/corpus");
    let folders = fs::read_dir(corpora).map_err(|error| format!("{}: {error}", corpora.display()))?;
    let names = folders.flatten().filter_map(|folder| folder.file_name().into_string().ok());
    let chosen: BTreeSet<String> =
        names.filter(|name| options.target.as_ref().is_none_or(|only| only == name)).collect();
    if chosen.is_empty() {
        return Err(format!("there is no target with a corpus of that name in {}", corpora.display()));
    }
    let each = (options.seconds / chosen.len() as u64).max(1);
    for (name, seed) in chosen.iter().zip(options.seed..) {
        Target { program: &program, name, corpus: &corpora.join(name) }.run(each, seed)?;
    }
    Ok(())
}

/// Builds the program with the counters and with overflow checks, and returns its path.
fn build() -> Result<PathBuf, String> {
    let version = cargo_output(&["version", "--verbose"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("cargo names no host")?;
    // With --target, the flags do not apply to build scripts, which libFuzzer is not part of.
    let words =
        ["build", "--release", "--package", "anabranch-fuzz", "--features", "guided", "--bin", "guided"];
    let mut build = command(&[&words[..], &["--target", host, "--target-dir", TARGET_DIRECTORY]].concat());
    build.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"));
    for (setting, value) in [("LTO", "off"), ("DEBUG_ASSERTIONS", "true"), ("OVERFLOW_CHECKS", "true")] {
        build.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    let status = build.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !status.success() {
        return Err(format!("the program with counters was not built: {status}; it needs a C++ compiler"));
    }
    Ok(Path::new(TARGET_DIRECTORY).join(host).join("release/guided"))
}

struct Target<'a> {
    program: &'a Path,
    name: &'a str,
    corpus: &'a Path,
}

impl Target<'_> {
    fn run(&self, seconds: u64, seed: u64) -> Result<(), String> {
        let work = self.folder("work")?;
        for (number, input) in self.reached().iter().enumerate() {
            write(&work.join(format!("reached-{number}")), input)?;
        }
        let found = self.corpus.join("found-");
        let mut fuzz = self.command();
        fuzz.arg(format!("-max_total_time={seconds}")).arg(format!("-seed={seed}"));
        fuzz.arg(format!("-max_len={LONGEST}")).args(["-timeout=20", "-rss_limit_mb=2048", "-verbosity=0"]);
        fuzz.arg("-print_final_stats=1").arg(format!("-artifact_prefix={}", found.display()));
        let output = fuzz.args([&work, self.corpus]).output().map_err(|error| self.failed(&error))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!(
                "{}: {}; the input is in {}\n{said}",
                self.name,
                output.status,
                self.corpus.display()
            ));
        }
        let count = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        let kept = self.keep(&work)?;
        println!("{}: {} inputs in {seconds} s, {kept} kept", self.name, count.unwrap_or(" ?").trim());
        Ok(())
    }

    /// Writes the smallest set of inputs that reaches what those in `work` reach; returns their number.
    fn keep(&self, work: &Path) -> Result<usize, String> {
        let least = self.folder("least")?;
        let mut merge = self.command();
        merge.args(["-merge=1", "-verbosity=0"]).args([&least, work]).stderr(Stdio::null());
        let status = merge.status().map_err(|error| self.failed(&error))?;
        if !status.success() {
            return Err(format!("{}: the inputs were not merged: {status}", self.name));
        }
        let mut inputs = files(&least)?;
        inputs.sort_by_key(|input| (input.len(), input.clone()));
        let mut text = String::new();
        for input in &inputs {
            if text.len() + 2 * input.len() + 1 > MOST_KEPT {
                break;
            }
            for byte in input {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
        write(&self.corpus.join("reached.hex"), text.as_bytes())?;
        Ok(text.lines().count())
    }

    /// The inputs of an earlier run.
    fn reached(&self) -> Vec<Vec<u8>> {
        let text = fs::read_to_string(self.corpus.join("reached.hex")).unwrap_or_default();
        let byte = |line: &str, at: usize| u8::from_str_radix(line.get(at..at + 2)?, 16).ok();
        text.lines()
            .filter_map(|line| (0..line.len()).step_by(2).map(|at| byte(line, at)).collect())
            .collect()
    }

    /// An empty folder for this target.
    fn folder(&self, what: &str) -> Result<PathBuf, String> {
        let folder = Path::new(TARGET_DIRECTORY).join(what).join(self.name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(folder)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command.env("ANABRANCH_FUZZ_TARGET", self.name);
        command
    }

    fn failed(&self, error: &std::io::Error) -> String {
        format!("{} does not start: {error}", self.program.display())
    }
}

fn files(folder: &Path) -> Result<Vec<Vec<u8>>, String> {
    let failed = |error| format!("{}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(failed)?.flatten();
    entries.map(|entry| fs::read(entry.path()).map_err(failed)).collect()
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(file, bytes).map_err(|error| format!("{}: {error}", file.display()))
}
