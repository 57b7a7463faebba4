//! The unit tests of crates that know no I/O, under Miri: no undefined behaviour, also not in what they depend on.
//!
//! These crates have no `unsafe` of their own; what they lean on (`smallvec`, `bytes`, the standard library's collections) has. Miri is some hundred times
//! slower than the machine, so random tests draw few cases.

use std::process::Command;

/// `secure` is not among them: its ciphers are machine code, which Miri cannot run.
const CRATES: [&str; 3] = ["anabranch-wire", "anabranch-link", "anabranch-engine"];

/// Tests of so many rounds that Miri would take longer for one than for all others.
const LONG: [&str; 1] = ["what_a_silent_peer_loses_is_not_remembered_without_end"];

/// # Errors
/// When Miri is not there, finds something, or a test fails.
pub fn check() -> Result<(), String> {
    let mut words = vec!["run", "nightly", "cargo", "miri", "test", "--lib"];
    words.extend(CRATES.iter().flat_map(|name| ["--package", name]));
    words.push("--");
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
