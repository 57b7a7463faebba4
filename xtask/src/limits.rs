//! Checks `docs/explanation/security.md`: each row of its tables of limits names an existing test.

use std::fs;
use std::path::Path;

/// The page with the limits.
const PAGE: &str = "docs/explanation/security.md";

/// Tables without limits, by the start of their first line.
const OTHERS: [&str; 2] = ["| secret |", "| packets |"];

/// Checks the page below `root`.
pub fn check(root: &Path) -> Result<(), String> {
    let page = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("cannot read {PAGE}: {error}"))?;
    let holds = |file: &str, test: &str| {
        let text = fs::read_to_string(root.join("crates").join(file)).unwrap_or_default();
        text.contains(&format!("fn {test}("))
    };
    let mistakes = mistakes(&page, holds);
    if mistakes.is_empty() { Ok(()) } else { Err(format!("{PAGE}:\n{}", mistakes.join("\n"))) }
}

/// The rows of a page that name no test (`file::test`, with the file relative to `crates/`), or a missing one.
fn mistakes(page: &str, holds: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_of_limits = None;
    for line in page.lines() {
        if !line.starts_with('|') {
            is_of_limits = None;
            continue;
        }
        let Some(is_of_limits) = is_of_limits else {
            is_of_limits = Some(!OTHERS.iter().any(|other| line.starts_with(other)));
            continue;
        };
        if !is_of_limits || line.starts_with("|--") {
            continue;
        }
        let tests: Vec<(&str, &str)> = quoted(line).filter_map(|word| word.split_once(".rs::")).collect();
        if tests.is_empty() {
            found.push(format!("no test: {line}"));
        }
        let absent = tests.iter().filter(|(file, test)| !holds(&format!("{file}.rs"), test));
        found.extend(absent.map(|(file, test)| format!("not there: {file}.rs::{test}")));
    }
    found
}

/// The words in backquotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn rows_without_a_test_or_with_a_missing_one_are_found() {
    let page = "| attempt | test |\n|---|---|\n| one | `a/b.rs::there` |\n| two | `a/b.rs::gone` |\n| three | `a/b.rs` |\n\n| secret |\n|---|\n| x |\n";
    let found = mistakes(page, |file, test| (file, test) == ("a/b.rs", "there"));
    assert_eq!(found, ["not there: a/b.rs::gone", "no test: | three | `a/b.rs` |"]);
}
