//! A limit for what directories may hold.
//!
//! A transfer reserves, before it begins, the room that its files need. Every name counts as 4 KiB at least, so that the limit
//! also bounds the number of names. The directories are counted anew for a transfer when the last count is
//! [`FRESH`] old. Between counts, finished transfers add the bytes that they have written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::part::PartFile;
use super::target::TargetTree;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind};
use crate::progress::Progress;

/// The least that a name counts.
const NAME: u64 = 4 << 10;
/// The greatest age of a count.
const FRESH: Duration = Duration::from_secs(10);

/// Most bytes that directories may hold; clones are the same limit.
#[derive(Clone, Debug)]
pub struct Quota(Arc<Ledger>);

#[derive(Debug)]
struct Ledger {
    most: u64,
    directories: Vec<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counted: Option<(Instant, u64)>,
    /// Written by transfers that ended after the count.
    added: u64,
    /// Transfers under way: their room, and what they have written.
    reserved: BTreeMap<u64, (u64, Progress)>,
    next: u64,
}

impl Quota {
    /// At most this many bytes in these directories together.
    #[must_use]
    pub fn new(most: u64, directories: Vec<PathBuf>) -> Self {
        Self(Arc::new(Ledger { most, directories, state: Mutex::default() }))
    }

    /// Reserves the room for these entries, and all that is left if a file's length is unknown. Walks the directories.
    pub(super) fn reserve(
        &self,
        mut tree: TargetTree,
        entries: &[Entry],
        progress: Progress,
    ) -> Result<Reserved, TransferError> {
        let mut state = self.state();
        if state.counted.is_none_or(|(when, _)| when.elapsed() >= FRESH) {
            let held = self.0.directories.iter().map(|path| held(path)).fold(0, u64::saturating_add);
            (state.counted, state.added) = (Some((Instant::now(), held)), 0);
        }
        let used = state.counted.map_or(0, |(_, held)| held).saturating_add(state.added);
        let open = state.reserved.values().map(|(room, progress)| room.saturating_sub(written(progress)));
        let free = self.0.most.saturating_sub(open.fold(used, u64::saturating_add));
        let needed = entries.iter().map(|entry| needed(&mut tree, entry)).fold(0, u64::saturating_add);
        if needed > free {
            return Err(TransferError::Quota { needed, free });
        }
        let is_endless =
            entries.iter().any(|entry| matches!(&entry.kind, EntryKind::File(meta) if meta.size.is_none()));
        let room = if is_endless { free } else { needed };
        let number = state.next;
        state.next += 1;
        state.reserved.insert(number, (room, progress));
        Ok(Reserved { quota: self.clone(), number, spare: room - needed })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one transfer, given back when dropped.
pub(super) struct Reserved {
    quota: Quota,
    number: u64,
    /// Room for files of unknown length.
    spare: u64,
}

impl Reserved {
    /// Most bytes of all files, if those of known length have `listed` bytes.
    pub fn most(&self, listed: u64) -> u64 {
        listed.saturating_add(self.spare)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.quota.state();
        if let Some((room, progress)) = state.reserved.remove(&self.number) {
            state.added = state.added.saturating_add(written(&progress).min(room));
        }
    }
}

fn written(progress: &Progress) -> u64 {
    let counters = progress.snapshot();
    counters.bytes_done.saturating_sub(counters.bytes_resumed)
}

/// The bytes that an entry adds to the directories.
fn needed(tree: &mut TargetTree, entry: &Entry) -> u64 {
    let (parent, name) = entry.path.split();
    let directory = tree.directory(parent).ok();
    let found = directory.as_ref().and_then(|directory| directory.symlink_metadata(name).ok());
    match &entry.kind {
        EntryKind::File(meta) => {
            let size = meta.size.unwrap_or(0);
            match (found, directory) {
                (Some(found), _) if found.is_file() && found.len() == size => 0,
                (_, Some(directory)) => counted(size).saturating_sub(PartFile::held(&directory, name)),
                (_, None) => counted(size),
            }
        }
        _ if found.is_some() => 0,
        _ => NAME,
    }
}

fn counted(size: u64) -> u64 {
    size.checked_next_multiple_of(NAME).unwrap_or(u64::MAX).max(NAME)
}

/// The bytes below a directory; links are not followed.
fn held(path: &Path) -> u64 {
    let mut sum = 0_u64;
    let mut pending = vec![path.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let size = if meta.is_file() { meta.len() } else { 0 };
            sum = sum.saturating_add(counted(size));
            if meta.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    sum
}
