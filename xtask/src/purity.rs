//! Checks that the pure crates stay pure.
//!
//! A pure crate takes time, packets and randomness as values. Its `clippy.toml` forbids the clock, sockets,
//! files and threads of the standard library. This check covers the rest: the whole dependency tree must be free of
//! I/O, and our own crates in it must be pure, too.

use std::path::Path;

use crate::cargo::cargo_output;

/// The crates without I/O, as in `docs/explanation/architecture.md`.
const PURE: [&str; 12] = [
    "anabranch-prefetch",
    "anabranch-wire",
    "anabranch-cc",
    "anabranch-engine",
    "anabranch-agent",
    "anabranch-secure",
    "anabranch-link",
    "anabranch-settings",
    "anabranch-overlay",
    "anabranch-sim",
    "anabranch-experiments",
    "anabranch-tunnel",
];

/// Libraries that use the operating system: the clock, sockets, files, threads, randomness.
const IMPURE: [&str; 17] = [
    "async-io",
    "async-std",
    "crossbeam-channel",
    "getrandom",
    "hyper",
    "mio",
    "nix",
    "polling",
    "quinn-udp",
    "rayon",
    "reqwest",
    "rustix",
    "smol",
    "socket2",
    "tempfile",
    "tokio",
    "windows-sys",
];

/// Checks every pure crate.
pub fn check() -> Result<(), String> {
    let mut found = Vec::new();
    for package in PURE {
        let dir = package.trim_start_matches("anabranch-");
        if !Path::new("crates").join(dir).join("clippy.toml").exists() {
            found.push(format!("crates/{dir} has no clippy.toml that forbids the clock"));
        }
        let tree = cargo_output(&["tree", "--package", package, "--edges", "normal", "--prefix", "none"])?;
        found.extend(impure(&tree).map(|name| format!("{package} depends on {name}")));
    }
    if found.is_empty() { Ok(()) } else { Err(found.join("; ")) }
}

/// The packages of a tree (a name at the start of each line) that a pure crate must not depend on.
fn impure(tree: &str) -> impl Iterator<Item = &str> {
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| {
        let ours = *name == "anabranch" || name.starts_with("anabranch-");
        IMPURE.contains(name) || (ours && !PURE.contains(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_values_is_pure() {
        let tree = "anabranch-engine v0.1.0 (/src)\nanabranch-wire v0.1.0 (/src)\nbytes v1.12.1\n";
        assert_eq!(impure(tree).count(), 0);
    }

    #[test]
    fn sockets_randomness_and_our_own_crates_with_io_are_found_however_deep() {
        let tree = "anabranch-secure v0.1.0\nsnow v0.10.0\ngetrandom v0.4.3\nanabranch-net v0.1.0 (/src)\ntokio v1.54.0 (*)\n";
        assert_eq!(impure(tree).collect::<Vec<_>>(), ["getrandom", "anabranch-net", "tokio"]);
    }

    #[test]
    fn a_name_that_only_begins_like_a_forbidden_one_is_not_found() {
        assert_eq!(impure("tokio-free v1.0.0\nmiow v0.1.0\n").count(), 0);
    }
}
