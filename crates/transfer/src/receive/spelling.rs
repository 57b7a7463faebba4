//! Names of the share that the target's file system may not tell apart, such as `A` and `a`, or the composed and the
//! decomposed form of `é`.
//!
//! On such a file system the second of two names finds the file of the first. Overwriting must not replace it: only one
//! of the two would remain. Two files under way must not share an unfinished file either. So the second fails, even if its
//! content is there: the first may be about to replace it.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;

use cap_std::fs::{Dir, Metadata, OpenOptions};
use unicode_normalization::UnicodeNormalization as _;

use super::remove::{is_same, names};
use super::target::TargetTree;
use crate::manifest::{Entry, EntryKind};
use crate::path::{RelPath, spelled_part_name};

/// Most spellings of one path that are compared.
const MOST: usize = 16;

#[derive(Default)]
pub(super) struct Spellings {
    /// The paths of the share that differ only in case or composition, by their folded form, in the order of the list.
    several: HashMap<String, Vec<RelPath>>,
    /// Directories that are earlier ones here, and those in them.
    in_others: HashSet<String>,
}

impl Spellings {
    pub fn of(entries: &[Entry]) -> Self {
        let mut counts: HashMap<String, u32> = HashMap::new();
        for entry in entries {
            *counts.entry(folded(entry.path.as_str())).or_default() += 1;
        }
        let mut several: HashMap<String, Vec<RelPath>> = HashMap::new();
        for path in entries.iter().map(|entry| &entry.path) {
            let folded = folded(path.as_str());
            if counts.get(&folded).is_some_and(|count| *count > 1) {
                several.entry(folded).or_default().push(path.clone());
            }
        }
        Self { several, in_others: HashSet::new() }
    }

    /// True if `found`, which has the name at `path`, is also found under an earlier spelling of that path.
    pub fn clash(&self, tree: &mut TargetTree, path: &RelPath, found: &Metadata) -> bool {
        let Some(all) = self.several.get(&folded(path.as_str())) else { return false };
        let earlier = all.iter().take_while(|other| *other != path).take(MOST);
        // Some file systems give one entry another number under each spelling.
        earlier
            .into_iter()
            .any(|other| is_one_entry(tree, path, (other, found)) || find_each_other(tree, other, path))
    }
}

impl Spellings {
    /// True if the share has the path in another spelling, too.
    pub fn has_several(&self, path: &RelPath) -> bool {
        self.several.contains_key(&folded(path.as_str()))
    }

    /// Records that the directory at `path` is an earlier one here.
    pub fn put_in_another(&mut self, path: &RelPath) {
        self.in_others.insert(path.as_str().to_owned());
    }

    /// True for what is in such a directory.
    pub fn is_in_another(&mut self, path: &RelPath, kind: &EntryKind) -> bool {
        let is_in = self.in_others.contains(path.split().0);
        if is_in && matches!(kind, EntryKind::Directory { .. }) {
            self.put_in_another(path);
        }
        is_in
    }

    /// True if a new file at `path` would be the file of an earlier spelling. Tries it with a file, and removes that again:
    /// the earlier one may not be there yet.
    pub fn meet(&self, tree: &mut TargetTree, path: &RelPath) -> bool {
        let Some(all) = self.several.get(&folded(path.as_str())) else { return false };
        let earlier = all.iter().take_while(|other| *other != path).take(MOST);
        earlier.into_iter().any(|other| find_each_other(tree, other, path))
    }
}

fn find_each_other(tree: &mut TargetTree, one: &RelPath, other: &RelPath) -> bool {
    let [(parent, name), (second_parent, second)] = [one.split(), other.split()];
    let (Ok(here), Ok(there)) = (tree.directory(parent), tree.directory(second_parent)) else { return false };
    let [name, second] = [name, second].map(|name| spelled_part_name(&format!("{name} spelling")));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if here.open_with(&name, &options).is_err() {
        return false;
    }
    let found = there.symlink_metadata(&second).is_ok();
    // If it stays, it is an unfinished file like any other.
    let _ = here.remove_file(&name);
    found
}

/// True if some file systems take these names for one.
pub(super) fn are_alike(one: &str, other: &str) -> bool {
    folded(one) == folded(other)
}

fn folded(path: &str) -> String {
    if path.is_ascii() { path.to_ascii_lowercase() } else { path.to_lowercase().nfd().collect() }
}

pub(super) fn clash() -> &'static str {
    "the file system here does not tell its name from another one of the share; rename one of the two"
}

pub(super) fn clash_above() -> &'static str {
    "the file system here does not tell its directory from another one of the share; rename one of the two"
}

/// True if `name` finds an entry with another spelling.
pub(super) fn is_alias(directory: &Dir, name: &str) -> bool {
    directory.symlink_metadata(name).is_ok()
        && names(directory).is_ok_and(|all| !all.contains(OsStr::new(name)))
}

/// True if both paths lead to one directory entry, rather than to two names of one file.
fn is_one_entry(tree: &mut TargetTree, path: &RelPath, (other, found): (&RelPath, &Metadata)) -> bool {
    let ((parent, name), (second_parent, second)) = (other.split(), path.split());
    let Ok(directory) = tree.directory(parent) else { return false };
    if !directory.symlink_metadata(name).is_ok_and(|other| is_same(&other, found)) {
        return false;
    }
    if !has_several_names(found) {
        return true;
    }
    let metas =
        tree.directory(second_parent).and_then(|here| Ok((here.dir_metadata()?, directory.dir_metadata()?)));
    let is_one_directory = metas.is_ok_and(|(here, there)| is_same(&here, &there));
    let has_both =
        names(&directory).is_ok_and(|all| [name, second].iter().all(|name| all.contains(OsStr::new(name))));
    is_one_directory && (name == second || !has_both)
}

fn has_several_names(meta: &Metadata) -> bool {
    use cap_std::fs::MetadataExt as _;
    meta.nlink() > 1
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::manifest::FileMeta;

    /// Whether the second path clashes with the first in a directory of these files, of which all links are to `A`.
    fn clash(paths: [&str; 2], links: &[&str]) -> bool {
        let place = tempfile::tempdir().unwrap();
        for directory in ["D", "d"] {
            fs::create_dir(place.path().join(directory)).unwrap();
        }
        fs::write(place.path().join("D/A"), "content").unwrap();
        fs::write(place.path().join("D/b"), "content").unwrap();
        links
            .iter()
            .for_each(|link| fs::hard_link(place.path().join("D/A"), place.path().join(link)).unwrap());
        let kind = EntryKind::File(FileMeta { size: Some(1), mode: 0o644, modified: None, data: None });
        let paths = paths.map(|path| RelPath::parse(path).unwrap());
        let entries = paths.clone().map(|path| Entry { path, kind: kind.clone() });
        let mut tree = TargetTree::open(place.path(), false).unwrap();
        // A file system that ignores case finds the first file under the second name.
        let found = tree.directory("D").unwrap().symlink_metadata("A").unwrap();
        Spellings::of(&entries).clash(&mut tree, &paths[1], &found)
    }

    #[test]
    fn a_second_spelling_clashes_if_it_finds_the_file_of_the_first() {
        assert!(clash(["D/A", "D/a"], &[]));
        assert!(clash(["D/A", "D/a"], &["other"]), "the file has a further name");
        assert!(!clash(["D/b", "D/B"], &[]), "two files");
        assert!(!clash(["D/A", "D/b"], &[]), "two names");
        assert!(!clash(["D/a", "D/A"], &[]), "the first is not there");
    }

    #[test]
    fn a_decomposed_spelling_clashes_with_the_composed_one() {
        let place = tempfile::tempdir().unwrap();
        let names = ["Caf\u{e9}", "cafe\u{301}"];
        fs::write(place.path().join(names[0]), "content").unwrap();
        let kind = EntryKind::File(FileMeta { size: Some(1), mode: 0o644, modified: None, data: None });
        let paths = names.map(|path| RelPath::parse(path).unwrap());
        let entries = paths.clone().map(|path| Entry { path, kind: kind.clone() });
        let mut tree = TargetTree::open(place.path(), false).unwrap();
        // A file system that normalises names finds the first file under the second name.
        let found = tree.directory("").unwrap().symlink_metadata(names[0]).unwrap();
        assert!(Spellings::of(&entries).clash(&mut tree, &paths[1], &found));
    }

    #[test]
    fn two_names_of_one_file_do_not_clash() {
        assert!(!clash(["D/A", "D/a"], &["D/a"]));
        assert!(!clash(["D/A", "d/A"], &["d/A"]));
    }
}
