//! The rate limit of restoring blocks: for each session, and for all sessions of an endpoint together.
//!
//! A session has [`PER_SECOND`] turns, and all sessions together have [`TOGETHER`]. Once half of the turns available at once
//! are used, each session is limited to [`FEW_PER_SECOND`]. So a few greedy sessions leave enough for those with small needs.

use anabranch_wire::{Span, Time};

use crate::stream::{MemoryBudget, next_turn};

/// Turns of a session in a second.
const PER_SECOND: u64 = 1000;
/// Turns of a session at once, after a rest.
const AT_ONCE: u64 = 100;
/// Turns of all sessions of an endpoint in a second: four fifths of a processor.
const TOGETHER: u64 = 4000;
/// Turns of all of them at once.
const TOGETHER_AT_ONCE: u64 = 400;
/// Turns per second guaranteed to each session, for up to forty sessions.
const FEW_PER_SECOND: u64 = 100;
/// Of the guaranteed turns, how many may be taken at once.
const FEW_AT_ONCE: u64 = 5;
/// Longest debt of a session that took more than its guaranteed turns; it waits this out when turns are scarce.
const LONGEST_DEBT: Span = Span::from_secs(1);

#[derive(Debug)]
pub(super) struct Turns {
    budget: MemoryBudget,
    /// When the next turn would be due if none were taken at once.
    next: Time,
    /// As `next`, for the guaranteed turns.
    next_of_few: Time,
}

impl Turns {
    pub(super) fn new(budget: MemoryBudget) -> Self {
        Self { budget, next: Time::ZERO, next_of_few: Time::ZERO }
    }

    /// Takes a turn; false if none is available now.
    pub(super) fn take(&mut self, now: Time) -> bool {
        let Some(next) = next_turn(now, self.next, each(PER_SECOND), AT_ONCE) else { return false };
        let few = next_turn(now, self.next_of_few, each(FEW_PER_SECOND), FEW_AT_ONCE);
        if !self.budget.take_repair(now, (each(TOGETHER), TOGETHER_AT_ONCE), few.is_some()) {
            return false;
        }
        self.next = next;
        let after = self.next_of_few.max(now) + each(FEW_PER_SECOND);
        self.next_of_few = few.unwrap_or(after).min(now + LONGEST_DEBT);
        true
    }
}

/// The time for each of this many in a second.
fn each(per_second: u64) -> Span {
    Span::from_secs(1) / per_second
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    /// The turns that this many greedy sessions take in two seconds, followed by those of one session that takes one every ten
    /// milliseconds.
    fn got(greedy: usize) -> (u64, u64) {
        let budget = MemoryBudget::new(1 << 20);
        let mut others: Vec<Turns> = (0..greedy).map(|_| Turns::new(budget.clone())).collect();
        let mut honest = Turns::new(budget);
        let (mut theirs, mut own) = (0, 0);
        for now in (0..2000).map(at) {
            theirs += others.iter_mut().map(|turns| u64::from(turns.take(now))).sum::<u64>();
            if now.as_nanos() % 10_000_000 == 0 {
                own += u64::from(honest.take(now));
            }
        }
        (theirs, own)
    }

    #[test]
    fn the_sessions_of_an_endpoint_together_stay_within_its_limit() {
        for greedy in [1, 4, 10, 100] {
            let (theirs, _) = got(greedy);
            let most = (2_100 * greedy as u64).min(8_000) + 400;
            assert!(theirs <= most, "{greedy}: {theirs}");
        }
        assert!(got(1).0 >= 2_000 && got(4).0 >= 7_600, "{:?} {:?}", got(1), got(4));
    }

    #[test]
    fn a_session_that_needs_few_turns_gets_them_whatever_others_take() {
        for greedy in [0, 3, 4, 5, 10, 30] {
            assert_eq!(got(greedy).1, 200, "with {greedy} others");
        }
    }

    #[test]
    fn endpoints_do_not_share() {
        let mut here = Turns::new(MemoryBudget::new(1 << 20));
        let mut there = Turns::new(MemoryBudget::new(1 << 20));
        assert!((0..AT_ONCE).all(|_| here.take(at(0))));
        assert!(!here.take(at(0)) && there.take(at(0)));
    }
}
