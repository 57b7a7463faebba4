//! Checks the dependency tree against `deny.toml` with cargo-deny.
//!
//! Licences, sources and forbidden crates only need the crates of the lock file. Advisories come from a database on the
//! network. If it cannot be fetched, or cargo-deny is not installed, the check is skipped with a message, so that a machine
//! without a network can run all of `ci`.

use crate::cargo::{cargo, cargo_output};
use crate::outcome::{Done, Outcome};

/// cargo-deny's error when it cannot fetch the database.
const NO_DATABASE: &str = "failed to fetch advisory database";

pub fn check() -> Outcome {
    if cargo_output(&["deny", "--version"]).is_err() {
        return Ok(Done::Skipped("cargo-deny is not installed".into()));
    }
    // Crates for other systems, too, which were never built here.
    cargo(&["fetch", "--locked"])?;
    cargo(&["deny", "--offline", "--log-level", "error", "check", "licenses", "bans", "sources"])?;
    match cargo_output(&["deny", "--log-level", "error", "check", "advisories"]) {
        Err(why) if why.contains(NO_DATABASE) => {
            Ok(Done::Skipped("the database of advisories cannot be fetched; the other checks passed".into()))
        }
        outcome => outcome.map(|_| Done::All),
    }
}
