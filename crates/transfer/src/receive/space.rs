//! The check before a transfer that its files find room.

use super::part::PartFile;
use super::plan::Planner;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind};

impl Planner {
    /// Rejects a share that needs more space than is free. Data already on the disk needs none.
    pub(super) fn check_space(&mut self, entries: &[Entry]) -> Result<(), TransferError> {
        let Some(free) = self.tree.free_bytes() else { return Ok(()) };
        let (mut needed, mut missing) = (0_u64, None);
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
            let held = directory.map_or(0, |directory| match directory.symlink_metadata(name) {
                Ok(found) if found.len() == size || self.conflict.keeps() => size,
                _ => PartFile::held(&directory, name).min(size),
            });
            needed = needed.saturating_add(stored.saturating_sub(held));
        }
        if needed > free {
            return Err(TransferError::NoSpace { path: self.tree.path().to_owned(), needed, free });
        }
        Ok(())
    }
}
