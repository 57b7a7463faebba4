//! Detects a standing queue before a path, which delays data on the other paths.
//!
//! Loss-based windows fill any buffer. Data is delivered in order, so data behind seconds of buffer on one path delays
//! the data of all other paths (bufferbloat). A queue *stands* when round trips have exceeded the limit for [`STANDS`]
//! and it has not drained since. It has drained after a round trip within three quarters of the limit, or after
//! [`LULL`] without one beyond it. Bursts drain sooner, as CoDel assumes (RFC 8289 §3.1). The limit is the largest of
//!
//! - [`LEAST`], a delay that users do not notice;
//! - [`OTHERS`] times the longest round trip of the other paths in use: about the pause when a path breaks;
//! - [`DEEP`] times the path's own least round trip over any return path, which allows a few bandwidth–delay products.
//!   The factor is [`SHALLOW`] if the path carries less than a tenth of the fastest (ω of mTCP §3.4.1 [M10]), since its
//!   loss would cost little.
//!
//! The fastest path is never bloated: leaving it out would cost more than the queue. A path that receives data is not
//! bloated either, because its acknowledgements may wait behind that data.

use anabranch_wire::{Rate, Span, Time};

/// A queue stands after this time.
const STANDS: Span = Span::from_millis(500);
/// A queue has drained once a round trip is within this many quarters of the limit: around the limit it varies by a
/// packet.
const DRAINED_QUARTERS: u64 = 3;
/// A queue has also drained after this long without a round trip beyond the limit: two separate bursts are no queue.
const LULL: Span = Span::from_millis(250);
/// Round trips up to this are never bloated.
const LEAST: Span = Span::from_millis(200);
/// Round trips up to this many times the longest of the other paths are not bloated.
const OTHERS: u64 = 3;
/// Round trips up to this many times the path's least are not bloated,
const DEEP: u64 = 6;
/// but only this many if it carries less than 1/ω of the fastest.
const SHALLOW: u64 = 2;
const OMEGA: u64 = 10;
/// Received bytes behind which acknowledgements may have waited.
const INCOMING: u64 = 12_000;

/// The other paths in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Others {
    /// The longest of their smoothed round-trip times.
    pub longest: Span,
    /// The highest of their delivery rates.
    pub fastest: Rate,
}

impl Others {
    /// The round trip beyond which a path with this least round trip and delivery rate is bloated; `None` for never.
    pub(crate) fn limit(&self, least: Span, rate: Rate) -> Option<Span> {
        let factor = match self.fastest.as_bits() {
            fastest if fastest > rate.as_bits().saturating_mul(OMEGA) => SHALLOW,
            fastest if fastest > rate.as_bits() => DEEP,
            _ => return None,
        };
        Some(LEAST.max(self.longest * OTHERS).max(least * factor))
    }
}

/// A queue that may be standing.
#[derive(Clone, Copy, Debug)]
struct Queue {
    since: Time,
    /// When a round trip was last beyond the limit at that time.
    over_at: Time,
    /// The least limit since then: the other paths' rates vary, but the queue does not.
    limit: Span,
    /// Bytes of data received until then.
    heard: u64,
}

/// The queue before a path, if it may be standing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bloat {
    queue: Option<Queue>,
}

impl Bloat {
    /// False for round trips within every limit.
    pub(crate) fn may_stand(sample: Span, least: Span) -> bool {
        sample > LEAST && sample > least * SHALLOW
    }

    /// Handles a round trip; true if a queue stands and exceeds the current limit as well.
    pub(crate) fn stands(
        &mut self,
        now: Time,
        sample: Span,
        limit: Option<Span>,
        data_received: u64,
    ) -> bool {
        let limit = limit.unwrap_or(Span::MAX);
        let is_over = sample > limit;
        let begun = Queue { since: now, over_at: now, limit, heard: data_received };
        let known = self.queue.or(is_over.then_some(begun));
        let Some(mut queue) = known else { return false };
        queue.limit = queue.limit.min(limit);
        if is_over {
            queue.over_at = now;
        }
        let has_drained = sample <= queue.limit / 4 * DRAINED_QUARTERS || now.since(queue.over_at) > LULL;
        if has_drained || data_received >= queue.heard + INCOMING {
            self.queue = None;
            return false;
        }
        let stands = is_over && now.since(queue.since) >= STANDS;
        self.queue = Some(queue).filter(|_| !stands);
        stands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Others = Others { longest: Span::from_millis(50), fastest: Rate::from_bits(40_000_000) };

    /// Milliseconds until a queue stands before a path of 50 ms and `mbit` with these round trips, while `incoming`
    /// bytes arrive per millisecond.
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
    fn the_limit_of_a_path_depends_on_its_rate() {
        assert_eq!(stands_after(20.0, |_| 280, 0), None, "a few bandwidth-delay products");
        assert_eq!(stands_after(3.0, |_| 280, 0), Some(500), "it would not be missed");
        assert_eq!(stands_after(3.0, |_| 190, 0), None, "people do not notice");
        assert_eq!(stands_after(50.0, |_| 2_000, 0), None, "it is the fastest");
    }

    #[test]
    fn a_queue_that_drains_now_and_then_does_not_stand() {
        assert_eq!(stands_after(20.0, |millis| if millis % 400 == 0 { 50 } else { 900 }, 0), None);
        assert_eq!(stands_after(20.0, |millis| if millis % 400 == 0 { 220 } else { 900 }, 0), None);
    }

    #[test]
    fn a_queue_at_the_limit_stands_although_a_round_trip_is_just_within_it() {
        assert_eq!(stands_after(3.0, |millis| if millis % 400 == 0 { 195 } else { 205 }, 0), Some(520));
        assert_eq!(
            stands_after(3.0, |millis| if millis == 20 { 205 } else { 195 }, 0),
            None,
            "not beyond it"
        );
    }

    /// A full window stops the other paths for a moment; then a slow path seems as fast as they are.
    #[test]
    fn a_queue_stands_although_the_other_paths_slow_down_for_a_moment() {
        let (mut bloat, least) = (Bloat::default(), Span::from_millis(50));
        let stands = (0..1_000).step_by(20).find(|millis| {
            let mbit = if (280..320).contains(millis) || *millis == 500 { 1.0 } else { 40.0 };
            let others = Others { fastest: Rate::from_mbit(mbit), ..OTHER };
            let limit = others.limit(least, Rate::from_mbit(2.0));
            bloat.stands(Time::ZERO + Span::from_millis(*millis), Span::from_millis(280), limit, 0)
        });
        assert_eq!(stands, Some(520), "not at 500, when it is the fastest");
    }

    /// The rates of two similar paths vary, and so does which of them is the fastest.
    #[test]
    fn single_round_trips_beyond_the_limit_are_no_queue() {
        for (mbit, others, dip, millis) in [(30.0, 20.0, 18.0, 400), (4.2, 40.0, 3.9, 280)] {
            let (mut bloat, least) = (Bloat::default(), Span::from_millis(50));
            let stands = (0..20_000).step_by(20).find(|now| {
                let others = Others { fastest: Rate::from_mbit(others), ..OTHER };
                let rate = Rate::from_mbit(if now % 3_000 == 0 { dip } else { mbit });
                let now = Time::ZERO + Span::from_millis(*now);
                bloat.stands(now, Span::from_millis(millis), others.limit(least, rate), 0)
            });
            assert_eq!(stands, None, "{mbit} Mbit/s");
        }
    }

    #[test]
    fn acknowledgements_behind_incoming_data_are_not_bloated() {
        assert_eq!(stands_after(20.0, |_| 900, 100), None);
    }

    #[test]
    fn three_round_trips_of_the_other_paths_are_allowed() {
        let slow = Others { longest: Span::from_millis(300), ..OTHER };
        assert_eq!(slow.limit(Span::from_millis(50), Rate::from_mbit(1.0)), Some(Span::from_millis(900)));
    }
}
