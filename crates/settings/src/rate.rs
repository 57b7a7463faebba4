//! Rates as people write them.

use super::number_and_unit;

/// A rate in bits a second: `100 Mbit/s`, `1.5Gbit/s`, `300 kbit/s`, in capitals or not.
///
/// # Errors
/// When the number or the unit is invalid, or the rate is zero.
pub fn rate(text: &str) -> Result<u64, String> {
    let wanted =
        || format!("`{text}` is not a rate; write one such as `100 Mbit/s` (bit/s, kbit/s, Mbit/s, Gbit/s)");
    let (number, unit) = number_and_unit(text).ok_or_else(wanted)?;
    let factor = match &*unit.to_ascii_lowercase() {
        "bit/s" => 1.0,
        "kbit/s" => 1e3,
        "mbit/s" => 1e6,
        "gbit/s" => 1e9,
        _ => return Err(wanted()),
    };
    let bits = (number * factor) as u64;
    if bits == 0 { Err("must be at least one bit a second".into()) } else { Ok(bits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_a_unit_and_must_not_be_zero() {
        assert_eq!(rate("100 Mbit/s"), Ok(100_000_000));
        assert_eq!(rate("1.5Gbit/s"), Ok(1_500_000_000));
        assert_eq!(rate(" 300 kbit/s "), Ok(300_000));
        assert_eq!((rate("20mbit/s"), rate("20 MBIT/S")), (Ok(20_000_000), Ok(20_000_000)));
        for text in ["", "0 bit/s", "100", "100 MB/s", "-1 Mbit/s", "fast"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
