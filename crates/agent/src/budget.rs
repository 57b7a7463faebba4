//! Limits how often to try addresses that have not answered yet.
//!
//! The engine limits the bytes to those that the peer has sent. This module limits the attempts of one session and of
//! all sessions of an endpoint, so that a peer cannot have many addresses tried by announcing them.

use anabranch_wire::{Span, Time};

/// A number of attempts at once, and one more after each pause.
#[derive(Clone, Copy, Debug)]
pub struct ProbeBudget {
    at_once: u64,
    pause: Span,
    /// When the budget is full again: attempts so far, times the pause.
    spent_until: Time,
}

impl ProbeBudget {
    /// For one session: 32 attempts, then one in two seconds.
    pub fn of_session() -> Self {
        Self { at_once: 32, pause: Span::from_secs(2), spent_until: Time::ZERO }
    }

    /// For all sessions of an endpoint: 512 attempts, then sixteen a second.
    pub fn of_endpoint() -> Self {
        Self { at_once: 512, pause: Span::from_micros(62_500), spent_until: Time::ZERO }
    }

    /// True if an attempt is allowed now.
    pub fn has_room(&self, now: Time) -> bool {
        self.spent_until.since(now) + self.pause <= self.pause * self.at_once
    }

    /// When the next attempt is allowed.
    pub fn next_at(&self, now: Time) -> Time {
        let excess = (self.spent_until.since(now) + self.pause).as_nanos();
        now + Span::from_nanos(excess.saturating_sub((self.pause * self.at_once).as_nanos()))
    }

    /// Counts an attempt.
    pub fn spend(&mut self, now: Time) {
        self.spent_until = self.spent_until.max(now) + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_beyond_the_first_come_one_by_one() {
        let mut budget = ProbeBudget::of_session();
        let now = Time::ZERO + Span::from_secs(100);
        let mut made = 0;
        while budget.has_room(now) {
            budget.spend(now);
            made += 1;
        }
        assert_eq!((made, budget.next_at(now)), (32, now + Span::from_secs(2)));
        let later = now + Span::from_secs(6);
        for _ in 0..3 {
            assert!(budget.has_room(later));
            budget.spend(later);
        }
        assert!(!budget.has_room(later));
    }
}
