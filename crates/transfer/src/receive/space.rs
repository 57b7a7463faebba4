//! The check before a transfer that its files find room.

use std::io;

use cap_std::fs::Dir;

use super::job::FileJob;
use super::part::{PartFile, cannot_make};
use super::plan::Planner;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind};

impl Planner {
    /// False for a file that fails, because its data would only be dropped here. Its unfinished file, which holds `held` bytes,
    /// may give up room for others.
    pub(super) fn finds_room(&self, job: &FileJob, (directory, held): (&Dir, u64)) -> bool {
        let need = job.meta.stored().unwrap_or(0).saturating_sub(held);
        let leftovers = self.tree.leftovers();
        if !leftovers.are_too_few(need, self.tree.free_bytes()) {
            return true;
        }
        if let Some((id, len)) = PartFile::found(directory, &job.name) {
            leftovers.add(job, (Ok(id), len));
        }
        self.report.fail_io(&job.path, &io::ErrorKind::StorageFull.into(), cannot_make);
        false
    }

    /// Rejects a share that needs more space than is free. Data already on the disk needs none, nor do
    /// files that may be alike. Where files found no room
    /// before, the others may have that of the unfinished ones.
    pub(super) fn check_space(&mut self, entries: &[Entry]) -> Result<(), TransferError> {
        let Some(free) = self.tree.free_bytes() else { return Ok(()) };
        let (mut needed, mut missing) = (0_u64, None);
        let (mut unfinished, mut begun) = (0_u64, 0_u64);
        for (index, entry) in (0..).zip(entries) {
            let EntryKind::File(meta) = entry.kind else { continue };
            let (Some(size), Some(stored)) = (meta.size, meta.stored()) else { continue };
            if self.links.as_ref().is_some_and(|links| links.has(index)) {
                continue;
            }
            let (parent, name) = entry.path.split();
            if missing == Some(parent) {
                needed = needed.saturating_add(stored);
                continue;
            }
            let directory = self.tree.directory(parent);
            missing = directory.is_err().then_some(parent);
            let (held, is_there) =
                directory.map_or((0, false), |directory| match directory.symlink_metadata(name) {
                    Ok(found) if found.len() == size || self.conflict.keeps() => (size, true),
                    // The sender's system may report more bytes than can be read.
                    Ok(found)
                        if self.may_be_alike(&FileJob::new(index, entry.path.clone(), meta), &found) =>
                    {
                        (size, true)
                    }
                    _ => (PartFile::held(&directory, name).min(size), false),
                });
            let more = stored.saturating_sub(held);
            needed = needed.saturating_add(more);
            if held > 0 && !is_there {
                unfinished = unfinished.saturating_add(held);
                begun = begun.saturating_add(more);
            }
        }
        if needed - begun > free.saturating_add(unfinished) {
            return Err(TransferError::NoSpace { path: self.tree.path().to_owned(), needed, free });
        }
        Ok(())
    }
}
