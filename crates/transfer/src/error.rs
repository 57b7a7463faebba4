//! What can go wrong, in words that tell the user what to do next.
//!
//! The same words travel to the other end, so that both print them. Text that came from outside (names,
//! the other end's messages) is made printable first: a file name must not steer a terminal.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Longest message taken from, or sent to, the other end, in bytes.
pub(crate) const LONGEST_MESSAGE: usize = 2048;
/// Most failures that an [`TransferError::Incomplete`] lists; the rest are only counted.
pub(crate) const MOST_FAILURES: usize = 100;

/// One file that could not be transferred, while others were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The file's path within the share, made printable.
    pub path: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Why a transfer did not succeed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The operating system refused something on this machine.
    #[error("cannot {action} {path}: {source}", path = shown(path))]
    Io {
        /// What was tried, an infinitive ("open", "write").
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
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
    /// The sender named a path that could leave the target directory.
    #[error("refused the path \"{path}\" from the sender: {why}; nothing was written")]
    UnsafePath {
        /// The path, made printable.
        path: String,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The sender's list of entries is larger than this end accepts.
    #[error("the share has more {what} than the {most} this end accepts; send it in parts or as one archive")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        most: u64,
    },
    /// The target's file system has less room than the share needs.
    #[error("not enough space in {path}: {needed} bytes needed, {free} free; nothing was written", path = shown(path))]
    NoSpace {
        /// The target directory.
        path: PathBuf,
        /// Bytes that the share still needs.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The disk filled up on the way.
    #[error(
        "the disk is full while writing {path}; free some space and run the same command again: it continues from \
         what has arrived",
        path = shown(path)
    )]
    DiskFull {
        /// The file being written.
        path: PathBuf,
    },
    /// What arrived could not be written, and none of it can be used by another attempt: it went to a stream, or
    /// came from one.
    #[error("cannot write {path}: {source}; nothing of it is kept", path = shown(path))]
    Lost {
        /// The file or stream being written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The target is a file.
    #[error(
        "{path} is a file, and what is received goes into a directory; name a directory, or `-` for standard output",
        path = shown(path)
    )]
    NotADirectory {
        /// The target.
        path: PathBuf,
    },
    /// The share does not fit this kind of target.
    #[error("the share has {found}, but {target} takes exactly one file; give a directory instead")]
    OneFileOnly {
        /// What the share has.
        found: String,
        /// The target.
        target: String,
    },
    /// What was to be shared cannot be.
    #[error("cannot share {path}: {why}", path = shown(path))]
    Share {
        /// The path given.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Standard input can be read once only.
    #[error("standard input can be received once, and was already; send a file to serve several receivers")]
    Consumed,
    /// Some files arrived and some did not.
    #[error("{}", incomplete(failures, *count))]
    Incomplete {
        /// The files that failed, the first hundred of them.
        failures: Vec<Failure>,
        /// How many failed in all.
        count: u64,
    },
    /// The other end gave up and said why.
    #[error("the other end stopped: {0}")]
    Peer(String),
}

impl TransferError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        if is_disk_full(&source) { Self::DiskFull { path } } else { Self::Io { action, path, source } }
    }

    /// The error in one line, for the other end.
    pub(crate) fn to_line(&self) -> String {
        self.to_string().replace(":\n  ", ": ").replace("\n  ", ", ")
    }

    pub(crate) fn protocol(what: impl Into<String>) -> Self {
        Self::Protocol(what.into())
    }
}

/// True when more room on the disk would have helped.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Text from outside (names, the other end's messages) with control characters and the marks that turn text
/// round escaped, so that it cannot steer a terminal, and cut after 2 KiB.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(LONGEST_MESSAGE));
    for character in text.chars() {
        if out.len() >= LONGEST_MESSAGE {
            out.push('…');
            break;
        }
        if is_unsafe_to_print(character) {
            let _ = write!(out, "{}", character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    out
}

/// The longest start of `text` with at most `most` bytes.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Control characters, and the marks that reorder text on a terminal.
fn is_unsafe_to_print(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn shown(path: &std::path::Path) -> String {
    printable(&path.to_string_lossy())
}

fn incomplete(failures: &[Failure], count: u64) -> String {
    let mut text = format!("{count} {} not transferred:", if count == 1 { "file was" } else { "files were" });
    for failure in failures.iter().take(10) {
        let _ = write!(text, "\n  {}: {}", failure.path, failure.reason);
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
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\u{202e}c"), "a\\u{1b}[2Jb\\u{202e}c");
    }

    #[test]
    fn the_other_end_is_told_in_one_line() {
        let failure = |path: &str| Failure { path: path.into(), reason: "gone".into() };
        let error = TransferError::Incomplete { failures: vec![failure("a"), failure("b")], count: 2 };
        assert_eq!(error.to_line(), "2 files were not transferred: a: gone, b: gone");
    }

    #[test]
    fn a_long_message_from_the_other_end_is_cut() {
        assert!(printable(&"x".repeat(100_000)).len() < LONGEST_MESSAGE + 8);
    }
}
