//! Formats sizes and times for people.

use anabranch_wire::Span;

/// A number of bytes in units of 1000: `999 B`, `4.2 kB`, `1.24 GB`; three figures.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// A number of seconds, in the format of [`Span::in_words`].
pub fn seconds(count: f64) -> String {
    Span::from_secs_f64(count).in_words()
}

/// A count with its noun: `1 file`, `12 files`.
pub fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_figures() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (9_999, "10.0 kB"),
            (123_456, "123 kB"),
            (999_999, "1.00 MB"),
            (1_240_000_000, "1.24 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
