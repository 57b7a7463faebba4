//! Quantities as text with their unit: `"10 ms"`, `"100 Mbit/s"`, `"50 packets"`.
//!
//! A number without a unit is an error that shows what to write: the same digits mean different things to
//! different readers. A packet here is a full one of [`PACKET`] bytes on the wire.

use std::fmt;

use anabranch_wire::{Rate, Span};
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Bytes of a full packet on the wire, IP and UDP headers included.
pub const PACKET: u64 = 1500;

/// Something that is written as text with a unit.
trait Quantity: Sized {
    /// What it is, and how it is written.
    const EXAMPLE: &'static str;

    fn parse(number: f64, unit: &str) -> Option<Self>;

    /// From a bare number, where that has only one meaning.
    fn bare(_number: f64) -> Option<Self> {
        None
    }
}

struct Text<T>(std::marker::PhantomData<T>);

impl<T: Quantity> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", T::EXAMPLE)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        let text = text.trim();
        let digits = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '_')));
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let number = number.replace('_', "").parse::<f64>();
        let Ok(number) = number.map(|number| number + 0.0) else {
            return Err(E::custom(format!("\"{text}\" is no quantity: expected {}", T::EXAMPLE)));
        };
        if number < 0.0 {
            return Err(E::custom(format!("\"{text}\" is negative: expected {}", T::EXAMPLE)));
        }
        match T::parse(number, unit.trim()) {
            Some(value) => Ok(value),
            None if unit.trim().is_empty() => {
                Err(E::custom(format!("\"{text}\" has no unit: expected {}", T::EXAMPLE)))
            }
            None => Err(E::custom(format!("unknown unit \"{}\": expected {}", unit.trim(), T::EXAMPLE))),
        }
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        if number < 0.0 {
            return Err(E::custom(format!("{number} is negative: expected {}", T::EXAMPLE)));
        }
        T::bare(number).ok_or_else(|| E::custom(format!("{number} has no unit: expected {}", T::EXAMPLE)))
    }
}

macro_rules! quantity {
    ($($type:ty),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(Text::<$type>(std::marker::PhantomData))
            }
        }
    )*};
}

quantity!(SpanText, RateText, QueueText, SizeText, ShareText, FrequencyText);

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanText(pub Span);

impl Quantity for SpanText {
    const EXAMPLE: &'static str = "a time such as \"10 ms\" (ns, us, ms, s, min, h)";

    fn parse(number: f64, unit: &str) -> Option<Self> {
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        Some(Self(Span::from_nanos((number * seconds * 1e9 + 0.5) as u64)))
    }
}

/// A rate on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateText(pub Rate);

impl Quantity for RateText {
    const EXAMPLE: &'static str = "a rate such as \"100 Mbit/s\" (bit/s, kbit/s, Mbit/s, Gbit/s, pkt/s)";

    fn parse(number: f64, unit: &str) -> Option<Self> {
        let bits = match unit {
            "bit/s" => 1.0,
            "kbit/s" => 1e3,
            "Mbit/s" => 1e6,
            "Gbit/s" => 1e9,
            "pkt/s" => PACKET as f64 * 8.0,
            _ => return None,
        };
        Some(Self(Rate::from_bits((number * bits + 0.5) as u64)))
    }
}

/// A length of queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueText {
    /// In full packets.
    Packets(f64),
    /// In bytes.
    Bytes(f64),
    /// In bandwidth–delay products: the link's rate times twice its delay.
    Bdp(f64),
}

impl Quantity for QueueText {
    const EXAMPLE: &'static str = "a queue such as \"100 packets\", \"64 kB\" or \"1 BDP\"";

    fn parse(number: f64, unit: &str) -> Option<Self> {
        match unit {
            "packets" | "packet" | "pkt" => Some(Self::Packets(number)),
            "BDP" => Some(Self::Bdp(number)),
            _ => SizeText::parse(number, unit).map(|size| Self::Bytes(size.0 as f64)),
        }
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeText(pub u64);

impl Quantity for SizeText {
    const EXAMPLE: &'static str = "a size such as \"200 kB\" (B, kB, MB, GB, KiB, MiB, GiB, packets)";

    fn parse(number: f64, unit: &str) -> Option<Self> {
        let bytes = match unit {
            "B" => 1.0,
            "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "KiB" => 1024.0,
            "MiB" => 1_048_576.0,
            "GiB" => 1_073_741_824.0,
            "packets" | "packet" => PACKET as f64,
            _ => return None,
        };
        Some(Self((number * bytes + 0.5) as u64))
    }
}

/// A share between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareText(pub f64);

impl Quantity for ShareText {
    const EXAMPLE: &'static str = "a share such as \"1 %\" or 0.01, at most 1";

    fn parse(number: f64, unit: &str) -> Option<Self> {
        let share = match unit {
            "%" => number / 100.0,
            "" => number,
            _ => return None,
        };
        (share <= 1.0).then_some(Self(share))
    }

    fn bare(number: f64) -> Option<Self> {
        (number <= 1.0).then_some(Self(number))
    }
}

/// How often something happens, in times a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrequencyText(pub f64);

impl Quantity for FrequencyText {
    const EXAMPLE: &'static str = "a frequency such as \"10 /s\"";

    fn parse(number: f64, unit: &str) -> Option<Self> {
        match unit {
            "/s" | "per s" => Some(Self(number)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Of<T> {
        x: T,
    }

    fn read<T: for<'a> Deserialize<'a>>(value: &str) -> Result<T, String> {
        toml::from_str::<Of<T>>(&format!("x = {value}"))
            .map(|of| of.x)
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn quantities_are_read_with_their_units() {
        assert_eq!(read::<SpanText>("\"1.5 ms\"").unwrap().0, Span::from_micros(1500));
        assert_eq!(read::<RateText>("\"100 pkt/s\"").unwrap().0, Rate::from_bits(1_200_000));
        assert_eq!(read::<RateText>("\"14.4Mbit/s\"").unwrap().0, Rate::from_bits(14_400_000));
        assert_eq!(read::<QueueText>("\"1 BDP\"").unwrap(), QueueText::Bdp(1.0));
        assert_eq!(read::<QueueText>("\"64 kB\"").unwrap(), QueueText::Bytes(64_000.0));
        assert_eq!(read::<SizeText>("\"1 MiB\"").unwrap().0, 1 << 20);
        assert_eq!(read::<ShareText>("\"4 %\"").unwrap().0, 0.04);
        assert_eq!(read::<ShareText>("0.5").unwrap().0, 0.5);
        assert_eq!(read::<FrequencyText>("\"60 /s\"").unwrap().0, 60.0);
    }

    #[test]
    fn what_is_wrong_with_a_quantity_is_said_with_an_example() {
        let example = "a time such as \"10 ms\" (ns, us, ms, s, min, h)";
        let cases = [
            ("10", format!("10 has no unit: expected {example}")),
            ("\"10\"", format!("\"10\" has no unit: expected {example}")),
            ("\"-1 ms\"", format!("\"-1 ms\" is negative: expected {example}")),
            ("-1.0", format!("-1 is negative: expected {example}")),
            ("\"10 sec\"", format!("unknown unit \"sec\": expected {example}")),
            ("\"soon\"", format!("\"soon\" is no quantity: expected {example}")),
        ];
        for (text, message) in cases {
            assert_eq!(read::<SpanText>(text), Err(message));
        }
        assert!(read::<ShareText>("\"120 %\"").is_err());
    }
}
