//! Handling of secret bytes: taken over with the source wiped, hashed with the hasher wiped, compared in constant time.
//!
//! Copies that the compiler leaves in registers and on the stack are out of scope. So is the hashing of cookies, which
//! answers strangers and must be cheap.

use blake3::Hasher;
use zeroize::{Zeroize, Zeroizing};

/// Moves bytes passed by value into wiped memory, and wipes the copy that was passed.
pub(crate) fn take<const N: usize>(mut bytes: [u8; N]) -> Zeroizing<[u8; N]> {
    let kept = Zeroizing::new(bytes);
    bytes.zeroize();
    kept
}

/// Derives `N` bytes from the concatenated secret `parts`, for the purpose `what` only (BLAKE3's key derivation).
pub fn derive<const N: usize>(what: &str, parts: &[&[u8]]) -> Zeroizing<[u8; N]> {
    let mut hasher = Zeroizing::new(Hasher::new_derive_key(what));
    for part in parts {
        hasher.update(part);
    }
    let mut derived = Zeroizing::new([0; N]);
    Zeroizing::new(hasher.finalize_xof()).fill(derived.as_mut_slice());
    derived
}

/// Whether two secrets are equal, in a time that depends only on their lengths.
pub(crate) fn is_same(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_bytes_are_the_hash_of_all_parts_in_a_row() {
        let whole = blake3::derive_key("anabranch test", b"one and two");
        assert_eq!(*derive::<32>("anabranch test", &[b"one", b" and ", b"two"]), whole);
        assert_eq!(*derive::<16>("anabranch test", &[b"one and two"]), whole[..16]);
    }
}
