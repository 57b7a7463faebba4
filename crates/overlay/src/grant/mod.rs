//! Grants: permissions to use relays, with limits and an end.
//!
//! A controller signs a grant with its Ed25519 key. Relays pin that key and check grants offline, inside the client's
//! session, so a stolen grant is useless without the client's secret key. A grant names no destination. A relay counts
//! bytes by grant id until the grant ends, so showing it twice, or after a reconnect, adds nothing. The controller's
//! heartbeats bring revocations and the time of day ([`WallClock`]).
//!
//! A guest needs no grant: it holds a ticket, and the ticket's maker has registered the matching secret at its relay
//! ([`GuestSecret`]).

mod clock;
mod guest;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use anabranch_secure::PublicKey;
use anabranch_wire::{Header, Rate, Reader, Span};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

pub use clock::{ClockVerdict, Leap, UnixTime, WallClock};
pub use guest::GuestSecret;

use crate::codec::MessageError;

/// Most relays that a grant may name.
pub const MAX_GRANT_RELAYS: usize = 16;
/// Longest encoded grant, in bytes.
pub const MAX_GRANT_LEN: usize = FIXED_LEN + 32 * MAX_GRANT_RELAYS + SIGNATURE_LEN;
/// Longest validity in seconds; relays remember usage of a grant for that long.
pub const MAX_VALIDITY: u64 = 31 * 86_400;

const VERSION: u8 = 1;
const FIXED_LEN: usize = 1 + 16 + 32 + 1 + 4 + 8 + 8 + 1 + 3 * 8;
const SIGNATURE_LEN: usize = 64;
/// Context of the signature, so that no other signature of the key passes for a grant.
const CONTEXT: &[u8] = b"anabranch 2026 grant\0";

/// Names a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantId(pub [u8; 16]);

/// 32 hexadecimal digits.
impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for GrantId {
    type Err = MessageError;

    fn from_str(text: &str) -> Result<Self, MessageError> {
        let wrong = MessageError::Invalid("grant id");
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| digits).ok_or(wrong)?;
        Ok(Self(number.to_be_bytes()))
    }
}

/// Limits of a key at a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Most PIDs at a time; a path takes two, one for each direction.
    pub pids: u32,
    /// Rate of forwarded bytes, both directions together.
    #[serde(with = "bits")]
    pub rate: Rate,
    /// Bytes of UDP payload that may be forwarded in total.
    pub bytes: u64,
    /// The highest type of service that counts; higher ones are treated as this one.
    #[serde(rename = "tos")]
    pub highest_tos: u8,
}

/// A rate as a number of bits a second.
mod bits {
    use anabranch_wire::Rate;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(rate: &Rate, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(rate.as_bits())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Rate, D::Error> {
        u64::deserialize(from).map(Rate::from_bits)
    }
}

/// A permission to use relays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub id: GrantId,
    /// The client that it is for.
    pub client: PublicKey,
    /// The relays that it is valid at; empty for every relay that pins the controller. At most [`MAX_GRANT_RELAYS`].
    pub relays: Vec<PublicKey>,
    /// The limits at each relay.
    pub limits: Limits,
    /// When it was signed.
    pub issued: UnixTime,
    /// When its validity starts.
    pub not_before: UnixTime,
    /// When it ends; at most [`MAX_VALIDITY`] after `not_before`.
    pub not_after: UnixTime,
}

/// Why a grant is not valid here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The bytes are no grant.
    #[error("malformed grant: {0}")]
    Malformed(#[from] MessageError),
    /// The signature is invalid, or of an unknown controller.
    #[error("no controller that this relay trusts has signed the grant")]
    Signature,
    /// It is for another client.
    #[error("the grant belongs to another key")]
    OtherClient,
    #[error("the grant is for other relays")]
    OtherRelay,
    /// Its validity has not started.
    #[error("the grant is valid only in {}: are the clocks right?", Span::from_secs(*.0).in_words())]
    NotYet(u64),
    #[error("the grant expired {} ago: ask the controller for a new one", Span::from_secs(*.0).in_words())]
    Expired(u64),
    /// The controller has revoked it.
    #[error("the controller has revoked the grant")]
    Revoked,
}

/// A controller's public signing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ControllerKey(pub [u8; 32]);

/// Prefix of a controller's key in text form.
const CONTROLLER_PREFIX: &str = "abs1";

/// `abs1` and 64 hexadecimal digits.
impl fmt::Display for ControllerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CONTROLLER_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for ControllerKey {
    type Err = MessageError;

    fn from_str(text: &str) -> Result<Self, MessageError> {
        let wrong = MessageError::Invalid("controller's signing key");
        let digits = text.strip_prefix(CONTROLLER_PREFIX).ok_or(wrong)?;
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong);
        }
        let mut key = [0; 32];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| wrong)?;
        }
        Ok(Self(key))
    }
}

/// The secret half of a [`ControllerKey`].
pub struct GrantSigner(Ed25519KeyPair);

impl GrantSigner {
    /// The key of 32 random bytes; the caller's copy is wiped.
    pub fn from_random(mut seed: [u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("any 32 bytes are a seed");
        seed.zeroize();
        Self(pair)
    }

    /// The public key, which relays and nodes pin.
    pub fn public(&self) -> ControllerKey {
        ControllerKey(self.0.public_key().as_ref().try_into().expect("32 bytes"))
    }

    /// Signs a grant and returns it as bytes.
    pub fn sign(&self, grant: &Grant) -> Result<Vec<u8>, MessageError> {
        check_fields(grant)?;
        let mut bytes = Vec::with_capacity(MAX_GRANT_LEN);
        bytes.push(VERSION);
        bytes.extend_from_slice(&grant.id.0);
        bytes.extend_from_slice(grant.client.as_bytes());
        bytes.push(grant.relays.len() as u8);
        for relay in &grant.relays {
            bytes.extend_from_slice(relay.as_bytes());
        }
        bytes.extend_from_slice(&grant.limits.pids.to_be_bytes());
        bytes.extend_from_slice(&grant.limits.rate.as_bits().to_be_bytes());
        bytes.extend_from_slice(&grant.limits.bytes.to_be_bytes());
        bytes.push(grant.limits.highest_tos);
        for time in [grant.issued, grant.not_before, grant.not_after] {
            bytes.extend_from_slice(&time.0.to_be_bytes());
        }
        let signature = self.0.sign(&signed_message(&bytes));
        bytes.extend_from_slice(signature.as_ref());
        Ok(bytes)
    }
}

impl fmt::Debug for GrantSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantSigner({:?}, secret not shown)", self.public())
    }
}

/// Decodes a grant and checks that one of `controllers` has signed it. [`judge`] checks the rest.
pub fn open(bytes: &[u8], controllers: &[ControllerKey]) -> Result<Grant, GrantError> {
    open_signed(bytes, controllers).map(|(grant, _)| grant)
}

/// As [`open`]; also returns the controller that has signed it.
pub fn open_signed(
    bytes: &[u8],
    controllers: &[ControllerKey],
) -> Result<(Grant, ControllerKey), GrantError> {
    let grant = decode(bytes)?;
    let (body, signature) = bytes.split_at(bytes.len() - SIGNATURE_LEN);
    let message = signed_message(body);
    let signed =
        |key: &&ControllerKey| UnparsedPublicKey::new(&ED25519, key.0).verify(&message, signature).is_ok();
    let signer = controllers.iter().find(signed).ok_or(GrantError::Signature)?;
    Ok((grant, *signer))
}

/// Decodes a grant without checking its signature, for its holder; a relay [opens](open) it.
pub fn read_own(bytes: &[u8]) -> Result<Grant, MessageError> {
    decode(bytes)
}

/// Checks whether a grant is valid for this client, at this relay, now.
///
/// # Errors
/// Every reason but [`GrantError::Malformed`], [`GrantError::Signature`] and [`GrantError::Revoked`].
pub fn judge(
    grant: &Grant,
    (client, relay): (&PublicKey, &PublicKey),
    (now, tolerance): (UnixTime, u64),
) -> Result<(), GrantError> {
    if grant.client != *client {
        return Err(GrantError::OtherClient);
    }
    if !grant.relays.is_empty() && !grant.relays.contains(relay) {
        return Err(GrantError::OtherRelay);
    }
    if now.0.saturating_add(tolerance) < grant.not_before.0 {
        return Err(GrantError::NotYet(grant.not_before.0 - now.0));
    }
    if now.0 > grant.not_after.0.saturating_add(tolerance) {
        return Err(GrantError::Expired(now.0 - grant.not_after.0));
    }
    Ok(())
}

fn decode(bytes: &[u8]) -> Result<Grant, MessageError> {
    if bytes.len() > MAX_GRANT_LEN {
        return Err(MessageError::TooLong(bytes.len()));
    }
    let mut reader = Reader::new(bytes);
    if reader.u8("grant's version")? != VERSION {
        return Err(MessageError::Invalid("grant's version"));
    }
    let id = GrantId(reader.array("grant id")?);
    let client = PublicKey::from_bytes(reader.array("client's key")?);
    let count = usize::from(reader.u8("number of relays")?);
    if count > MAX_GRANT_RELAYS {
        return Err(MessageError::Invalid("number of relays"));
    }
    let relays = (0..count)
        .map(|_| reader.array("relay's key").map(PublicKey::from_bytes))
        .collect::<Result<_, _>>()?;
    let limits = Limits {
        pids: reader.u32("number of PIDs")?,
        rate: Rate::from_bits(reader.u64("rate")?),
        bytes: reader.u64("bytes")?,
        highest_tos: reader.u8("type of service")?,
    };
    let mut time = || reader.u64("time").map(UnixTime);
    let (issued, not_before, not_after) = (time()?, time()?, time()?);
    reader.bytes("signature", SIGNATURE_LEN)?;
    reader.end()?;
    let grant = Grant { id, client, relays, limits, issued, not_before, not_after };
    check_fields(&grant)?;
    Ok(grant)
}

fn check_fields(grant: &Grant) -> Result<(), MessageError> {
    let validity = grant.not_after.0.checked_sub(grant.not_before.0);
    if grant.relays.len() > MAX_GRANT_RELAYS {
        Err(MessageError::Invalid("number of relays"))
    } else if grant.limits.highest_tos > Header::MAX_TOS {
        Err(MessageError::Invalid("type of service"))
    } else if validity.is_none_or(|seconds| seconds > MAX_VALIDITY) {
        Err(MessageError::Invalid("validity"))
    } else {
        Ok(())
    }
}

fn signed_message(body: &[u8]) -> Vec<u8> {
    [CONTEXT, body].concat()
}
