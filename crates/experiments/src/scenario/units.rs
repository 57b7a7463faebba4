//! Quantities as text with their unit: `"10 ms"`, `"100 Mbit/s"`, `"50 packets"`.
//!
//! A number without a unit is an error that shows the right form. A packet is a full one of [`PACKET`] bytes on the wire.

use std::borrow::Cow;
use std::fmt;

use anabranch_wire::{Rate, Span};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Bytes of a full packet on the wire, IP and UDP headers included.
pub const PACKET: u64 = 1500;

/// A quantity that is written as text with a unit.
trait Quantity: Sized {
    /// Its name in the schema.
    const NAME: &'static str;
    /// Its description with an example.
    const EXAMPLE: &'static str;
    /// Its units and their factors; the empty unit is a bare number.
    const UNITS: &'static [(&'static str, f64)];

    /// From a value in the first unit; `unit` is the unit as written.
    fn of(value: f64, unit: &str) -> Option<Self>;
}

struct Text<T>(std::marker::PhantomData<T>);

impl<T: Quantity> Text<T> {
    fn read(number: f64, unit: &str) -> Option<T> {
        let (name, factor) = Self::unit(unit)?;
        T::of(number * factor, name)
    }

    /// The unit of this name, in any case.
    fn unit(written: &str) -> Option<&'static (&'static str, f64)> {
        T::UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(written))
    }
}

/// Whether the number continues after its digits: a decimal comma, a fraction, an exponent.
fn goes_on(unit: &str) -> bool {
    let mut rest = unit.strip_prefix([',', '/', 'e', 'E']).into_iter().flat_map(str::chars);
    rest.next().is_some_and(|next| next.is_ascii_digit() || matches!(next, '-' | '+'))
}

impl<T: Quantity> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", T::EXAMPLE)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        let text = text.trim();
        let digits = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '_')));
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let (number, unit) = (number.replace('_', "").parse::<f64>(), unit.trim());
        let Some(number) = number.ok().filter(|_| !goes_on(unit)).map(|number| number + 0.0) else {
            return Err(E::custom(format!("\"{text}\" is no quantity: expected {}", T::EXAMPLE)));
        };
        if number < 0.0 {
            return Err(E::custom(format!("\"{text}\" is negative: expected {}", T::EXAMPLE)));
        }
        // A share needs a unit, too: "1" could be one per cent or all.
        if unit.is_empty() {
            return Err(E::custom(format!("\"{text}\" has no unit: expected {}", T::EXAMPLE)));
        }
        match Self::read(number, unit) {
            Some(value) => Ok(value),
            None if Self::unit(unit).is_some() => {
                Err(E::custom(format!("\"{text}\" is too large: expected {}", T::EXAMPLE)))
            }
            None => Err(E::custom(format!("unknown unit \"{unit}\": expected {}", T::EXAMPLE))),
        }
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        if number == 1 && is_bare::<T>() {
            return Err(E::custom("1 may be one percent or all: write \"1 %\" or \"100 %\""));
        }
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        if number < 0.0 {
            return Err(E::custom(format!("{number} is negative: expected {}", T::EXAMPLE)));
        }
        if !number.is_finite() {
            return Err(E::custom(format!("{number} is no quantity: expected {}", T::EXAMPLE)));
        }
        let problem = if is_bare::<T>() { "is too large" } else { "has no unit" };
        Self::read(number, "")
            .ok_or_else(|| E::custom(format!("{number} {problem}: expected {}", T::EXAMPLE)))
    }
}

/// Whether a bare number is unambiguous.
fn is_bare<T: Quantity>() -> bool {
    T::UNITS.iter().any(|(name, _)| name.is_empty())
}

/// A number rounded to an integer, if it fits.
fn whole(number: f64) -> Option<u64> {
    (number < u64::MAX as f64).then_some((number + 0.5) as u64)
}

/// The JSON Schema of a quantity: a number with one of its units, or a bare number if that is unambiguous.
fn schema_of<T: Quantity>() -> Schema {
    let units: Vec<&str> = T::UNITS.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
    let pattern = format!("^ *[+]?[0-9_]*[.]?[0-9_]+ *({}) *$", units.join("|"));
    let text = json_schema!({ "type": "string", "pattern": pattern });
    if is_bare::<T>() {
        let number = json_schema!({ "type": "number", "minimum": 0, "maximum": 1 });
        return json_schema!({ "description": T::EXAMPLE, "anyOf": [text, number] });
    }
    json_schema!({ "description": T::EXAMPLE, "type": "string", "pattern": pattern })
}

macro_rules! quantity {
    ($($type:ty),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(Text::<$type>(std::marker::PhantomData))
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                Cow::Borrowed(<$type>::NAME)
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schema_of::<$type>()
            }
        }
    )*};
}

quantity!(SpanText, RateText, QueueText, SizeText, ShareText, FrequencyText);

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanText(pub Span);

impl Quantity for SpanText {
    const NAME: &'static str = "Time";
    const EXAMPLE: &'static str = "a time such as \"10 ms\" (ns, us, ms, s, min, h)";
    const UNITS: &'static [(&'static str, f64)] = &[
        ("ns", 1.0),
        ("us", 1e3),
        ("µs", 1e3),
        ("μs", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("min", 6e10),
        ("h", 3.6e12),
    ];

    fn of(nanoseconds: f64, _: &str) -> Option<Self> {
        whole(nanoseconds).map(|nanoseconds| Self(Span::from_nanos(nanoseconds)))
    }
}

/// A rate on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateText(pub Rate);

impl Quantity for RateText {
    const NAME: &'static str = "Rate";
    const EXAMPLE: &'static str = "a rate such as \"100 Mbit/s\" (bit/s, kbit/s, Mbit/s, Gbit/s, pkt/s)";
    const UNITS: &'static [(&'static str, f64)] =
        &[("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9), ("pkt/s", PACKET as f64 * 8.0)];

    fn of(bits: f64, _: &str) -> Option<Self> {
        whole(bits).map(|bits| Self(Rate::from_bits(bits)))
    }
}

/// A length of queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueText {
    /// In bytes.
    Bytes(f64),
    /// In bandwidth–delay products: the link's rate times twice its delay.
    Bdp(f64),
}

impl Quantity for QueueText {
    const NAME: &'static str = "Queue";
    const EXAMPLE: &'static str = "a queue such as \"100 packets\", \"64 kB\" or \"1 BDP\"";
    const UNITS: &'static [(&'static str, f64)] = &[
        ("B", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("packets", PACKET as f64),
        ("packet", PACKET as f64),
        ("pkt", PACKET as f64),
        ("BDP", 1.0),
    ];

    fn of(value: f64, unit: &str) -> Option<Self> {
        Some(if unit == "BDP" { Self::Bdp(value) } else { Self::Bytes(value) })
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeText(pub u64);

impl Quantity for SizeText {
    const NAME: &'static str = "Size";
    const EXAMPLE: &'static str = "a size such as \"200 kB\" (B, kB, MB, GB, KiB, MiB, GiB, packets)";
    const UNITS: &'static [(&'static str, f64)] = &[
        ("B", 1.0),
        ("kB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("packets", PACKET as f64),
        ("packet", PACKET as f64),
    ];

    fn of(bytes: f64, _: &str) -> Option<Self> {
        whole(bytes).map(Self)
    }
}

/// A share between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareText(pub f64);

impl Quantity for ShareText {
    const NAME: &'static str = "Share";
    const EXAMPLE: &'static str = "a share such as \"1 %\" or 0.01, at most 1";
    const UNITS: &'static [(&'static str, f64)] = &[("", 1.0), ("%", 0.01)];

    fn of(share: f64, _: &str) -> Option<Self> {
        (share <= 1.0).then_some(Self(share))
    }
}

/// How often something happens, in times a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrequencyText(pub f64);

impl Quantity for FrequencyText {
    const NAME: &'static str = "Frequency";
    const EXAMPLE: &'static str = "a frequency such as \"10 /s\"";
    const UNITS: &'static [(&'static str, f64)] = &[("/s", 1.0), ("per s", 1.0)];

    fn of(times: f64, _: &str) -> Option<Self> {
        Some(Self(times))
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
        assert_eq!(read::<RateText>("\"16mbit/s\"").unwrap().0, Rate::from_bits(16_000_000));
        assert_eq!(read::<QueueText>("\"1 bdp\"").unwrap(), QueueText::Bdp(1.0));
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
            ("\"1,5 ms\"", format!("\"1,5 ms\" is no quantity: expected {example}")),
            ("\"1/2 s\"", format!("\"1/2 s\" is no quantity: expected {example}")),
            ("\"1e-3 s\"", format!("\"1e-3 s\" is no quantity: expected {example}")),
            ("\"soon\"", format!("\"soon\" is no quantity: expected {example}")),
        ];
        for (text, message) in cases {
            assert_eq!(read::<SpanText>(text), Err(message));
        }
        let example = "a size such as \"200 kB\" (B, kB, MB, GB, KiB, MiB, GiB, packets)";
        for text in ["\"99999999999999 GB\"", "\"20000000000 GB\""] {
            let told = format!("{text} is too large: expected {example}");
            assert_eq!(read::<SizeText>(text), Err(told), "what cannot be held is not clipped");
        }
        assert!(read::<SpanText>("\"99999999999 h\"").unwrap_err().contains("is too large"));
        assert!(read::<RateText>("\"99999999999 Gbit/s\"").unwrap_err().contains("is too large"));
        let share = "expected a share such as \"1 %\" or 0.01, at most 1";
        assert_eq!(read::<ShareText>("\"120 %\"").unwrap_err(), format!("\"120 %\" is too large: {share}"));
        for text in ["\"1\"", "\"0.5\""] {
            assert_eq!(read::<ShareText>(text).unwrap_err(), format!("{text} has no unit: {share}"));
        }
        assert_eq!(
            read::<ShareText>("1").unwrap_err(),
            "1 may be one percent or all: write \"1 %\" or \"100 %\""
        );
        assert_eq!(read::<ShareText>("0").unwrap().0, 0.0);
        assert_eq!(read::<ShareText>("nan").unwrap_err(), format!("NaN is no quantity: {share}"));
    }
}
