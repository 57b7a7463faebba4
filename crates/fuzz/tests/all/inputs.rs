//! The inputs of a target.

use std::fs;
use std::path::{Path, PathBuf};

/// The file in a corpus with the inputs that coverage chose: one a line, in hexadecimal digits.
pub const REACHED: &str = "reached.hex";

/// The folder with a target's inputs.
pub fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
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
