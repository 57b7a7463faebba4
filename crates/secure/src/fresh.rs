//! Fresh exchanges: a new Diffie-Hellman secret for a running session.
//!
//! A thief of a session's secrets can follow their chain to the session's end. A secret made of two new key pairs ends
//! that: the client offers a public key, the server answers with one, and both mix the result into their key chains.
//! Only the client offers, so two ends never exchange twice at the same time. It offers again only after both directions
//! have taken the last secret; so there is at most one secret that a direction may take next.
//!
//! ```text
//! client   Resting --due--> Offered --answer--> Resting
//! server   Waiting --offer--> Owed --due--> Waiting
//! ```

use std::fmt;

use anabranch_wire::{KeyExchange, Side, Span, Time};
use zeroize::Zeroizing;

use crate::keys::NodeKey;
use crate::secret;

/// The secret of a fresh exchange. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct FreshSecret(Zeroizing<[u8; 32]>);

impl FreshSecret {
    /// The secret of `own` key pair and the peer's public key; `None` for a key of low order (RFC 7748 §6.1).
    fn agree(own: &NodeKey, peer: &[u8; 32], side: Side) -> Option<Self> {
        let shared = own.agree(peer)?;
        let own = own.public();
        let (offered, answered) = match side {
            Side::Client => (own.as_bytes(), peer),
            Side::Server => (peer, own.as_bytes()),
        };
        Some(Self(secret::derive("anabranch 2026 fresh secret", &[shared.as_slice(), offered, answered])))
    }

    pub(crate) fn from_bytes(bytes: Zeroizing<[u8; 32]>) -> Self {
        Self(bytes)
    }

    pub(crate) fn expose(&self) -> &[u8] {
        self.0.as_slice()
    }
}

impl fmt::Debug for FreshSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FreshSecret(not shown)")
    }
}

/// The peer sent a public key of low order, so its half cannot be used; the session must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent an unusable key")]
pub struct UnusableKey;

/// One end of a session's exchanges.
pub(crate) struct Exchange {
    side: Side,
    /// The number of the last exchange begun at the client, or answered at the server.
    number: u64,
    state: State,
}

/// See the picture above. Keys are boxed because sessions are many, and exchanges short.
enum State {
    Resting { until: Time },
    Offered { key: Box<NodeKey> },
    Waiting { until: Time },
    Owed { offer: Box<[u8; 32]>, until: Time },
}

impl Exchange {
    /// The first exchange of a session is due after `pause`.
    pub(crate) fn new(side: Side, now: Time, pause: Span) -> Self {
        let state = match side {
            Side::Client => State::Resting { until: now + pause },
            Side::Server => State::Waiting { until: now },
        };
        Self { side, number: 0, state }
    }

    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// When a half for the peer is due.
    pub(crate) fn due_at(&self) -> Time {
        match self.state {
            State::Resting { until } | State::Owed { until, .. } => until,
            State::Offered { .. } | State::Waiting { .. } => Time::NEVER,
        }
    }

    /// The half for the peer that is due, from a key pair made of `random`. A server gets the secret as well; it answers
    /// again at the earliest after half of `pause`, so that a peer costs it few exchanges.
    pub(crate) fn next_half(
        &mut self,
        now: Time,
        (random, pause): ([u8; 32], Span),
    ) -> Result<Option<(KeyExchange, Option<FreshSecret>)>, UnusableKey> {
        let random = secret::take(random);
        if now < self.due_at() {
            return Ok(None);
        }
        let key = NodeKey::from_random(*random);
        let fresh = match &self.state {
            State::Owed { offer, .. } => {
                let fresh = FreshSecret::agree(&key, offer, self.side).ok_or(UnusableKey)?;
                self.state = State::Waiting { until: now + pause / 2 };
                Some(fresh)
            }
            _ => None,
        };
        self.number += 1;
        let half = KeyExchange { number: self.number, key: *key.public().as_bytes() };
        if fresh.is_none() {
            self.state = State::Offered { key: Box::new(key) };
        }
        Ok(Some((half, fresh)))
    }

    /// Takes the peer's half: an offer to answer when it is due, or the answer, which gives the secret. Halves that were
    /// not asked for are ignored.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        (half, pause): (&KeyExchange, Span),
    ) -> Result<Option<FreshSecret>, UnusableKey> {
        match &self.state {
            State::Offered { key } if half.number == self.number => {
                let fresh = FreshSecret::agree(key, &half.key, self.side).ok_or(UnusableKey)?;
                self.state = State::Resting { until: now + pause };
                Ok(Some(fresh))
            }
            State::Waiting { until } if half.number == self.number + 1 => {
                self.state = State::Owed { offer: Box::new(half.key), until: *until };
                Ok(None)
            }
            _ => Ok(None),
        }
    }
}
