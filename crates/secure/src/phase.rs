//! The chain of packet keys of one direction: a secret gives the key and the mask of a key phase, and the secret of the
//! next phase (RFC 9001 §6.1). A fresh secret can be mixed in between two phases: an earlier secret of the chain leads no
//! further then.
//!
//! The cipher is AES-128-GCM. The nonce is path id (4 bytes) ‖ packet number (8 bytes), exclusive-or the phase's mask
//! (RFC 9001 §5.3; RFC 8446 §5.3). The mask keeps an attacker of many sessions from searching all their keys with one
//! table.

use anabranch_wire::{Fsn, PathId};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::fresh::FreshSecret;
use crate::secret;

const KEY_LEN: usize = 16;
const NONCE_LEN: usize = 12;

/// Yields the key of one phase after the other. No secret leads back to an earlier one.
#[derive(Clone)]
pub(crate) struct KeyChain {
    secret: Zeroizing<[u8; 32]>,
}

/// The key of one phase in one direction. Wiped by the provider when dropped.
pub(crate) struct PhaseKey {
    key: LessSafeKey,
    mask: Zeroizing<[u8; NONCE_LEN]>,
}

impl KeyChain {
    pub(crate) fn new(secret: Zeroizing<[u8; 32]>) -> Self {
        Self { secret }
    }

    /// Mixes a fresh secret into the next phase and all later ones.
    pub(crate) fn mix(&mut self, fresh: &FreshSecret) {
        let parts = [self.secret.as_slice(), fresh.expose()];
        self.secret = secret::derive("anabranch 2026 fresh key phase", &parts);
    }

    /// The key of the next phase; the first call returns that of the first phase.
    pub(crate) fn advance(&mut self) -> PhaseKey {
        let material: Zeroizing<[u8; KEY_LEN + NONCE_LEN]> =
            secret::derive("anabranch 2026 packet key", &[self.secret.as_slice()]);
        self.secret = secret::derive("anabranch 2026 next key phase", &[self.secret.as_slice()]);
        let (key, mask) = material.split_at(KEY_LEN);
        let unbound = UnboundKey::new(&AES_128_GCM, key).expect("an AES-128 key has 16 bytes");
        let mut phase = PhaseKey { key: LessSafeKey::new(unbound), mask: Zeroizing::new([0; NONCE_LEN]) };
        phase.mask.copy_from_slice(mask);
        phase
    }
}

impl PhaseKey {
    fn nonce(&self, path: PathId, fsn: Fsn) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..4].copy_from_slice(&path.0.to_be_bytes());
        nonce[4..].copy_from_slice(&fsn.0.to_be_bytes());
        for (byte, mask) in nonce.iter_mut().zip(self.mask.iter()) {
            *byte ^= mask;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts `text` and writes the tag; false when it is too long for the cipher.
    pub(crate) fn seal(&self, path: PathId, fsn: Fsn, aad: &[u8], text: &mut [u8], tag: &mut [u8]) -> bool {
        let sealed = self.key.seal_in_place_separate_tag(self.nonce(path, fsn), Aad::from(aad), text);
        sealed.map(|sealed| tag.copy_from_slice(sealed.as_ref())).is_ok()
    }

    /// Decrypts `text` in place. If it is not authentic, `text` is destroyed and `tag` unchanged.
    pub(crate) fn open(&self, path: PathId, fsn: Fsn, aad: &[u8], text: &mut [u8], tag: &[u8]) -> bool {
        let nonce = self.nonce(path, fsn);
        self.key.open_in_place_separate_tag(nonce, Aad::from(aad), tag, text).is_ok()
    }

    /// Decrypts `text` through a copy, so that text that is not authentic stays unchanged.
    pub(crate) fn try_open(&self, path: PathId, fsn: Fsn, aad: &[u8], text: &mut [u8], tag: &[u8]) -> bool {
        let nonce = self.nonce(path, fsn);
        let mut copy = vec![0; text.len()];
        let opened = self.key.open_separate_gather(nonce, Aad::from(aad), text, tag, &mut copy).is_ok();
        if opened {
            text.copy_from_slice(&copy);
        }
        opened
    }
}
