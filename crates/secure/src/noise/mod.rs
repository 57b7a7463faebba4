//! The primitives that the `snow` crate needs to run Noise: X25519, AES-256-GCM and SHA-256 from our only crypto provider,
//! and randomness from a seed given by the caller.
//!
//! `snow` draws exactly once a handshake, for the ephemeral key, so the source is the hash of the seed in counter mode.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::digest;
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use zeroize::Zeroizing;

use crate::secret;

const KEY_LEN: usize = 32;
const TAG_LEN: usize = 16;

/// Provides `snow` with primitives, and `seed` as the only randomness.
pub(crate) struct Resolver {
    seed: Zeroizing<[u8; 32]>,
}

impl Resolver {
    /// The seed determines the ephemeral key: it must be 32 fresh random bytes for every handshake.
    pub(crate) fn new(seed: &Zeroizing<[u8; 32]>) -> Self {
        Self { seed: seed.clone() }
    }
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Seeded { seed: self.seed.clone(), drawn: 0 }))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(KeyPair::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(Sha256::default()) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(AesGcm::default()) as Box<dyn Cipher>)
    }
}

/// Random bytes from a seed: the n-th draw is a hash of seed and n.
struct Seeded {
    seed: Zeroizing<[u8; 32]>,
    drawn: u64,
}

impl Random for Seeded {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        let drawn = self.drawn.to_le_bytes();
        let random: Zeroizing<[u8; KEY_LEN]> =
            secret::derive("anabranch 2026 handshake randomness", &[self.seed.as_slice(), &drawn]);
        dest.copy_from_slice(random.get(..dest.len()).ok_or(Error::Rng)?);
        self.drawn += 1;
        Ok(())
    }
}

/// An X25519 key pair. Without a key every exchange fails.
#[derive(Default)]
struct KeyPair {
    key: Option<PrivateKey>,
    secret: Zeroizing<[u8; KEY_LEN]>,
    public: [u8; KEY_LEN],
}

impl Dh for KeyPair {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_LEN
    }

    fn priv_len(&self) -> usize {
        KEY_LEN
    }

    fn set(&mut self, privkey: &[u8]) {
        self.key = PrivateKey::from_private_key(&X25519, privkey).ok();
        let public = self.key.as_ref().and_then(|key| key.compute_public_key().ok());
        if let Some(public) = public {
            self.secret.copy_from_slice(privkey);
            self.public.copy_from_slice(public.as_ref());
        }
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let mut secret = Zeroizing::new([0; KEY_LEN]);
        rng.try_fill_bytes(secret.as_mut_slice())?;
        self.set(secret.as_slice());
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.secret.as_slice()
    }

    /// Fails for a public key of low order, whose shared secret is zero (RFC 7748 §6.1).
    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let key = self.key.as_ref().ok_or(Error::Dh)?;
        let peer = pubkey.get(..KEY_LEN).ok_or(Error::Dh)?;
        let out = out.get_mut(..KEY_LEN).ok_or(Error::Dh)?;
        agree(key, UnparsedPublicKey::new(&X25519, peer), Error::Dh, |shared| {
            out.copy_from_slice(shared);
            Ok(())
        })
    }
}

/// AES-256-GCM with Noise's nonces: 32 zero bits, then the counter, big-endian.
struct AesGcm {
    key: LessSafeKey,
}

impl AesGcm {
    fn with_key(key: &[u8; KEY_LEN]) -> Self {
        let unbound = UnboundKey::new(&AES_256_GCM, key).expect("an AES-256 key has 32 bytes");
        Self { key: LessSafeKey::new(unbound) }
    }

    fn nonce(counter: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&counter.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Default for AesGcm {
    /// `snow` sets a key before it uses the cipher.
    fn default() -> Self {
        Self::with_key(&[0; KEY_LEN])
    }
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY_LEN]) {
        *self = Self::with_key(key);
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let sealed = self.key.seal_in_place_separate_tag(Self::nonce(nonce), Aad::from(authtext), text);
        let tag = sealed.expect("a handshake message is shorter than the cipher's limit");
        rest[..TAG_LEN].copy_from_slice(tag.as_ref());
        plaintext.len() + TAG_LEN
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let len = ciphertext.len().checked_sub(TAG_LEN).ok_or(Error::Decrypt)?;
        let (text, tag) = ciphertext.split_at(len);
        let out = out.get_mut(..len).ok_or(Error::Decrypt)?;
        let opened = self.key.open_separate_gather(Self::nonce(nonce), Aad::from(authtext), text, tag, out);
        opened.map(|()| len).map_err(|_| Error::Decrypt)
    }
}

/// SHA-256.
struct Sha256 {
    context: digest::Context,
}

impl Default for Sha256 {
    fn default() -> Self {
        Self { context: digest::Context::new(&digest::SHA256) }
    }
}

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        digest::SHA256_OUTPUT_LEN
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn input(&mut self, data: &[u8]) {
        self.context.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        let finished = std::mem::take(self).context.finish();
        out[..digest::SHA256_OUTPUT_LEN].copy_from_slice(finished.as_ref());
    }
}

#[cfg(test)]
pub(crate) mod tests;
