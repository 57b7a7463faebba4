//! The mark of a sender in the directories that its hidden names go into, until everything has arrived.
//!
//! Such a directory has nothing else. With the mark an attempt that was cut off goes on even if files changed or vanished at
//! the sender meanwhile. The mark is the sender's alone: no other may add hidden names to what one has begun.

use std::collections::BTreeSet;
use std::io::Write as _;

use cap_std::fs::{Dir, OpenOptions};

use super::part::owner_only;
use super::shut::read_mark;
use super::target::TargetTree;
use crate::path::trial_name;

/// For the name of the file that is the mark.
const MARK: &str = "sender";

/// The directories of a transfer that have the mark, or get it.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    content: String,
    directories: BTreeSet<String>,
}

impl Marks {
    /// Of the sender with this identity.
    pub fn of(sender: [u8; 32]) -> Self {
        let hash = blake3::derive_key("anabranch sender of hidden names", &sender);
        Self { content: blake3::Hash::from(hash).to_string(), directories: BTreeSet::new() }
    }

    /// Adds the directory at `path` below the target.
    pub fn add(&mut self, path: &str) {
        self.directories.insert(path.to_owned());
    }

    /// True if an earlier attempt left its mark in `directory`.
    pub fn is_in(&self, directory: &Dir) -> bool {
        read_mark(directory, MARK).as_ref() == Some(&self.content)
    }

    /// Marks the directory at `path`, if it is to have the mark. Without it, only an unchanged share goes on.
    pub fn put(&self, tree: &mut TargetTree, path: &str) {
        if !self.directories.contains(path) {
            return;
        }
        let Ok(directory) = tree.directory(path) else { return };
        let (name, mut options) = (trial_name(MARK), OpenOptions::new());
        options.write(true).create_new(true);
        owner_only(&mut options);
        let _ = directory.remove_file(&name);
        if let Ok(mut file) = directory.open_with(&name, &options) {
            let _ = file.write_all(self.content.as_bytes());
        }
    }

    /// Removes all marks.
    pub fn remove(&self, tree: &mut TargetTree) {
        for path in &self.directories {
            let _ = tree.directory(path).and_then(|directory| directory.remove_file(trial_name(MARK)));
        }
    }
}
