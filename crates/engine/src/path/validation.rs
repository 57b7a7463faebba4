//! Proves that somebody is there: challenges, their answers, and the limit before one came.
//!
//! A new path, and a new address under an old one, is challenged with a random token (RFC 9000 §8.2).
//! Until the answer is back, at most three bytes are sent for each received.

use anabranch_wire::{Span, Time};

use crate::route::Route;

/// Bytes that may be sent to an unproven address for each byte received from it.
const AMPLIFICATION: u64 = 3;

/// A challenge that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Challenge {
    pub token: u64,
    pub route: Route,
    pub attempts: u32,
    /// When to send it (again).
    pub due: Time,
    pub sent_at: Time,
    first_at: Time,
    interval: Span,
    /// What the address may be sent; proven where this end chose it.
    allowance: Allowance,
}

/// UDP payload of a challenge to an address that only turned up, at most.
const CHALLENGE_BYTES: u64 = 48;

impl Challenge {
    pub(crate) fn new(token: u64, route: Route, now: Time, interval: Span) -> Self {
        let allowance = Allowance::proven();
        Self { token, route, attempts: 0, due: now, sent_at: now, first_at: now, interval, allowance }
    }

    /// A challenge to an address from which a packet of `bytes` came unasked.
    pub(crate) fn to_stranger(token: u64, route: Route, now: Time, (interval, bytes): (Span, u64)) -> Self {
        let mut challenge =
            Self { allowance: Allowance::default(), ..Self::new(token, route, now, interval) };
        challenge.on_received(bytes);
        challenge
    }

    /// More came from the address.
    pub(crate) fn on_received(&mut self, bytes: u64) {
        self.allowance.on_received(bytes);
    }

    /// True when what came from the address allows for sending it (again).
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowance.left() >= CHALLENGE_BYTES
    }

    pub(crate) fn on_sent(&mut self, now: Time) {
        self.allowance.on_sent(CHALLENGE_BYTES);
        self.attempts += 1;
        self.sent_at = now;
        self.due = now + self.interval;
        self.interval = (self.interval * 2).min(Span::from_secs(1));
    }

    /// How long an answer has been waited for.
    pub(crate) fn age(&self, now: Time) -> Span {
        now.since(self.first_at)
    }

    /// The round-trip time, when the answer can only belong to one challenge.
    pub(crate) fn rtt(&self, now: Time) -> Option<Span> {
        (self.attempts == 1).then(|| now.since(self.sent_at))
    }
}

/// How much may be sent to an address that has not answered yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowance {
    proven: bool,
    left: u64,
}

impl Allowance {
    pub(crate) fn proven() -> Self {
        Self { proven: true, left: 0 }
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proven
    }

    /// Bytes that may be sent.
    pub(crate) fn left(&self) -> u64 {
        if self.proven { u64::MAX } else { self.left }
    }

    pub(crate) fn on_received(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes * AMPLIFICATION);
    }

    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    pub(crate) fn prove(&mut self) {
        self.proven = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_only_turned_up_is_sent_at_most_three_bytes_for_each_of_its_own() {
        let route = Route { socket: 0, remote: ([192, 0, 2, 1], 1).into() };
        let heard = (Span::from_millis(10), 41);
        let mut challenge = Challenge::to_stranger(7, route, Time::ZERO, heard);
        let mut sent = 0;
        while challenge.is_allowed() {
            challenge.on_sent(Time::ZERO);
            sent += CHALLENGE_BYTES;
        }
        assert!(sent > 0 && sent <= 3 * 41, "{sent}");
        challenge.on_received(41);
        assert!(challenge.is_allowed());
    }
}
