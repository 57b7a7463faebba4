//! Bytes as text for people to copy: a prefix for the kind of text, lower-case base32, and a checksum that distinguishes a
//! typing mistake from a wrong key.

use data_encoding::{BASE32_NOPAD, DecodeError, DecodeKind};
use zeroize::Zeroizing;

use crate::secret;

/// Why a text is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The prefix is wrong.
    #[error("does not begin with `{0}`")]
    Prefix(&'static str),
    /// A character that base32 does not use.
    #[error("holds a character that does not belong there: was it copied whole?")]
    Alphabet,
    /// Cut off, or too long.
    #[error("has the wrong length: was it copied whole?")]
    Length,
    /// The checksum does not match.
    #[error("has a checksum that does not match: was it copied whole?")]
    Checksum,
}

/// The first bytes of the hash of the text's prefix and contents.
fn checksum<const N: usize>(prefix: &str, bytes: &[u8]) -> [u8; N] {
    let len = (prefix.len() as u64).to_le_bytes();
    *secret::derive("anabranch 2026 text checksum", &[&len, prefix.as_bytes(), bytes])
}

/// `bytes` and an `N`-byte checksum in base32, after `prefix`.
pub(crate) fn encode<const N: usize>(prefix: &str, bytes: &[u8]) -> Zeroizing<String> {
    let mut all = Zeroizing::new(Vec::with_capacity(bytes.len() + N));
    all.extend_from_slice(bytes);
    all.extend_from_slice(&checksum::<N>(prefix, bytes));
    let upper = Zeroizing::new(BASE32_NOPAD.encode(&all));
    let mut text = Zeroizing::new(String::with_capacity(prefix.len() + upper.len()));
    text.push_str(prefix);
    text.extend(upper.chars().map(|c| c.to_ascii_lowercase()));
    text
}

/// Reverses [`encode`]. Ignores case and white space (from a line broken by a terminal or a mail). The caller limits the
/// length of `text`.
pub(crate) fn decode<const N: usize>(
    prefix: &'static str,
    text: &str,
) -> Result<Zeroizing<Vec<u8>>, TextError> {
    let mut upper = Zeroizing::new(String::with_capacity(text.len()));
    upper.extend(text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_ascii_uppercase()));
    let prefix_upper = prefix.to_ascii_uppercase();
    let rest = upper.strip_prefix(&prefix_upper).ok_or(TextError::Prefix(prefix))?;
    let wrong = |error: DecodeError| match error.kind {
        DecodeKind::Length | DecodeKind::Trailing => TextError::Length,
        _ => TextError::Alphabet,
    };
    // Wiped even when the text turns out to be malformed.
    let mut bytes = Zeroizing::new(vec![0; BASE32_NOPAD.decode_len(rest.len()).map_err(wrong)?]);
    let decoded = BASE32_NOPAD.decode_mut(rest.as_bytes(), &mut bytes);
    decoded.map_err(|part| wrong(part.error))?;
    let len = bytes.len().checked_sub(N).ok_or(TextError::Length)?;
    if bytes[len..] != checksum::<N>(prefix, &bytes[..len]) {
        return Err(TextError::Checksum);
    }
    bytes.truncate(len);
    Ok(bytes)
}
