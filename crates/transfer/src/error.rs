//! Errors, with advice for the user.
//!
//! Both ends print the same text. Text from outside (names, messages of the other end) is a [`ForeignText`], which is
//! printed with escapes, so that a file name cannot control a terminal.

use std::fmt::{self, Write as _};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_wire::{DecodeError, Escaped, ForeignText};
use thiserror::Error;

/// Longest message to or from the other end, in bytes.
pub(crate) const LONGEST_MESSAGE: usize = 2048;
/// Most bytes of names and reasons in a [`TransferError::Incomplete`]; other failures are only counted.
pub(crate) const MOST_NAMES: usize = 1 << 20;
/// The cost of each name in addition to its bytes.
pub(crate) const PER_NAME: usize = 128;

/// The sender's reason for a file that changed.
pub(crate) const CHANGED: &str =
    "it changed on the sender while it was being sent; run the same command again";

/// A file that was not transferred, while others were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The file's path within the share.
    pub path: ForeignText,
    /// The cause, and advice.
    pub reason: Reason,
}

/// Why a file was not transferred, and which end reported it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It failed at this end.
    Here(String),
    /// The other end could not send it, for this reason.
    OtherEnd(ForeignText),
}

impl Reason {
    /// Bytes of its text.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Here(why) => why.len(),
            Self::OtherEnd(why) => why.raw().len(),
        }
    }

    /// The reason as text, escaped if it comes from the other end.
    pub fn text(&self) -> String {
        match self {
            Self::Here(why) => why.clone(),
            Self::OtherEnd(why) => why.to_string(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Here(why) => write!(f, "{}: {why}", self.path),
            Reason::OtherEnd(why) => write!(f, "{}: the sender says \"{why}\"", self.path),
        }
    }
}

/// A file that the receiver lacks, in its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The file's path within the share.
    pub path: ForeignText,
    /// The cause, and advice for the receiver's user.
    pub reason: ForeignText,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The receiver repeats what this end gave as the reason.
        if self.reason.raw() == CHANGED {
            return write!(f, "{}: it changed here while it was being sent", self.path);
        }
        write!(f, "{}: the receiver says \"{}\"", self.path, self.reason)
    }
}

/// Why a transfer did not succeed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The operating system refused something on this machine.
    #[error("cannot {action} {path}: {source}", path = shown(path))]
    Io {
        /// The failed action, an infinitive ("open", "write").
        action: &'static str,
        /// Its object.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The connection ended before the transfer did.
    #[error("the connection was lost ({0}); run the same command again: it continues from what has arrived")]
    Connection(#[source] io::Error),
    /// The two programs speak different versions of the transfer protocol.
    #[error("the other end speaks transfer version {theirs}, this one {ours}: update the older program")]
    Version {
        /// This end's version.
        ours: u16,
        /// The other end's version.
        theirs: u16,
    },
    /// The other end sent something that the protocol does not allow.
    #[error("the other end broke the transfer protocol: {0}; nothing more is taken from it")]
    Protocol(String),
    /// The other end named a path that could leave the directory, or the user one that no share can have.
    #[error("refused the path \"{path}\": {why}; nothing was written")]
    UnsafePath {
        path: ForeignText,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The sender's list of entries is larger than this end accepts.
    #[error("the share has more {what} than the {most} this end accepts; send it in parts or as one archive")]
    TooMuch {
        /// The unit of the limit.
        what: &'static str,
        /// The limit.
        most: u64,
    },
    /// The target's file system has less room than the share needs.
    #[error("not enough space{}: {needed} bytes needed, {free} free; nothing was written", within(path))]
    NoSpace {
        /// The target directory; "" for that of a server.
        path: PathBuf,
        /// Bytes that the share still needs.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The target may not hold so much.
    #[error("the quota leaves {free} bytes, and {needed} are needed; nothing was written")]
    Quota {
        /// Bytes that the share needs; each name counts as 4 KiB at least.
        needed: u64,
        /// Bytes that the quota leaves.
        free: u64,
    },
    /// The disk filled up during the transfer.
    #[error(
        "the disk is full while writing {path}; free some space, or inodes (`df -i`), and run the same command again: it \
         continues from what has arrived",
        path = shown(path)
    )]
    DiskFull {
        /// The file being written.
        path: PathBuf,
    },
    /// The user may store no more.
    #[error(
        "a disk quota is used up while writing {path}; free some space of this user, or raise the quota, and run the \
         same command again: it continues from what has arrived",
        path = shown(path)
    )]
    OverQuota {
        /// The file being written.
        path: PathBuf,
    },
    /// Data could not be written, and no later attempt can continue: the source or the target is a stream.
    #[error("cannot write {path}: {source}; nothing of it is kept", path = shown(path))]
    Lost {
        /// The file or stream being written.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The target is a file.
    #[error(
        "{path} is a file, and what is received goes into a directory; name a directory, or `-` for standard output",
        path = shown(path)
    )]
    NotADirectory { path: PathBuf },
    /// The share does not fit this kind of target.
    #[error("the share has {found}, but {target} takes exactly one file; give a directory instead")]
    OneFileOnly {
        /// The share's content.
        found: String,
        /// The target.
        target: String,
    },
    /// A path that cannot be shared.
    #[error("cannot share {path}: {why}", path = shown(path))]
    Share {
        /// The path given.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Standard input can be read only once.
    #[error("standard input can be received once, and was already; send a file to serve several receivers")]
    Consumed,
    /// Some files arrived and some did not.
    #[error("{}", incomplete(failures, *count))]
    Incomplete {
        /// The files that failed; all of them up to a megabyte of names.
        failures: Vec<Failure>,
        /// How many files failed.
        count: u64,
        /// How many of them failed at this end.
        here: u64,
        /// How many of those another command here may take.
        again: u64,
        /// Metadata that could not be stored for files that arrived, one line each.
        notes: Vec<String>,
        /// The user's next step if a file failed for lack of room.
        advice: Option<&'static str>,
        /// Directories whose new names a crash may undo.
        unsynced: u64,
    },
    /// The receiver does not have all files, for reasons at its end.
    #[error("the receiver lacks {count} of the files, saying \"{files}\"")]
    PeerIncomplete {
        /// How many.
        count: u64,
        /// How many of them failed at the receiver; another attempt may get the others.
        there: u64,
        /// How many of those another command of the receiver may take; `None` from an older receiver.
        again: Option<u64>,
        /// Which files, and why, as the receiver reports it; the first ten.
        files: ForeignText,
        /// All files, up to a megabyte of names; none from an older receiver.
        missing: Vec<Missing>,
        /// Some of them changed at the sender meanwhile: the receiver's same command may take those.
        changed: bool,
        /// Between a server and its client, what was left out or could not be stored, one line each.
        notes: Vec<String>,
    },
    /// The other end gave up for this reason.
    #[error("the other end stopped, saying \"{0}\"")]
    Peer(ForeignText),
    /// This end does not do what the other asks.
    #[error("{0}")]
    Refused(String),
    /// The share was closed.
    #[error("{0}")]
    Closed(String),
    /// The receiver reads none of the data that it requested.
    #[error("the receiver took nothing for {} s; it can run the same command again and continue", after.as_secs())]
    Stalled {
        /// How long.
        after: Duration,
    },
    /// The receiver reads nothing, and other receivers need its memory.
    #[error(
        "the receiver took nothing while the sender's memory was short; it can run the same command again and continue"
    )]
    Yielded,
    /// The receiver's user declined the files.
    #[error("the receiver declined")]
    Declined,
    /// The share has hidden names, which this end accepts only into an empty directory.
    #[error(
        "the sender offers \"{name}\", a hidden name, and {target} has other files in it; nothing was written; \
         choose a new directory, or allow hidden names",
        target = shown(target)
    )]
    Hidden {
        /// The name.
        name: ForeignText,
        /// The target directory.
        target: PathBuf,
    },
    /// The share is larger than this end accepts.
    #[error("the sender offers more than the {most} bytes that this end accepts; accept more if you want it")]
    TooLarge {
        /// The limit.
        most: u64,
    },
}

impl TransferError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull => Self::DiskFull { path },
            io::ErrorKind::QuotaExceeded => Self::OverQuota { path },
            _ => Self::Io { action, path, source },
        }
    }

    /// True if the receiver lacks files that no command of it can take from the same share, and has all others.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::PeerIncomplete { there: 1.., again: None | Some(0), changed: false, .. })
    }

    /// The error in one line, for the other end.
    pub(crate) fn to_line(&self) -> String {
        self.to_string().replace(":\n  ", ": ").replace("\n  ", ", ")
    }

    /// The notes about a transfer of which other files arrived.
    pub(crate) fn notes(&mut self) -> Option<&mut Vec<String>> {
        match self {
            Self::Incomplete { notes, .. } | Self::PeerIncomplete { notes, .. } => Some(notes),
            _ => None,
        }
    }

    /// The error with these notes, if other files arrived.
    pub(crate) fn with_notes(mut self, new: Vec<String>) -> Self {
        if let Some(notes) = self.notes() {
            *notes = new;
        }
        self
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }
}

impl From<DecodeError> for TransferError {
    fn from(error: DecodeError) -> Self {
        Self::protocol(format!("a malformed message: {error}"))
    }
}

/// True for errors that more room on the disk would have avoided.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// True if the file system here can never make this entry, rather than not now.
pub(crate) fn is_lasting(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, InvalidFilename, InvalidInput, NotFound, Unsupported};
    matches!(error.kind(), FileTooLarge | InvalidFilename | InvalidInput | NotFound | Unsupported)
}

/// Why there is no room for a file, and what to do, if the error is of this kind.
pub(crate) fn no_room(error: &io::Error) -> Option<(&'static str, &'static str)> {
    match error.kind() {
        io::ErrorKind::StorageFull => Some((
            "the disk is full",
            "free some space, or inodes (`df -i`), and run the same command again: it continues from what has arrived",
        )),
        io::ErrorKind::QuotaExceeded => Some((
            "a disk quota is used up",
            "free some space of this user, or raise the quota, and run the same command again: it continues from what \
             has arrived",
        )),
        _ => None,
    }
}

/// The longest prefix of `text` with at most `most` bytes.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn within(path: &std::path::Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!(" in {}", shown(path)) }
}

fn shown(path: &std::path::Path) -> String {
    Escaped(&path.to_string_lossy()).to_string()
}

fn incomplete(failures: &[Failure], count: u64) -> String {
    let mut text = format!("{count} {} not transferred:", if count == 1 { "file was" } else { "files were" });
    for failure in failures.iter().take(10) {
        let _ = write!(text, "\n  {failure}");
    }
    if count > 10 {
        let _ = write!(text, "\n  and {} more", count - 10);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_told_in_one_line() {
        let failure = |path: &str| Failure { path: path.into(), reason: Reason::Here("gone".into()) };
        let failures = vec![failure("a"), failure("b")];
        let error = TransferError::Incomplete {
            failures,
            count: 2,
            here: 2,
            again: 2,
            notes: Vec::new(),
            advice: None,
            unsynced: 0,
        };
        assert_eq!(error.to_line(), "2 files were not transferred: a: gone, b: gone");
    }

    #[test]
    fn a_receiver_that_may_get_a_file_that_changed_is_not_at_its_end() {
        let lacks = |again, changed| TransferError::PeerIncomplete {
            count: 2,
            there: 1,
            again,
            files: "a: no".into(),
            missing: Vec::new(),
            changed,
            notes: Vec::new(),
        };
        assert!(lacks(None, false).is_final() && lacks(Some(0), false).is_final());
        assert!(!lacks(Some(1), false).is_final() && !lacks(Some(0), true).is_final());
    }

    #[test]
    fn a_sender_does_not_quote_its_own_reason_as_the_receivers() {
        let missing = |reason: &str| Missing { path: "a".into(), reason: reason.into() }.to_string();
        assert_eq!(missing("its name is taken"), "a: the receiver says \"its name is taken\"");
        assert_eq!(missing(CHANGED), "a: it changed here while it was being sent");
    }

    #[test]
    fn a_used_up_quota_is_not_called_a_full_disk() {
        let error = |code| TransferError::io("write", "a", io::Error::from_raw_os_error(code)).to_string();
        let [full, quota] =
            [nix::errno::Errno::ENOSPC, nix::errno::Errno::EDQUOT].map(|code| error(code as i32));
        assert!(full.starts_with("the disk is full while writing a;"), "{full}");
        assert!(quota.starts_with("a disk quota is used up while writing a;"), "{quota}");
    }
}
