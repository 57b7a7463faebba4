//! Why bytes from a peer are not a message.

use anabranch_wire::DecodeError;

/// Bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// They end inside a field or continue behind the last one, or an address is malformed.
    #[error("malformed message: {0}")]
    Malformed(#[from] DecodeError),
    /// Longer than any message may be.
    #[error("message of {0} bytes")]
    TooLong(usize),
    /// An unknown kind.
    #[error("message of unknown kind {0:#04x}")]
    Unknown(u8),
    /// A field outside its limits.
    #[error("{0} is not allowed")]
    Invalid(&'static str),
}
