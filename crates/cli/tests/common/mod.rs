//! Helpers shared by the tests of the command.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod clock;
pub mod netns;
pub mod programs;

use std::io::{self, Write};

/// Prints to the terminal, past the harness's capture, that a test was skipped and why.
pub fn skip(test: &str, why: &str) {
    say(&format!("skipped: {test}: {why}"));
}

/// Makes up to three attempts at a real-time measurement and prints the result of each, since the machine may be
/// busy during one of them.
pub fn within_three_attempts(test: &str, attempt: impl Fn() -> Result<String, String>) {
    for number in 1..=3 {
        match attempt() {
            Ok(found) => return say(&format!("{test}: attempt {number}: {found}")),
            Err(found) => say(&format!("{test}: attempt {number} falls short: {found}")),
        }
    }
    panic!("{test}: three attempts fall short, see above");
}

/// Prints a line to the terminal, past the harness's capture.
pub fn say(line: &str) {
    // A closed terminal is no reason to fail.
    let _ = writeln!(io::stderr(), "{line}");
}
