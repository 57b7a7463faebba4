//! The lanes that a user can choose, by name.

use anabranch_tunnel::entry::Lane;
use clap::ValueEnum;

/// The lanes that a user can choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LaneName {
    /// Each flow on one path, striped over all while that is faster
    #[default]
    Auto,
    /// Each flow on one path
    Routed,
    /// Each packet where it arrives first, put in order at the far end
    Striped,
    /// The path with the lowest round-trip time
    LowLatency,
    /// A copy on every path
    Redundant,
    /// Parity for what is lost
    Protected,
}

impl From<LaneName> for Lane {
    fn from(name: LaneName) -> Self {
        match name {
            LaneName::Auto => Self::Auto,
            LaneName::Routed => Self::Routed,
            LaneName::Striped => Self::Striped,
            LaneName::LowLatency => Self::LowLatency,
            LaneName::Redundant => Self::Redundant,
            LaneName::Protected => Self::Protected,
        }
    }
}
