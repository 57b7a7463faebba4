//! When a link is down: what was scheduled, and what was ordered while it ran.

use anabranch_wire::Time;

/// Asked with times that do not go back, so that a long schedule costs nothing.
#[derive(Clone, Debug)]
pub(crate) struct Outages {
    /// In order of their beginning, overlaps joined.
    scheduled: Vec<(Time, Time)>,
    /// Those before this one are over.
    next: usize,
    /// Down until told otherwise.
    pub(crate) ordered: bool,
}

impl Outages {
    pub(crate) fn new(mut scheduled: Vec<(Time, Time)>) -> Self {
        scheduled.retain(|(from, to)| from < to);
        scheduled.sort_unstable();
        scheduled.dedup_by(|later, earlier| {
            let joined = later.0 <= earlier.1;
            if joined {
                earlier.1 = earlier.1.max(later.1);
            }
            joined
        });
        Self { scheduled, next: 0, ordered: false }
    }

    /// True when nothing is scheduled any more, nor was the link cut.
    pub(crate) fn is_over(&self) -> bool {
        !self.ordered && self.next >= self.scheduled.len()
    }

    /// True when the link is down at `now`.
    pub(crate) fn is_down(&mut self, now: Time) -> bool {
        while self.scheduled.get(self.next).is_some_and(|(_, to)| *to <= now) {
            self.next += 1;
        }
        self.ordered || self.scheduled.get(self.next).is_some_and(|(from, _)| *from <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn an_outage_holds_from_its_first_moment_until_its_last_in_any_order() {
        let scheduled = vec![(at(50), at(60)), (at(10), at(20)), (at(15), at(30)), (at(7), at(7))];
        let mut outages = Outages::new(scheduled);
        let down = |outages: &mut Outages, times: &[u64]| -> Vec<bool> {
            times.iter().map(|time| outages.is_down(at(*time))).collect()
        };
        assert_eq!(down(&mut outages, &[0, 7, 9]), [false; 3]);
        assert_eq!(down(&mut outages, &[10, 19, 20, 29]), [true; 4]);
        assert_eq!(down(&mut outages, &[30, 49, 50, 59, 60]), [false, false, true, true, false]);
        outages.ordered = true;
        assert!(outages.is_down(at(61)));
    }
}
