//! Round-trip times, kept by the path that acknowledgements come back on: otherwise a change of that would look like a
//! change of the path.
//!
//! Over a shorter way back a path carries the same rate with less in flight: a window that was found over a longer one is too
//! large by as much, as [`WaysBack::part_left`] tells.

use anabranch_cc::RttEstimator;
use anabranch_wire::{PathId, Span, Time};
use smallvec::{SmallVec, smallvec};

/// Round-trip times are kept for this many ways back.
const MOST: usize = 8;

#[derive(Debug)]
struct WayBack {
    via: PathId,
    rtt: RttEstimator,
}

/// The ways that acknowledgements came back on, the one in use last; never empty.
#[derive(Debug)]
pub(crate) struct WaysBack {
    ways: SmallVec<[WayBack; 1]>,
    initial_rtt: Span,
}

impl WaysBack {
    pub(crate) fn new(via: PathId, initial_rtt: Span) -> Self {
        Self { ways: smallvec![WayBack::new(via, initial_rtt)], initial_rtt }
    }

    /// The round-trip time over the way in use.
    pub(crate) fn rtt(&self) -> &RttEstimator {
        &self.ways[self.ways.len() - 1].rtt
    }

    /// The least round-trip time lately over any way, zero before the first sample.
    pub(crate) fn least(&self) -> Span {
        let known = self.ways.iter().filter(|way| way.rtt.has_sample());
        known.map(|way| way.rtt.min()).min().unwrap_or(Span::ZERO)
    }

    /// The path that acknowledgements come back on now.
    pub(crate) fn via(&self) -> PathId {
        self.ways[self.ways.len() - 1].via
    }

    /// Notes a sample of the round trip that came back over `via`; true when those before came back over another.
    pub(crate) fn sample(&mut self, now: Time, via: PathId, sample: Span, ack_delay: Span) -> bool {
        let changed = self.via() != via;
        if changed {
            self.change(via);
        }
        let last = self.ways.len() - 1;
        self.ways[last].rtt.update(now, sample, ack_delay);
        changed
    }

    /// Acknowledgements come back over another way from now on.
    fn change(&mut self, via: PathId) {
        if let Some(index) = self.ways.iter().position(|way| way.via == via) {
            return self.ways[index..].rotate_left(1);
        }
        if self.ways.len() >= MOST {
            self.ways.remove(0);
        }
        self.ways.push(WayBack::new(via, self.initial_rtt));
    }

    /// What part of the round trip over `via` is left over the way in use; 1 where that is longer or one is not known.
    pub(crate) fn part_left(&self, via: PathId) -> f64 {
        let known = self.ways.iter().find(|way| way.via == via && way.rtt.has_sample());
        let shorter = known.filter(|way| self.rtt().has_sample() && self.rtt().min() < way.rtt.min());
        shorter.map_or(1.0, |way| self.rtt().min().as_secs_f64() / way.rtt.min().as_secs_f64())
    }
}

impl WayBack {
    fn new(via: PathId, initial_rtt: Span) -> Self {
        Self { via, rtt: RttEstimator::new(initial_rtt) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_way_back_tells_what_part_of_the_round_trip_is_left() {
        let ms = Span::from_millis;
        let mut ways = WaysBack::new(PathId(0), ms(100));
        let sample =
            |ways: &mut WaysBack, via, millis| ways.sample(Time::ZERO, PathId(via), ms(millis), ms(0));
        assert!(!sample(&mut ways, 0, 10));
        assert_eq!(ways.part_left(PathId(2)), 1.0, "not known");
        assert!(sample(&mut ways, 2, 20), "another way");
        assert_eq!(ways.part_left(PathId(0)), 1.0, "a longer one");
        assert!(sample(&mut ways, 0, 15));
        assert_eq!((ways.part_left(PathId(2)), ways.part_left(PathId(0))), (0.5, 1.0));
        assert_eq!((ways.via(), ways.rtt().min()), (PathId(0), ms(10)));
    }
}
