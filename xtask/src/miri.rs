//! Runs unit tests of the pure crates under Miri, to find undefined behaviour in them or their dependencies.
//!
//! These crates have no `unsafe` code, but their dependencies do (`smallvec`, `bytes`, the standard library's
//! collections). Miri is some hundred times slower than the machine, so random tests draw few cases.

use std::process::Command;

/// The tests of each crate, or all of them, chosen to cover the data structures that everything else uses. Tests of whole
/// sessions, and of links over millions of packets, would take hours and use the same memory. `secure` is missing because
/// its ciphers are machine code, which Miri cannot run.
const TESTS: [(&str, &[&str]); 5] = [
    ("anabranch-wire", &[]),
    ("anabranch-settings", &[]),
    ("anabranch-cc", &["rtt::", "slow_start::", "config::", "bbr::"]),
    ("anabranch-link", &["outages::", "trace::"]),
    (
        "anabranch-engine",
        &[
            "stream::",
            "schedule::blocking",
            "schedule::earliest_arrival",
            "schedule::simple",
            "path::receipt",
            "path::pacer",
            "path::validation",
            "path::churn",
        ],
    ),
];

/// Tests with so many rounds that one of them would take longer than all others together.
const LONG: [&str; 6] = [
    "crumbs_are_joined",
    "credit_wakes_as_many_of_very_many_blocked_streams_as_it_can_serve",
    "among_very_many_streams_with_lost_bytes_the_one_with_new_bytes_is_found_in_a_few_calls",
    "ten_thousand_sessions_all_get_a_window",
    "an_old_gap_is_not_told_for_ever",
    "a_trace_with_too_many_lines_is_refused_at_the_first_excess_line",
];

/// # Errors
/// When Miri is not installed, finds something, or a test fails.
pub fn check() -> Result<(), String> {
    TESTS.iter().try_for_each(|(package, tests)| run(package, tests))
}

fn run(package: &str, tests: &[&str]) -> Result<(), String> {
    let mut words = vec!["run", "nightly", "cargo", "miri", "test", "--lib", "--package", package, "--"];
    words.extend(tests);
    words.extend(LONG.iter().flat_map(|name| ["--skip", name]));
    let mut command = Command::new("rustup");
    command.args(&words).env("PROPTEST_CASES", "2");
    // Random tests read the working directory.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    let status = command.status().map_err(|error| format!("cannot start rustup: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "`rustup {}`: {status}; Miri comes with `rustup +nightly component add miri rust-src`",
        words.join(" ")
    ))
}
