//! How a receiver treats existing entries.

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

/// How a copy is kept equal to its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// Remove what the source does not have.
    pub delete: bool,
    /// Compare the content of files with the same length and time, too.
    pub by_content: bool,
}

/// How a transfer treats existing entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placing {
    pub conflict: Conflict,
    pub mirror: Option<Mirror>,
}
