//! Why bytes could not be read: facts, so that a log line or a test can say exactly what was wrong.

use thiserror::Error;

/// Bytes that are not what `docs/reference/protocol.md` allows. `at` counts bytes from the start of what was
/// given to the decoder.
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
        /// Bytes it takes, as far as is known.
        needed: u64,
        /// Bytes there are.
        left: usize,
    },
    /// A type, kind or family with no meaning.
    #[error("{what} at byte {at} has the unknown value {value:#x}")]
    Unknown {
        /// The field.
        what: &'static str,
        /// Where it begins.
        at: usize,
        /// What it holds.
        value: u64,
    },
    /// A number outside its limits.
    #[error("{what} ending at byte {at} is {value}, not within {min}..={max}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// Where it ends.
        at: usize,
        /// What it holds.
        value: u64,
        /// The least that is allowed.
        min: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// More elements than a receiver is willing to hold.
    #[error("more than {limit} {what}")]
    TooMany {
        /// The elements.
        what: &'static str,
        /// How many are allowed.
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
        /// What the header says.
        carried: u16,
        /// What its bytes give.
        computed: u16,
    },
    /// The packet has been forwarded as often as its sender allowed.
    #[error("hop limit is used up")]
    HopLimit,
    /// A packet in which nothing is said.
    #[error("packet holds no frame")]
    NoFrame,
    /// A parameter that comes twice or out of order.
    #[error("id {id} of a parameter, ending at byte {at}, does not follow in ascending order")]
    ParamOrder {
        /// Its id.
        id: u64,
        /// Where the id ends.
        at: usize,
    },
    /// A parameter whose value is longer or shorter than it must be.
    #[error("parameter {id} ending at byte {at} has a length of {len}")]
    ParamLength {
        /// Its id.
        id: u64,
        /// Where it ends.
        at: usize,
        /// The length it claims.
        len: usize,
    },
    /// A parameter that has to be there and is not.
    #[error("parameter {id} is missing")]
    ParamMissing {
        /// Its id.
        id: u64,
    },
}
