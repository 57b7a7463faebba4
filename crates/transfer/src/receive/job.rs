//! One file to receive, as passed between the receiver's threads, and the policy for taken names.

use crate::error::TransferError;
use crate::manifest::FileMeta;
use crate::path::RelPath;

/// The policy for a file whose name is taken. An identical file is always kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflict {
    /// Keep the existing file, receive the rest, and fail in the end.
    #[default]
    Error,
    /// Replace the existing file atomically when the new one is complete.
    Overwrite,
    /// Use a free name: "a (1).txt".
    Rename,
    /// Keep the existing file, even if it differs.
    Skip,
}

impl Conflict {
    /// True when the existing file stays and nothing is received.
    pub(crate) fn keeps(self) -> bool {
        matches!(self, Self::Error | Self::Skip)
    }
}

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
        Self { index, path, parent, name, meta, replace: false, attempt: 0, theirs: None }
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
