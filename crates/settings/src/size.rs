//! Sizes as people write them.

use super::number_and_unit;

/// A number of bytes: `32MiB`, `1.5GB`, `700k`, or a bare number.
///
/// `k`, `M`, `G`, `T` count by 1000, with or without a `B`; `KiB`, `MiB`, `GiB`, `TiB` by 1024.
///
/// # Errors
/// When the number or the unit is invalid, or the size is zero.
pub fn size(text: &str) -> Result<u64, String> {
    let wanted = || format!("`{text}` is not a size; write 32MiB, 1.5GB or a number of bytes");
    let (number, unit) = number_and_unit(text).ok_or_else(wanted)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => return Err(wanted()),
    };
    let bytes = (number * factor) as u64;
    if bytes == 0 { Err("must be at least one byte".into()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_count_by_a_thousand_or_by_1024_as_written() {
        assert_eq!(size("32MiB"), Ok(33_554_432));
        assert_eq!(size("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(size("700k"), Ok(700_000));
        assert_eq!(size("12"), Ok(12));
        for text in ["", "0", "many", "3 MiBs", "-1"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
