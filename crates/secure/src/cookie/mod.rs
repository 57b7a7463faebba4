//! Cookies: a stranger costs nothing before it has proven that it receives packets at its source address (WireGuard,
//! Donenfeld, NDSS 2017, §5.3 and §5.4.4, and RFC 9000 §8.1.2).
//!
//! - **mac1** is a keyed hash of the message under its receiver's public key. A sender that does not know that key gets
//!   no answer.
//! - **A cookie** is a keyed hash of the sender's address and port under a secret that changes every two minutes. The node
//!   computes it again whenever needed and stores nothing.
//! - **mac2** is a keyed hash of the message under the cookie. An INIT without a valid one is answered by a COOKIE of
//!   49 bytes, and costs neither state nor a Diffie-Hellman exchange. WireGuard asks for cookies only under load; here
//!   they are always required (ADR 3).
//!
//! ```text
//! COOKIE   version 1 | nonce 16 | sealed cookie 16 + tag 16
//! ```
//! Every cookie is sealed with its own key, derived from the receiver's public key, the INIT's mac1 and the nonce: only
//! those who saw the INIT can open or make one. The cookie's format, and the positions of version, reply PID and both macs
//! in an INIT, are the same in every version, so that an old node can report its version to a new one.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anabranch_wire::{Pid, Span, Time};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::handshake::{INIT_MAC1_AT, INIT_MAC2_AT, INIT_PADDING_AT, VERSION, has_shape_of_init};
use crate::keys::PublicKey;
use crate::secret;

/// Bytes of mac1, of mac2 and of a cookie.
pub(crate) const MAC_LEN: usize = 16;
/// Lifetime of a cookie secret; a cookie is valid in its own and the next such period.
const ROTATION: Span = Span::from_secs(120);
const NONCE_LEN: usize = 16;
const TAG_LEN: usize = 16;
const COOKIE_BODY_LEN: usize = 1 + NONCE_LEN + MAC_LEN + TAG_LEN;

/// Proof that its holder receives at one address. A client stores one for each candidate path.
#[derive(Clone)]
pub struct Cookie(Zeroizing<[u8; MAC_LEN]>);

impl Cookie {
    /// True if the server opens no session over this route: its data cap there is used up.
    pub fn is_denial(&self) -> bool {
        secret::is_same(self.0.as_slice(), &[0; MAC_LEN])
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie(not shown)")
    }
}

/// Why a COOKIE was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CookieError {
    /// It does not answer this INIT.
    #[error("cookie is not authentic")]
    NotAuthentic,
    /// The server does not speak this version.
    #[error(
        "the remote node speaks version {0} of the protocol, this one version {VERSION}: update the older"
    )]
    Version(u8),
}

/// The decision about an INIT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The address is proven: continue with [`crate::read_init`].
    Proceed,
    /// Send this COOKIE back to the INIT's source, and store nothing.
    Challenge {
        /// PID for its header.
        pid: Pid,
        /// The bytes after the header: 49.
        body: Vec<u8>,
    },
    /// Send nothing, count it.
    Drop(DropReason),
}

/// Why an INIT gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropReason {
    /// Not the length of an INIT, or padded with other bytes than zeros.
    Malformed,
    /// Its sender does not know this node's public key.
    Mac1,
}

/// A node's cookies. Stores two keys, however many strangers there are.
#[derive(Clone)]
pub struct CookieJar {
    secret: Zeroizing<[u8; 32]>,
    public: PublicKey,
    mac1_key: [u8; 32],
}

impl fmt::Debug for CookieJar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieJar(secret not shown)")
    }
}

impl CookieJar {
    /// A jar for the node with this key; `random` are 32 fresh random bytes, wiped here.
    pub fn new(public: PublicKey, random: [u8; 32]) -> Self {
        let random = secret::take(random);
        let secret = secret::derive("anabranch 2026 cookie secret", &[random.as_slice()]);
        Self { secret, public, mac1_key: mac1_key(&public) }
    }

    /// Decides about the body of an INIT from an address at a time. Costs a few hashes.
    #[must_use]
    pub fn admit(&self, now: Time, from: SocketAddr, body: &[u8]) -> Admission {
        if !has_shape_of_init(body) {
            return Admission::Drop(DropReason::Malformed);
        }
        if !mac1_is_right(&self.mac1_key, &body[..INIT_MAC2_AT]) {
            return Admission::Drop(DropReason::Mac1);
        }
        let period = now.as_nanos() / ROTATION.as_nanos();
        if body[0] == VERSION && self.is_proven(period, from, body) {
            return Admission::Proceed;
        }
        let cookie = self.cookie(period, from);
        Admission::Challenge { pid: reply_pid(body), body: self.seal(&cookie, (period, from), body) }
    }

    /// A COOKIE of zeros for an INIT that [`CookieJar::admit`] admitted: no session is opened over its route. The PID is
    /// for its header.
    pub fn deny(&self, now: Time, from: SocketAddr, body: &[u8]) -> (Pid, Vec<u8>) {
        let period = now.as_nanos() / ROTATION.as_nanos();
        let denial = Cookie(Zeroizing::new([0; MAC_LEN]));
        (reply_pid(body), self.seal(&denial, (period, from), body))
    }

    /// Whether mac2 was made with a cookie of this or the previous period. A zero mac2 asks for a cookie.
    fn is_proven(&self, period: u64, from: SocketAddr, body: &[u8]) -> bool {
        let mac = &body[INIT_MAC2_AT..INIT_PADDING_AT];
        let fresh = [Some(period), period.checked_sub(1)].into_iter().flatten();
        let fits = |period| secret::is_same(&mac2(&self.cookie(period, from), body), mac);
        mac != [0; MAC_LEN] && fresh.into_iter().any(fits)
    }

    /// The secret of one period, which looks random without the jar's secret.
    fn period_key(&self, period: u64) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(*blake3::keyed_hash(&self.secret, &period.to_be_bytes()).as_bytes())
    }

    fn cookie(&self, period: u64, from: SocketAddr) -> Cookie {
        Cookie(Zeroizing::new(first_bytes(&blake3::keyed_hash(
            &self.period_key(period),
            &address_bytes(from),
        ))))
    }

    /// The nonce is derived from the secret, the INIT and the cookie. So a COOKIE needs no randomness, and a key never
    /// seals two different cookies.
    fn seal(&self, cookie: &Cookie, (period, from): (u64, SocketAddr), body: &[u8]) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new_keyed(&self.period_key(period));
        let label: &[u8] = if cookie.is_denial() { b"denial" } else { b"nonce" };
        hasher.update(label);
        hasher.update(&address_bytes(from));
        hasher.update(mac1_of_init(body));
        let nonce: [u8; NONCE_LEN] = first_bytes(&hasher.finalize());
        let mut sealed = *cookie.0;
        let key = seal_key(&self.public, mac1_of_init(body), &nonce);
        let tag = key.seal_in_place_separate_tag(zero_nonce(), Aad::from([VERSION]), &mut sealed);
        let tag = tag.expect("a cookie is shorter than the cipher's limit");
        let mut out = Vec::with_capacity(COOKIE_BODY_LEN);
        out.push(VERSION);
        out.extend_from_slice(&nonce);
        out.extend_from_slice(&sealed);
        out.extend_from_slice(tag.as_ref());
        out
    }
}

/// The PID that an INIT names for its answer.
fn reply_pid(init: &[u8]) -> Pid {
    init[1..].first_chunk().map_or(Pid::HANDSHAKE, |pid| Pid(u64::from_be_bytes(*pid)))
}

/// Opens a COOKIE that answers `init`.
pub(crate) fn open(remote: &PublicKey, init: &[u8], body: &[u8]) -> Result<Cookie, CookieError> {
    let body: &[u8; COOKIE_BODY_LEN] = body.try_into().map_err(|_| CookieError::NotAuthentic)?;
    let (version, nonce) = (body[0], body[1..].first_chunk().ok_or(CookieError::NotAuthentic)?);
    let (sealed, tag) = body[1 + NONCE_LEN..].split_at(MAC_LEN);
    let mut cookie = Zeroizing::new([0; MAC_LEN]);
    seal_key(remote, mac1_of_init(init), nonce)
        .open_separate_gather(zero_nonce(), Aad::from([version]), sealed, tag, cookie.as_mut_slice())
        .map_err(|_| CookieError::NotAuthentic)?;
    if version != VERSION {
        return Err(CookieError::Version(version));
    }
    Ok(Cookie(cookie))
}

/// Writes mac1 of all bytes before it into the last bytes of `message`.
pub(crate) fn put_mac1(receiver: &PublicKey, message: &mut [u8]) {
    let (text, mac) = message.split_at_mut(message.len() - MAC_LEN);
    mac.copy_from_slice(&mac1(&mac1_key(receiver), text));
}

/// Whether `message` ends with its mac1.
pub(crate) fn mac1_is_right(key: &[u8; 32], message: &[u8]) -> bool {
    let (text, mac) = message.split_at(message.len() - MAC_LEN);
    secret::is_same(&mac1(key, text), mac)
}

/// The key of mac1 for messages to `receiver`.
pub(crate) fn mac1_key(receiver: &PublicKey) -> [u8; 32] {
    blake3::derive_key("anabranch 2026 mac1", receiver.as_bytes())
}

/// Writes mac2 into an INIT that has its mac1.
pub(crate) fn put_mac2(cookie: &Cookie, init: &mut [u8]) {
    let mac = mac2(cookie, init);
    init[INIT_MAC2_AT..INIT_PADDING_AT].copy_from_slice(&mac);
}

fn mac1(key: &[u8; 32], text: &[u8]) -> [u8; MAC_LEN] {
    first_bytes(&blake3::keyed_hash(key, text))
}

/// Covers all of the INIT by covering its mac1.
fn mac2(cookie: &Cookie, init: &[u8]) -> [u8; MAC_LEN] {
    let mut key = Zeroizing::new([0; 32]);
    key[..MAC_LEN].copy_from_slice(cookie.0.as_slice());
    first_bytes(&blake3::keyed_hash(&key, mac1_of_init(init)))
}

fn mac1_of_init(init: &[u8]) -> &[u8] {
    &init[INIT_MAC1_AT..INIT_MAC2_AT]
}

fn seal_key(receiver: &PublicKey, mac1: &[u8], nonce: &[u8; NONCE_LEN]) -> LessSafeKey {
    let mut hasher = blake3::Hasher::new_derive_key("anabranch 2026 cookie seal");
    hasher.update(receiver.as_bytes());
    hasher.update(mac1);
    hasher.update(nonce);
    let key = UnboundKey::new(&AES_256_GCM, hasher.finalize().as_bytes());
    LessSafeKey::new(key.expect("an AES-256 key has 32 bytes"))
}

/// Each key seals one cookie only.
fn zero_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

/// Address and port, equal for an IPv4 address and its IPv6-mapped form.
fn address_bytes(address: SocketAddr) -> [u8; 18] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; 18];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

fn first_bytes<const N: usize>(hash: &blake3::Hash) -> [u8; N] {
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

#[cfg(test)]
mod tests;
