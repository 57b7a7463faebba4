//! Proves that the peer is at an address: challenges, their answers, and the limit before an answer.
//!
//! A new path, and a new address of an old one, is challenged with a random token (RFC 9000 §8.2). Until the answer
//! arrives, at most three bytes are sent there for each byte received from there.
//!
//! The first challenge to an address without proof has at most [`CHALLENGE_BYTES`], because the peer may have named a
//! third party's address. After its answer comes a challenge of the size that every path must carry.

use anabranch_wire::{PACKET_COST, Span, Time};

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
    longest: Span,
    /// Bytes that may be sent to the address.
    allowance: Allowance,
    /// It is padded to the size that every path must carry.
    padded: bool,
}

/// The longest pause between two challenges.
const LONGEST_PAUSE: Span = Span::from_secs(1);
/// The same while nothing arrives from the peer at all.
const LONGEST_UNHEARD: Span = Span::from_secs(4);

/// Bytes of the peer's limit that data leaves alone: with them a probe tells the peer that its limit is reached.
const KEPT_FOR_PROBES: u64 = 4 << 10;
/// The longest pause between two probes of a silent path that has little more left.
const LONGEST_AT_LIMIT: Span = Span::from_secs(30);
/// The same with the last half of it: some of that must be left when the path answers again.
const LONGEST_AT_LAST: Span = Span::from_secs(86_400);

/// Most UDP payload of a challenge to an address without proof.
pub(crate) const CHALLENGE_BYTES: u64 = 48;

impl Challenge {
    /// A small challenge.
    pub(crate) fn new(token: u64, route: Route, now: Time, interval: Span) -> Self {
        Self {
            token,
            route,
            attempts: 0,
            due: now,
            sent_at: now,
            first_at: now,
            interval,
            longest: LONGEST_PAUSE,
            allowance: Allowance::proven(),
            padded: false,
        }
    }

    /// The same challenge, padded to the size that every path must carry.
    pub(crate) fn padded(self) -> Self {
        Self { padded: true, ..self }
    }

    pub(crate) fn is_padded(&self) -> bool {
        self.padded
    }

    /// The challenge of full size that follows the answer to a small one, with another token.
    pub(crate) fn grow(&self, token: u64, now: Time) -> Self {
        let interval = self.rtt(now).map_or(self.interval, |rtt| rtt * 3);
        Self::new(token, self.route, now, interval).padded()
    }

    /// Delays the next attempt, as if it had been sent now.
    pub(crate) fn postpone(&mut self, now: Time) {
        self.due = now + self.interval;
    }

    /// A challenge to an address that sent a packet of `bytes` unasked.
    pub(crate) fn to_stranger(token: u64, route: Route, now: Time, (interval, bytes): (Span, u64)) -> Self {
        let mut challenge =
            Self { allowance: Allowance::default(), ..Self::new(token, route, now, interval) };
        challenge.on_received(bytes);
        challenge
    }

    /// Records that more bytes came from the address.
    pub(crate) fn on_received(&mut self, bytes: u64) {
        self.allowance.on_received(bytes);
    }

    /// True if the bytes from the address allow sending it (again).
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowance.left() >= CHALLENGE_BYTES
    }

    pub(crate) fn on_sent(&mut self, now: Time) {
        self.allowance.on_sent(CHALLENGE_BYTES);
        self.attempts += 1;
        self.sent_at = now;
        self.due = now + self.interval;
        self.interval = (self.interval * 2).min(self.longest);
    }

    /// True if nothing arrived from the peer since this was first sent.
    pub(crate) fn is_unheard(&self, last_heard: Time) -> bool {
        last_heard < self.first_at
    }

    /// Waits once more as long, with longer pauses between attempts.
    pub(crate) fn wait_on(&mut self, now: Time) {
        self.first_at = now;
        self.longest = LONGEST_UNHEARD;
    }

    /// True while the answer may be in flight.
    pub(crate) fn is_waiting(&self, now: Time) -> bool {
        self.attempts > 0 && now < self.due
    }

    /// Time since the first attempt.
    pub(crate) fn age(&self, now: Time) -> Span {
        now.since(self.first_at)
    }

    /// The round-trip time, when the answer can only belong to one challenge.
    pub(crate) fn rtt(&self, now: Time) -> Option<Span> {
        (self.attempts == 1).then(|| now.since(self.sent_at))
    }
}

/// How much may be sent on a path. Until the address is proven, this is proportional to the bytes received from it.
/// Both ends' limits always apply.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Allowance {
    proven: bool,
    left: u64,
    /// Bytes sent, with [`PACKET_COST`] for each packet.
    spent: u64,
    /// The limits of this end and of the peer.
    limits: (u64, u64),
}

impl Default for Allowance {
    fn default() -> Self {
        Self { proven: false, left: 0, spent: 0, limits: (u64::MAX, u64::MAX) }
    }
}

impl Allowance {
    pub(crate) fn proven() -> Self {
        Self { proven: true, ..Self::default() }
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.proven
    }

    /// True when more may be sent without looking.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.proven && self.limits == (u64::MAX, u64::MAX)
    }

    /// Bytes of UDP payload that may be sent in the next packet.
    #[inline]
    pub(crate) fn left(&self) -> u64 {
        self.left_of(self.limits.1)
    }

    /// The same for a packet with data.
    #[inline]
    pub(crate) fn left_for_data(&self) -> u64 {
        self.left_of(if self.limits.1 == u64::MAX { u64::MAX } else { self.peer_limit_for_data() })
    }

    /// True if the peer's limit leaves no room for a packet with `size` bytes of UDP payload and data.
    #[inline]
    pub(crate) fn waits_for_peer(&self, size: u64) -> bool {
        self.limits.1 < u64::MAX && self.peer_limit_for_data() < self.spent + PACKET_COST + size
    }

    /// The longest pause between two probes of a silent path, if the peer's limit leaves no room for a packet of `size`
    /// with data. The peer raises its limit only when a later packet shows what was spent.
    pub(crate) fn longest_probe_pause(&self, size: u64) -> Option<Span> {
        let has_half = self.spent + KEPT_FOR_PROBES / 2 <= self.limits.1;
        self.waits_for_peer(size).then_some(if has_half { LONGEST_AT_LIMIT } else { LONGEST_AT_LAST })
    }

    #[inline]
    fn peer_limit_for_data(&self) -> u64 {
        self.limits.1.saturating_sub(KEPT_FOR_PROBES)
    }

    #[inline]
    fn left_of(&self, peer_limit: u64) -> u64 {
        let room = self.limits.0.min(peer_limit).saturating_sub(self.spent).saturating_sub(PACKET_COST);
        if self.proven { room } else { self.left.min(room) }
    }

    /// Bytes spent of the limits.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    pub(crate) fn on_received(&mut self, bytes: u64) {
        self.left = self.left.saturating_add(bytes * AMPLIFICATION);
    }

    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
        self.spent += bytes + PACKET_COST;
    }

    pub(crate) fn prove(&mut self) {
        self.proven = true;
    }

    /// Allows for one more challenge to an address that this end chose.
    pub(crate) fn allow_challenge(&mut self) {
        self.left = self.left.max(CHALLENGE_BYTES);
    }

    /// Sets this end's limit of bytes in all.
    pub(crate) fn limit_here(&mut self, limit: u64) {
        self.limits.0 = limit;
    }

    /// Sets the peer's limit of bytes in all; its highest one counts. True if it changed.
    pub(crate) fn limit_there(&mut self, limit: u64) -> bool {
        let limit = if self.limits.1 == u64::MAX { limit } else { self.limits.1.max(limit) };
        std::mem::replace(&mut self.limits.1, limit) != limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_limit_of_both_ends_holds_and_the_peers_only_grows() {
        let mut allowance = Allowance::proven();
        assert!(allowance.is_unlimited() && allowance.left() > 1 << 60);
        allowance.limit_here(10_000);
        allowance.limit_there(3_000);
        allowance.limit_there(2_000);
        assert_eq!((allowance.left(), allowance.is_unlimited()), (3_000 - PACKET_COST, false));
        allowance.on_sent(allowance.left());
        assert_eq!((allowance.spent(), allowance.left()), (3_000, 0));
        allowance.limit_there(50_000);
        assert_eq!(allowance.left(), 10_000 - 3_000 - PACKET_COST);
    }

    #[test]
    fn who_waits_on_for_a_peer_that_is_not_heard_asks_once_in_four_seconds() {
        let route = Route { socket: 0, remote: ([192, 0, 2, 1], 1).into() };
        let [begin, later] = [Time::ZERO + Span::from_secs(1), Time::ZERO + Span::from_secs(6)];
        let mut challenge = Challenge::new(7, route, begin, Span::from_millis(100));
        let pause = |challenge: &mut Challenge| {
            for _ in 0..10 {
                challenge.on_sent(challenge.due);
            }
            challenge.due.since(challenge.sent_at)
        };
        assert_eq!(pause(&mut challenge), Span::from_secs(1));
        assert!(challenge.is_unheard(Time::ZERO) && !challenge.is_unheard(begin));
        challenge.wait_on(later);
        assert_eq!((pause(&mut challenge), challenge.age(later)), (Span::from_secs(4), Span::ZERO));
        assert!(challenge.is_unheard(begin) && !challenge.is_unheard(later));
    }

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
