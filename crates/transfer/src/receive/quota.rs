//! A limit for what directories may hold.
//!
//! A transfer reserves, before it begins, the room that its files need. Every name counts as 4 KiB at least, so that the limit
//! also bounds the number of names. The directories are counted anew for a transfer when the last count is
//! [`FRESH`] old. Until then, the room of finished transfers counts, and a transfer is refused only after another count.
//! An existing file of the same length needs no room, because it may be the same; if it differs, the room is reserved
//! when the file is fetched.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cap_std::fs::Metadata;

use super::part::PartFile;
use super::target::TargetTree;
use crate::attributes;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind};
use crate::policy::{Conflict, Placing};
use crate::progress::Progress;

/// The least that a name counts.
pub(super) const NAME: u64 = 4 << 10;
/// The greatest age of a count.
const FRESH: Duration = Duration::from_secs(10);
/// Longest path of an entry, in bytes. The system opens none of more than 4,095, and a name that is taken becomes longer.
const LONGEST_PATH: usize = 4_000;

/// Most bytes that directories may hold; clones are the same limit.
#[derive(Clone, Debug)]
pub struct Quota(Arc<Ledger>);

#[derive(Debug)]
struct Ledger {
    most: u64,
    directories: Vec<PathBuf>,
    /// Held while room is reserved: one transfer at a time walks the directories.
    turn: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counted: Option<(Instant, u64)>,
    /// Room of transfers that ended after the count.
    added: u64,
    /// Transfers under way.
    reserved: BTreeMap<u64, Room>,
    next: u64,
}

/// The room of a transfer under way.
#[derive(Debug)]
struct Room {
    bytes: u64,
    progress: Progress,
    /// Bytes that the transfer had written when the directories were last counted. The count includes them.
    counted: u64,
}

impl Room {
    fn open(&self) -> u64 {
        self.bytes.saturating_sub(self.counted)
    }
}

impl Quota {
    /// At most this many bytes in these directories together.
    pub fn new(most: u64, directories: Vec<PathBuf>) -> Self {
        Self(Arc::new(Ledger { most, directories, turn: Mutex::default(), state: Mutex::default() }))
    }

    /// Reserves the room for these entries, and all that is left if a file's length is unknown. Walks the directories.
    /// `tree` is what exists of the target. `more` bytes are for its missing directories, and for attributes.
    pub(super) fn reserve(
        &self,
        (mut tree, more): (Option<TargetTree>, u64),
        entries: &[Entry],
        placing: Placing,
        progress: Progress,
    ) -> Result<Reserved, TransferError> {
        let _turn = self.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut needed, mut kept) = (more, HashSet::new());
        for (index, entry) in (0..).zip(entries) {
            match room_for(tree.as_mut(), entry, placing) {
                Some(bytes) => needed = needed.saturating_add(bytes),
                None => _ = kept.insert(index),
            }
        }
        let free = self.find(needed)?;
        let is_endless =
            entries.iter().any(|entry| matches!(&entry.kind, EntryKind::File(meta) if meta.size.is_none()));
        let bytes = if is_endless { free } else { needed };
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.reserved.insert(number, Room { bytes, progress, counted: 0 });
        drop(state);
        Ok(Reserved { quota: self.clone(), number, spare: bytes - needed, kept })
    }

    /// The bytes that are free, if there are as many as needed.
    fn find(&self, needed: u64) -> Result<u64, TransferError> {
        if self.state().counted.is_none_or(|(when, _)| when.elapsed() >= FRESH) {
            self.count();
        }
        // Transfers that ended may have used less than their room.
        if needed > self.free() && self.state().added > 0 {
            self.count();
        }
        let free = self.free();
        if needed > free { Err(TransferError::Quota { needed, free }) } else { Ok(free) }
    }

    fn free(&self) -> u64 {
        let state = self.state();
        let used = state.counted.map_or(0, |(_, held)| held).saturating_add(state.added);
        self.0.most.saturating_sub(state.reserved.values().map(Room::open).fold(used, u64::saturating_add))
    }

    /// Counts the directories anew. Bytes that are written meanwhile may count twice.
    fn count(&self) {
        let mut state = self.state();
        state.added = 0;
        state.reserved.values_mut().for_each(|room| room.counted = written(&room.progress).min(room.bytes));
        drop(state);
        let held = self.0.directories.iter().map(|path| held(path)).fold(0, u64::saturating_add);
        self.state().counted = Some((Instant::now(), held));
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
    /// Files without room, because those that exist were expected to stay.
    kept: HashSet<u32>,
}

impl Reserved {
    /// Most bytes of all files, if those of known length have `listed` bytes.
    pub fn most(&self, listed: u64) -> u64 {
        listed.saturating_add(self.spare)
    }

    /// Reserves the room for a file that is received although an existing one was expected to stay. May walk the
    /// directories.
    pub fn add(&self, file: u32, size: u64) -> Result<(), TransferError> {
        if !self.kept.contains(&file) {
            return Ok(());
        }
        let _turn = self.quota.0.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.quota.find(counted(size))?;
        if let Some(room) = self.quota.state().reserved.get_mut(&self.number) {
            room.bytes = room.bytes.saturating_add(counted(size));
        }
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.quota.state();
        if let Some(room) = state.reserved.remove(&self.number) {
            state.added = state.added.saturating_add(room.open());
        }
    }
}

fn written(progress: &Progress) -> u64 {
    let counters = progress.snapshot();
    counters.bytes_done.saturating_sub(counters.bytes_resumed)
}

/// Refuses entries whose path would be too long to be counted, below a directory whose path has `start` bytes.
pub(super) fn check_paths(start: usize, entries: &[Entry]) -> Result<(), TransferError> {
    match entries.iter().find(|entry| start + 1 + entry.path.as_str().len() > LONGEST_PATH) {
        Some(entry) => {
            let why = "its whole path has more than 4000 bytes, too many to count it for the quota";
            Err(TransferError::UnsafePath { path: entry.path.to_foreign(), why })
        }
        None => Ok(()),
    }
}

/// The bytes that an entry adds to the directories; `None` for a file if the existing one is expected to stay.
fn room_for(tree: Option<&mut TargetTree>, entry: &Entry, placing: Placing) -> Option<u64> {
    let (parent, name) = entry.path.split();
    let directory = tree.and_then(|tree| tree.directory(parent).ok());
    let found = directory.as_ref().and_then(|directory| directory.symlink_metadata(name).ok());
    let (copies, renames) = (placing.mirror.is_some(), placing.conflict == Conflict::Rename);
    match &entry.kind {
        EntryKind::File(meta) => {
            let size = meta.size.unwrap_or(0);
            let is_alike = |found: &Metadata| found.is_file() && Some(found.len()) == meta.size;
            match (found, directory) {
                (Some(_), _) if !copies && placing.conflict.keeps() => None,
                (Some(found), _) if is_alike(&found) => None,
                // A part of the name's own file is not continued under another name.
                (Some(_), _) if !copies && renames => Some(counted(size)),
                (_, Some(directory)) => Some(counted(size).saturating_sub(PartFile::held(&directory, name))),
                (_, None) => Some(counted(size)),
            }
        }
        EntryKind::Link { .. } if renames && !copies => Some(NAME),
        _ if found.is_some() => Some(0),
        _ => Some(NAME),
    }
}

fn counted(size: u64) -> u64 {
    size.checked_next_multiple_of(NAME).unwrap_or(u64::MAX).max(NAME)
}

/// The bytes below a directory, with extended attributes; links are not followed.
fn held(path: &Path) -> u64 {
    let mut sum = 0_u64;
    let mut pending = vec![path.to_owned()];
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let size = if meta.is_file() { meta.len() } else { 0 };
            sum = sum.saturating_add(counted(size));
            if !meta.is_symlink() {
                sum = sum.saturating_add(attributes::held(&entry.path()));
            }
            if meta.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    #[test]
    fn extended_attributes_count_also_when_the_directories_are_counted_anew() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        if let Err(error) = setxattr(&file, "user.tag", &[7; 1000], XattrFlags::empty()) {
            eprintln!("skipped: this file system has no extended attributes ({error})");
            return;
        }
        assert_eq!(held(place.path()), NAME + 1000 + "user.tag".len() as u64);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o0)).unwrap();
        assert!(held(place.path()) >= NAME + 1000, "although its owner may not read them");
    }
}
