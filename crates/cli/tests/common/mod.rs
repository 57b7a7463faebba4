//! What the test programs of the command share.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod clock;
pub mod netns;
pub mod programs;

use std::io::{self, Write};

/// Says on the terminal, past the harness that captures output, that a test did not run and why.
pub fn skip(test: &str, why: &str) {
    say(&format!("skipped: {test}: {why}"));
}

/// Makes up to three attempts at something that is measured in real time, and says what each came to: the machine
/// may be busy with something else for one of them.
pub fn within_three_attempts(test: &str, attempt: impl Fn() -> Result<String, String>) {
    for number in 1..=3 {
        match attempt() {
            Ok(found) => return say(&format!("{test}: attempt {number}: {found}")),
            Err(found) => say(&format!("{test}: attempt {number} falls short: {found}")),
        }
    }
    panic!("{test}: three attempts fall short, see above");
}

/// A line on the terminal, past the harness that captures output.
pub fn say(line: &str) {
    // Nobody to tell it to is no reason to fail.
    let _ = writeln!(io::stderr(), "{line}");
}
