//! What may come into the dependency tree, held against `deny.toml` by cargo-deny.
//!
//! Licences, sources and forbidden crates need nothing but the crates that the lock file names. Advisories come from a database on the network: where it
//! cannot be fetched, or cargo-deny is not there, that is said and counts as skipped, so that a machine without a network can run all of `ci`.

use crate::{Done, Outcome, cargo, cargo_output};

/// What cargo-deny says when it has no database and cannot get one.
const NO_DATABASE: &str = "failed to fetch advisory database";

/// # Errors
/// When the dependencies break a rule, or one of them has an advisory.
pub fn check() -> Outcome {
    if cargo_output(&["deny", "--version"]).is_err() {
        return Ok(Done::Skipped("cargo-deny is not installed".into()));
    }
    // Crates of other systems too, which nothing here has built.
    cargo(&["fetch", "--locked"])?;
    cargo(&["deny", "--offline", "--log-level", "error", "check", "licenses", "bans", "sources"])?;
    match cargo_output(&["deny", "--log-level", "error", "check", "advisories"]) {
        Err(why) if why.contains(NO_DATABASE) => {
            Ok(Done::Skipped("all but advisories is ok; their database cannot be fetched".into()))
        }
        outcome => outcome.map(|_| Done::All),
    }
}
