//! How often blocks of datagrams are brought back: bounded for a session, and for all of an endpoint together, whose processor it is.
//!
//! A session has [`A_SECOND`] turns, and all together have [`TOGETHER`]. Once half of those at once are used, a session gets no more than
//! [`FEW_A_SECOND`]: a few that have all they can brought back take nothing from those that want little.

use anabranch_wire::{Span, Time};

use crate::stream::{MemoryBudget, next_turn};

/// Turns of a session a second.
const A_SECOND: u64 = 1000;
/// Turns of a session at once, after as long a rest.
const AT_ONCE: u64 = 100;
/// Turns of all sessions of an endpoint a second: four fifths of a processor.
const TOGETHER: u64 = 4000;
/// Turns of all of them at once.
const TOGETHER_AT_ONCE: u64 = 400;
/// Turns of a session a second that no others take from it, up to forty of them.
const FEW_A_SECOND: u64 = 100;
/// As many of these at once.
const FEW_AT_ONCE: u64 = 5;
/// How far ahead of these a session can be, which it waits out when turns are scarce.
const LONGEST_DEBT: Span = Span::from_secs(1);

/// The turns of one session.
#[derive(Debug)]
pub(super) struct Turns {
    budget: MemoryBudget,
    /// When the next would be due if none were taken at once.
    next: Time,
    /// The same of a session that wants few.
    next_of_few: Time,
}

impl Turns {
    pub(super) fn new(budget: MemoryBudget) -> Self {
        Self { budget, next: Time::ZERO, next_of_few: Time::ZERO }
    }

    /// Takes a turn; false when there is none now.
    pub(super) fn take(&mut self, now: Time) -> bool {
        let Some(next) = next_turn(now, self.next, each(A_SECOND), AT_ONCE) else { return false };
        let few = next_turn(now, self.next_of_few, each(FEW_A_SECOND), FEW_AT_ONCE);
        if !self.budget.take_repair(now, (each(TOGETHER), TOGETHER_AT_ONCE), few.is_some()) {
            return false;
        }
        self.next = next;
        let after = self.next_of_few.max(now) + each(FEW_A_SECOND);
        self.next_of_few = few.unwrap_or(after).min(now + LONGEST_DEBT);
        true
    }
}

/// The time for each of so many a second.
fn each(a_second: u64) -> Span {
    Span::from_secs(1) / a_second
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    /// What so many sessions that want all get in two seconds, and what one gets that wants one each ten milliseconds and comes last.
    fn got(greedy: usize) -> (u64, u64) {
        let budget = MemoryBudget::new(1 << 20);
        let mut others: Vec<Turns> = (0..greedy).map(|_| Turns::new(budget.clone())).collect();
        let mut honest = Turns::new(budget);
        let (mut theirs, mut its) = (0, 0);
        for now in (0..2000).map(at) {
            theirs += others.iter_mut().map(|turns| u64::from(turns.take(now))).sum::<u64>();
            if now.as_nanos() % 10_000_000 == 0 {
                its += u64::from(honest.take(now));
            }
        }
        (theirs, its)
    }

    #[test]
    fn all_sessions_of_an_endpoint_together_take_no_more_than_it_has() {
        for greedy in [1, 4, 10, 100] {
            let (theirs, _) = got(greedy);
            let most = (2_100 * greedy as u64).min(8_000) + 400;
            assert!(theirs <= most, "{greedy}: {theirs}");
        }
        assert!(got(1).0 >= 2_000 && got(4).0 >= 7_600, "{:?} {:?}", got(1), got(4));
    }

    #[test]
    fn who_wants_few_gets_them_whatever_others_want() {
        for greedy in [0, 3, 4, 5, 10, 30] {
            assert_eq!(got(greedy).1, 200, "beside {greedy}");
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
