//! Fuzz targets that run on stable Rust. Each takes any bytes, and panics or never ends if it finds a fault.
//!
//! Inputs are mutations of the corpus in `corpus/TARGET/`: valid inputs of every kind, inputs on which the target once
//! failed, and in [`REACHED`] inputs that libFuzzer found to reach more of the code. `cargo test` replays all of them.

mod capture;
mod consent;
mod decoders;
mod grants;
mod handshake;
mod inside;
mod mutate;
mod session;
mod watch;

use std::fs;

pub use mutate::Mutator;
pub use watch::{Found, MOST, feed};

/// A name and the function that takes an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 18] = [
    ("header", decoders::header),
    ("frames", decoders::frames),
    ("params", decoders::params),
    ("text", decoders::text),
    ("relay", decoders::relay),
    ("controller", decoders::controller),
    ("sense", decoders::sense),
    ("grants", grants::unsigned),
    ("signed", grants::signed),
    ("consent", consent::consent),
    ("capture", capture::capture),
    ("keys", capture::keys),
    ("transfer", decoders::transfer),
    ("handshake", handshake::messages),
    ("packets", handshake::packets),
    ("session", session::session),
    ("proxy", inside::proxy),
    ("tunnel", inside::tunnel),
];

/// The file in a corpus with the inputs that coverage chose: one a line, in hexadecimal digits.
pub const REACHED: &str = "reached.hex";

/// The folder with a target's inputs.
pub fn corpus(target: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// A target's inputs: the files in the order of their names, then those in [`REACHED`].
pub fn inputs(target: &str) -> Vec<Vec<u8>> {
    let files = fs::read_dir(corpus(target)).into_iter().flatten().flatten();
    let mut paths: Vec<_> = files.map(|file| file.path()).filter(|path| !path.ends_with(REACHED)).collect();
    paths.sort();
    let reached = fs::read_to_string(corpus(target).join(REACHED)).unwrap_or_default();
    let reached = reached.lines().filter_map(from_hex);
    paths.iter().filter_map(|path| fs::read(path).ok()).chain(reached).collect()
}

fn from_hex(line: &str) -> Option<Vec<u8>> {
    let digits = line.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}
