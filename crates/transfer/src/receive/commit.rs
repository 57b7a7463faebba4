//! Finishes complete files on a few threads: mode, time, sync, rename.
//!
//! The time to sync a small file hardly depends on its size, and syncs can overlap while the writer continues. A file
//! gets its final name only after it was synced.

use std::collections::BTreeSet;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::job::{FileJob, Keeping};
use super::links::Links;
use super::part::{PartFile, cannot_make, unless_removed};
use super::place::hash_file;
use super::spelling::{clash, is_alias};
use crate::error::{TransferError, is_disk_full};
use crate::report::Watch;

/// Threads that sync, files in a group for one of them, and groups that wait.
const THREADS: usize = 4;
const GROUP: usize = 16;
const WAITING: usize = 2;

/// A complete, verified file.
pub(crate) struct Complete {
    pub part: PartFile,
    pub job: Arc<FileJob>,
    pub hash: [u8; 32],
}

/// The threads, and the channel to them.
pub(crate) struct Committer {
    files: SyncSender<Vec<Complete>>,
    group: Vec<Complete>,
    work: Arc<Work>,
    threads: Vec<JoinHandle<()>>,
}

/// The threads' common state.
struct Work {
    watch: Watch,
    keeping: Keeping,
    links: Option<Arc<Links>>,
    fatal: Mutex<Option<TransferError>>,
    renamed: Mutex<BTreeSet<String>>,
}

impl Committer {
    /// Starts the threads.
    pub fn start(watch: Watch, keeping: Keeping, links: Option<Arc<Links>>) -> Result<Self, TransferError> {
        let (files, waiting) = sync_channel(WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        let (fatal, renamed) = (Mutex::default(), Mutex::default());
        let work = Arc::new(Work { watch, keeping, links, fatal, renamed });
        let start = |_| {
            let (waiting, work) = (Arc::clone(&waiting), Arc::clone(&work));
            std::thread::Builder::new().name("transfer-sync".into()).spawn(move || work.run(&waiting))
        };
        let threads = (0..THREADS).map(start).collect::<io::Result<Vec<_>>>();
        let threads = threads.map_err(|error| TransferError::io("start", "a thread", error))?;
        Ok(Self { files, group: Vec::new(), work, threads })
    }

    /// Adds a complete file to the current group.
    ///
    /// # Errors
    /// The error of an earlier file, if it stops all later files too.
    pub fn commit(&mut self, file: Complete) -> Result<(), TransferError> {
        if let Some(error) = self.work.fatal.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        self.group.push(file);
        if self.group.len() >= GROUP {
            self.pass_on();
        }
        Ok(())
    }

    /// Passes the current group on.
    pub fn pass_on(&mut self) {
        if !self.group.is_empty() {
            // The threads live as long as this sender.
            let _ = self.files.send(std::mem::take(&mut self.group));
        }
    }

    /// Waits for all files; returns the directories in which files were renamed.
    pub fn finish(mut self) -> Result<BTreeSet<String>, TransferError> {
        self.pass_on();
        drop(self.files);
        for thread in self.threads {
            thread.join().map_err(|_| TransferError::protocol("a sync thread panicked"))?;
        }
        if let Some(error) = self.work.fatal.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        Ok(std::mem::take(&mut *self.work.renamed.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Work {
    fn run(&self, waiting: &Mutex<Receiver<Vec<Complete>>>) {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(group) = next else { return };
            group.into_iter().for_each(|file| self.put_in_place(file));
        }
    }

    fn put_in_place(&self, Complete { part, job, hash }: Complete) {
        let directory = part.directory();
        let links = self.links.as_ref().filter(|links| links.concerns(job.index));
        let links = links.and_then(|links| Some((links, part.id().ok()?)));
        match part.commit(&job, &self.keeping, &self.watch.report) {
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
                let error = job.write_error(error);
                *self.fatal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
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
                self.watch
                    .report
                    .fail(&job.path, format!("it cannot be put in place: {}", cannot_make(&error)));
            }
        }
    }
}
