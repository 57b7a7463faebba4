//! Checks the shape of the code: `cargo xtask shape [CRATE]`.
//!
//! Reports, with file and line, functions that take too many arguments or are too long, structs with too many fields, long
//! files, circles of imports between the files of a crate, and modules laid out as `name.rs` with a folder `name/`.
//! Then it counts the lines of Rust without tests and the words of the pages outside the lab notebook.

mod imports;
mod items;
mod source;

use std::fmt;
use std::path::{Path, PathBuf};

use source::{Source, Workspace};

/// Lines of Rust without tests that the workspace may have.
const MOST_LINES: usize = 75_000;

/// Words that the pages outside the lab notebook may have.
const MOST_WORDS: usize = 30_000;

/// One place in the code, and what is wrong with it.
struct Finding {
    path: PathBuf,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

/// Prints the findings of the packages named, or of all, and the totals. A package's name is its folder's: `engine`.
pub fn check(asked: &[String]) -> Result<(), String> {
    let workspace = Workspace::read()?;
    for name in asked {
        if !workspace.packages.keys().any(|folder| folder.ends_with(name)) {
            return Err(format!("no package lies in a folder `{name}`"));
        }
    }
    let found = print_findings(&workspace, |folder| {
        asked.is_empty() || asked.iter().any(|name| folder.ends_with(name))
    });
    let lines: usize = workspace.packages.values().flatten().map(|source| source.lines).sum();
    println!("{lines} lines of Rust without tests (at most {MOST_LINES})");
    println!("{} words of pages outside docs/notebook (at most {MOST_WORDS})", workspace.words);
    result(found + usize::from(lines > MOST_LINES) + usize::from(workspace.words > MOST_WORDS))
}

/// Prints the findings of all packages.
pub fn check_findings() -> Result<(), String> {
    result(print_findings(&Workspace::read()?, |_| true))
}

/// Prints what is wrong in the packages wanted; returns how much that is.
fn print_findings(workspace: &Workspace, is_wanted: impl Fn(&Path) -> bool) -> usize {
    let mut found = 0;
    for (_, sources) in workspace.packages.iter().filter(|(folder, _)| is_wanted(folder)) {
        let mut findings: Vec<Finding> = sources.iter().flat_map(items::check).collect();
        findings.extend(layout(sources));
        findings.extend(imports::check(sources));
        findings.iter().for_each(|finding| println!("{finding}"));
        found += findings.len();
    }
    found
}

fn result(found: usize) -> Result<(), String> {
    if found == 0 { Ok(()) } else { Err(format!("{found} findings")) }
}

/// Finds modules laid out as `name.rs` with a folder `name/`.
fn layout(sources: &[Source]) -> impl Iterator<Item = Finding> {
    let has_folder = |path: &Path| {
        let folder = path.with_extension("");
        sources.iter().any(|source| source.path.parent() == Some(&folder))
    };
    sources.iter().filter(move |source| source.module.is_some() && has_folder(&source.path)).map(|source| {
        Finding {
            path: source.path.clone(),
            line: 1,
            what: "module with a folder of its own: move it to `mod.rs` there".into(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_beside_its_folder_is_found() {
        let source = |path: &str| Source::parse(Path::new(path), Some(Vec::new()), "").unwrap();
        let sources =
            ["a/src/lib.rs", "a/src/b.rs", "a/src/b/c.rs", "a/src/d/mod.rs", "a/src/d/e.rs"].map(source);
        let found: Vec<String> = layout(&sources).map(|finding| finding.path.display().to_string()).collect();
        assert_eq!(found, ["a/src/b.rs"]);
    }
}
