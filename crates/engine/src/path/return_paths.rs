//! Round-trip times, with a separate estimate for each return path of acknowledgements.
//!
//! With a single estimate, a change of the return path would look like a change of the path itself. Over a shorter
//! return path the same rate needs less in flight, so a window found over a longer one is too large: see
//! [`ReturnPaths::part_left`].

use anabranch_cc::RttEstimator;
use anabranch_wire::{PathId, Span, Time};
use smallvec::{SmallVec, smallvec};

/// Most return paths with an estimate.
const MOST: usize = 8;
/// Round-trip samples of a challenge: from its answer, and from its acknowledgement.
const FIRST_SAMPLES: u8 = 2;
/// Added to the time for a first acknowledgement, for a packet or two on a slow link.
const FIRST_ANSWER_GRACE: Span = Span::from_millis(10);

#[derive(Debug)]
struct ReturnPath {
    via: PathId,
    rtt: RttEstimator,
}

impl ReturnPath {
    fn new(via: PathId, initial_rtt: Span) -> Self {
        Self { via, rtt: RttEstimator::new(initial_rtt) }
    }
}

/// The return paths seen so far, the current one last; never empty.
#[derive(Debug)]
pub(crate) struct ReturnPaths {
    list: SmallVec<[ReturnPath; 1]>,
    initial_rtt: Span,
}

impl ReturnPaths {
    pub(crate) fn new(via: PathId, initial_rtt: Span) -> Self {
        Self { list: smallvec![ReturnPath::new(via, initial_rtt)], initial_rtt }
    }

    /// Forgets all samples, as after a change of address.
    pub(super) fn forget(&mut self, via: PathId) {
        *self = Self::new(via, self.initial_rtt);
    }

    /// The round-trip time over the current return path.
    #[inline]
    pub(crate) fn rtt(&self) -> &RttEstimator {
        &self.list[self.list.len() - 1].rtt
    }

    /// The least recent round-trip time over any return path, zero before the first sample.
    pub(crate) fn least(&self) -> Span {
        let known = self.list.iter().filter(|known| known.rtt.has_sample());
        known.map(|known| known.rtt.min()).min().unwrap_or(Span::ZERO)
    }

    /// The current return path of acknowledgements.
    pub(crate) fn via(&self) -> PathId {
        self.list[self.list.len() - 1].via
    }

    /// Adds a sample that returned over `via`; true if earlier samples returned over another path.
    pub(crate) fn sample(&mut self, now: Time, via: PathId, sample: Span, ack_delay: Span) -> bool {
        let changed = self.via() != via;
        if changed {
            self.change(via);
        }
        let last = self.list.len() - 1;
        self.list[last].rtt.update(now, sample, ack_delay);
        changed
    }

    /// Makes `via` the current return path.
    fn change(&mut self, via: PathId) {
        if let Some(index) = self.list.iter().position(|known| known.via == via) {
            return self.list[index..].rotate_left(1);
        }
        if self.list.len() >= MOST {
            self.list.remove(0);
        }
        self.list.push(ReturnPath::new(via, self.initial_rtt));
    }

    /// The current round trip as a part of the one over `via`; 1 when it is longer or either is unknown.
    pub(crate) fn part_left(&self, via: PathId) -> f64 {
        let known = self.list.iter().find(|known| known.via == via && known.rtt.has_sample());
        let shorter = known.filter(|known| self.rtt().has_sample() && self.rtt().min() < known.rtt.min());
        shorter.map_or(1.0, |known| self.rtt().min().as_secs_f64() / known.rtt.min().as_secs_f64())
    }

    /// How long the first data may wait for its acknowledgement: one and a half round trips. The probe timeout would
    /// allow three, as the variation is not known yet. `None` once data was acknowledged.
    pub(super) fn first_patience(&self, ack_delay: Span) -> Option<Span> {
        if !(1..=FIRST_SAMPLES).contains(&self.rtt().samples()) {
            return None;
        }
        let rtt = self.rtt().smoothed();
        let late = (rtt / 2 + ack_delay).max(ack_delay * 2 + FIRST_ANSWER_GRACE);
        Some(rtt + late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_a_shorter_return_path_only_a_part_of_the_round_trip_is_left() {
        let ms = Span::from_millis;
        let mut returns = ReturnPaths::new(PathId(0), ms(100));
        let sample =
            |returns: &mut ReturnPaths, via, rtt| returns.sample(Time::ZERO, PathId(via), ms(rtt), ms(0));
        assert!(!sample(&mut returns, 0, 10));
        assert_eq!(returns.part_left(PathId(2)), 1.0, "unknown");
        assert!(sample(&mut returns, 2, 20), "another return path");
        assert_eq!(returns.part_left(PathId(0)), 1.0, "a longer one");
        assert!(sample(&mut returns, 0, 15));
        assert_eq!((returns.part_left(PathId(2)), returns.part_left(PathId(0))), (0.5, 1.0));
        assert_eq!((returns.via(), returns.rtt().min()), (PathId(0), ms(10)));
    }
}
