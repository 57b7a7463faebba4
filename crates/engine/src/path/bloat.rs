//! Notices a queue that stands before a path and holds up what goes over the others.
//!
//! Loss-based windows fill whatever buffer there is. With data that arrives in order, what is given to a path behind seconds of
//! buffer keeps back all that other paths carry meanwhile (bufferbloat). A queue *stands* when a round trip is beyond the limit and none has been within
//! three quarters of it for [`STANDS`], nor all within it for [`LULL`]: bursts drain before that, as CoDel has it (RFC 8289 §3.1). The limit is the largest of
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
/// It has drained once a round trip was within so many quarters of the limit: at the limit it goes up and down by a packet.
const DRAINED_QUARTERS: u64 = 3;
/// Nor is it a queue that stands where none was beyond the limit for that long: two that are, and many between that are not, are two bursts.
const LULL: Span = Span::from_millis(250);
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

/// A queue that may come to stand.
#[derive(Clone, Copy, Debug)]
struct Queue {
    since: Time,
    /// When a round trip was beyond the limit of its moment last.
    over_at: Time,
    /// The least limit since then: what the others carry goes up and down, and a queue is none the shorter for it.
    limit: Span,
    /// Bytes of data that had come in by then.
    heard: u64,
}

/// Since when a queue stands before a path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bloat {
    queue: Option<Queue>,
}

impl Bloat {
    /// False for round trips that are within any limit.
    pub(crate) fn may_stand(sample: Span, least: Span) -> bool {
        sample > LEAST && sample > least * SHALLOW
    }

    /// Takes in a round trip; true when a queue stands, and is beyond the limit of this moment as well.
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
        assert_eq!(stands_after(20.0, |millis| if millis % 400 == 0 { 220 } else { 900 }, 0), None);
    }

    #[test]
    fn a_queue_at_the_limit_stands_though_a_round_trip_is_just_within_it() {
        assert_eq!(stands_after(3.0, |millis| if millis % 400 == 0 { 195 } else { 205 }, 0), Some(520));
        assert_eq!(
            stands_after(3.0, |millis| if millis == 20 { 205 } else { 195 }, 0),
            None,
            "not beyond it"
        );
    }

    /// A window that is full stops the others for a moment: for so long a path that carries little seems to carry as much as they do.
    #[test]
    fn a_queue_stands_though_what_the_others_carry_goes_down_for_a_moment() {
        let (mut bloat, least) = (Bloat::default(), Span::from_millis(50));
        let stands = (0..1_000).step_by(20).find(|millis| {
            let mbit = if (280..320).contains(millis) || *millis == 500 { 1.0 } else { 40.0 };
            let others = Others { fastest: Rate::from_mbit(mbit), ..OTHER };
            let limit = others.limit(least, Rate::from_mbit(2.0));
            bloat.stands(Time::ZERO + Span::from_millis(*millis), Span::from_millis(280), limit, 0)
        });
        assert_eq!(stands, Some(520), "not at 500: it carries most then");
    }

    /// What two paths carry that are alike goes up and down, and so does which of them carries most.
    #[test]
    fn a_round_trip_now_and_then_that_is_beyond_the_limit_of_its_moment_is_no_queue() {
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
    fn what_waits_behind_data_that_comes_in_is_not_bloated() {
        assert_eq!(stands_after(20.0, |_| 900, 100), None);
    }

    #[test]
    fn three_round_trips_of_the_other_paths_are_no_matter() {
        let slow = Others { longest: Span::from_millis(300), ..OTHER };
        assert_eq!(slow.limit(Span::from_millis(50), Rate::from_mbit(1.0)), Some(Span::from_millis(900)));
    }
}
