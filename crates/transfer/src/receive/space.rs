//! Files that the planner leaves out, because they find no room.

use std::io;

use cap_std::fs::Dir;

use super::job::FileJob;
use super::part::{PartFile, cannot_make};
use super::plan::Planner;
use super::room::{Demand, Lack};
use crate::error::TransferError;
use crate::manifest::{Entry, Links, totals};

impl Planner {
    /// False for a file that fails, because its data would only be dropped here. Its unfinished file, which holds `held` bytes,
    /// may give up room for others.
    pub(super) fn finds_room(&self, job: &FileJob, (directory, held): (&Dir, u64)) -> bool {
        let need = job.meta.stored().unwrap_or(0).saturating_sub(held);
        let leftovers = self.tree.leftovers();
        let error = match self.lacks.get(&job.index) {
            Some(Lack { needed, left }) => {
                let why = format!("it does not fit: {needed} bytes needed, {left} left");
                io::Error::new(io::ErrorKind::StorageFull, why)
            }
            None if leftovers.are_too_few(need, self.tree.free_bytes()) => io::ErrorKind::StorageFull.into(),
            None => return true,
        };
        if let Some((id, len)) = PartFile::found(directory, &job.name) {
            leftovers.add(job, (Ok(id), len));
        }
        self.report.fail_io(&job.path, &error, cannot_make);
        false
    }

    /// Finds out which files of a share do not fit.
    ///
    /// # Errors
    /// [`TransferError::NoSpace`] if there is room for no file of it.
    pub(super) fn check_space(&mut self, entries: &[Entry]) -> Result<(), TransferError> {
        let none = Links::new();
        let links = self.links.as_ref().map_or(&none, |links| links.first());
        let (conflict, compares_all) = (self.conflict, self.compares_all);
        let demand = Demand { entries, links, conflict, compares_all };
        let ground = self.tree.another();
        let Some(crowd) = demand.crowd(&ground, Some(&mut self.tree)) else { return Ok(()) };
        if crowd.is_all {
            return Err(crowd.refusal(self.tree.path()));
        }
        let (files, bytes) = totals(entries);
        self.progress.set_totals((files - crowd.shortage.files, bytes.saturating_sub(crowd.bytes)));
        self.lacks = crowd.lacks;
        Ok(())
    }
}
