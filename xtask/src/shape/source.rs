//! The workspace's Rust files, parsed, and which of their lines are tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;

/// The packages of the workspace and its pages.
pub struct Workspace {
    /// The files of each package, by the package's folder: `crates/cli`.
    pub packages: BTreeMap<PathBuf, Vec<Source>>,
    /// The words of the pages outside the lab notebook.
    pub words: usize,
}

/// One Rust file.
pub struct Source {
    /// Relative to the workspace.
    pub path: PathBuf,
    /// The module it holds: `["codec", "tests"]` for `src/codec/tests.rs`; `None` outside `src`.
    pub module: Option<Vec<String>>,
    pub syntax: syn::File,
    /// Whether the whole file is test code.
    pub is_test: bool,
    /// Lines that are not test code.
    pub lines: usize,
}

impl Workspace {
    /// Reads every tracked file, and new files that git does not ignore.
    pub fn read() -> Result<Self, String> {
        let manifests = files("*/Cargo.toml")?;
        let folders = manifests.iter().filter_map(|manifest| manifest.parent());
        let mut packages: BTreeMap<PathBuf, Vec<Source>> =
            folders.map(|folder| (folder.into(), Vec::new())).collect();
        for path in files("*.rs")? {
            let package = packages.iter_mut().find(|(folder, _)| path.starts_with(folder));
            if let Some((folder, sources)) = package {
                sources.push(Source::read(&path, folder)?);
            }
        }
        packages.values_mut().for_each(|sources| mark_test_modules(sources));
        Ok(Self { packages, words: words(&files("*.md")?)? })
    }
}

impl Source {
    fn read(path: &Path, package: &Path) -> Result<Self, String> {
        let module = module_of(path.strip_prefix(package).unwrap_or(path));
        Self::parse(path, module, &text_of(path)?)
    }

    pub fn parse(path: &Path, module: Option<Vec<String>>, text: &str) -> Result<Self, String> {
        let syntax = syn::parse_file(text).map_err(|error| format!("{}: {error}", path.display()))?;
        let is_test = path.iter().any(|part| part == "tests" || part == "tests.rs");
        let tests: usize = syntax.items.iter().filter(|item| is_test_item(item)).map(lines_of).sum();
        let lines = if is_test { 0 } else { text.lines().count() - tests };
        Ok(Self { path: path.into(), module, syntax, is_test, lines })
    }

    /// The file's items without tests.
    pub fn items(&self) -> impl Iterator<Item = &syn::Item> {
        self.syntax.items.iter().filter(|item| !is_test_item(item))
    }
}

/// The lines an item covers, with its attributes and doc comments.
pub fn lines_of(item: &impl Spanned) -> usize {
    let span = item.span();
    span.end().line - span.start().line + 1
}

/// Whether an item is marked `#[test]` or `#[cfg(test)]`.
pub fn is_test_item(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => return false,
    };
    is_test(attributes)
}

/// Whether these attributes hold `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, …))]`.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg_test = || attribute.parse_args::<syn::Meta>().is_ok_and(|meta| needs_test(&meta));
        attribute.path().is_ident("test") || (attribute.path().is_ident("cfg") && is_cfg_test())
    })
}

fn needs_test(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::List(list) if list.path.is_ident("all") => {
            let all = list.parse_args_with(Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated);
            all.is_ok_and(|all| all.iter().any(needs_test))
        }
        condition => condition.path().is_ident("test"),
    }
}

/// Marks the files declared by `#[cfg(test)] mod name;`, and those below them, as test code.
fn mark_test_modules(sources: &mut [Source]) {
    let mut tests = BTreeSet::new();
    for source in &*sources {
        let Some(module) = &source.module else { continue };
        for item in source.syntax.items.iter().filter(|item| is_test_item(item)) {
            if let syn::Item::Mod(declared) = item {
                tests.insert([&module[..], &[declared.ident.to_string()]].concat());
            }
        }
    }
    for source in sources {
        let Some(module) = &source.module else { continue };
        if (1..=module.len()).any(|length| tests.contains(&module[..length])) {
            (source.is_test, source.lines) = (true, 0);
        }
    }
}

/// The module of a file, from its path in the package. A file that is no module of the library or of `main.rs` has none.
fn module_of(path: &Path) -> Option<Vec<String>> {
    let path = path.strip_prefix("src").ok().filter(|path| !path.starts_with("bin"))?.with_extension("");
    let mut names: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let is_folder_or_root = match &names[..] {
        [root] => root == "lib" || root == "main",
        [.., last] => last == "mod",
        [] => false,
    };
    if is_folder_or_root {
        names.pop();
    }
    Some(names)
}

/// The words of the pages outside the lab notebook.
fn words(pages: &[PathBuf]) -> Result<usize, String> {
    let pages = pages.iter().filter(|page| !page.starts_with("docs/notebook"));
    pages.map(|page| text_of(page).map(|text| text.split_whitespace().count())).sum()
}

fn text_of(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The files in the checkout that match a pattern of git's.
fn files(pattern: &str) -> Result<Vec<PathBuf>, String> {
    let arguments =
        ["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", pattern];
    let output =
        Command::new("git").args(arguments).output().map_err(|error| format!("cannot start git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    Ok(listed.lines().map(PathBuf::from).filter(|path| path.exists()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_one_system_are_no_code() {
        let text = "fn a() {}\n#[cfg(all(test, unix))]\nmod tests {\n    fn b() {}\n}\n";
        let source = Source::parse(Path::new("a/src/b.rs"), Some(Vec::new()), text).unwrap();
        assert_eq!(source.lines, 1);
    }
}
