//! Hashes of whole files: given by the user, by a Metalink or by the server.

use std::fmt;
use std::io::Read;
use std::str::FromStr;

use aws_lc_rs::digest::{self, Algorithm};
use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};

/// A hash that a file must have.
#[derive(Clone, PartialEq, Eq)]
pub struct Checksum {
    algorithm: &'static Algorithm,
    hash: Vec<u8>,
}

/// Known hashes, the strongest first.
static ALGORITHMS: [(&str, &Algorithm); 4] = [
    ("sha-512", &digest::SHA512),
    ("sha-384", &digest::SHA384),
    ("sha-256", &digest::SHA256),
    ("sha-1", &digest::SHA1_FOR_LEGACY_USE_ONLY),
];

fn algorithm(name: &str) -> Option<&'static Algorithm> {
    let plain = |name: &str| name.to_ascii_lowercase().replace('-', "");
    ALGORITHMS.iter().find(|(known, _)| plain(known) == plain(name)).map(|(_, algorithm)| *algorithm)
}

impl Checksum {
    /// A hash by the name of its function and its hexadecimal digits; `None` if either is unknown or wrong.
    pub fn from_hex(name: &str, hex: &str) -> Option<Self> {
        let algorithm = algorithm(name.trim())?;
        let hash = HEXLOWER_PERMISSIVE.decode(hex.trim().as_bytes()).ok()?;
        (hash.len() == algorithm.output_len()).then_some(Self { algorithm, hash })
    }

    /// Whether the function of this name is known.
    pub fn knows(name: &str) -> bool {
        algorithm(name.trim()).is_some()
    }

    /// Reads `Repr-Digest` (RFC 9530) or `Digest` (RFC 3230); the strongest known hash of several.
    pub fn from_digest_header(text: &str) -> Option<Self> {
        let parts = text.split(',').filter_map(|part| part.trim().split_once('='));
        let known = parts.filter_map(|(name, value)| {
            let algorithm = algorithm(name)?;
            let hash = BASE64.decode(value.trim_matches(':').as_bytes()).ok()?;
            (hash.len() == algorithm.output_len()).then_some(Self { algorithm, hash })
        });
        known.filter(Self::is_strong).max_by_key(|checksum| checksum.hash.len())
    }

    /// Whether `other` is of another file; `None` if they are of different functions.
    pub fn differs(&self, other: &Self) -> Option<bool> {
        (self.algorithm == other.algorithm).then(|| self.hash != other.hash)
    }

    /// Whether no one can make another file with this hash.
    pub fn is_strong(&self) -> bool {
        self.algorithm != &digest::SHA1_FOR_LEGACY_USE_ONLY
    }

    /// Hashes everything in `from`; returns whether the hash is this one.
    pub fn fits(&self, mut from: impl Read) -> std::io::Result<bool> {
        let mut context = digest::Context::new(self.algorithm);
        let mut buffer = vec![0; 1 << 20];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(context.finish().as_ref() == self.hash),
                Ok(len) => context.update(&buffer[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = text.split_once(['=', ':']).and_then(|(name, hex)| Self::from_hex(name, hex));
        read.ok_or_else(|| {
            format!("`{text}` is no checksum; write sha-256=HEX, or sha-512, sha-384 or sha-1")
        })
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ALGORITHMS.iter().find(|(_, known)| *known == self.algorithm).map_or("", |(name, _)| name);
        write!(f, "{name}={}", HEXLOWER.encode(&self.hash))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_checksum_is_read_in_every_form_and_checked() {
        let given: Checksum = format!("SHA256={}", ABC.to_uppercase()).parse().unwrap();
        assert_eq!(given.to_string(), format!("sha-256={ABC}"));
        assert!(given.fits(&b"abc"[..]).unwrap());
        assert!(!given.fits(&b"abd"[..]).unwrap());
        let header = "md5=:xx:, sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:";
        assert_eq!(Checksum::from_digest_header(header), Some(given.clone()));
        let old = "SHA-256=ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=";
        assert_eq!(Checksum::from_digest_header(old), Some(given));
        for wrong in ["sha-256=ab", "md5=900150983cd24fb0d6963f7d28e17f72", "sha-256", ""] {
            assert!(wrong.parse::<Checksum>().is_err(), "{wrong}");
        }
    }
}
