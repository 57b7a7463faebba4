//! Hard links: further names of a file that arrives.
//!
//! The list says which files are further names of an earlier one. The first of a group that is received is its leader, and
//! the others become links to it when it has its final name. So a link never leads to a file that was there before, which
//! a sender could guess. A copy may link to files that it keeps: it is to be like its source in this, too.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cap_fs_ext::{FollowSymlinks, OpenOptionsFollowExt};
use cap_std::fs::{Dir, OpenOptions};

use super::job::{FileJob, Keeping};
use super::part::{FileId, PartFile, owner_only};
use super::target::TargetTree;
use crate::attributes::Attributes;
use crate::hash::BLOCK;
use crate::manifest::{self, Entry};
use crate::path::{part_name, trial_name};
use crate::report::Watch;
use crate::send::read_full;

/// The groups of a transfer.
pub(crate) struct Links {
    first: manifest::Links,
    /// The first file of each group.
    groups: HashSet<u32>,
    entries: Arc<Vec<Entry>>,
    attributes: Arc<Attributes>,
    watch: Watch,
    state: Mutex<State>,
}

pub(super) struct State {
    tree: TargetTree,
    /// By the number of the group's first file.
    pub(super) leaders: HashMap<u32, Leader>,
    /// The first kept file of each group that has one.
    kept: HashMap<u32, FileId>,
    /// Directories with new links.
    changed: BTreeSet<String>,
}

pub(super) enum Leader {
    /// It is being received, and these are to be links to it.
    Coming { index: u32, waiting: Vec<Further> },
    /// It has its final name.
    There { parent: String, name: String, id: FileId },
}

/// A further name that waits for its leader. A list may have a million, so it has no path of its own.
pub(super) struct Further {
    /// Its number in the list.
    pub index: u32,
    /// Whether it may replace an existing file.
    pub replace: bool,
}

impl Links {
    /// The groups `first` of these entries with these attributes, for links below `tree`.
    pub fn new(
        first: manifest::Links,
        (entries, attributes): (Arc<Vec<Entry>>, Arc<Attributes>),
        tree: TargetTree,
        watch: Watch,
    ) -> Self {
        let groups = first.values().copied().collect();
        let state = State { tree, leaders: HashMap::new(), kept: HashMap::new(), changed: BTreeSet::new() };
        Self { first, groups, entries, attributes, watch, state: Mutex::new(state) }
    }

    /// The further names, each with the first file of its group.
    pub fn first(&self) -> &manifest::Links {
        &self.first
    }

    /// True for a further name.
    pub fn has(&self, index: u32) -> bool {
        self.first.contains_key(&index)
    }

    /// True for a file in a group.
    pub fn concerns(&self, index: u32) -> bool {
        self.group(index).is_some()
    }

    pub(super) fn group(&self, index: u32) -> Option<u32> {
        self.first.get(&index).copied().or_else(|| self.groups.contains(&index).then_some(index))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a file is being received.
    pub fn fetch(&self, index: u32) {
        if let Some(group) = self.group(index) {
            let leader = || Leader::Coming { index, waiting: Vec::new() };
            self.state().leaders.entry(group).or_insert_with(leader);
        }
    }

    /// Records that a file stays as it is. False if it is to be another name of an earlier one that stays, and is not.
    pub fn keep(&self, index: u32, id: FileId) -> bool {
        let Some(group) = self.group(index) else { return true };
        *self.state().kept.entry(group).or_insert(id) == id
    }

    /// Records that a file has its final name; makes the links to it that wait.
    pub fn put(&self, job: &FileJob, id: FileId) {
        let Some(group) = self.group(job.index) else { return };
        let mut state = self.state();
        let there = Leader::There { parent: job.parent.clone(), name: job.name.clone(), id };
        let waiting = match state.leaders.remove(&group) {
            None => Vec::new(),
            Some(Leader::Coming { index, waiting }) if index == job.index => waiting,
            Some(other) => {
                state.leaders.insert(group, other);
                return;
            }
        };
        for Further { index, replace } in waiting {
            if let Some(further) = FileJob::listed(&self.entries, index) {
                self.link(&mut state, &there, &FileJob { replace, ..further });
            }
        }
        state.leaders.insert(group, there);
    }

    /// Makes a link, or a copy where the system refuses it, or fails the further name.
    pub(super) fn link(&self, state: &mut State, leader: &Leader, job: &FileJob) {
        let Leader::There { parent, name, id } = leader else { return };
        let State { tree, changed, .. } = state;
        let linked = tree.directory(parent).and_then(|from| {
            let to = tree.directory(&job.parent)?;
            link(Place(&from, name), Place(&to, &job.name), job.replace, *id)?;
            // The unfinished file of an earlier attempt is not needed any more.
            let _ = PartFile::discard(&to, &job.name);
            Ok(())
        });
        // A file may have only so many names, and none in another file system.
        let is_copy = linked.as_ref().is_err_and(|error| {
            error.kind() != io::ErrorKind::AlreadyExists && self.copy(tree, leader, job).is_ok()
        });
        match &linked {
            Err(error) if !is_copy => {
                let why = format!("it cannot be made a hard link ({error}); leave out `--hard-links`");
                return self.watch.report.fail(&job.path, why);
            }
            Err(error) => self.watch.report.note("make a hard link", &job.path, error),
            Ok(()) => {}
        }
        changed.insert(job.parent.clone());
        let size = job.meta.size.unwrap_or(0);
        self.watch.progress.keep_file(size);
        self.watch.report.add(|summary| {
            summary.files += 1;
            summary.hard_links += u64::from(!is_copy);
            summary.unchecked_bytes = summary.unchecked_bytes.saturating_add(size);
        });
    }

    /// Copies the leader's content to a further name.
    fn copy(&self, tree: &mut TargetTree, leader: &Leader, job: &FileJob) -> io::Result<()> {
        let Leader::There { parent, name, id } = leader else { return Ok(()) };
        let mut options = OpenOptions::new();
        options.read(true).follow(FollowSymlinks::No);
        let mut from = tree.directory(parent)?.open_with(name, &options)?;
        if FileId::of(&from.metadata()?) != *id {
            return Err(io::Error::other("another file has its name now"));
        }
        let mut part = PartFile::open(tree.directory(&job.parent)?, &job.name, None)?;
        let (mut block, mut at) = (vec![0; BLOCK], 0);
        loop {
            let read = read_full(&mut from, &mut block)?;
            if read == 0 {
                break;
            }
            part.write(at, &block[..read])?;
            at += read as u64;
        }
        let keeping = Keeping { mode_mask: tree.mode_mask(), attributes: Arc::clone(&self.attributes) };
        part.commit(job, &keeping, &self.watch.report)
    }

    /// The directories with new links since the last call.
    pub fn take_changed(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.state().changed)
    }

    /// Fails the further names of files that did not arrive; returns the directories with new links.
    pub fn finish(&self) -> BTreeSet<String> {
        let mut state = self.state();
        let mut left: Vec<_> = std::mem::take(&mut state.leaders).into_iter().collect();
        left.sort_unstable_by_key(|(group, _)| *group);
        for (_, leader) in left {
            let Leader::Coming { waiting, .. } = leader else { continue };
            for entry in waiting.iter().filter_map(|further| self.entries.get(further.index as usize)) {
                let why = "it is a hard link of a file that did not arrive";
                self.watch.report.fail_with_another(&entry.path, why);
            }
        }
        std::mem::take(&mut state.changed)
    }
}

/// A name in a directory.
struct Place<'a>(&'a Dir, &'a str);

/// Makes `to` another name of the file `from`, which has this id. With `replace`, the name may be taken.
fn link(from: Place<'_>, to: Place<'_>, replace: bool, whose: FileId) -> io::Result<()> {
    let (Place(from, old), Place(to, new)) = (from, to);
    // No entry of a share can have this name.
    let spare = part_name(&part_name(new));
    let made = if replace { &spare } else { new };
    if replace {
        // It may be left of an earlier attempt. If it stays, the link fails.
        let _ = to.remove_file(made);
    }
    #[cfg(test)]
    crate::tests::fail_if_linkless(to)?;
    from.hard_link(old, to, made)?;
    let linked = match to.symlink_metadata(made) {
        Ok(found) if found.is_file() && FileId::of(&found) == whose => Ok(()),
        Ok(_) => Err(io::Error::other("another file has its name now")),
        Err(error) => Err(error),
    };
    let linked = linked.and_then(|()| if replace { to.rename(made, to, new) } else { Ok(()) });
    if replace || linked.is_err() {
        // A rename leaves it if both are names of one file by now. The first error counts.
        let _ = to.remove_file(made);
    }
    linked
}

/// True if files in the directory can have several names. Tries it with a file, and removes that again.
pub(super) fn are_possible(directory: &Dir) -> bool {
    // Two receivers in one directory would remove each other's files.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let [one, other] = ["link", "second link"].map(trial_name);
    let remove = || [&one, &other].into_iter().for_each(|name| _ = directory.remove_file(name));
    // They may be left of an attempt that was cut off.
    remove();
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    owner_only(&mut options);
    let made = directory.open_with(&one, &options).and_then(|file| file.metadata());
    let linked = made
        .and_then(|found| link(Place(directory, &one), Place(directory, &other), false, FileId::of(&found)));
    // If they stay, they are unfinished files like any other.
    remove();
    linked.is_ok()
}

#[cfg(test)]
mod tests {
    use cap_std::ambient_authority;

    use super::*;

    fn place() -> (tempfile::TempDir, Dir) {
        let place = tempfile::tempdir().unwrap();
        let directory = Dir::open_ambient_dir(place.path(), ambient_authority()).unwrap();
        (place, directory)
    }

    #[test]
    fn trying_links_leaves_unfinished_files_alone_and_succeeds_after_an_attempt_that_was_cut_off() {
        let (_place, directory) = place();
        let names = ["link", "second link"];
        names.iter().for_each(|name| directory.write(part_name(name), name).unwrap());
        let [one, other] = names.map(trial_name);
        directory.write(&one, "").unwrap();
        directory.hard_link(&one, &directory, &other).unwrap();
        assert!(are_possible(&directory));
        for name in names {
            assert_eq!(directory.read_to_string(part_name(name)).unwrap(), name);
        }
        assert_eq!(directory.entries().unwrap().count(), 2);
    }

    #[test]
    fn a_link_in_the_place_of_a_name_of_the_same_file_leaves_nothing_behind() {
        let (_place, directory) = place();
        directory.write("file", "content").unwrap();
        directory.hard_link("file", &directory, "name").unwrap();
        let id = FileId::of(&directory.symlink_metadata("file").unwrap());
        link(Place(&directory, "file"), Place(&directory, "name"), true, id).unwrap();
        assert_eq!(directory.entries().unwrap().count(), 2);
    }
}
