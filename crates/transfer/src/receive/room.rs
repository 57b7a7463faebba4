//! The check before a transfer which of its files find room.
//!
//! Files are taken in the order of the list. A file that is too large for the rest of the space is left out, and a smaller
//! one behind it may still fit.

use std::collections::HashMap;
use std::path::Path;

use cap_std::fs::{Dir, OpenOptions};

use super::alike::{has_second, may_be_alike};
use super::job::FileJob;
use super::part::{PartFile, owner_only};
use super::target::{Free, TargetTree};
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta, Links};
use crate::path::{RelPath, trial_name};
use crate::policy::Conflict;

/// Free space that is left to the system where not all files fit; at most a hundredth of it. Unfinished files may take it.
const RESERVE: u64 = 64 << 20;
/// The length of a hole that is tried.
const HOLE: u64 = 64 << 10;

/// The room that the files of an offer lack on the target's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Number of files that do not fit.
    pub files: u64,
    /// Bytes that all files together still need.
    pub needed: u64,
    /// Bytes free.
    pub free: u64,
    /// Number of files that fit only if they have not changed: those that they would replace have the same length.
    pub unsure: u64,
}

/// The room that one file lacks.
pub(crate) struct Lack {
    pub needed: u64,
    pub left: u64,
}

/// The files that do not fit.
pub(super) struct Crowd {
    pub shortage: Shortage,
    /// By number.
    pub lacks: HashMap<u32, Lack>,
    /// The length of those files.
    pub bytes: u64,
    /// Only directories are left of the offer.
    pub is_all: bool,
}

/// An offer, and what decides which of its files are received.
pub(super) struct Demand<'a> {
    pub entries: &'a [Entry],
    /// Further names that become hard links.
    pub links: &'a Links,
    pub conflict: Conflict,
    pub compares_all: bool,
}

/// The room that a file needs beyond that of its unfinished file.
#[derive(Clone, Copy, Default)]
struct Need {
    bytes: u64,
    held: u64,
    /// The bytes that it would need if it has changed.
    unsure: u64,
}

impl Demand<'_> {
    /// The files that do not fit into the `ground` of the target; `None` if all do, or the free space is not known. There is
    /// no `tree` if the target directory does not exist yet.
    pub fn crowd(&self, ground: &TargetTree, tree: Option<&mut TargetTree>) -> Option<Crowd> {
        let free = ground.free()?;
        let mut whole = self.files().filter_map(|(.., meta)| meta.size);
        let has_holes = self.files().any(|(.., meta)| meta.stored() != meta.size);
        let is_solid = has_holes
            && whole.try_fold(0, u64::checked_add) > Some(free.bytes)
            && !holds_holes(ground.root());
        let free = if is_solid { free.without_holes() } else { free };
        let sum = |needs: &mut dyn Iterator<Item = u64>| needs.fold(0, u64::saturating_add);
        let is_link = |index| self.links.contains_key(&index);
        let mut most = self.files().filter(|(index, ..)| !is_link(*index)).map(|(.., meta)| free.taken(meta));
        if sum(&mut most) <= free.bytes {
            // Whatever is there already.
            return None;
        }
        let mut ground = Ground { demand: self, tree, free, missing: None };
        let need = |(index, path, meta)| match is_link(index) {
            true => Need::default(),
            false => ground.need(index, path, meta),
        };
        let needs: Vec<Need> = self.files().map(need).collect();
        let needed = sum(&mut needs.iter().map(|need| need.bytes));
        let may_lack = needs.iter().any(|need| need.unsure > free.bytes.saturating_sub(needed));
        if needed <= free.bytes && !may_lack {
            return None;
        }
        let (mut lacks, mut bytes) = (HashMap::new(), 0_u64);
        let reserve = if needed <= free.bytes { 0 } else { RESERVE.min(free.bytes / 100) };
        let (mut left, unsure) = (free.bytes, needs.iter().map(|need| need.unsure).collect::<Vec<_>>());
        for ((index, path, meta), need) in self.files().zip(needs) {
            let need = match self.links.get(&index) {
                // Without that file, it is one of its own.
                Some(first) if lacks.contains_key(first) => ground.need(index, path, meta),
                _ => need,
            };
            let room = if need.held > 0 { left } else { left.saturating_sub(reserve) };
            if need.bytes <= room {
                left -= need.bytes;
                continue;
            }
            lacks.insert(index, Lack { needed: need.bytes, left: room });
            bytes = bytes.saturating_add(meta.size.unwrap_or(0));
            // Its unfinished file may give up that room.
            left = left.saturating_add(need.held);
        }
        let is_left_out = |(index, entry): (u32, &Entry)| match entry.kind {
            EntryKind::File(_) => lacks.contains_key(&index),
            EntryKind::Directory { .. } => true,
            EntryKind::Link { .. } => false,
        };
        let is_all = (0..).zip(self.entries).all(is_left_out);
        // Each of them frees the room of the one that it replaces.
        let unsure = unsure.into_iter().filter(|bytes| *bytes > left).count() as u64;
        let shortage = Shortage { files: lacks.len() as u64, needed, free: free.bytes, unsure };
        Some(Crowd { shortage, lacks, bytes, is_all })
    }

    /// The files of known length.
    fn files(&self) -> impl Iterator<Item = (u32, &RelPath, FileMeta)> {
        (0..).zip(self.entries).filter_map(|(index, entry)| match entry.kind {
            EntryKind::File(meta) if meta.size.is_some() => Some((index, &entry.path, meta)),
            _ => None,
        })
    }
}

/// The target directory, where files may be already.
struct Ground<'a> {
    demand: &'a Demand<'a>,
    tree: Option<&'a mut TargetTree>,
    free: Free,
    /// The last directory that does not exist.
    missing: Option<&'a str>,
}

impl<'a> Ground<'a> {
    /// Data on the disk needs no more room, nor does a file that may be alike.
    fn need(&mut self, index: u32, path: &'a RelPath, meta: FileMeta) -> Need {
        let (whole, (parent, name)) = (self.free.taken(meta), path.split());
        if self.missing == Some(parent) {
            return Need { bytes: whole, ..Need::default() };
        }
        let Some(Ok(directory)) = self.tree.as_mut().map(|tree| tree.directory(parent)) else {
            self.missing = Some(parent);
            return Need { bytes: whole, ..Need::default() };
        };
        let found = directory.symlink_metadata(name).ok();
        if found.is_some() && self.demand.conflict.keeps() {
            return Need::default();
        }
        let held = PartFile::held(&directory, name).min(meta.size.unwrap_or(0));
        let bytes = whole.saturating_sub(held);
        // The sender's system may report more bytes than can be read.
        let job = FileJob::new(index, path.clone(), meta);
        let alike = found.filter(|found| may_be_alike(&job, found, self.demand.compares_all));
        match alike {
            None => Need { bytes, held, unsure: 0 },
            Some(found) if has_second(&job, &found) => Need::default(),
            Some(_) => Need { unsure: bytes, ..Need::default() },
        }
    }
}

/// True if files in the directory can have holes. Tries it with a file, and removes that again; true if it cannot try.
fn holds_holes(directory: &Dir) -> bool {
    use cap_std::fs::MetadataExt as _;
    #[cfg(test)]
    if directory.exists(crate::tests::SOLID) {
        return false;
    }
    let (name, mut options) = (trial_name("hole"), OpenOptions::new());
    options.write(true).create_new(true);
    owner_only(&mut options);
    let Ok(file) = directory.open_with(&name, &options) else { return true };
    let found = file.set_len(HOLE).and_then(|()| file.metadata());
    // If it stays, it is an unfinished file like any other.
    let _ = directory.remove_file(&name);
    found.map_or(true, |found| found.blocks() == 0)
}

impl Crowd {
    pub fn refusal(&self, path: &Path) -> TransferError {
        let Shortage { needed, free, .. } = self.shortage;
        TransferError::NoSpace { path: path.to_owned(), needed, free }
    }
}
