//! Formats sizes and times for people.

use anabranch_wire::Span;
pub use anabranch_wire::bytes_in_words as bytes;

/// A number of seconds, in the format of [`Span::in_words`].
pub fn seconds(count: f64) -> String {
    Span::from_secs_f64(count).in_words()
}

/// A count with its noun: `1 file`, `12 files`.
pub fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}
