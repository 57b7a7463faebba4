//! The outcome of a transfer: its threads collect it, and the caller gets it at the end.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_wire::{Escaped, ForeignText};

use crate::error::{Failure, MOST_NAMES, PER_NAME, Reason, TransferError, is_lasting, no_room};
use crate::manifest::LeftOut;
use crate::path::RelPath;
use crate::progress::Progress;

/// Most warnings that are kept.
pub(crate) const MOST_WARNINGS: usize = 100;

/// The summary of a successful transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files sent or received.
    pub files: u64,
    /// Files that the receiver already had: identical, or kept by [`Conflict::Skip`](crate::Conflict::Skip).
    pub skipped: u64,
    /// Those of them that were kept for their name, or their length and time, and not compared.
    pub unchecked: u64,
    /// The bytes of those and of hard links, which [`Self::bytes`] leaves out.
    pub unchecked_bytes: u64,
    /// Bytes of files, including resumed ones.
    pub bytes: u64,
    /// Bytes that the receiver's disk already had.
    pub resumed: u64,
    /// Bytes that crossed the connection: neither resumed ones nor holes.
    pub moved: u64,
    /// Entries of the share that are never sent (sockets, links that lead out of it).
    pub left_out: u64,
    /// Those of the files that were made as hard links, as further names of others.
    pub hard_links: u64,
    /// Entries that a copy removed because the source does not have them.
    pub removed: u64,
    /// Links that a copy made, and kept files whose mode or time it changed.
    pub updated: u64,
    /// Directories of the receiver that found no room to be synced: a crash may undo new names in them.
    pub unsynced: u64,
    /// Files that the sender could not send, if the receiver has all others.
    pub missed: u64,
    /// At the sender, the printable paths of files that it could not send, with reasons; all up to a megabyte.
    pub missed_files: Vec<String>,
    /// Warnings, one printable line each; the first hundred.
    pub warnings: Vec<String>,
}

/// Adds a server's notes, but for those that this end has, too.
pub(crate) fn hear(outcome: &mut Result<Summary, TransferError>, said: &[ForeignText]) {
    let own = match outcome {
        Ok(summary) => Some(&mut summary.warnings),
        Err(error) => error.notes(),
    };
    let Some(own) = own else { return };
    let new = said.iter().filter(|note| own.iter().all(|own| own != note.raw()));
    let new: Vec<String> = new.map(|note| format!("the server says: {note}")).collect();
    own.extend(new);
}

/// The report under construction; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    summary: Summary,
    /// At the sender, the files of its list but for hard links, and all entries of it.
    listed: u64,
    entries: u64,
    /// Missed entries that are not in the list.
    unlisted: u64,
    failures: Vec<Failure>,
    /// The files that this end cannot send, and the bytes of all names and reasons.
    missed: HashSet<String>,
    named: usize,
    failed: u64,
    failed_here: u64,
    /// Those of them that another command here may take.
    again: u64,
    /// The user's next step if there was no room.
    advice: Option<&'static str>,
    changed: bool,
    notes: BTreeMap<&'static str, Note>,
    /// Directories whose new names could not be synced.
    unsynced: Option<Note>,
    /// Files without their extended attributes.
    bare: Counted,
    /// Those that were there and keep theirs.
    kept: Counted,
    /// Hard links that became files of their own.
    copied: Counted,
}

impl Inner {
    /// Counts the bytes of a name that is to be kept; false if there are too many.
    fn has_room_for(&mut self, bytes: usize) -> bool {
        self.named += bytes + PER_NAME;
        self.named <= MOST_NAMES
    }
}

/// The end at which a file failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// This one; whether another command here may take it.
    Here { again: bool },
    /// The other one, or that of another file.
    Elsewhere,
}

/// A number of files, and the printable path of the first.
#[derive(Debug, Default)]
struct Counted {
    count: u64,
    first: String,
}

impl Counted {
    fn add(&mut self, path: &RelPath) {
        if self.count == 0 {
            self.first = path.shown();
        }
        self.count += 1;
    }

    /// The note that the extended attributes of these files are not kept.
    fn note(&self) -> Option<String> {
        (self.count > 0).then(|| format!("{}; `--xattrs` keeps them", not_kept(self.count, &self.first)))
    }
}

/// A kind of metadata that could not be stored.
#[derive(Debug)]
struct Note {
    count: u64,
    first: String,
    why: String,
}

/// The counters and the report of a transfer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    pub report: Report,
    pub progress: Progress,
}

impl Report {
    pub fn add(&self, change: impl FnOnce(&mut Summary)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).summary);
    }

    pub fn warn(&self, warning: &str) {
        self.add(|summary| {
            if summary.warnings.len() < MOST_WARNINGS {
                summary.warnings.push(Escaped(warning).to_string());
            }
        });
    }

    /// The note for files whose extended attributes are not kept.
    pub fn bare(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bare.note()
    }

    /// Notes that the sender sends no extended attributes, which the user wants.
    pub fn miss_attributes(&self) {
        self.warn(
            "the sender sent no extended attributes: its files have none, or it runs without `--xattrs`",
        );
    }

    /// Records an entry that is not sent. One that is missed counts as a failure instead, where it is reported.
    pub fn leave_out(&self, what: &LeftOut) {
        if what.missed {
            // A warning names the reason.
            self.miss(what.path.to_string(), None);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).unlisted += 1;
        } else {
            self.add(|summary| summary.left_out += 1);
        }
        self.warn(&what.to_string());
    }

    /// Records the printable path of a file that this end cannot send, and why.
    pub fn miss(&self, path: String, why: Option<String>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = why.map_or_else(|| path.clone(), |why| format!("{path}: {why}"));
        if !inner.missed.contains(&path) && inner.has_room_for(line.len()) {
            inner.missed.insert(path);
            inner.summary.missed_files.push(line);
        }
    }

    /// Records how many files the receiver may ask for, and how many entries are listed.
    pub fn expect(&self, files: u64, entries: u64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.listed, inner.entries) = (files, entries);
    }

    /// Records how many files the receiver reports as missed, which it may make up.
    pub fn count_missed(&self, count: u64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.summary.missed = count.min(inner.entries.saturating_add(inner.unlisted));
    }

    /// Counts the files for which a receiver did not ask that has all of them.
    pub fn count_kept(&self) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { summary, listed, unlisted, .. } = &mut *inner;
        let missed = summary.missed.saturating_sub(*unlisted);
        let kept = listed.saturating_sub(missed).saturating_sub(summary.files + summary.skipped);
        summary.skipped += kept;
        summary.unchecked += kept;
    }

    /// Records that the file system cannot do `what` ("store the mode") with a file that arrived.
    pub fn note(&self, what: &'static str, path: &RelPath, why: &io::Error) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = || Note { count: 0, first: path.shown(), why: why.to_string() };
        inner.notes.entry(what).or_insert_with(first).count += 1;
    }

    /// Records that the extended attributes of an entry are not kept.
    pub fn drop_attributes(&self, path: &RelPath) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bare.add(path);
    }

    /// Records that an entry that was there lacks extended attributes of the source's.
    pub fn keep_attributes(&self, path: &RelPath) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).kept.add(path);
    }

    /// Records that a hard link became a file of its own.
    pub fn copy_link(&self, path: &RelPath) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).copied.add(path);
    }

    /// Records that so many further names of files are not made as hard links.
    pub fn copy_links(&self, count: usize) {
        let what = match count {
            0 => return,
            1 => "1 hard link is copied as a file of its own".to_owned(),
            _ => format!("{count} hard links are copied as files of their own"),
        };
        self.warn(&format!("{what}; `--hard-links` keeps them"));
    }

    /// Records that a file changed while it was sent: another attempt may succeed.
    pub fn note_changed(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).changed = true;
    }

    /// Records that there was no room to sync the directory at `path`: after a crash, names in it may be gone.
    pub fn note_unsynced(&self, path: &str, why: &io::Error) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = if path.is_empty() { "the target directory".into() } else { Escaped(path).to_string() };
        let first = || Note { count: 0, first: shown, why: why.to_string() };
        inner.unsynced.get_or_insert_with(first).count += 1;
    }

    /// Why a copy must remove nothing: a file failed, or new names are not safe from a crash. `None` otherwise.
    pub fn why_unsafe(&self) -> Option<&'static str> {
        self.has_failed().then_some("not everything has arrived").or_else(|| self.why_unsynced())
    }

    /// Why new names are not safe from a crash; `None` if they are.
    pub fn why_unsynced(&self) -> Option<&'static str> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.unsynced.is_some().then_some("the names of what arrived may be lost")
    }

    /// True if a file failed because there was no room.
    pub fn lacks_room(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).advice.is_some()
    }

    /// True if a file failed, at either end.
    pub fn has_failed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).failed > 0
    }

    /// True after [`Self::note_changed`].
    pub fn has_changed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).changed
    }

    /// Records that a file failed at this end, where another command may take it; the others continue.
    pub fn fail(&self, path: &RelPath, reason: impl Into<String>) {
        let failure = Failure { path: path.to_foreign(), reason: Reason::Here(reason.into()) };
        self.add_failure(failure, End::Here { again: true });
    }

    /// Records that a file failed at this end, whose file system cannot hold it.
    pub fn fail_for_good(&self, path: &RelPath, reason: impl Into<String>) {
        let failure = Failure { path: path.to_foreign(), reason: Reason::Here(reason.into()) };
        self.add_failure(failure, End::Here { again: false });
    }

    /// Records that a file failed at this end for this error, of which `why` is the reason unless there is no room.
    pub fn fail_io(&self, path: &RelPath, error: &io::Error, why: impl FnOnce(&io::Error) -> String) {
        let Some((reason, advice)) = no_room(error) else {
            let fail = if is_lasting(error) { Self::fail_for_good } else { Self::fail };
            return fail(self, path, why(error));
        };
        let own = error.get_ref().map(ToString::to_string);
        self.fail(path, own.unwrap_or_else(|| reason.to_owned()));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).advice = Some(advice);
    }

    /// Records that a file failed because another one did, which tells at which end.
    pub fn fail_with_another(&self, path: &RelPath, reason: &str) {
        let failure = Failure { path: path.to_foreign(), reason: Reason::Here(reason.into()) };
        self.add_failure(failure, End::Elsewhere);
    }

    /// Records that the other end could not send a file, with its reason.
    pub fn fail_there(&self, path: ForeignText, reason: ForeignText) {
        self.add_failure(Failure { path, reason: Reason::OtherEnd(reason) }, End::Elsewhere);
    }

    fn add_failure(&self, failure: Failure, end: End) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.failed += 1;
        inner.failed_here += u64::from(end != End::Elsewhere);
        inner.again += u64::from(end == End::Here { again: true });
        if inner.has_room_for(failure.path.raw().len() + failure.reason.len()) {
            inner.failures.push(failure);
        }
    }

    /// The summary, or [`TransferError::Incomplete`] if a file failed.
    pub fn finish(&self) -> Result<Summary, TransferError> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let notes = std::mem::take(&mut inner.notes);
        let lines = notes.iter().map(|(what, note)| match note.count {
            1 => format!("this file system cannot {what} of {}: {}", note.first, note.why),
            count => {
                format!("this file system cannot {what} of {count} files ({}, ...): {}", note.first, note.why)
            }
        });
        inner.summary.warnings.extend(lines);
        if let Some(Note { count, first, why }) = inner.unsynced.take() {
            inner.summary.unsynced = count;
            let what = if count == 1 { first } else { format!("{count} directories ({first}, ...)") };
            let advice = "free some space and run `sync`";
            inner.summary.warnings.push(format!("a crash may undo the new names in {what}: {why}; {advice}"));
        }
        let bare = std::mem::take(&mut inner.bare).note();
        inner.summary.warnings.extend(bare);
        let Counted { count, first } = std::mem::take(&mut inner.kept);
        if count > 0 {
            inner.summary.warnings.push(match count {
                1 => format!("{first} was here and keeps its own extended attributes"),
                _ => format!("{count} files and directories ({first}, ...) were here and keep their own extended attributes"),
            });
        }
        let Counted { count, first } = std::mem::take(&mut inner.copied);
        if count > 0 {
            inner.summary.warnings.push(match count {
                1 => format!("the hard link {first} is a copy now, because of what was here"),
                _ => format!("{count} hard links ({first}, ...) are copies now, because of what was here"),
            });
        }
        if inner.failed == 0 {
            return Ok(std::mem::take(&mut inner.summary));
        }
        let (failures, notes) =
            (std::mem::take(&mut inner.failures), std::mem::take(&mut inner.summary.warnings));
        let Inner { failed: count, failed_here: here, again, advice, .. } = *inner;
        let unsynced = inner.summary.unsynced;
        Err(TransferError::Incomplete { failures, count, here, again, notes, advice, unsynced })
    }
}

/// The note for entries without their extended attributes.
pub(crate) fn not_kept(count: u64, first: &str) -> String {
    match count {
        1 => format!("the extended attributes of {first} are left out"),
        _ => format!("the extended attributes of {count} files and directories ({first}, ...) are left out"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_misses_no_more_than_there_is_and_what_is_not_listed_counts_as_no_file_of_it() {
        for (said, missed, kept) in [(0, 0, 4), (1, 1, 4), (2, 2, 3), (u64::MAX, 6, 0)] {
            let report = Report::default();
            report.expect(5, 5);
            report.leave_out(&LeftOut { path: "locked".into(), reason: "denied".into(), missed: true });
            report.add(|summary| summary.files = 1);
            report.count_missed(said);
            report.count_kept();
            let summary = report.finish().unwrap();
            assert_eq!((summary.missed, summary.skipped), (missed, kept), "{said}");
        }
    }

    #[test]
    fn all_failures_are_named_up_to_a_megabyte_and_others_are_counted() {
        let report = Report::default();
        let long = "x".repeat(1000);
        for at in 0..3000 {
            report.fail_there(format!("{at}").into(), if at < 1500 { "gone" } else { &*long }.into());
            report.miss(format!("{}", at % 1000), None);
        }
        let mut missed = Vec::new();
        report.add(|summary| missed.clone_from(&summary.missed_files));
        assert_eq!(missed.len(), 1000);
        let Err(TransferError::Incomplete { failures, count: 3000, .. }) = report.finish() else { panic!() };
        assert!((1501..3000).contains(&failures.len()), "{}", failures.len());
    }
}
