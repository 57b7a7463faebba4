//! The Internet checksum (RFC 1071), and its update after a change (RFC 1624).

use std::net::IpAddr;

/// The ones' complement sum of the bytes, folded to 16 bits, added to `start`.
pub fn sum(bytes: &[u8], start: u16) -> u16 {
    // The sum does not depend on the byte order, so native words are added and swapped at the end. This loop vectorises.
    let mut chunks = bytes.chunks_exact(4);
    let words =
        chunks.by_ref().map(|chunk| u64::from(u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])));
    let mut wide: u64 = words.sum();
    let rest = chunks.remainder();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    wide += u64::from(u32::from_ne_bytes(last));
    fold(u64::from(u16::from_be(fold(wide))) + u64::from(start))
}

/// The sum over the pseudo header of TCP and UDP.
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u16 {
    let addresses = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => sum(&destination.octets(), sum(&source.octets(), 0)),
        (IpAddr::V6(source), IpAddr::V6(destination)) => sum(&destination.octets(), sum(&source.octets(), 0)),
        _ => 0,
    };
    fold(u64::from(addresses) + u64::from(protocol) + length as u64)
}

/// The checksum after a 16-bit word that it covers changed.
pub fn updated(checksum: u16, before: u16, after: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!before) + u64::from(after))
}

fn fold(mut wide: u64) -> u16 {
    while wide > 0xffff {
        wide = (wide & 0xffff) + (wide >> 16);
    }
    wide as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_rfc_1071_has_its_sum() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0), 0xddf2);
    }

    proptest! {
        #[test]
        fn an_update_equals_a_new_sum(mut bytes in proptest::collection::vec(any::<u8>(), 2..64), word: u16) {
            let before = u16::from_be_bytes([bytes[0], bytes[1]]);
            let old = !sum(&bytes, 0);
            bytes[..2].copy_from_slice(&word.to_be_bytes());
            let new = !sum(&bytes, 0);
            // 0 and 0xffff are the same number in ones' complement.
            let same = |checksum: u16| if checksum == 0xffff { 0 } else { checksum };
            prop_assert_eq!(same(updated(old, before, word)), same(new));
        }
    }
}
