//! The handshake: Noise `IKpsk2` (Noise specification rev. 34, §7.5 and §9), two messages that carry the session's
//! parameters encrypted.
//!
//! ```text
//! INIT     version 1 | reply PID 8 | Noise message 1, 363 | mac1 16 | mac2 16 | zeros to 1184 bytes
//!   Noise payload: credential 1 (0 none, 1 ticket) | share 8 | length 2 | parameters | zeros to 267
//! INIT ACK version 1 | Noise message 2, 307 | mac1 16 | zeros to 1184 bytes
//!   Noise payload: status 1 (0 accepted, else a refusal) | length 2 | parameters | zeros to 259
//! ```
//! The padding is neither hashed nor encrypted, so that a flood of INITs costs as little as possible; it must be zeros.
//!
//! The pre-shared key is mixed in at the second message, so the responder selects it by the share in the first. Without a
//! ticket, and in a refusal, it is zero. A first message can be replayed: the responder's session is valid only after a
//! packet was opened under its keys.

mod initiator;
mod responder;

use std::fmt;

use anabranch_wire::Side;
use snow::{Builder, HandshakeState};
use zeroize::{Zeroize, Zeroizing};

pub use self::initiator::{Dial, Initiator};
pub use self::responder::{Accepted, PendingInit, read_init};
use crate::cookie::MAC_LEN;
use crate::keys::NodeKey;
use crate::noise::Resolver;
use crate::secret;
use crate::ticket::{ShareId, TicketSecret};

/// The protocol version, first byte of every handshake body.
pub const VERSION: u8 = 1;
/// Bytes of an INIT after the packet header. Together they fill a UDP payload of 1200 bytes, which shows that the path
/// carries that much and limits amplification (RFC 9000 §8.1, §14.1).
pub const INIT_BODY_LEN: usize = 1184;
/// Bytes of an INIT ACK after the packet header: equally long, to test the return path too.
pub const ACK_BODY_LEN: usize = 1184;
/// Longest encoding of the session parameters.
pub const MAX_PARAMS_LEN: usize = 256;

const PATTERN: &str = "Noise_IKpsk2_25519_AESGCM_SHA256";
const PROLOGUE: [u8; 10] = *b"anabranch\x01";
const PSK_POSITION: u8 = 2;
/// Version and reply PID.
const INIT_PREFIX_LEN: usize = 1 + 8;
/// Both keys of message 1 and its two tags; key and tag of message 2.
const NOISE_1_OVERHEAD: usize = 32 + 32 + 16 + 16;
const NOISE_2_OVERHEAD: usize = 32 + 16;
/// Credential and share.
const CREDENTIAL_LEN: usize = 1 + 8;
const PAYLOAD_1_LEN: usize = CREDENTIAL_LEN + 2 + MAX_PARAMS_LEN;
const PAYLOAD_2_LEN: usize = 1 + 2 + MAX_PARAMS_LEN;
const NOISE_1_LEN: usize = NOISE_1_OVERHEAD + PAYLOAD_1_LEN;
const NOISE_2_LEN: usize = NOISE_2_OVERHEAD + PAYLOAD_2_LEN;
/// Where mac1, mac2 and the padding of an INIT begin.
pub(crate) const INIT_MAC1_AT: usize = INIT_PREFIX_LEN + NOISE_1_LEN;
pub(crate) const INIT_MAC2_AT: usize = INIT_MAC1_AT + MAC_LEN;
pub(crate) const INIT_PADDING_AT: usize = INIT_MAC2_AT + MAC_LEN;
/// Where mac1 and the padding of an INIT ACK begin.
const ACK_MAC1_AT: usize = 1 + NOISE_2_LEN;
const ACK_PADDING_AT: usize = ACK_MAC1_AT + MAC_LEN;

/// Why a handshake message was not accepted, or could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Not the layout of such a message.
    #[error("malformed handshake message")]
    Malformed,
    /// Forged, damaged, meant for another node, or sealed with another ticket's secret. A client keeps waiting; if no valid
    /// message comes, its ticket or the node's key is wrong.
    #[error("handshake message is not authentic, or the ticket's secret is wrong")]
    NotAuthentic,
    /// The remote node, proven by its key, refused.
    #[error("the remote node refused: {0}")]
    Refused(Refusal),
    /// The parameters do not fit into the message.
    #[error("session parameters exceed {MAX_PARAMS_LEN} bytes")]
    ParamsTooLong,
    /// The public key cannot belong to a node.
    #[error("the public key is not a usable one")]
    BadPublicKey,
    /// An answer to a ticket needs that ticket's secret; an answer without a ticket must not have one.
    #[error("the secret does not fit the credential that was shown")]
    WrongCredential,
}

/// Why a node refuses a session. Only clients that know its public key receive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Neither the key nor a ticket allows anything here.
    NotAuthorised,
    /// The ticket is unknown, expired or revoked.
    TicketNotValid,
    /// No room for another session now.
    Busy,
    /// A reason unknown to this version.
    Other(u8),
}

impl Refusal {
    fn code(self) -> u8 {
        match self {
            Self::NotAuthorised => 1,
            Self::TicketNotValid => 2,
            Self::Busy => 3,
            Self::Other(code) => code.max(1),
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::NotAuthorised,
            2 => Self::TicketNotValid,
            3 => Self::Busy,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAuthorised => {
                f.write_str("this node's key is not authorised there, and no ticket was shown")
            }
            Self::TicketNotValid => {
                f.write_str("the ticket is unknown, expired or revoked: ask for a new one")
            }
            Self::Busy => f.write_str("it has no room for another session: try again later"),
            Self::Other(code) => write!(f, "reason {code}"),
        }
    }
}

/// The secrets that both ends share after a handshake, one for each direction. Wiped when dropped.
#[derive(Clone)]
pub struct SessionKeys {
    pub(crate) send: Zeroizing<[u8; 32]>,
    pub(crate) receive: Zeroizing<[u8; 32]>,
    /// Which end these keys are for.
    pub(crate) side: Side,
    /// Hash of the whole handshake: the same at both ends, different for every session, not secret.
    pub id: [u8; 32],
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys(not shown)")
    }
}

/// Identifies an INIT before anything is decrypted: equal for the copies that a client sends over its candidate paths and
/// repeats, different for any other. Answer a known one with the same INIT ACK instead of starting a second session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InitId([u8; 16]);

impl InitId {
    /// The id of the INIT in `body`; `None` when it is not an INIT.
    pub fn of(body: &[u8]) -> Option<Self> {
        let message = init_message(body)?;
        let hash = blake3::derive_key("anabranch 2026 init id", message);
        hash.first_chunk().copied().map(Self)
    }
}

fn builder<'a>(local: &'a NodeKey, seed: &Zeroizing<[u8; 32]>) -> Builder<'a> {
    let pattern = PATTERN.parse().expect("the pattern is one that snow knows");
    let builder = Builder::with_resolver(pattern, Box::new(Resolver::new(seed)));
    let builder = builder.local_private_key(local.secret());
    builder.and_then(|builder| builder.prologue(&PROLOGUE)).expect("each is set once")
}

/// The Noise message of an INIT; `None` when it is not an INIT of this version.
fn init_message(body: &[u8]) -> Option<&[u8]> {
    let ours = has_shape_of_init(body) && body[0] == VERSION;
    ours.then(|| &body[INIT_PREFIX_LEN..INIT_MAC1_AT])
}

/// Whether length and padding are those of an INIT of any version.
pub(crate) fn has_shape_of_init(body: &[u8]) -> bool {
    body.len() == INIT_BODY_LEN && is_zero(&body[INIT_PADDING_AT..])
}

fn is_zero(padding: &[u8]) -> bool {
    padding.iter().fold(0, |all, byte| all | byte) == 0
}

/// Writes the length, then the parameters.
fn put_params(out: &mut [u8], params: &[u8]) -> Result<(), HandshakeError> {
    let len = u16::try_from(params.len()).ok().filter(|len| usize::from(*len) <= MAX_PARAMS_LEN);
    let len = len.ok_or(HandshakeError::ParamsTooLong)?;
    out[..2].copy_from_slice(&len.to_be_bytes());
    out[2..2 + params.len()].copy_from_slice(params);
    Ok(())
}

/// Reverses [`put_params`]; the bytes after the parameters are padding.
fn params_in(payload: &[u8]) -> Result<Vec<u8>, HandshakeError> {
    let (len, rest) = payload.split_first_chunk::<2>().ok_or(HandshakeError::Malformed)?;
    let len = usize::from(u16::from_be_bytes(*len));
    let params = rest.get(..len).filter(|params| params.len() <= MAX_PARAMS_LEN);
    params.map(<[u8]>::to_vec).ok_or(HandshakeError::Malformed)
}

/// The pre-shared key of a share: Noise needs 32 bytes, and two shares must not have the same.
pub(crate) fn derive_psk(share: ShareId, ticket: &TicketSecret) -> Zeroizing<[u8; 32]> {
    secret::derive("anabranch 2026 ticket pre-shared key", &[&share.0.to_be_bytes(), ticket.expose()])
}

/// The keys from the initiator's point of view.
fn session_keys(noise: &mut HandshakeState) -> SessionKeys {
    let (mut to_server, mut to_client) = noise.dangerously_get_raw_split();
    let (send, receive) = (Zeroizing::new(to_server), Zeroizing::new(to_client));
    to_server.zeroize();
    to_client.zeroize();
    let mut id = [0; 32];
    id.copy_from_slice(noise.get_handshake_hash());
    SessionKeys { send, receive, side: Side::Client, id }
}

#[cfg(test)]
mod tests;
