//! Hard links: further names of a file that arrives.
//!
//! The list says which files are further names of an earlier one. The first of a group that is received is its leader, and
//! the others become links to it when it has its final name. So a link never leads to a file that was there before, which
//! a sender could guess. A copy may link to files that it keeps: it is to be like its source in this, too.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cap_std::fs::{Dir, Metadata, OpenOptions};

use super::job::FileJob;
use super::part::{PartFile, owner_only};
use super::plan::Planner;
use super::target::TargetTree;
use crate::manifest;
use crate::path::part_name;
use crate::policy::Conflict;
use crate::report::Watch;

/// Device and number of a file.
type Id = (u64, u64);

/// The groups of a transfer.
pub(crate) struct Links {
    first: manifest::Links,
    /// The first file of each group.
    groups: HashSet<u32>,
    watch: Watch,
    state: Mutex<State>,
}

struct State {
    tree: TargetTree,
    /// By the number of the group's first file.
    leaders: HashMap<u32, Leader>,
    /// Directories with new links.
    changed: BTreeSet<String>,
}

enum Leader {
    /// It is being received, and these are to be links to it.
    Coming { index: u32, waiting: Vec<FileJob> },
    /// It has its final name.
    There { parent: String, name: String, id: Id },
}

/// The decision about a further name.
enum Step {
    /// It is or will be a link, or failed.
    Taken,
    /// It is received as a file of its own.
    Own(FileJob),
    /// Its group has no leader yet.
    Later(FileJob),
}

impl Links {
    /// The groups of these files, for links below `tree`.
    pub fn new(first: manifest::Links, tree: TargetTree, watch: Watch) -> Self {
        let groups = first.values().copied().collect();
        let state = State { tree, leaders: HashMap::new(), changed: BTreeSet::new() };
        Self { first, groups, watch, state: Mutex::new(state) }
    }

    /// True for a further name.
    pub fn has(&self, index: u32) -> bool {
        self.first.contains_key(&index)
    }

    /// True for a file in a group.
    pub fn concerns(&self, index: u32) -> bool {
        self.group(index).is_some()
    }

    fn group(&self, index: u32) -> Option<u32> {
        self.first.get(&index).copied().or_else(|| self.groups.contains(&index).then_some(index))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a file is being received.
    pub fn fetch(&self, index: u32) {
        if let Some(group) = self.group(index) {
            let leader = || Leader::Coming { index, waiting: Vec::new() };
            self.state().leaders.entry(group).or_insert_with(leader);
        }
    }

    /// Records that a file has its final name; makes the links to it that wait.
    pub fn put(&self, job: &FileJob, id: Id) {
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
        waiting.iter().for_each(|further| self.link(&mut state, &there, further));
        state.leaders.insert(group, there);
    }

    /// Makes a link, or fails the further name.
    fn link(&self, state: &mut State, leader: &Leader, job: &FileJob) {
        let Leader::There { parent, name, id } = leader else { return };
        let State { tree, changed, .. } = state;
        let linked = tree.directory(parent).and_then(|from| {
            let to = tree.directory(&job.parent)?;
            link((&from, name), (&to, &job.name), job.replace, *id)?;
            // The unfinished file of an earlier attempt is not needed any more.
            let _ = PartFile::discard(&to, &job.name);
            Ok(())
        });
        let size = job.meta.size.unwrap_or(0);
        match linked {
            Ok(()) => {
                changed.insert(job.parent.clone());
                self.watch.progress.keep_file(size);
                self.watch.report.add(|summary| {
                    summary.files += 1;
                    summary.hard_links += 1;
                    summary.unchecked_bytes = summary.unchecked_bytes.saturating_add(size);
                });
            }
            Err(error) => {
                let why = format!("it cannot be made a hard link ({error}); leave out `--hard-links`");
                self.watch.report.fail(&job.path, why);
            }
        }
    }

    /// Fails the further names of files that did not arrive; returns the directories with new links.
    pub fn finish(&self) -> BTreeSet<String> {
        let mut state = self.state();
        let mut left: Vec<_> = std::mem::take(&mut state.leaders).into_iter().collect();
        left.sort_unstable_by_key(|(group, _)| *group);
        for (_, leader) in left {
            let Leader::Coming { waiting, .. } = leader else { continue };
            for job in waiting {
                self.watch.report.fail(&job.path, "it is a hard link of a file that did not arrive");
            }
        }
        std::mem::take(&mut state.changed)
    }
}

impl Planner {
    /// Plans a file that may be a further name of another; gives it back if it is to be received. Without `is_last`, one
    /// whose group has no leader yet is kept for later.
    pub(super) fn plan_name(&mut self, job: FileJob, is_last: bool) -> Option<FileJob> {
        if !self.links.as_ref().is_some_and(|links| links.has(job.index)) {
            return Some(job);
        }
        match self.plan_link(job) {
            Step::Taken => None,
            Step::Own(job) => Some(job),
            Step::Later(job) if is_last => Some(job),
            Step::Later(job) => {
                self.later.push(job);
                None
            }
        }
    }

    fn plan_link(&mut self, mut job: FileJob) -> Step {
        let Some(links) = self.links.clone() else { return Step::Own(job) };
        let Some(group) = links.group(job.index) else { return Step::Own(job) };
        // Its directory or its name may be of no use; then it fails as any file does.
        let Ok(directory) = self.tree.directory(&job.parent) else { return Step::Own(job) };
        match directory.symlink_metadata(&job.name) {
            Err(_) if self.spellings.meet(&mut self.tree, &job.path) => return Step::Own(job),
            Err(_) => {}
            Ok(found) => {
                if let Some(Leader::There { id: there, .. }) = links.state().leaders.get(&group)
                    && *there == id(&found)
                {
                    self.skip(&job, true);
                    return Step::Taken;
                }
                let may_replace = self.conflict == Conflict::Overwrite && found.is_file();
                if !may_replace || self.clashes(&job.path, &found) {
                    return Step::Own(job);
                }
                job.replace = true;
            }
        }
        let mut state = links.state();
        match state.leaders.remove(&group) {
            None => return Step::Later(job),
            Some(Leader::Coming { index, mut waiting }) => {
                waiting.push(job);
                state.leaders.insert(group, Leader::Coming { index, waiting });
            }
            Some(there) => {
                links.link(&mut state, &there, &job);
                state.leaders.insert(group, there);
            }
        }
        Step::Taken
    }

    /// Records that a copy keeps a file, to which further names may be links.
    pub(super) fn keep_leader(&self, directory: &Dir, job: &FileJob) {
        if let Some(links) =
            self.links.as_ref().filter(|links| self.mirror.is_some() && links.concerns(job.index))
            && let Ok(found) = directory.symlink_metadata(&job.name)
            && found.is_file()
        {
            links.put(job, id(&found));
        }
    }
}

/// Makes `to` another name of the file `from`, which has this id.
fn link((from, old): (&Dir, &str), (to, new): (&Dir, &str), replace: bool, whose: Id) -> io::Result<()> {
    // No entry of a share can have this name.
    let spare = part_name(&part_name(new));
    let made = if replace { &spare } else { new };
    if replace {
        // It may be left of an earlier attempt. If it stays, the link fails.
        let _ = to.remove_file(made);
    }
    from.hard_link(old, to, made)?;
    let linked = match to.symlink_metadata(made) {
        Ok(found) if found.is_file() && id(&found) == whose => Ok(()),
        Ok(_) => Err(io::Error::other("another file has its name now")),
        Err(error) => Err(error),
    };
    let linked = linked.and_then(|()| if replace { to.rename(made, to, new) } else { Ok(()) });
    linked.inspect_err(|_| {
        // The first error counts.
        let _ = to.remove_file(made);
    })
}

/// True if files in the directory can have several names. Tries it with a file, and removes that again.
pub(super) fn are_possible(directory: &Dir) -> bool {
    let [one, other] = ["link", "second link"].map(part_name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    owner_only(&mut options);
    let made = directory.open_with(&one, &options).and_then(|file| file.metadata());
    let linked = made.and_then(|found| link((directory, &one), (directory, &other), false, id(&found)));
    // If they stay, they are unfinished files like any other.
    let _ = (directory.remove_file(&one), linked.is_ok().then(|| directory.remove_file(&other)));
    linked.is_ok()
}

fn id(meta: &Metadata) -> Id {
    use cap_std::fs::MetadataExt as _;
    (meta.dev(), meta.ino())
}
