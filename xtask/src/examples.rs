//! Checks that crates whose manifest turns off tests of documentation have no Rust in it. `cargo test` saves the time to
//! look for examples in them.

use std::fs;
use std::path::{Path, PathBuf};

/// Languages of blocks that are not compiled.
const OTHERS: [&str; 3] = ["sh", "text", "toml"];

/// The numbers of the lines that open a block of Rust in documentation.
fn rust_blocks(source: &str) -> Vec<usize> {
    let (mut is_inside, mut found) = (false, Vec::new());
    for (line, number) in source.lines().zip(1..) {
        let line = line.trim_start();
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { continue };
        let Some(language) = text.trim_start().strip_prefix("```") else { continue };
        is_inside = !is_inside;
        if is_inside && !OTHERS.contains(&language.trim()) {
            found.push(number);
        }
    }
    found
}

/// Adds all Rust files in a folder and below it.
fn add_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            add_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn crates_whose_examples_are_not_tested_have_none() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut files = Vec::new();
    for folder in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        if manifest.contains("doctest = false") {
            add_sources(&folder.join("src"), &mut files);
        }
    }
    assert!(files.len() > 100, "{} files", files.len());
    for file in files {
        let blocks = rust_blocks(&fs::read_to_string(&file).unwrap());
        let file = file.display();
        assert!(blocks.is_empty(), "{file}:{blocks:?}: remove `doctest = false` from the crate's Cargo.toml");
    }
}

#[test]
fn blocks_of_rust_are_told_from_others() {
    let source =
        "//! ```text\n//! a\n//! ```\n/// ```\n/// let a = 1;\n/// ```\n    /// ```no_run\n    /// ```\n";
    assert_eq!(rust_blocks(source), [4, 7]);
}
