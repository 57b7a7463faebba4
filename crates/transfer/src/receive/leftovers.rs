//! Unfinished files that failed because the disk is full or a quota is used up.
//!
//! They are kept for the next attempt, unless a later file needs their room: then they lose as much of their end as that
//! file needs.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::job::FileJob;
use super::part::PartFile;
use super::target::TargetTree;
use crate::error::is_disk_full;
use crate::hash::BLOCK;

/// The unfinished files; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Leftovers(Arc<Mutex<Vec<Leftover>>>);

struct Leftover {
    parent: String,
    name: String,
    len: u64,
}

impl Leftovers {
    /// Adds the unfinished file of a failed job, which is closed.
    pub fn add(&self, job: &FileJob, len: u64) {
        self.lock().push(Leftover { parent: job.parent.clone(), name: job.name.clone(), len });
    }

    /// Repeats `attempt` while the disk is full and unfinished files give up `need` bytes for it, or a whole file.
    pub fn make_room<T>(
        &self,
        tree: &mut TargetTree,
        need: Option<u64>,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if is_disk_full(&error) && self.give_up(tree, need) => {}
                outcome => return outcome,
            }
        }
    }

    /// Frees so many bytes, or those of one file; false if there are not so many.
    fn give_up(&self, tree: &mut TargetTree, need: Option<u64>) -> bool {
        let mut held = self.lock();
        let mut need = match (need, held.last()) {
            (_, None) => return false,
            (None, Some(last)) => last.len,
            (Some(need), _) => need.next_multiple_of(BLOCK as u64),
        };
        if held.iter().map(|leftover| leftover.len).sum::<u64>() < need {
            return false;
        }
        while let Some(Leftover { parent, name, len }) = held.pop() {
            let left = len.saturating_sub(need);
            need -= len - left;
            // If it cannot be cut, the next attempt fails for another one.
            let cut = tree.directory(&parent).and_then(|directory| match left {
                0 => PartFile::discard(&directory, &name),
                _ => PartFile::open(directory, &name, Some(left)).map(drop),
            });
            if left > 0 && cut.is_ok() {
                held.push(Leftover { parent, name, len: left });
            }
            if need == 0 {
                break;
            }
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Leftover>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
