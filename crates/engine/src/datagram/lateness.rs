//! How late datagrams come behind later ones, measured.
//!
//! The size rule of PSMC [T6] takes half a path's round trip for its one-way delay. This end knows that round trip only
//! from the packets that it sends there, which may be few, and which do not meet the queue of the other direction.

use anabranch_wire::{Span, Time};

/// The largest lateness counts for one to two of these.
const WINDOW: Span = Span::from_secs(1);
/// Paths come at least so close to each other.
const LEAST: Span = Span::from_millis(1);

/// The largest recent lateness.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    current: Span,
    before: Span,
    began: Time,
}

impl Lateness {
    /// A datagram came so much later than another that was sent after it.
    pub(super) fn note(&mut self, now: Time, late: Span) {
        self.turn(now);
        self.current = self.current.max(late);
    }

    /// How long a datagram should be waited for at least.
    pub(super) fn worth_waiting(&mut self, now: Time) -> Span {
        self.turn(now);
        let most = self.current.max(self.before);
        if most.is_zero() { most } else { most + (most / 4).max(LEAST) }
    }

    fn turn(&mut self, now: Time) {
        let age = now.since(self.began);
        if age >= WINDOW {
            self.before = if age < WINDOW * 2 { self.current } else { Span::ZERO };
            (self.current, self.began) = (Span::ZERO, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_lateness_counts_for_one_to_two_seconds() {
        let mut lateness = Lateness::default();
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        assert_eq!(lateness.worth_waiting(at(5_000)), Span::ZERO);
        lateness.note(at(5_100), Span::from_millis(40));
        lateness.note(at(5_200), Span::from_millis(4));
        for millis in [5_200, 6_100, 6_900] {
            assert_eq!(lateness.worth_waiting(at(millis)), Span::from_millis(50), "{millis}");
        }
        assert_eq!(lateness.worth_waiting(at(8_000)), Span::ZERO);
    }
}
