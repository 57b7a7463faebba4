//! One file to receive, as passed between the receiver's threads.

use std::sync::Arc;

use super::shut::Shut;
use crate::attributes::Attributes;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta, ModifiedTime};
use crate::path::RelPath;

/// One file to receive, and its destination.
#[derive(Debug)]
pub(crate) struct FileJob {
    /// Its number in the list.
    pub index: u32,
    /// Its path in the share.
    pub path: RelPath,
    /// Its directory and name below the target.
    pub parent: String,
    pub name: String,
    pub meta: FileMeta,
    /// Whether it may replace an existing file.
    pub replace: bool,
    /// Whether shut directories are opened, in a directory that it may replace, too.
    pub clears: Option<Shut>,
    /// How many alternative names were taken.
    pub attempt: u32,
    /// The hash of the sender's file, if known.
    pub theirs: Option<[u8; 32]>,
}

impl FileJob {
    /// A file to receive under its own name.
    pub fn new(index: u32, path: RelPath, meta: FileMeta) -> Self {
        let (parent, name) = path.split();
        let (parent, name) = (parent.to_owned(), name.to_owned());
        let (replace, clears) = (false, None);
        Self { index, path, parent, name, meta, replace, clears, attempt: 0, theirs: None }
    }

    /// The file with this number in the list, to receive under its own name.
    pub fn listed(entries: &[Entry], index: u32) -> Option<Self> {
        match entries.get(index as usize)? {
            Entry { path, kind: EntryKind::File(meta) } => Some(Self::new(index, path.clone(), *meta)),
            _ => None,
        }
    }

    /// True for a file that is the whole share and cannot be read again.
    pub fn is_stream(&self) -> bool {
        self.meta.size.is_none() && self.meta.modified.is_none()
    }

    /// The error for a file that could not be written. A later attempt can continue, except for a stream.
    pub fn write_error(&self, source: std::io::Error) -> TransferError {
        let path = self.path.as_str();
        if self.meta.size.is_none() {
            return TransferError::Lost { path: path.into(), source };
        }
        TransferError::io("write", path, source)
    }
}

/// Metadata for complete files.
#[derive(Clone)]
pub(crate) struct Keeping {
    /// The permission bits that files may have.
    pub mode_mask: u16,
    pub attributes: Arc<Attributes>,
}

/// The mode and time of a directory. They are set at the end: a mode may forbid writing, and writing changes the time.
pub(crate) struct DirectoryEnd {
    pub path: RelPath,
    /// For a directory whose mode differs until then.
    pub mode: Option<u16>,
    pub modified: Option<ModifiedTime>,
    pub is_new: bool,
}
