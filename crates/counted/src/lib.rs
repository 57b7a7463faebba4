//! Counts the instructions of parts of a test, by callgrind: the same number on a busy machine as on an idle one, so that a test may fail by it.
//!
//! A test [`run`]s another of its own executable under callgrind. That other does nothing unless it [is counted](is_counted), and calls
//! [`end_of_part`] after each part of what it does.

use std::fs;
use std::process::Command;

/// Set for the process that is counted.
const COUNTED: &str = "ANABRANCH_COUNTED";
/// What a line of the counted process begins with that tells of a part.
const MARK: &str = "end of part: ";

/// What a part took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What [`end_of_part`] was told.
    pub told: Vec<u64>,
    /// Instructions.
    pub instructions: u64,
}

/// True in the process that [`run`] started.
#[must_use]
pub fn is_counted() -> bool {
    std::env::var_os(COUNTED).is_some()
}

/// Ends a part, with numbers for whoever reads the count.
#[inline(never)]
pub fn end_of_part(told: &[u64]) {
    let words: Vec<String> = told.iter().map(u64::to_string).collect();
    println!("{MARK}{}", words.join(" "));
}

/// Runs one test of this executable under callgrind and counts all that it does, or what is done in functions whose names fit `within`
/// (`*` stands for anything), which may not call each other. `None` where valgrind is not installed.
///
/// # Panics
/// When the test fails, or callgrind does not write what it should.
#[must_use]
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
    let told = out
        .lines()
        .filter_map(|line| line.split_once(MARK))
        .map(|(_, told)| told.split_whitespace().map(|number| number.parse().expect("a number")).collect());
    let parts = told.zip(1..).map(|(told, number)| {
        let file = dir.path().join(format!("part.{number}"));
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        Part { told, instructions: total.and_then(|total| total.trim().parse().ok()).expect("a total") }
    });
    Some(parts.collect())
}
