//! Integers of 1, 2, 4 or 8 bytes, as RFC 9000 §16 writes them.
//!
//! The two highest bits of the first byte give the length; the rest is the value, big-endian. An encoding may be longer
//! than needed; the encoder always writes the shortest.

use bytes::BufMut;

/// The largest value an encoded integer can have. Larger values are written as this one. Only limits and application
/// codes can be larger, and for those this value is as good as infinite.
pub const VARINT_MAX: u64 = (1 << 62) - 1;

/// Bytes of the encoding of `value`.
#[inline]
pub const fn varint_len(value: u64) -> usize {
    if value < 1 << 6 {
        1
    } else if value < 1 << 14 {
        2
    } else if value < 1 << 30 {
        4
    } else {
        8
    }
}

/// Appends `value`.
#[inline]
pub(crate) fn put_varint(out: &mut impl BufMut, value: u64) {
    if value < 1 << 6 {
        out.put_u8(value as u8);
    } else if value < 1 << 14 {
        out.put_u16(value as u16 | 0x4000);
    } else if value < 1 << 30 {
        out.put_u32(value as u32 | 0x8000_0000);
    } else {
        out.put_u64(value.min(VARINT_MAX) | 0xc000_0000_0000_0000);
    }
}

/// The value at the start of `bytes` and the length of its encoding, or `None` when `bytes` is too short.
#[inline]
pub(crate) fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    if let Some(word) = bytes.first_chunk::<8>() {
        let len = 1 << (word[0] >> 6);
        let value = u64::from_be_bytes(*word) & VARINT_MAX;
        return Some((value >> (64 - 8 * len), len));
    }
    let len = 1 << (bytes.first()? >> 6);
    let mut word = [0; 8];
    word.get_mut(8 - len..)?.copy_from_slice(bytes.get(..len)?);
    word[8 - len] &= 0x3f;
    Some((u64::from_be_bytes(word), len))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_comes_back_and_takes_the_length_foretold(
            value in (0u32..=62).prop_flat_map(|bits| 0..1u64 << bits), follow in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let len = bytes.len();
            prop_assert_eq!(len, varint_len(value));
            bytes.extend(follow);
            prop_assert_eq!(read_varint(&bytes), Some((value, len)));
            for short in 0..len {
                prop_assert_eq!(read_varint(&bytes[..short]), None);
            }
        }
    }

    #[test]
    fn a_value_that_is_too_large_is_written_as_the_largest() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, u64::MAX);
        assert_eq!(bytes.len(), varint_len(u64::MAX));
        assert_eq!(read_varint(&bytes), Some((VARINT_MAX, 8)));
    }
}
