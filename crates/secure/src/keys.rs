//! Node keys: an X25519 key pair is a node's identity, as in WireGuard.
//!
//! A public key is written `ab1…`, a secret key as one line of a key file. Callers read and write that file, with
//! permissions for its owner only.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use zeroize::Zeroizing;

use crate::secret;
use crate::text::{self, TextError};

const PUBLIC_PREFIX: &str = "ab1";
const SECRET_PREFIX: &str = "ab-secret-1";
const CHECKSUM_LEN: usize = 3;
/// Longest key file: a stray file of any size is refused before it is parsed.
const MAX_FILE_LEN: usize = 4096;

/// A node's identity: its X25519 public key (RFC 7748). Written as `ab1` and 56 characters of base32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// The key with these bytes. Any 32 bytes are valid; a handshake with an unusable key fails.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&text::encode::<CHECKSUM_LEN>(PUBLIC_PREFIX, &self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.len() > MAX_FILE_LEN {
            return Err(TextError::Length);
        }
        let bytes = text::decode::<CHECKSUM_LEN>(PUBLIC_PREFIX, text)?;
        bytes.as_slice().try_into().map(Self).map_err(|_| TextError::Length)
    }
}

/// A node's secret key and its public key. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct NodeKey {
    secret: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

impl NodeKey {
    /// The key made of 32 random bytes (RFC 7748 §5: any will do). The caller's copy is wiped.
    pub fn from_random(random: [u8; 32]) -> Self {
        let secret = secret::take(random);
        let public = public_of(&secret);
        Self { secret, public }
    }

    /// The identity by which others know the node.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The contents of a key file: a comment with the public key, and the secret key on its own line.
    pub fn to_file_text(&self) -> Zeroizing<String> {
        let secret = text::encode::<CHECKSUM_LEN>(SECRET_PREFIX, self.secret.as_slice());
        let comment = format!(
            "# The secret key of an anabranch node: keep it to yourself.\n# Its public key is {}\n",
            self.public
        );
        // Allocate all room at once: a string that grows leaves copies of its contents behind.
        let mut text = Zeroizing::new(String::with_capacity(comment.len() + secret.len() + 1));
        for part in [&comment, secret.as_str(), "\n"] {
            text.push_str(part);
        }
        text
    }

    /// Reads the text of [`NodeKey::to_file_text`]; empty lines and lines that begin with `#` are skipped.
    pub fn from_file_text(text: &str) -> Result<Self, TextError> {
        if text.len() > MAX_FILE_LEN {
            return Err(TextError::Length);
        }
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let line = lines.next().ok_or(TextError::Prefix(SECRET_PREFIX))?;
        if lines.next().is_some() {
            return Err(TextError::Length);
        }
        let bytes = text::decode::<CHECKSUM_LEN>(SECRET_PREFIX, line)?;
        bytes.as_slice().try_into().map(Self::from_random).map_err(|_| TextError::Length)
    }

    /// The shared secret with the owner of a public key; `None` for one of low order, which gives zeros (RFC 7748 §6.1).
    pub(crate) fn agree(&self, peer: &[u8; 32]) -> Option<Zeroizing<[u8; 32]>> {
        let own = PrivateKey::from_private_key(&X25519, self.secret.as_slice()).ok()?;
        let mut shared = Zeroizing::new([0; 32]);
        let agreed = agree(&own, UnparsedPublicKey::new(&X25519, peer), (), |bytes| {
            shared.copy_from_slice(bytes);
            Ok(())
        });
        agreed.ok().map(|()| shared)
    }

    /// For the handshake only.
    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey({}, secret not shown)", self.public)
    }
}

impl PartialEq for NodeKey {
    /// In constant time.
    fn eq(&self, other: &Self) -> bool {
        secret::is_same(self.secret.as_slice(), other.secret.as_slice())
    }
}

impl Eq for NodeKey {}

fn public_of(secret: &[u8; 32]) -> PublicKey {
    let public =
        PrivateKey::from_private_key(&X25519, secret).ok().and_then(|key| key.compute_public_key().ok());
    let bytes = public.and_then(|key| key.as_ref().try_into().ok());
    PublicKey(bytes.expect("any 32 bytes are an X25519 secret key, and its public key has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> NodeKey {
        NodeKey::from_random([byte; 32])
    }

    #[test]
    fn a_public_key_survives_being_written_and_read() {
        let public = key(7).public();
        let text = public.to_string();
        assert_eq!(text.len(), 3 + 56);
        assert_eq!(text.parse(), Ok(public));
        assert_eq!(text.to_uppercase().parse(), Ok(public));
        assert_eq!(format!(" {}\n{}", &text[..20], &text[20..]).parse(), Ok(public));
    }

    #[test]
    fn the_public_key_is_that_of_rfc_7748_section_6_1() {
        let bytes = |hex: &[u8]| <[u8; 32]>::try_from(data_encoding::HEXLOWER.decode(hex).unwrap()).unwrap();
        let secret = bytes(b"77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
        let public = bytes(b"8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
        assert_eq!(NodeKey::from_random(secret).public().as_bytes(), &public);
    }

    #[test]
    fn every_single_typing_mistake_in_a_public_key_is_found() {
        let text = key(9).public().to_string();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'q' { b'r' } else { b'q' };
            let wrong = String::from_utf8(bytes).unwrap();
            assert!(wrong.parse::<PublicKey>().is_err(), "mistake at {at} was not found");
            assert!(text[..at].parse::<PublicKey>().is_err(), "a key cut off at {at} was taken");
        }
    }

    #[test]
    fn a_key_file_gives_the_key_back() {
        let node = key(3);
        let text = node.to_file_text();
        assert!(text.contains(&node.public().to_string()));
        let again = NodeKey::from_file_text(&text).unwrap();
        assert_eq!(again, node);
        assert_eq!(again.public(), node.public());
        assert_ne!(again, key(4));
    }

    #[test]
    fn a_key_file_with_anything_else_in_it_is_refused() {
        let text = key(3).to_file_text();
        assert_eq!(NodeKey::from_file_text(""), Err(TextError::Prefix(SECRET_PREFIX)));
        assert_eq!(NodeKey::from_file_text("# nothing\n"), Err(TextError::Prefix(SECRET_PREFIX)));
        assert_eq!(NodeKey::from_file_text(&format!("{}more\n", text.as_str())), Err(TextError::Length));
        assert_eq!(NodeKey::from_file_text(&text.trim_end()[..text.len() - 3]), Err(TextError::Length));
        assert_eq!(NodeKey::from_file_text(&" ".repeat(5000)), Err(TextError::Length));
        let public = key(3).public().to_string();
        assert_eq!(NodeKey::from_file_text(&public), Err(TextError::Prefix(SECRET_PREFIX)));
    }

    #[test]
    fn a_secret_key_is_never_printed() {
        let node = key(0x5a);
        let shown = format!("{node:?}");
        assert!(shown.contains(&node.public().to_string()));
        let secret = node.to_file_text();
        let line = secret.lines().last().unwrap();
        assert!(!shown.contains(&line[SECRET_PREFIX.len()..SECRET_PREFIX.len() + 10]));
        assert!(!shown.contains("5a5a") && !shown.contains("90, 90"));
    }
}
