//! Notices a queue that stands before a path and holds up what goes over the others.
//!
//! Loss-based windows fill whatever buffer there is. With data that arrives in order, what is given to a path behind seconds of
//! buffer keeps back all that other paths carry meanwhile (bufferbloat). A queue *stands* when for [`STANDS`] no round trip was within the
//! limit: bursts drain before that, as CoDel has it (RFC 8289 §3.1). The limit is the largest of
//!
//! - [`LEAST`], which people do not notice;
//! - [`OTHERS`] times the longest round trip of the other paths in use: as long as a pause may take when a path breaks;
//! - [`DEEP`] times the least round trip of the path itself, over whatever way acknowledgements came back, which buffers of a few bandwidth–delay products stay below; or, where the path
//!   carries less than a tenth of the fastest (ω of mTCP §3.4.1 [M10]) so that nobody would miss it, [`SHALLOW`] times.
//!
//! The path that carries most is never bloated: leaving it out would cost more than the queue. Nor is one over which data comes in: what
//! it acknowledges may wait behind that.

use anabranch_wire::{Rate, Span, Time};

/// A queue stands when it has done so for this long.
const STANDS: Span = Span::from_millis(500);
/// Shorter round trips are no matter.
const LEAST: Span = Span::from_millis(200);
/// Nor are those up to so many times the longest of the other paths.
const OTHERS: u64 = 3;
/// So many times its least round trip a path may take,
const DEEP: u64 = 6;
/// and only so many if it carries less than 1/ω of the fastest.
const SHALLOW: u64 = 2;
const OMEGA: u64 = 10;
/// Bytes of data that came in over the path behind which acknowledgements may have waited.
const INCOMING: u64 = 12_000;

/// What the other paths in use are like.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Others {
    /// The longest of their smoothed round-trip times.
    pub longest: Span,
    /// The highest of their delivery rates.
    pub fastest: Rate,
}

impl Others {
    /// The round trip beyond which a path of this least round trip and this delivery rate is bloated, `None` when it is not, whatever it takes.
    pub(crate) fn limit(&self, least: Span, rate: Rate) -> Option<Span> {
        let factor = match self.fastest.as_bits() {
            fastest if fastest > rate.as_bits().saturating_mul(OMEGA) => SHALLOW,
            fastest if fastest > rate.as_bits() => DEEP,
            _ => return None,
        };
        Some(LEAST.max(self.longest * OTHERS).max(least * factor))
    }
}

/// Since when a queue stands before a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bloat {
    since: Option<Time>,
    /// Bytes of data that had come in by then.
    heard: u64,
}

impl Bloat {
    /// False for round trips that are within any limit.
    pub(crate) fn may_stand(sample: Span, least: Span) -> bool {
        sample > LEAST && sample > least * SHALLOW
    }

    /// Takes in a round trip; true when a queue stands.
    pub(crate) fn stands(
        &mut self,
        now: Time,
        sample: Span,
        limit: Option<Span>,
        data_received: u64,
    ) -> bool {
        let is_short = limit.is_none_or(|limit| sample <= limit);
        if is_short || (self.since.is_some() && data_received >= self.heard + INCOMING) {
            self.since = None;
            return false;
        }
        if self.since.is_none() {
            self.heard = data_received;
        }
        let stands = now.since(*self.since.get_or_insert(now)) >= STANDS;
        if stands {
            self.since = None;
        }
        stands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Others = Others { longest: Span::from_millis(50), fastest: Rate::from_bits(40_000_000) };

    /// Milliseconds until a queue stands before a path of 50 ms and so many Mbit/s, where round trips are as told; data comes in at so
    /// many bytes a millisecond.
    fn stands_after(mbit: f64, round_trip: impl Fn(u64) -> u64, incoming: u64) -> Option<u64> {
        let (mut bloat, least) = (Bloat::default(), Span::from_millis(50));
        (0..5_000).step_by(20).find(|millis| {
            let (now, sample) =
                (Time::ZERO + Span::from_millis(*millis), Span::from_millis(round_trip(*millis)));
            let others = if Bloat::may_stand(sample, least) { OTHER } else { Others::default() };
            bloat.stands(now, sample, others.limit(least, Rate::from_mbit(mbit)), millis * incoming)
        })
    }

    #[test]
    fn a_deep_queue_is_noticed_within_a_second() {
        assert_eq!(stands_after(20.0, |_| 400, 0), Some(500));
        assert_eq!(stands_after(20.0, |millis| 50 + millis / 2, 0), Some(1_020), "a second after 250 ms");
    }

    #[test]
    fn what_a_path_may_take_depends_on_what_it_carries() {
        assert_eq!(stands_after(20.0, |_| 280, 0), None, "a few bandwidth-delay products");
        assert_eq!(stands_after(3.0, |_| 280, 0), Some(500), "nobody would miss it");
        assert_eq!(stands_after(3.0, |_| 190, 0), None, "nobody notices");
        assert_eq!(stands_after(50.0, |_| 2_000, 0), None, "it carries most");
    }

    #[test]
    fn a_queue_that_drains_now_and_then_does_not_stand() {
        assert_eq!(stands_after(20.0, |millis| if millis % 400 == 0 { 50 } else { 900 }, 0), None);
    }

    #[test]
    fn what_waits_behind_data_that_comes_in_is_not_bloated() {
        assert_eq!(stands_after(20.0, |_| 900, 100), None);
    }

    #[test]
    fn three_round_trips_of_the_other_paths_are_no_matter() {
        let slow = Others { longest: Span::from_millis(300), ..OTHER };
        assert_eq!(slow.limit(Span::from_millis(50), Rate::from_mbit(1.0)), Some(Span::from_millis(900)));
    }
}
