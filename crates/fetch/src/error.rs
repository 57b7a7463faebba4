//! Why a download fails.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a download fails.
#[derive(Debug, Error)]
pub enum FetchError {
    /// The file exists already.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written or read.
    #[error("cannot {action} {}: {error}", .path.display())]
    File {
        /// The operation, as a verb.
        action: &'static str,
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// No source was reached, or all were lost.
    #[error("no source sends the file")]
    Unreachable(Vec<Tried>),
    /// Every source refuses.
    #[error("no source has the file")]
    Refused(Vec<Tried>),
    /// A mirror that is named before the one in use answered late, with another file.
    #[error("{0} is named first and has another file")]
    Outranked(String),
    /// A mirror sent bytes of another file.
    #[error("{0} sent bytes of another file")]
    Mixed(String),
    /// The file changes faster than it can be fetched.
    #[error("the file changed on the server while it was fetched")]
    Changed,
    /// Parts of the file may be of several versions.
    #[error("the server {0}")]
    Unsure(&'static str),
    /// The file does not have the hash that it should have.
    #[error("the file does not have the checksum {0}")]
    Corrupt(String),
    /// The whole file came, but is shorter or longer than announced.
    #[error("the server sent {came} bytes of {announced}")]
    Short {
        /// Bytes that came.
        came: u64,
        /// Bytes that were announced.
        announced: u64,
    },
    /// The download was stopped; the received bytes are kept.
    #[error("stopped")]
    Stopped,
}

/// A source that failed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Its name.
    pub label: String,
    /// Why it sends nothing.
    pub why: String,
}

impl FetchError {
    /// A failed operation on a file.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>, error: io::Error) -> Self {
        Self::File { action, path: path.into(), error }
    }
}
