//! What the test programs of the command share.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod netns;
pub mod programs;

use std::io::{self, Write};

/// Says on the terminal, past the harness that captures output, that a test did not run and why.
pub fn skip(test: &str, why: &str) {
    // Nobody to tell it to is no reason to fail.
    let _ = writeln!(io::stderr(), "skipped: {test}: {why}");
}
