//! The question "did you issue this PID?" and its answer, as datagrams.
//!
//! ```text
//! RelayChallenge   header, PID asked about (16) | reference (8) | token (8) | mac (16)     48 bytes
//! RelayResponse    header, the same PID (16)    | reference (8) | token (8)                32 bytes
//! ```
//! Only the relay uses reference and token. The answer is shorter than the question, and only the issuer of the PID
//! sends it. Without a PID, the question is about [`Pid::HANDSHAKE`]: "may first handshake messages be sent here?" A
//! node that accepts sessions answers it, and only if the mac shows that the sender knows the node's public key, so
//! that strangers cannot search for nodes. In all other questions the mac is zero.

use anabranch_wire::{Header, Kind, Pid};

use crate::keys::PublicKey;
use crate::secret;

/// Bytes of a challenge, as UDP payload.
pub const CHALLENGE_LEN: usize = Header::LEN + 32;
/// Bytes of a response, as UDP payload.
pub const RESPONSE_LEN: usize = Header::LEN + 16;

/// Fields that the answer repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Identifies the subject of the relay's question.
    pub reference: u64,
    /// Identifies the round of questions.
    pub token: u64,
}

/// The datagram that asks about a PID; `next_hop` is required for [`Pid::HANDSHAKE`].
pub fn challenge(pid: Pid, question: Question, next_hop: Option<&PublicKey>) -> [u8; CHALLENGE_LEN] {
    let mut datagram = [0; CHALLENGE_LEN];
    header(Kind::RelayChallenge, pid).encode(&mut datagram);
    datagram[16..24].copy_from_slice(&question.reference.to_be_bytes());
    datagram[24..32].copy_from_slice(&question.token.to_be_bytes());
    if let (Pid::HANDSHAKE, Some(key)) = (pid, next_hop) {
        let mac = mac(key, &datagram[16..32]);
        datagram[32..].copy_from_slice(&mac);
    }
    datagram
}

/// The answer to a challenge; `None` without one. `issued` returns whether this node issued a PID for packets from the
/// challenge's source; `takes_sessions` is its own key if it accepts sessions from others.
pub fn answer_challenge(
    datagram: &[u8],
    issued: impl FnOnce(Pid) -> bool,
    takes_sessions: Option<&PublicKey>,
) -> Option<[u8; RESPONSE_LEN]> {
    let (asked, body) = Header::decode(datagram).ok()?;
    answer(&asked, body, issued, takes_sessions)
}

/// As [`answer_challenge`], for a datagram whose header is already decoded.
pub fn answer(
    asked: &Header,
    body: &[u8],
    issued: impl FnOnce(Pid) -> bool,
    takes_sessions: Option<&PublicKey>,
) -> Option<[u8; RESPONSE_LEN]> {
    let body: &[u8; CHALLENGE_LEN - Header::LEN] = body.try_into().ok()?;
    if asked.kind != Kind::RelayChallenge {
        return None;
    }
    let (question, shown) = body.split_at(16);
    let agreed = match asked.pid {
        Pid::HANDSHAKE => takes_sessions.is_some_and(|key| secret::is_same(&mac(key, question), shown)),
        pid => issued(pid),
    };
    agreed.then(|| {
        let mut response = [0; RESPONSE_LEN];
        header(Kind::RelayResponse, asked.pid).encode(&mut response);
        response[16..].copy_from_slice(question);
        response
    })
}

/// The question that a response answers, from the bytes after its header; `None` when they are not a response.
pub fn read_response(body: &[u8]) -> Option<Question> {
    let body: &[u8; 16] = body.try_into().ok()?;
    let (reference, token) = body.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Some(Question { reference: number(reference), token: number(token) })
}

fn header(kind: Kind, pid: Pid) -> Header {
    Header { kind, key_phase: false, tos: 0, hop_limit: 0, pid, fsn: 0 }
}

fn mac(key: &PublicKey, question: &[u8]) -> [u8; 16] {
    let key = blake3::derive_key("anabranch 2026 relay challenge", key.as_bytes());
    let hash = blake3::keyed_hash(&key, question);
    let (mac, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    *mac
}
