//! The question "did you issue this PID?" and its answer, as datagrams.
//!
//! ```text
//! RelayChallenge   header, PID asked about (16) | reference (8) | token (8) | mac (16)     48 bytes
//! RelayResponse    header, the same PID (16)    | reference (8) | token (8)                32 bytes
//! ```
//! Reference and token mean something to the relay alone. The answer is shorter than the question, and only the issuer of the
//! PID gives it. While there is no PID yet, the question is about [`Pid::HANDSHAKE`]: "may first handshake messages come this way?"
//! It is answered by a node that takes sessions, and only if the mac shows that whoever asks knows the node's public key,
//! so that strangers cannot search for nodes. In all other questions the mac is zero.

use anabranch_wire::{Header, Kind, Pid};

use crate::keys::PublicKey;
use crate::secret;

/// Bytes of a challenge, as UDP payload.
pub const CHALLENGE_LEN: usize = Header::LEN + 32;
/// Bytes of a response, as UDP payload.
pub const RESPONSE_LEN: usize = Header::LEN + 16;

/// What a relay wants to hear again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Where the relay finds what it asked about.
    pub reference: u64,
    /// Of the round of questions.
    pub token: u64,
}

/// The datagram that asks about a PID; `next_hop` is needed for [`Pid::HANDSHAKE`].
#[must_use]
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

/// The answer to a challenge, for a node that is asked: `issued` tells whether it gave out a PID for packets from
/// where the challenge came from; `takes_sessions` is its own key if it takes sessions from others. `None`: say nothing.
pub fn answer_challenge(
    datagram: &[u8],
    issued: impl FnOnce(Pid) -> bool,
    takes_sessions: Option<&PublicKey>,
) -> Option<[u8; RESPONSE_LEN]> {
    let (asked, body) = Header::decode(datagram).ok()?;
    answer((&asked, body), issued, takes_sessions)
}

/// As [`answer_challenge`], of a datagram whose header was read already.
pub fn answer(
    (asked, body): (&Header, &[u8]),
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

/// What a response answers, from what follows its header; `None` when it is none.
#[must_use]
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
