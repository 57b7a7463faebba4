//! The receiver's planning thread: compares the list with the disk and requests missing data.
//!
//! It takes the files in order. For a missing file, it sends a request with the hashes of the unfinished file, if there
//! is one. It compares an existing file that may be alike by hash. Anything else under that name is a conflict, which
//! the user's policy decides. Requests run ahead of the replies by a bounded number.
//!
//! To compare, the sender sends its hash and this end checks it. The hash of an existing file is never sent: otherwise
//! a sender could list any path and learn that file's content. Requests contain only hashes of unfinished files that
//! earlier transfers left.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::ahead::{Asker, Fetch, Gone, InFlight};
use super::alike::may_be_alike;
use super::job::{DirectoryEnd, FileJob};
use super::links::Links;
use super::mirror::discard_staged;
use super::part::{PartFile, cannot_make};
use super::place::{UNREADABLE, exists, hash_file, is_unreadable, no_name};
use super::quota::Reserved;
use super::room::Lack;
use super::spelling::{Spellings, clash};
use super::target::TargetTree;
use crate::attributes::Attributes;
use crate::error::TransferError;
use crate::hash::{BLOCK, block_count, block_len, hash_block};
use crate::manifest::{Entry, EntryKind};
use crate::message::{MOST_HASHES, Request};
use crate::path::{RelPath, alternative_name};
use crate::policy::{Conflict, Mirror, Placing};
use crate::progress::Progress;
use crate::report::{Report, Watch};
use crate::send::read_full;
use cap_std::fs::{Dir, Metadata};

/// Most alternatives to a taken name.
const MOST_ALTERNATIVES: u32 = 1000;

/// How often a sender gets a sign of life while this end hashes a file: a small part of its patience.
const SIGN_OF_LIFE: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(60) };

/// A comparison with its reply; see [`InFlight::Compare`].
pub(crate) struct Compared {
    pub job: Arc<FileJob>,
    /// The hash of the sender's file; `None` if the sender could not read it.
    pub theirs: Option<[u8; 32]>,
}

/// The planner's channels.
pub(crate) struct PlanPorts {
    pub asker: Asker,
    pub compared: Receiver<Compared>,
}

pub(crate) struct Planner {
    pub tree: TargetTree,
    pub conflict: Conflict,
    pub mirror: Option<Mirror>,
    pub report: Report,
    pub progress: Progress,
    ports: PlanPorts,
    /// The room of the transfer, if there is a quota.
    pub room: Option<Arc<Reserved>>,
    /// The extended attributes of entries.
    pub attributes: Arc<Attributes>,
    /// The files with several names, if these are kept.
    pub links: Option<Arc<Links>>,
    /// Further names whose files may be kept: decided at the end.
    pub later: Vec<u32>,
    /// The paths of the share: a renamed file must not take one of them.
    listed: HashSet<String>,
    /// Hashes of existing files, which are being compared.
    hashes: HashMap<u32, [u8; 32]>,
    /// Paths of the share that may be one here.
    pub spellings: Spellings,
    /// The last directory that was made.
    pub made: Option<String>,
    /// Whether the sender hashes files of another length than it lists, too.
    pub compares_all: bool,
    /// The files that do not fit.
    pub lacks: HashMap<u32, Lack>,
}

/// Why planning ends early.
enum Halt {
    Gone,
    Fatal(TransferError),
}

impl From<Gone> for Halt {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl Planner {
    pub fn new(tree: TargetTree, placing: Placing, watch: Watch, ports: PlanPorts) -> Self {
        let (Watch { report, progress }, Placing { conflict, mirror }) = (watch, placing);
        let conflict = if mirror.is_some() { Conflict::Overwrite } else { conflict };
        let (room, attributes, links, later, listed, hashes, spellings, made, compares_all, lacks) =
            <_>::default();
        Self {
            tree,
            conflict,
            mirror,
            report,
            progress,
            ports,
            room,
            attributes,
            links,
            later,
            listed,
            hashes,
            spellings,
            made,
            compares_all,
            lacks,
        }
    }

    /// A planner that may ask for the hash of any file but a stream.
    pub fn comparing_all(self, compares_all: bool) -> Self {
        Self { compares_all, ..self }
    }

    /// A planner that gives directories and kept files these attributes, and makes these links.
    pub fn keeping(self, attributes: Arc<Attributes>, links: Option<Arc<Links>>) -> Self {
        Self { attributes, links, ..self }
    }

    /// A planner that reserves more room for files that were expected to stay.
    pub fn within(self, room: Option<Arc<Reserved>>) -> Self {
        Self { room, ..self }
    }

    /// Plans all `entries`, then handles all comparisons; blocks.
    pub fn run(mut self, entries: &[Entry]) -> Vec<DirectoryEnd> {
        let mut ends = Vec::new();
        if let Err(Halt::Fatal(error)) = self.plan(entries, &mut ends) {
            self.ports.asker.stop(error);
        }
        ends
    }

    fn plan(&mut self, entries: &[Entry], ends: &mut Vec<DirectoryEnd>) -> Result<(), Halt> {
        self.put_back("");
        self.check_space(entries).map_err(Halt::Fatal)?;
        if self.conflict == Conflict::Rename {
            self.listed = entries.iter().map(|entry| entry.path.as_str().to_owned()).collect();
        }
        self.spellings = Spellings::of(entries);
        let mut open_comparisons = 0;
        let mut undecided = VecDeque::new();
        for (index, entry) in (0..).zip(entries) {
            match &entry.kind {
                _ if self.merges(entry) => {}
                EntryKind::Directory { mode, modified } => {
                    let end = self.make_directory((index, &entry.path), *mode, *modified);
                    if end.as_ref().is_some_and(|end| !end.is_new) {
                        self.put_back(entry.path.as_str());
                    }
                    ends.extend(end);
                }
                EntryKind::Link { text } => self.make_link(&entry.path, text),
                EntryKind::File(meta) => {
                    undecided.extend(self.plan_name(FileJob::new(index, entry.path.clone(), *meta), false));
                }
            }
            while let Some(job) = undecided.pop_front() {
                open_comparisons += u64::from(self.plan_file(job)?);
                while let Ok(compared) = self.ports.compared.try_recv() {
                    open_comparisons -= 1;
                    undecided.extend(self.settle(compared)?);
                }
            }
            self.ports.asker.pass_on_old()?;
        }
        self.settle_all(open_comparisons)?;
        let mut open_comparisons = 0;
        for index in std::mem::take(&mut self.later) {
            let job = FileJob::listed(entries, index);
            if let Some(job) = job.and_then(|job| self.plan_name(job, true)) {
                open_comparisons += u64::from(self.plan_file(job)?);
            }
        }
        self.settle_all(open_comparisons)
    }

    /// Waits for so many comparisons, and those that follow from them.
    fn settle_all(&mut self, mut open_comparisons: u64) -> Result<(), Halt> {
        self.ports.asker.pass_on()?;
        while open_comparisons > 0 {
            let compared = self.ports.compared.recv().map_err(|_| Halt::Gone)?;
            open_comparisons -= 1;
            if let Some(job) = self.settle(compared)? {
                open_comparisons += u64::from(self.plan_file(job)?);
            }
            self.ports.asker.pass_on()?;
        }
        Ok(())
    }

    /// Sends the request that `job` needs; true if it is a comparison.
    fn plan_file(&mut self, mut job: FileJob) -> Result<bool, Halt> {
        let directory = match self.tree.directory(&job.parent) {
            Ok(directory) => directory,
            Err(error) => {
                self.report.fail_io(&job.path, &error, cannot_enter);
                return Ok(false);
            }
        };
        loop {
            let found = directory.symlink_metadata(&job.name);
            if let Err(error) = &found
                && error.kind() == io::ErrorKind::InvalidFilename
            {
                // Rather than when everything has arrived.
                self.report.fail_for_good(&job.path, cannot_make(error));
                return Ok(false);
            }
            let Ok(found) = found else {
                if job.attempt > 0 || !self.spellings.meet(&mut self.tree, &job.path) {
                    return self.fetch(job, &directory).map(|()| false);
                }
                if self.conflict != Conflict::Rename {
                    self.report.fail(&job.path, clash());
                    return Ok(false);
                }
                match self.resolve(job, None) {
                    Some(decided) => job = decided,
                    None => return Ok(false),
                }
                continue;
            };
            if self.conflict == Conflict::Skip {
                self.skip(&job, false);
                return Ok(false);
            }
            let clashes = self.clashes(&job.path, &found);
            if clashes && self.conflict != Conflict::Rename {
                self.report.fail(&job.path, clash());
                return Ok(false);
            }
            if !clashes && self.is_unchanged(&job, &found) {
                self.keep(&job, false);
                return Ok(false);
            }
            if may_be_alike(&job, &found, self.compares_all) {
                let Some(theirs) = job.theirs else {
                    self.compare(job, &directory)?;
                    return Ok(true);
                };
                if self.hash(&directory, &job.name) == Some(theirs) {
                    self.keep(&job, true);
                    return Ok(false);
                }
            }
            let clears = found.is_dir() && self.may_clear(&job.path, &found);
            job.clears = clears.then(|| self.tree.shut());
            match self.resolve(job, Some(&found)) {
                Some(decided) if decided.replace => return self.fetch(decided, &directory).map(|()| false),
                Some(decided) => job = decided,
                None => return Ok(false),
            }
        }
    }

    /// True if overwriting the entry `found` for the one at `path` would replace another one of the share.
    pub fn clashes(&mut self, path: &RelPath, found: &Metadata) -> bool {
        self.spellings.clash(&mut self.tree, path, found)
    }

    /// Asks for the sender's hash, and hashes the existing file meanwhile.
    fn compare(&mut self, job: FileJob, directory: &Dir) -> Result<(), Halt> {
        let (index, name) = (job.index, job.name.clone());
        self.ports.asker.ask(Request::Hash { file: index }, InFlight::Compare(Arc::new(job)))?;
        if let Some(ours) = self.hash(directory, &name) {
            self.hashes.insert(index, ours);
        }
        Ok(())
    }

    /// The hash of an existing file. A sender waits for the next request meanwhile, so it gets a sign of life.
    fn hash(&mut self, directory: &Dir, name: &str) -> Option<[u8; 32]> {
        let mut last = Instant::now();
        let (asker, progress) = (&mut self.ports.asker, &self.progress);
        hash_file(directory, name, |read| {
            progress.add_compared(read as u64);
            if last.elapsed() < SIGN_OF_LIFE {
                return asker.pass_on_old().is_ok() && !asker.is_closed();
            }
            last = Instant::now();
            asker.wait().is_ok()
        })
    }

    /// Handles the result of a comparison; returns the job if it must be planned again.
    fn settle(&mut self, Compared { job, theirs }: Compared) -> Result<Option<FileJob>, Halt> {
        let mut job = Arc::into_inner(job).ok_or(Halt::Gone)?;
        job.theirs = theirs;
        let ours = self.hashes.remove(&job.index);
        match theirs {
            None => Ok(None),
            Some(_) if theirs == ours => {
                self.keep(&job, true);
                Ok(None)
            }
            Some(_) => match self.resolve(job, None) {
                Some(job) if job.replace => {
                    match self.tree.directory(&job.parent) {
                        Ok(directory) => self.fetch(job, &directory)?,
                        Err(error) => self.report.fail_io(&job.path, &error, cannot_enter),
                    }
                    Ok(None)
                }
                again => Ok(again),
            },
        }
    }

    /// Keeps a file that is identical, which was `checked` or is likely.
    fn keep(&mut self, job: &FileJob, checked: bool) {
        self.skip(job, checked);
        if let Ok(directory) = self.tree.directory(&job.parent) {
            self.renew(&directory, job);
            self.keep_leader(&directory, job);
            // The unfinished file of an earlier attempt is not needed any more.
            let _ = PartFile::discard(&directory, &job.name);
            if self.mirror.is_some() {
                let _ = discard_staged(&directory, &job.name);
            }
        }
    }

    /// Applies the policy to a job whose name is taken; `None` if nothing is to be received.
    fn resolve(&mut self, mut job: FileJob, found: Option<&Metadata>) -> Option<FileJob> {
        match self.conflict {
            Conflict::Error => {
                let directory = self.tree.directory(&job.parent);
                let is_hidden = directory.is_ok_and(|directory| is_unreadable(&directory, &job.name));
                self.report.fail(&job.path, if is_hidden { UNREADABLE } else { exists() });
            }
            Conflict::Skip => self.skip(&job, false),
            Conflict::Overwrite if job.clears.is_none() && found.is_some_and(Metadata::is_dir) => {
                self.report.fail(&job.path, "a directory has this name; remove it first");
            }
            Conflict::Overwrite => {
                job.replace = true;
                return Some(job);
            }
            Conflict::Rename => {
                let next = self.alternatives(&job.path).find(|(attempt, _)| *attempt > job.attempt);
                if let Some((attempt, name)) = next {
                    (job.attempt, job.name) = (attempt, name);
                    return Some(job);
                }
                self.report.fail(&job.path, no_name());
            }
        }
        None
    }

    /// Alternatives to a taken name, numbered, without names of the share.
    pub fn alternatives<'a>(&'a self, path: &'a RelPath) -> impl Iterator<Item = (u32, String)> + 'a {
        let (parent, name) = path.split();
        let all = (1..=MOST_ALTERNATIVES).map(move |attempt| (attempt, alternative_name(name, attempt)));
        all.filter(move |(_, name)| {
            let path = if parent.is_empty() { name.clone() } else { format!("{parent}/{name}") };
            !self.listed.contains(&path)
        })
    }

    pub fn skip(&self, job: &FileJob, checked: bool) {
        let size = job.meta.size.unwrap_or(0);
        self.progress.keep_file(size);
        self.report.add(|summary| {
            summary.skipped += 1;
            if !checked {
                summary.unchecked += 1;
                summary.unchecked_bytes = summary.unchecked_bytes.saturating_add(size);
            }
        });
    }

    /// Requests a file, with the hashes of its unfinished file.
    fn fetch(&mut self, job: FileJob, directory: &Arc<Dir>) -> Result<(), Halt> {
        if let Some(room) = &self.room
            && let Err(error) = room.add(job.index, job.meta.size.unwrap_or(0))
        {
            self.report.fail(&job.path, error.to_string());
            return Ok(());
        }
        if self.mirror.is_some()
            && let Err(error) = discard_staged(directory, &job.name)
        {
            self.report.fail(&job.path, unfinished(&error));
            return Ok(());
        }
        let blocks = job.meta.size.map_or(u64::MAX, block_count);
        // Nothing was received into a directory that this attempt has made.
        let is_new = self.made.as_ref() == Some(&job.parent);
        let held = if is_new { 0 } else { PartFile::held(directory, &job.name) };
        if !self.finds_room(&job, (directory, held)) {
            return Ok(());
        }
        if let Some(links) = &self.links {
            links.fetch(job.index);
            if links.has(job.index) {
                self.report.copy_link(&job.path);
            }
        }
        let job = Arc::new(job);
        let (Some(size), true) = (job.meta.size, held > 0) else {
            return self.ask_blocks(Fetch {
                job,
                part: None,
                held: Vec::new(),
                first: 0,
                count: blocks,
                last: true,
            });
        };
        // Hashing the unfinished file may take a while.
        self.ports.asker.pass_on()?;
        let opened = PartFile::open(Arc::clone(directory), &job.name, Some(size));
        let opened = opened.and_then(|part| Ok((part.reader()?, part)));
        let (mut reader, part) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.report.fail_io(&job.path, &error, io::Error::to_string);
                return Ok(());
            }
        };
        let (mut part, mut first) = (Some(part), 0);
        let mut buffer = vec![0; BLOCK.min(usize::try_from(size).unwrap_or(BLOCK))];
        loop {
            let mut held = Vec::new();
            while held.len() < MOST_HASHES && first + (held.len() as u64) < blocks {
                let index = first + held.len() as u64;
                let block = &mut buffer[..block_len(size, index)];
                match read_full(&mut reader, block) {
                    Ok(read) if read == block.len() => held.push(hash_block(index, block)),
                    // An unreadable block is requested.
                    _ => break,
                }
            }
            let is_all = held.len() < MOST_HASHES;
            let count = if is_all { blocks - first } else { held.len() as u64 };
            self.ask_blocks(Fetch {
                job: Arc::clone(&job),
                part: part.take(),
                held,
                first,
                count,
                last: is_all,
            })?;
            first += count;
            if is_all {
                return Ok(());
            }
        }
    }

    fn ask_blocks(&mut self, fetch: Fetch) -> Result<(), Halt> {
        let held = fetch.held.iter().map(|block| block.value).collect();
        let Fetch { first, count, last, .. } = fetch;
        let request = Request::Fetch { file: fetch.job.index, first, count, last, held };
        Ok(self.ports.asker.ask(request, InFlight::Fetch(fetch))?)
    }
}

pub(crate) fn cannot_enter(error: &std::io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "its directory could not be made".into(),
        _ => format!("its directory cannot be used (links are not followed): {error}"),
    }
}

pub(crate) fn unfinished(error: &std::io::Error) -> String {
    format!("an unfinished directory is in the way: {error}")
}
