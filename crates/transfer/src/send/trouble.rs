//! Why a file cannot be sent.

use std::io;

use super::listing::unreadable;

/// Why a file cannot be sent.
pub(super) enum Trouble {
    /// It differs from the list; another attempt may succeed.
    Changed,
    /// The receiver takes no more of it.
    Skipped,
    /// Another reason, for users at both ends.
    Other(String),
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

impl From<&str> for Trouble {
    fn from(why: &str) -> Self {
        Self::Other(why.into())
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Other(unreadable(&error))
    }
}
