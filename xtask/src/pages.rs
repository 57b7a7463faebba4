//! Checks the project's pages: every link leads somewhere, the book lists every page, and no line is too long to read.

use std::collections::HashSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The folder that the book is made from.
pub const BOOK: &str = "docs";
/// The book's table of contents, in [`BOOK`].
const CONTENTS: &str = "SUMMARY.md";
/// Pages outside the book.
const OTHERS: [&str; 3] = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"];
/// The longest line of a page in characters. Tables and code may be wider.
const LONGEST_LINE: usize = 140;

/// Checks all pages below `root`.
pub fn check(root: &Path) -> Result<(), String> {
    let mut mistakes = Vec::new();
    let mut pages: Vec<PathBuf> = OTHERS.iter().map(PathBuf::from).collect();
    find_pages(root, Path::new(BOOK), &mut pages)?;
    for page in &pages {
        let text = read(root, page)?;
        mistakes.extend(long_lines(&text).map(|line| format!("{}:{line}: too long", page.display())));
        for link in links(&text) {
            if let Err(why) = follow(root, page, &text, &link) {
                mistakes.push(format!("{}: {link}: {why}", page.display()));
            }
        }
    }
    let contents = read(root, &Path::new(BOOK).join(CONTENTS))?;
    let listed: HashSet<PathBuf> = links(&contents).iter().map(|link| Path::new(BOOK).join(link)).collect();
    let unlisted = pages.iter().filter(|page| page.starts_with(BOOK) && !page.ends_with(CONTENTS));
    for page in unlisted.filter(|page| !listed.contains(*page)) {
        mistakes.push(format!("{}: not in {CONTENTS}", page.display()));
    }
    if mistakes.is_empty() { Ok(()) } else { Err(mistakes.join("\n")) }
}

fn read(root: &Path, page: &Path) -> Result<String, String> {
    fs::read_to_string(root.join(page)).map_err(|error| format!("cannot read {}: {error}", page.display()))
}

fn find_pages(root: &Path, folder: &Path, pages: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error| format!("cannot list {}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join(folder)).map_err(failed)? {
        names.push(folder.join(entry.map_err(failed)?.file_name()));
    }
    names.sort();
    for path in names {
        if root.join(&path).is_dir() {
            find_pages(root, &path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}

/// Follows a link from a page, to a file and a heading in it.
fn follow(root: &Path, page: &Path, text: &str, link: &str) -> Result<(), String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(());
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { resolve(page, file) };
    if page.starts_with(BOOK) && !target.starts_with(BOOK) {
        return Err("leads out of the book".into());
    }
    if page.starts_with(BOOK) && target.ends_with("README.md") {
        return Err("mdbook renames it: call the page index.md".into());
    }
    if !root.join(&target).exists() {
        return Err("there is no such file".into());
    }
    if heading.is_empty() {
        return Ok(());
    }
    let found = if file.is_empty() { anchors(text) } else { anchors(&read(root, &target)?) };
    if found.contains(heading) { Ok(()) } else { Err("there is no such heading".into()) }
}

/// The path of a link that stands on a page, without `..`.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The lines outside code blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((at + 1, line))
    })
}

fn long_lines(text: &str) -> impl Iterator<Item = usize> {
    let too_long = |line: &str| line.chars().count() > LONGEST_LINE && !line.trim_start().starts_with('|');
    prose(text).filter(move |(_, line)| too_long(line)).map(|(at, _)| at)
}

/// The targets of all links, pictures included. A link may continue on the next line.
fn links(text: &str) -> Vec<String> {
    let whole: Vec<&str> = prose(text).map(|(_, line)| line).collect();
    let whole = whole.join("\n");
    let plain: String = whole.split('`').step_by(2).collect();
    let targets = plain.split("](").skip(1);
    targets.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.trim().to_owned()).collect()
}

/// The names by which a page's headings can be linked to.
fn anchors(text: &str) -> HashSet<String> {
    let mut found = HashSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name = anchor(title.trim());
        let again = (1..).map(|count| format!("{name}-{count}"));
        let mut names = [name.clone()].into_iter().chain(again);
        found.extend(names.find(|name| !found.contains(name)));
    }
    found
}

/// The name that mdbook and GitHub give a heading.
fn anchor(title: &str) -> String {
    let mut name = String::new();
    for letter in title.chars() {
        match letter {
            ' ' => name.push('-'),
            letter if letter.is_alphanumeric() || "_-".contains(letter) => name.extend(letter.to_lowercase()),
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_of_the_pages_leads_somewhere_and_no_line_is_too_long() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        if let Err(mistakes) = check(&root) {
            panic!("{mistakes}");
        }
    }

    #[test]
    fn links_are_found_outside_code_and_over_line_ends() {
        let text = "See [one](a.md) and `[no](b.md)`.\n```\n[no](c.md)\n```\n[two\nlines](d.md#e)\n![drawn](f.svg)\n";
        assert_eq!(links(text), ["a.md", "d.md#e", "f.svg"]);
    }

    #[test]
    fn headings_are_named_as_mdbook_names_them() {
        let found = anchors("# What's new, in 2\n## `key` files\n## Twice\n## Twice\n```\n# no\n```\n");
        let wanted = ["whats-new-in-2", "key-files", "twice", "twice-1"];
        assert_eq!(found, wanted.map(str::to_owned).into());
    }

    #[test]
    fn a_link_is_resolved_from_its_page() {
        assert_eq!(resolve(Path::new("docs/a/b.md"), "../c/d.md"), Path::new("docs/c/d.md"));
        assert_eq!(resolve(Path::new("README.md"), "docs/a.md"), Path::new("docs/a.md"));
    }

    #[test]
    fn long_lines_are_reported_but_for_tables() {
        let long = "x".repeat(LONGEST_LINE + 1);
        let text = format!("short\n{long}\n| {long} |\n");
        assert_eq!(long_lines(&text).collect::<Vec<_>>(), [2]);
    }
}
