//! Limits how often a peer may open paths, or abandon paths that were prepared for it.
//!
//! Each new path id costs a PID, a row in the driver's table and, once used, a [`Path`](super::Path). Ids are never
//! reused, and there are 2^31 of each parity. A bucket of credit keeps a peer from using them up quickly.

use anabranch_wire::{Span, Time};

use crate::stream::next_turn;

/// Path ids that the peer may use at once.
pub(crate) const BURST: u64 = 64;
/// Pause until one more is allowed.
const PAUSE: Span = Span::from_millis(250);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Churn {
    /// When the next id would be due if none were taken at once.
    due: Time,
}

impl Churn {
    pub(crate) fn new(now: Time) -> Self {
        Self { due: now }
    }

    /// Takes credit for one id; false without credit.
    pub(crate) fn spend(&mut self, now: Time) -> bool {
        let next = next_turn(now, self.due, PAUSE, BURST);
        self.due = next.unwrap_or(self.due);
        next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_beyond_the_burst_come_one_by_one() {
        let mut churn = Churn::new(Time::ZERO);
        assert_eq!((0..1000).filter(|_| churn.spend(Time::ZERO)).count() as u64, BURST);
        let later = Time::ZERO + PAUSE * 3;
        assert_eq!((0..1000).filter(|_| churn.spend(later)).count(), 3);
    }
}
