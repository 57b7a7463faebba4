//! Limits packets to addresses where the peer has not answered yet.
//!
//! A peer can name any address. Before an answer to a challenge, it may be that of a third party. So this end sends to
//! all such addresses together no more bytes than the peer has sent, and few challenges in a row.

use std::net::SocketAddr;

use anabranch_wire::{Span, Time};

use crate::path::Paths;
use crate::stream::next_turn;

/// Most stored addresses that have answered but have no path.
const MAX_PROVEN: usize = 32;
/// Challenges to addresses without proof that may be sent at once.
const CHALLENGES_AT_ONCE: u64 = 64;
/// Pause until another such challenge is allowed.
const CHALLENGE_PAUSE: Span = Span::from_millis(250);

/// Bytes that may be sent to addresses without proof.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// Bytes received in the handshake, and on paths that are gone.
    received: u64,
    /// Bytes sent to addresses without proof.
    spent: u64,
}

impl Credit {
    /// Counts bytes that the peer sent outside the current paths.
    pub(super) fn on_received(&mut self, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
    }

    /// Counts bytes sent to an address without proof.
    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.spent = self.spent.saturating_add(bytes);
    }

    /// Bytes that may still be sent.
    pub(super) fn left(&self, paths: &Paths) -> u64 {
        let received: u64 = paths.iter().map(|path| path.receipt().bytes()).sum();
        received.saturating_add(self.received).saturating_sub(self.spent)
    }
}

/// Addresses of the peer that have answered, and the pace of challenges to others.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    /// Addresses at which the peer answered on closed paths, the latest last.
    addresses: Vec<SocketAddr>,
    /// When the next challenge would be due if none were sent at once.
    next_challenge: Time,
}

impl Proofs {
    /// Remembers an address that a path leaves.
    pub(super) fn remember(&mut self, address: SocketAddr) {
        self.addresses.retain(|known| *known != address);
        if self.addresses.len() >= MAX_PROVEN {
            self.addresses.remove(0);
        }
        self.addresses.push(address);
    }

    pub(super) fn contain(&self, address: SocketAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Whether another challenge may be sent to an address without proof; if so, counts it. `has_credit` checks for
    /// enough [`Credit`].
    pub(super) fn spend_challenge(&mut self, now: Time, has_credit: impl FnOnce() -> bool) -> bool {
        let next = next_turn(now, self.next_challenge, CHALLENGE_PAUSE, CHALLENGES_AT_ONCE);
        let Some(next) = next.filter(|_| has_credit()) else { return false };
        self.next_challenge = next;
        true
    }
}
