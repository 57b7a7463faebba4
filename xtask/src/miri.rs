//! Unit tests of crates that know no I/O, under Miri: no undefined behaviour, also not in what they depend on.
//!
//! These crates have no `unsafe` of their own; what they lean on (`smallvec`, `bytes`, the standard library's collections) has. Miri is some hundred times
//! slower than the machine, so random tests draw few cases.

use std::process::Command;

/// Which tests of which crates, all where none are named: the data structures that everything else moves through. Tests of whole sessions, and of links over
/// millions of packets, take hours there and touch no other memory. `secure` is not among them: its ciphers are machine
/// code, which Miri cannot run.
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

/// Tests of so many rounds that Miri would take longer for one than for all others.
const LONG: [&str; 6] = [
    "crumbs_are_swept_together",
    "of_very_many_streams_that_wait_for_credit_as_many_go_on_as_it_is_good_for",
    "of_very_many_streams_with_missing_bytes_the_one_with_new_bytes_is_found_in_a_few_goes",
    "ten_thousand_sessions_all_get_a_window",
    "an_old_gap_is_not_told_for_ever",
    "a_trace_too_long_is_refused_at_the_line_that_is_too_many",
];

/// # Errors
/// When Miri is not there, finds something, or a test fails.
pub fn check() -> Result<(), String> {
    TESTS.iter().try_for_each(|(package, tests)| run(package, tests))
}

fn run(package: &str, tests: &[&str]) -> Result<(), String> {
    let mut words = vec!["run", "nightly", "cargo", "miri", "test", "--lib", "--package", package, "--"];
    words.extend(tests);
    words.extend(LONG.iter().flat_map(|name| ["--skip", name]));
    let mut command = Command::new("rustup");
    command.args(&words).env("PROPTEST_CASES", "2");
    // Random tests ask for the working directory.
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
