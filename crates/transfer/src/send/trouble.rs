//! Why a file cannot be sent.

use std::io;

/// Why a file cannot be sent.
pub(super) enum Trouble {
    /// It differs from the list; another attempt may succeed.
    Changed,
    /// The receiver takes no more of it.
    Skipped,
    /// The system's error.
    System(io::Error),
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
        Self::System(error)
    }
}
