//! Unfinished files that failed because the disk is full or a quota is used up.
//!
//! They are kept for the next attempt, unless a later file needs their room: then they lose as much of their end as that
//! file needs.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::job::FileJob;
use super::part::{FileId, PartFile};
use super::target::TargetTree;
use crate::error::is_disk_full;
use crate::hash::BLOCK;

/// The unfinished files; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Leftovers(Arc<Mutex<Vec<Leftover>>>);

struct Leftover {
    parent: String,
    name: String,
    id: FileId,
    len: u64,
}

impl Leftovers {
    /// Adds the unfinished file of a failed job, which is closed.
    pub fn add(&self, job: &FileJob, (id, len): (io::Result<FileId>, u64)) {
        if let Ok(id) = id {
            self.lock().push(Leftover { parent: job.parent.clone(), name: job.name.clone(), id, len });
        }
    }

    /// Repeats `attempt` while the disk is full and unfinished files give up `need` bytes for it, then twice as many, and so
    /// on: some are holes, and a new file may need that another is removed.
    pub fn make_room<T>(
        &self,
        tree: &mut TargetTree,
        need: u64,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        if self.held() < need {
            return attempt();
        }
        let mut need = need.max(1).checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX);
        loop {
            match attempt() {
                Err(error) if is_disk_full(&error) && self.give_up(tree, need) => {
                    need = need.saturating_mul(2);
                }
                outcome => return outcome,
            }
        }
    }

    /// True if so many bytes find no room, even if unfinished files give up theirs; `free` are free on the disk.
    pub fn are_too_few(&self, need: u64, free: Option<u64>) -> bool {
        free.is_some_and(|free| free.saturating_add(self.held()) < need)
    }

    fn held(&self) -> u64 {
        self.lock().iter().fold(0, |sum, leftover| leftover.len.saturating_add(sum))
    }

    /// Frees so many bytes, or all; false if there are none.
    fn give_up(&self, tree: &mut TargetTree, mut need: u64) -> bool {
        let (mut held, mut has_freed) = (self.lock(), false);
        while need > 0
            && let Some(Leftover { parent, name, id, len }) = held.pop()
        {
            let left = len.saturating_sub(need);
            let cut = tree.directory(&parent).and_then(|directory| {
                if PartFile::found(&directory, &name) != Some((id, len)) {
                    // Another attempt goes on with it.
                    return Err(io::ErrorKind::NotFound.into());
                }
                match left {
                    0 => PartFile::discard(&directory, &name),
                    _ => PartFile::open(directory, &name, Some(left)).map(drop),
                }
            });
            if cut.is_ok() {
                (need, has_freed) = (need - (len - left), true);
                if left > 0 {
                    held.push(Leftover { parent, name, id, len: left });
                }
            }
        }
        has_freed
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Leftover>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unfinished files of `a` and `b`, which hold ten blocks each, and how often an attempt that needs so much fails.
    fn attempts(need: u64, replaced: bool) -> (usize, [u64; 2]) {
        let place = tempfile::tempdir().unwrap();
        let mut tree = TargetTree::open(place.path(), false).unwrap();
        let directory = tree.directory("").unwrap();
        let leftovers = Leftovers::default();
        for name in ["a", "b"] {
            let mut part = PartFile::open(Arc::clone(&directory), name, Some(10 * BLOCK as u64)).unwrap();
            part.write(0, &vec![7; 10 * BLOCK]).unwrap();
            let (id, len) = (part.id().unwrap(), part.len());
            leftovers.lock().push(Leftover { parent: String::new(), name: name.into(), id, len });
        }
        if replaced {
            PartFile::discard(&directory, "b").unwrap();
            PartFile::open(Arc::clone(&directory), "b", Some(1)).unwrap().write(0, b"x").unwrap();
        }
        let mut count = 0;
        let outcome = leftovers.make_room(&mut tree, need, || -> io::Result<()> {
            count += 1;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(outcome.is_err());
        (count, ["a", "b"].map(|name| PartFile::held(&directory, name)))
    }

    #[test]
    fn room_that_does_not_help_is_looked_for_a_few_times_only() {
        let block = BLOCK as u64;
        assert_eq!(attempts(1, false), (6, [0, 0]), "1, 2, 4, 8 and the last 5 blocks");
        assert_eq!(attempts(u64::MAX, false), (1, [10 * block; 2]));
        assert_eq!(attempts(0, true), (5, [0, 1]), "the new file of that name is another's");
    }
}
