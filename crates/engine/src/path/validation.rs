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
}

impl Challenge {
    pub(crate) fn new(token: u64, route: Route, now: Time, interval: Span) -> Self {
        Self { token, route, attempts: 0, due: now, sent_at: now, first_at: now, interval }
    }

    pub(crate) fn on_sent(&mut self, now: Time) {
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
