//! Why bytes could not be decoded, precisely enough for a log line or a test.

use thiserror::Error;

/// Bytes that break the rules of `docs/reference/protocol.md`. `at` counts bytes from the start of the decoder's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("{what} at byte {at} needs {needed} bytes, {left} left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Where it begins.
        at: usize,
        /// Bytes it takes, as far as known.
        needed: u64,
        /// Bytes left.
        left: usize,
    },
    /// A type, kind or family with no meaning.
    #[error("{what} at byte {at} has the unknown value {value:#x}")]
    Unknown {
        /// The field.
        what: &'static str,
        /// Where it begins.
        at: usize,
        value: u64,
    },
    /// A number outside its limits.
    #[error("{what} ending at byte {at} is {value}, not within {min}..={max}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// Where it ends.
        at: usize,
        value: u64,
        /// The least allowed value.
        min: u64,
        /// The greatest allowed value.
        max: u64,
    },
    /// More elements than a receiver accepts.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The elements.
        what: &'static str,
        /// How many are accepted.
        limit: usize,
    },
    /// Acknowledged ranges that reach below packet number 0.
    #[error("acknowledged range ending at byte {at} reaches below 0")]
    AckUnderflow {
        /// Where it ends.
        at: usize,
    },
    /// Text that is not UTF-8.
    #[error("{what} ending at byte {at} is not UTF-8")]
    NotUtf8 {
        /// The field.
        what: &'static str,
        /// Where it ends.
        at: usize,
    },
    /// Bytes are left over behind the last field.
    #[error("{left} bytes too many at byte {at}")]
    Trailing {
        /// Where they begin.
        at: usize,
        /// How many.
        left: usize,
    },
    /// Bits that must be zero are not.
    #[error("{what} at byte {at} should be zero")]
    NotZero {
        /// The field.
        what: &'static str,
        /// Where it begins.
        at: usize,
    },
    /// Bits that must not all be zero are.
    #[error("{what} ending at byte {at} must not be zero")]
    Zero {
        /// The field.
        what: &'static str,
        /// Where it ends.
        at: usize,
    },
    /// The header's checksum does not match its bytes.
    #[error("header checksum is {carried:#06x}, its bytes give {computed:#06x}")]
    Checksum {
        /// The checksum in the header.
        carried: u16,
        /// The checksum of its bytes.
        computed: u16,
    },
    /// The packet has been forwarded as often as its sender allowed.
    #[error("hop limit is used up")]
    HopLimit,
    /// A packet without frames.
    #[error("packet holds no frame")]
    NoFrame,
    /// A parameter that appears twice or out of order.
    #[error("id {id} of a parameter, ending at byte {at}, does not follow in ascending order")]
    ParamOrder {
        id: u64,
        /// Where the id ends.
        at: usize,
    },
    /// A parameter of the wrong length.
    #[error("parameter {id} ending at byte {at} has a length of {len}")]
    ParamLength {
        id: u64,
        /// Where it ends.
        at: usize,
        /// The length it claims.
        len: usize,
    },
    /// A required parameter that is missing.
    #[error("parameter {id} is missing")]
    ParamMissing { id: u64 },
}
