//! Sizes and times as people read them.

/// A number of bytes in units of 1000: `999 B`, `4.2 kB`, `1.24 GB`; three figures.
#[must_use]
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

/// A number of seconds, in at most two units: `8 s`, `1 min 12 s`, `3 h 5 min`, `2 d 4 h`.
#[must_use]
pub fn seconds(count: f64) -> String {
    let whole = count.max(0.0).round() as u64;
    let (large, small) = match whole {
        0..60 => return format!("{whole} s"),
        60..3_600 => ((whole / 60, "min"), (whole % 60, "s")),
        3_600..86_400 => ((whole / 3_600, "h"), (whole % 3_600 / 60, "min")),
        _ => ((whole / 86_400, "d"), (whole % 86_400 / 3_600, "h")),
    };
    match small.0 {
        0 => format!("{} {}", large.0, large.1),
        _ => format!("{} {} {} {}", large.0, large.1, small.0, small.1),
    }
}

/// A number of things: `1 file`, `12 files`.
#[must_use]
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

    #[test]
    fn times_have_at_most_two_units() {
        for (count, text) in [
            (-1.0, "0 s"),
            (7.6, "8 s"),
            (59.7, "1 min"),
            (72.0, "1 min 12 s"),
            (11_100.0, "3 h 5 min"),
            (187_200.0, "2 d 4 h"),
        ] {
            assert_eq!(seconds(count), text);
        }
    }
}
