//! How often a peer may open paths, or give up ones that were made ready for it.
//!
//! Each new path id costs a PID, a row in the driver's table and, once used, a [`Path`](super::Path); ids are never
//! used again and there are 2^31 of a parity. A bucket of credit keeps a peer from going through them at line rate.

use anabranch_wire::{Span, Time};

/// Ids at once ...
pub(crate) const BURST: u64 = 64;
/// ... and one more after each pause.
const PAUSE: Span = Span::from_millis(250);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Churn {
    credit: u64,
    filled_at: Time,
}

impl Churn {
    pub(crate) fn new(now: Time) -> Self {
        Self { credit: BURST, filled_at: now }
    }

    /// Takes credit for one id; false when there is none.
    pub(crate) fn spend(&mut self, now: Time) -> bool {
        let earned = now.since(self.filled_at).as_nanos() / PAUSE.as_nanos();
        if earned > 0 {
            self.credit = (self.credit + earned).min(BURST);
            self.filled_at = now;
        }
        let has = self.credit > 0;
        self.credit -= u64::from(has);
        has
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
