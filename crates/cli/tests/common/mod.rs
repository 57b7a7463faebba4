//! Helpers shared by the tests of the command.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod clock;
pub mod netns;
pub mod programs;

use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Prints to the terminal, past the harness's capture, that a test was skipped and why.
pub fn skip(test: &str, why: &str) {
    say(&format!("skipped: {test}: {why}"));
}

/// Makes up to three attempts at a real-time measurement and prints the result of each, since the machine may be
/// busy during one of them. Before the next one, waits for a while until it is not.
pub fn within_three_attempts(test: &str, attempt: impl Fn() -> Result<String, String>) {
    for number in 1..=3 {
        match attempt() {
            Ok(found) => return say(&format!("{test}: attempt {number}: {found}")),
            Err(found) => say(&format!("{test}: attempt {number} falls short: {found}")),
        }
        if number < 3 {
            wait_for_a_core();
        }
    }
    panic!("{test}: three attempts fall short, see above");
}

/// Waits until the system has no more threads to run than cores for half a second, for twenty seconds at most.
fn wait_for_a_core() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let running = || -> Option<usize> {
        let load = std::fs::read_to_string("/proc/loadavg").ok()?;
        load.split([' ', '/']).nth(3)?.parse().ok()
    };
    let (begin, mut quiet) = (Instant::now(), 0);
    while quiet < 10 && begin.elapsed() < Duration::from_secs(20) {
        quiet = if running().is_none_or(|running| running <= cores) { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Prints a line to the terminal, past the harness's capture.
pub fn say(line: &str) {
    // A closed terminal is no reason to fail.
    let _ = writeln!(io::stderr(), "{line}");
}
