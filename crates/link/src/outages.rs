//! When a link is down: scheduled outages, and cuts while it runs.

use anabranch_wire::Time;

/// The outages of a link. Times of calls must not decrease, so that a long schedule costs nothing.
#[derive(Clone, Debug)]
pub(crate) struct Outages {
    /// In order of their start, overlaps merged.
    scheduled: Vec<(Time, Time)>,
    /// Outages before this index are over.
    next: usize,
    /// Down until restored.
    pub(crate) is_cut: bool,
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
        Self { scheduled, next: 0, is_cut: false }
    }

    /// True when no outage is left and the link is not cut.
    pub(crate) fn is_over(&self) -> bool {
        !self.is_cut && self.next >= self.scheduled.len()
    }

    pub(crate) fn is_down(&mut self, now: Time) -> bool {
        while self.scheduled.get(self.next).is_some_and(|(_, to)| *to <= now) {
            self.next += 1;
        }
        self.is_cut || self.scheduled.get(self.next).is_some_and(|(from, _)| *from <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn an_outage_lasts_from_its_start_up_to_but_excluding_its_end() {
        let scheduled = vec![(at(50), at(60)), (at(10), at(20)), (at(15), at(30)), (at(7), at(7))];
        let mut outages = Outages::new(scheduled);
        let down = |outages: &mut Outages, times: &[u64]| -> Vec<bool> {
            times.iter().map(|time| outages.is_down(at(*time))).collect()
        };
        assert_eq!(down(&mut outages, &[0, 7, 9]), [false; 3]);
        assert_eq!(down(&mut outages, &[10, 19, 20, 29]), [true; 4]);
        assert_eq!(down(&mut outages, &[30, 49, 50, 59, 60]), [false, false, true, true, false]);
        outages.is_cut = true;
        assert!(outages.is_down(at(61)));
    }
}
