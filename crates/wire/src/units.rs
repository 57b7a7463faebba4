//! Time, spans of time and rates as integer types, the same in simulation, emulation and deployment.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// A point in time: nanoseconds since the start of the run. Only differences are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(u64);

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span(u64);

/// A rate in bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rate(u64);

const NANOS: u64 = 1_000_000_000;

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// A point in time that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The time `nanos` after the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the start.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }

    /// The time that passed since `earlier`; zero when `earlier` lies after `self`.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// The empty span.
    pub const ZERO: Self = Self(0);
    /// Longer than any run.
    pub const MAX: Self = Self(u64::MAX);

    /// A span of nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A span of microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// A span of milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS))
    }

    /// A span of seconds with a fraction; negative and NaN become zero, too large saturates.
    pub fn from_secs_f64(secs: f64) -> Self {
        Self((secs * NANOS as f64) as u64)
    }

    /// Whole nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Milliseconds with a fraction.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Seconds with a fraction.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }

    /// For people, in at most two units: `8 s`, `1 min 12 s`, `3 h 5 min`, `2 d 4 h`.
    pub fn in_words(self) -> String {
        let whole = self.0.saturating_add(NANOS / 2) / NANOS;
        let ((large, unit), (small, its_unit)) = match whole {
            0..60 => return format!("{whole} s"),
            60..3_600 => ((whole / 60, "min"), (whole % 60, "s")),
            3_600..86_400 => ((whole / 3_600, "h"), (whole % 3_600 / 60, "min")),
            _ => ((whole / 86_400, "d"), (whole % 86_400 / 3_600, "h")),
        };
        match small {
            0 => format!("{large} {unit}"),
            _ => format!("{large} {unit} {small} {its_unit}"),
        }
    }

    /// The difference, or zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The span times a fraction.
    pub fn mul_f64(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor) as u64)
    }

    /// True for the empty span.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Rate {
    /// No bits a second.
    pub const ZERO: Self = Self(0);

    pub const fn from_bits(bits_per_second: u64) -> Self {
        Self(bits_per_second)
    }

    /// A rate in megabits (10⁶) a second.
    pub fn from_mbit(mbit: f64) -> Self {
        Self((mbit * 1e6) as u64)
    }

    /// The rate at which `bytes` pass in `span`; zero for an empty span.
    pub fn from_bytes_in(bytes: u64, span: Span) -> Self {
        if span.0 == 0 {
            return Self::ZERO;
        }
        Self((u128::from(bytes) * 8 * u128::from(NANOS) / u128::from(span.0)).min(u128::from(u64::MAX)) as u64)
    }

    /// Bits a second.
    pub const fn as_bits(self) -> u64 {
        self.0
    }

    /// Megabits a second.
    pub fn as_mbit(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Bytes a second.
    pub fn as_bytes_f64(self) -> f64 {
        self.0 as f64 / 8.0
    }

    /// How long `bytes` take at this rate, rounded up; [`Span::MAX`] at rate zero and if it would be longer.
    pub fn time_for(self, bytes: u64) -> Span {
        if self.0 == 0 {
            return Span::MAX;
        }
        let product = bytes.checked_mul(8 * NANOS);
        Span(match product {
            Some(bit_nanos) => bit_nanos.div_ceil(self.0),
            None => {
                let bit_nanos = u128::from(bytes) * u128::from(8 * NANOS);
                bit_nanos.div_ceil(u128::from(self.0)).min(u128::from(u64::MAX)) as u64
            }
        })
    }

    /// How many whole bytes are sent in `span`.
    pub fn bytes_in(self, span: Span) -> u64 {
        (u128::from(self.0) * u128::from(span.0) / u128::from(8 * NANOS)).min(u128::from(u64::MAX)) as u64
    }

    /// The rate times a fraction.
    pub fn mul_f64(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor) as u64)
    }
}

impl Add<Span> for Time {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Time {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Sub<Span> for Time {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<u64> for Span {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Div<u64> for Span {
    type Output = Self;
    fn div(self, divisor: u64) -> Self {
        Self(self.0 / divisor)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.as_secs_f64())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= NANOS => write!(f, "{:.2} s", self.as_secs_f64()),
            n if n >= 1_000_000 => write!(f, "{:.1} ms", self.as_millis_f64()),
            n => write!(f, "{:.1} µs", n as f64 / 1e3),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1_000_000_000 => write!(f, "{:.2} Gbit/s", n as f64 / 1e9),
            n if n >= 1_000_000 => write!(f, "{:.1} Mbit/s", n as f64 / 1e6),
            n => write!(f, "{:.1} kbit/s", n as f64 / 1e3),
        }
    }
}

/// A number of bytes in units of 1000: `999 B`, `4.2 kB`, `1.24 GB`; three figures.
pub fn bytes_in_words(count: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_too_long_for_a_span_is_the_longest_one() {
        assert_eq!(Rate::from_bits(1).time_for(1 << 62), Span::MAX);
        assert_eq!(Rate::from_bits(8).time_for(3_000_000_000), Span::from_secs(3_000_000_000));
    }

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
            assert_eq!(bytes_in_words(count), text);
        }
    }

    #[test]
    fn a_span_in_words_has_at_most_two_units() {
        for (seconds, words) in [
            (-1.0, "0 s"),
            (7.6, "8 s"),
            (59.7, "1 min"),
            (72.0, "1 min 12 s"),
            (11_100.0, "3 h 5 min"),
            (86_400.0, "1 d"),
            (187_200.0, "2 d 4 h"),
            (f64::MAX, "213503 d 23 h"),
        ] {
            assert_eq!(Span::from_secs_f64(seconds).in_words(), words);
        }
    }
}
