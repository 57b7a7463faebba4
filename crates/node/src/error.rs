//! Errors of a node, with advice for its user.

use std::fmt;
use std::io;
use std::path::Path;

use anabranch_net::{ConnectError, Refusal};
use anabranch_settings::SettingsError;

/// The cause of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// This machine: a file, a permission, a port.
    Local,
    /// The request cannot be fulfilled: options that contradict each other, a relay named twice.
    Usage,
    /// The other end was not reached, or was lost. Trying again may help.
    Unreachable,
    /// The other end refused. Trying again does not help.
    Refused,
}

/// An error of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The cause.
    pub kind: ErrorKind,
    /// The failure in one line, lower case, without a full stop.
    pub message: String,
    /// The attempts before giving up, such as pairs of addresses.
    pub tried: Vec<String>,
    /// Advice.
    pub hint: Option<String>,
}

impl Error {
    /// An error with nothing tried and no hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), tried: Vec::new(), hint: None }
    }

    /// A failure on this machine.
    pub fn local(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Local, message)
    }

    /// A request that is not possible.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// A failed operation on a file, with a hint for the errors that have an obvious cause.
    ///
    /// `action` completes "cannot …": `read`, `create`.
    pub fn file(action: &str, path: &Path, error: &io::Error) -> Self {
        let failure = Self::local(format!("cannot {action} {}: {}", path.display(), describe(error)));
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                failure.hint(format!("look at its owner and mode: `ls -ld {}`", path.display()))
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                failure.hint("free some space and run the same command again")
            }
            io::ErrorKind::ReadOnlyFilesystem => failure.hint("choose a directory on a writable file system"),
            _ => failure,
        }
    }

    /// The error when an endpoint cannot be set up; the advice follows a colon in the message of `error`.
    pub fn bind(error: &io::Error) -> Self {
        let text = error.to_string();
        match text.split_once(": ") {
            Some((message, advice)) => Self::local(message).hint(advice),
            None => Self::local(text),
        }
    }

    /// Adds an attempt.
    #[must_use]
    pub fn tried(mut self, what: impl Into<String>) -> Self {
        self.tried.push(what.into());
        self
    }

    /// Adds advice.
    #[must_use]
    pub fn hint(mut self, what: impl Into<String>) -> Self {
        self.hint = Some(what.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.tried.is_empty() {
            write!(f, " (tried {})", self.tried.join(", "))?;
        }
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for Error {}

impl From<ConnectError> for Error {
    /// Separates attempts and advice from the message.
    fn from(error: ConnectError) -> Self {
        match &error {
            ConnectError::TimedOut(tried) if !tried.pairs.is_empty() => {
                let pairs = tried.pairs.iter().map(|(local, remote)| format!("{} → {remote}", local.ip()));
                pairs
                    .fold(Self::new(ErrorKind::Unreachable, "no answer from the node"), Self::tried)
                    .hint("is it running there, is its UDP port open, and is this its newest ticket?")
            }
            ConnectError::CapUsedUp { .. } => Self::new(ErrorKind::Unreachable, error.to_string())
                .hint("raise the cap, connect another network, or wait for the cap's day of the month"),
            ConnectError::NoRoute { .. }
            | ConnectError::TimedOut(_)
            | ConnectError::Closed(_)
            | ConnectError::PeerCapUsedUp
            | ConnectError::Refused(Refusal::Busy) => advised(ErrorKind::Unreachable, &error),
            ConnectError::NoSuchLocal { .. } | ConnectError::RuledOut { .. } | ConnectError::NotTried(_) => {
                advised(ErrorKind::Local, &error)
            }
            _ => advised(ErrorKind::Refused, &error),
        }
    }
}

impl From<SettingsError> for Error {
    fn from(mut error: SettingsError) -> Self {
        let hint = std::mem::take(&mut error.hint);
        let failure = Self::local(error.to_string());
        if hint.is_empty() { failure } else { failure.hint(hint) }
    }
}

/// Separates the advice, which follows a semicolon, from the message.
fn advised(kind: ErrorKind, error: &ConnectError) -> Error {
    let text = error.to_string();
    match text.rsplit_once("; ") {
        Some((message, advice)) => Error::new(kind, message).hint(advice),
        None => Error::new(kind, text),
    }
}

/// The operating system's text for an error, without Rust's "(os error 13)".
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    let mut chars = text[..end].chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use anabranch_net::Tried;

    use super::*;

    #[test]
    fn a_silent_node_is_reported_with_every_pair_of_addresses_that_was_tried() {
        let pair = ("10.0.0.1:5".parse().unwrap(), "203.0.113.9:4433".parse().unwrap());
        let error = Error::from(ConnectError::TimedOut(Tried { pairs: vec![pair], obstacle: None }));
        assert_eq!(error.kind, ErrorKind::Unreachable);
        assert_eq!(error.tried, ["10.0.0.1 → 203.0.113.9:4433"]);
        let text = error.to_string();
        assert!(text.contains("(tried 10.0.0.1 → 203.0.113.9:4433); is it running there"), "{text}");
    }

    #[test]
    fn a_wrong_ticket_is_a_refusal_with_advice() {
        let error = Error::from(ConnectError::WrongTicket);
        assert_eq!((error.kind, error.hint.as_deref()), (ErrorKind::Refused, Some("ask for a new ticket")));
        let kind = |refusal| Error::from(ConnectError::Refused(refusal)).kind;
        assert_eq!(kind(Refusal::NotAuthorised), ErrorKind::Refused);
        assert_eq!(kind(Refusal::Busy), ErrorKind::Unreachable, "it passes");
    }

    #[test]
    fn a_port_that_is_taken_comes_with_advice() {
        let error = io::Error::new(
            io::ErrorKind::AddrInUse,
            "UDP port 4433 of 127.0.0.1 is taken by another program: stop it, or choose another port",
        );
        let error = Error::bind(&error);
        assert_eq!(error.message, "UDP port 4433 of 127.0.0.1 is taken by another program");
        assert!(error.hint.unwrap().contains("choose another port"));
    }

    #[test]
    fn a_file_error_uses_the_systems_words_and_hints_at_the_cause() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = Error::file("write", Path::new("/data/film.mkv"), &full);
        assert!(error.message.starts_with("cannot write /data/film.mkv: "), "{error}");
        assert_eq!(error.hint.unwrap(), "free some space and run the same command again");
        let denied = io::Error::from_raw_os_error(13);
        let error = Error::file("read", Path::new("secret"), &denied);
        assert_eq!(error.message, "cannot read secret: permission denied");
    }
}
