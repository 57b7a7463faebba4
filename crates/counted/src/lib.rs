//! Counts the instructions of parts of a test with callgrind. The count is the same on a busy machine as on an idle one, so
//! tests may assert on it.
//!
//! A test calls [`run`] on another test of its own executable. That other test does nothing unless it [is
//! counted](is_counted), and calls [`end_of_part`] after each part of its work.

use std::fs;
use std::process::Command;

/// Set in the environment of the counted process.
const COUNTED: &str = "ANABRANCH_COUNTED";
/// Prefix of an output line of the counted process that ends a part.
const MARK: &str = "end of part: ";

/// The count of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The numbers passed to [`end_of_part`].
    pub numbers: Vec<u64>,
    pub instructions: u64,
}

/// True in the process that [`run`] started.
pub fn is_counted() -> bool {
    std::env::var_os(COUNTED).is_some()
}

/// Ends a part. [`run`] returns the numbers with its count.
#[inline(never)]
pub fn end_of_part(numbers: &[u64]) {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    println!("{MARK}{}", words.join(" "));
}

/// Runs one test of this executable under callgrind. Counts all of it, or the functions whose names match `within` (`*`
/// matches anything), which must not call each other. `None` where valgrind is not installed.
///
/// # Panics
/// When the test fails, or callgrind's output is malformed.
pub fn run(test: &str, within: Option<&str>) -> Option<Vec<Part>> {
    let dir = tempfile::tempdir().expect("a directory for the counts");
    let mut command = Command::new("valgrind");
    command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}/part", dir.path().display()))
        .arg("--dump-before=anabranch_counted::end_of_part*");
    if let Some(within) = within {
        command.arg(format!("--toggle-collect={within}"));
    }
    command.arg(std::env::current_exe().expect("a test knows its executable"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(COUNTED, "");
    let output = command.output().ok()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "valgrind failed:\n{out}{err}");
    let numbers = out
        .lines()
        .filter_map(|line| line.split_once(MARK))
        .map(|(_, words)| words.split_whitespace().map(|number| number.parse().expect("a number")).collect());
    let parts = numbers.zip(1..).map(|(numbers, index)| {
        let file = dir.path().join(format!("part.{index}"));
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        Part { numbers, instructions: total.and_then(|total| total.trim().parse().ok()).expect("a total") }
    });
    Some(parts.collect())
}
