//! Finishes complete files on a few threads: mode, time, sync, rename.
//!
//! A disk syncs many small files at once as fast as one. So the files that became complete while others were synced are
//! synced together, or by more threads where that is not possible. A file gets its final name only after it was synced.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::groups::Groups;
use super::job::{FileJob, Keeping};
use super::links::Links;
use super::part::{PartFile, cannot_make, unless_removed};
use super::place::hash_file;
use super::queue::{Input, Output, queue};
use super::spelling::{clash, is_alias};
use super::target::{StagedFile, TargetTree};
use crate::error::{TransferError, is_disk_full, is_lasting};
use crate::report::Watch;

/// Most threads of a transfer: those that sync groups of files together, and those that sync each file.
const THREADS: usize = 2;
const THREADS_EACH: usize = 16;
/// Files that the writer passes on, and that a thread takes to sync each.
const GROUP: usize = 8;
/// Files that wait, but for a group, and files that a thread takes to sync together. All hold a file open.
const WAITING: usize = 128;
const TOGETHER: usize = 256;
/// Most threads of all transfers together, beyond the first of each.
const FURTHER: usize = 64;
static FURTHER_RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A complete, verified file.
pub(crate) struct Complete {
    pub part: PartFile,
    pub job: Arc<FileJob>,
    pub hash: [u8; 32],
}

/// The threads, and the channel to them.
pub(crate) struct Committer {
    files: Input<Complete>,
    waiting: Arc<Output<Complete>>,
    group: Vec<Complete>,
    work: Arc<Work>,
    threads: Vec<JoinHandle<()>>,
}

/// The threads' common state.
struct Work {
    watch: Watch,
    keeping: Keeping,
    links: Option<Arc<Links>>,
    groups: Groups,
    tree: TargetTree,
    renamed: Mutex<BTreeSet<String>>,
}

impl Committer {
    /// Starts the first thread, for files in `tree`.
    pub fn start(
        tree: &TargetTree,
        watch: Watch,
        keeping: Keeping,
        links: Option<Arc<Links>>,
    ) -> Result<Self, TransferError> {
        let (files, waiting) = queue(WAITING);
        let (groups, tree, renamed) = (tree.groups(THREADS), tree.another(), Mutex::default());
        let work = Arc::new(Work { watch, keeping, links, groups, tree, renamed });
        let (group, threads) = <_>::default();
        let mut committer = Self { files, waiting: Arc::new(waiting), group, work, threads };
        let started = committer.add_thread(None);
        started.map_err(|error| TransferError::io("start", "a thread", error))?;
        Ok(committer)
    }

    fn add_thread(&mut self, further: Option<Further>) -> io::Result<()> {
        let (waiting, work) = (Arc::clone(&self.waiting), Arc::clone(&self.work));
        let run = move || {
            work.run(&waiting);
            drop(further);
        };
        self.threads.push(std::thread::Builder::new().name("transfer-sync".into()).spawn(run)?);
        Ok(())
    }

    /// Adds a complete file to the current group.
    pub fn commit(&mut self, file: Complete) {
        self.group.push(file);
        if self.group.len() >= GROUP {
            self.pass_on();
        }
    }

    /// Passes the current group on.
    pub fn pass_on(&mut self) {
        if self.group.is_empty() {
            return;
        }
        // The threads live as long as this end.
        self.files.put(&mut self.group);
        let most = if self.work.groups.are_used() { THREADS } else { THREADS_EACH };
        if self.threads.len() < most
            && self.files.len() > GROUP
            && let Some(further) = Further::claim()
        {
            // Without it, the others do the work.
            let _ = self.add_thread(Some(further));
        }
    }

    /// Waits for all files; returns the directories in which files were renamed.
    pub fn finish(mut self) -> Result<BTreeSet<String>, TransferError> {
        self.pass_on();
        drop(self.files);
        for thread in self.threads {
            thread.join().map_err(|_| TransferError::protocol("a sync thread panicked"))?;
        }
        Ok(std::mem::take(&mut *self.work.renamed.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The place of a further thread, given back when dropped.
struct Further;

impl Further {
    fn claim() -> Option<Self> {
        let more = |running| (running < FURTHER).then_some(running + 1);
        FURTHER_RUNNING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Further {
    fn drop(&mut self) {
        FURTHER_RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Work {
    fn run(&self, waiting: &Output<Complete>) {
        loop {
            let most = if self.groups.are_used() { TOGETHER } else { GROUP };
            let mut files = waiting.take_many(most);
            if files.is_empty() {
                return;
            }
            files.retain(|file| !self.stage(file));
            let stamp = |file: &Complete| file.part.stamp(&file.job, &self.keeping, &self.watch.report);
            let devices: Vec<_> = files.iter().map(stamp).collect();
            let synced = self.groups.sync(&devices);
            for (file, device) in files.into_iter().zip(devices) {
                self.put_in_place(file, synced.is_some() && synced == device);
            }
        }
    }

    /// Keeps a file until the end if a directory has its place; false for others.
    fn stage(&self, Complete { part, job, hash }: &Complete) -> bool {
        if job.clears.is_none() {
            return false;
        }
        let keep = |id| {
            let (job, found, keeping) = (Arc::clone(job), (id, part.len()), self.keeping.clone());
            self.tree.stage_file(StagedFile { job, found, hash: *hash, keeping });
        };
        let kept = part.id().map(keep);
        kept.unwrap_or_else(|error| self.watch.report.fail_io(&job.path, &error, cannot_make));
        true
    }

    /// Renames a file, and syncs it first unless it is synced.
    fn put_in_place(&self, Complete { part, job, hash }: Complete, is_synced: bool) {
        let directory = part.directory();
        let links = self.links.as_ref().filter(|links| links.concerns(job.index));
        let links = links.and_then(|links| Some((links, part.id().ok()?)));
        let report = &self.watch.report;
        let left = (part.id(), part.len());
        let synced = if is_synced { Ok(()) } else { part.sync(&job, report) };
        match synced.and_then(|()| part.place(&job, report)) {
            Ok(()) => {
                self.watch.progress.add_file();
                self.watch.report.add(|summary| summary.files += 1);
                if let Some((links, id)) = links {
                    links.put(&job, id);
                }
                let mut renamed = self.renamed.lock().unwrap_or_else(PoisonError::into_inner);
                if !renamed.contains(&job.parent) {
                    renamed.insert(job.parent.clone());
                }
            }
            Err(error) if is_disk_full(&error) => {
                self.tree.leftovers().add(&job, left);
                report.fail_io(&job.path, &error, cannot_make);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // No further name may become a link to it.
                if links.is_none() && hash_file(&directory, &job.name, |_| true) == Some(hash) {
                    // Another receiver finished the same file first.
                    let _ = PartFile::discard(&directory, &job.name);
                    self.watch.progress.add_file();
                    return self.watch.report.add(|summary| summary.skipped += 1);
                }
                if is_alias(&directory, &job.name) {
                    // Another attempt would not need it either.
                    let _ = PartFile::discard(&directory, &job.name);
                    return self.watch.report.fail(&job.path, clash());
                }
                let reason = "a file of this name appeared while it was received; run the same command again";
                self.watch.report.fail(&job.path, reason);
            }
            Err(error) => {
                let error = unless_removed(&directory, error);
                if is_lasting(&error) {
                    // Another attempt could not use it.
                    let _ = PartFile::discard(&directory, &job.name);
                }
                let why = |error: &io::Error| format!("it cannot be put in place: {}", cannot_make(error));
                report.fail_io(&job.path, &error, why);
            }
        }
    }
}
