//! How secret bytes are handled: taken over so that what they came in is wiped, hashed so that the hasher keeps nothing, compared in
//! constant time.
//!
//! What a compiler leaves in registers and on the stack when it moves a value is beyond this, and so is the hashing of cookies: it answers
//! strangers, and is to cost little.

use blake3::Hasher;
use zeroize::{Zeroize, Zeroizing};

/// Takes over bytes that a caller gave by value: the copy that was handed over is wiped.
pub(crate) fn take<const N: usize>(mut bytes: [u8; N]) -> Zeroizing<[u8; N]> {
    let kept = Zeroizing::new(bytes);
    bytes.zeroize();
    kept
}

/// `N` bytes that follow from the secret `parts`, one after the other, and are used for `what` alone (BLAKE3's key derivation).
#[must_use]
pub fn derive<const N: usize>(what: &str, parts: &[&[u8]]) -> Zeroizing<[u8; N]> {
    let mut hasher = Zeroizing::new(Hasher::new_derive_key(what));
    for part in parts {
        hasher.update(part);
    }
    let mut derived = Zeroizing::new([0; N]);
    Zeroizing::new(hasher.finalize_xof()).fill(derived.as_mut_slice());
    derived
}

/// Whether two secrets of public length are equal, in a time that does not depend on what they hold.
pub(crate) fn is_same(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_derived_is_what_the_hash_function_gives_for_all_parts_in_a_row() {
        let whole = blake3::derive_key("anabranch test", b"one and two");
        assert_eq!(*derive::<32>("anabranch test", &[b"one", b" and ", b"two"]), whole);
        assert_eq!(*derive::<16>("anabranch test", &[b"one and two"]), whole[..16]);
    }
}
