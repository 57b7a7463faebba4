//! The check before a transfer which of its files find room.
//!
//! Files are taken in the order of the list. A file that is too large for the rest of the space is left out, and a smaller
//! one behind it may still fit.

use std::collections::HashMap;
use std::path::Path;

use super::alike::{has_second, may_be_alike};
use super::job::FileJob;
use super::part::PartFile;
use super::target::{Free, TargetTree};
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta, Links};
use crate::path::RelPath;
use crate::policy::Conflict;

/// Free space that is left to the system where not all files fit; at most a hundredth of it. Unfinished files may take it.
const RESERVE: u64 = 64 << 20;

/// The room that the files of an offer lack on the target's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Number of files that do not fit.
    pub files: u64,
    /// Bytes that all files together still need.
    pub needed: u64,
    /// Bytes free.
    pub free: u64,
    /// Number of files that fit only if they have not changed (those that they would replace have the same length), or if
    /// their holes take no room.
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
    /// The bytes that it also needs if its holes take room.
    holes: u64,
}

impl Demand<'_> {
    /// The files that do not fit into the `ground` of the target; `None` if all do, or the free space is not known. There is
    /// no `tree` if the target directory does not exist yet.
    pub fn crowd(&self, ground: &TargetTree, tree: Option<&mut TargetTree>) -> Option<Crowd> {
        let free = ground.free()?;
        let sum = |needs: &mut dyn Iterator<Item = u64>| needs.fold(0, u64::saturating_add);
        let is_link = |index| self.links.contains_key(&index);
        let mut most =
            self.files().filter(|(index, ..)| !is_link(*index)).map(|(.., meta)| free.taken(meta).1);
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
        let rest = free.bytes.saturating_sub(needed);
        let may_lack = needs.iter().any(|need| need.unsure > rest)
            || sum(&mut needs.iter().map(|need| need.holes)) > rest;
        if needed <= free.bytes && !may_lack {
            return None;
        }
        let (mut lacks, mut bytes) = (HashMap::new(), 0_u64);
        let reserve = if needed <= free.bytes { 0 } else { RESERVE.min(free.bytes / 100) };
        let (mut left, mut unsure) = (free.bytes, Vec::new());
        for ((index, path, meta), need) in self.files().zip(needs) {
            let need = match self.links.get(&index) {
                // Without that file, it is one of its own.
                Some(first) if lacks.contains_key(first) => ground.need(index, path, meta),
                _ => need,
            };
            let room = if need.held > 0 { left } else { left.saturating_sub(reserve) };
            if need.bytes <= room {
                left -= need.bytes;
                unsure.push((need.unsure, need.holes));
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
        let mut left_for_holes = left;
        // Each that replaces another frees the room of that one.
        unsure.retain(|&(bytes, holes)| {
            let fits = bytes <= left && holes <= left_for_holes;
            left_for_holes -= if fits { holes } else { 0 };
            !fits
        });
        let unsure = unsure.len() as u64;
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
        let ((least, most), (parent, name)) = (self.free.taken(meta), path.split());
        let new = Need { bytes: least, holes: most - least, ..Need::default() };
        if self.missing == Some(parent) {
            return new;
        }
        let Some(Ok(directory)) = self.tree.as_mut().map(|tree| tree.directory(parent)) else {
            self.missing = Some(parent);
            return new;
        };
        let found = directory.symlink_metadata(name).ok();
        if found.is_some() && self.demand.conflict.keeps() {
            return Need::default();
        }
        let held = PartFile::held(&directory, name).min(meta.size.unwrap_or(0));
        let [bytes, most] = [least, most].map(|bytes| bytes.saturating_sub(held));
        // The sender's system may report more bytes than can be read.
        let job = FileJob::new(index, path.clone(), meta);
        let alike = found.filter(|found| may_be_alike(&job, found, self.demand.compares_all));
        match alike {
            None => Need { bytes, held, unsure: 0, holes: most - bytes },
            Some(found) if has_second(&job, &found) => Need::default(),
            Some(_) => Need { unsure: most, ..Need::default() },
        }
    }
}

impl Crowd {
    pub fn refusal(&self, path: &Path) -> TransferError {
        let Shortage { needed, free, .. } = self.shortage;
        TransferError::NoSpace { path: path.to_owned(), needed, free }
    }
}
