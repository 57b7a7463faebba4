//! Whether striping pays for a flow: tried, because nothing else tells.
//!
//! The gain depends on the flow's sender, on queues, losses and delays, and the rate of an unused path is unknown. So
//! `auto` stripes each bulk flow for a moment, then routes it, and keeps what carried more. Striping also shows what each
//! path carries, so that the flow is then routed to the best one.
//!
//! ```text
//! routed --bulk--> striped --PHASE--> routed --PHASE--> the better one for a while --> the other, ...
//!                  \--too little to be worth it: ended early-------^
//! ```
//!
//! The better one is kept [`LEAST_HOLD`] at first, then twice as long each time it wins again. An alternative that carried
//! much less waits for [`MOST_HOLD`]. A flow that pauses starts anew.
//!
//! A sender that does not slow down, such as a video, must not lose packets to a trial. If packets still come as fast as
//! before but pile up in front of the path, the path is too slow. The trial then ends before CoDel drops packets
//! ([`Trial::piles_up`]). In the same way, a flow that is kept on one path is striped again as soon as it grows beyond that
//! path. A trial also ends when a queue stands before the path's bottleneck and the path delivers less than striping did.

use std::collections::BTreeMap;

use anabranch_wire::{Span, Time};

/// Shortest phase of a trial.
const PHASE: Span = Span::from_millis(1_500);
/// A phase lasts at least so many round trips of the slowest path.
const ROUND_TRIPS: u64 = 8;
/// How long the better one is kept before the other is tried again.
const LEAST_HOLD: Span = Span::from_secs(6);
const MOST_HOLD: Span = Span::from_secs(60);
/// Striping must carry so many times as much as one path.
const GAIN: f64 = 1.05;
/// A trial ends early below this share of what the other carried.
const HOPELESS: f64 = 0.7;
/// A sender that slows down sends less than this share of its former rate.
const UNCHANGED: f64 = 0.9;
/// A queue of this length at the former rate is too much. CoDel accepts it for 100 ms.
const PILE: Span = Span::from_millis(20);
/// While one path is kept, a queue that grows by this share of what leaves shows that the sender wants more.
const SURPLUS: f64 = 0.2;
/// Such growth is measured over half to all of this time.
const WATCH: Span = Span::from_secs(1);
/// After a pause of this length, no packet of a flow is in flight.
pub(crate) const PAUSE: Span = Span::from_millis(500);
/// Flows remembered at most.
const MOST_FLOWS: usize = 64;

/// The trials of all bulk flows.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    flows: BTreeMap<u32, Trial>,
    /// No trial begins before: a flow was striped while others wanted the paths.
    begins_at: Time,
    /// When flows ceased to be striped because others wanted the paths.
    left_at: BTreeMap<u32, Time>,
}

/// A flow's place in its trials.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// When its last packet left.
    last: Time,
    is_striped: bool,
    /// When it last ceased to be striped.
    left_at: Time,
    began: Time,
    ends: Time,
    /// Bytes sent in this phase after its first third, in which the sender adapts.
    bytes: u64,
    pile: Option<Pile>,
    /// Bytes a second when it was last routed and last striped.
    routed: Option<f64>,
    striped: Option<f64>,
    /// How long the better one is kept.
    hold: Span,
    /// Whether this phase only finds out what it carries.
    is_trial: bool,
}

/// Bytes that left and that wait since the sender could notice the phase.
#[derive(Clone, Copy, Debug)]
struct Pile {
    since: Time,
    /// Bytes that waited then.
    waited: u64,
    left: u64,
}

/// The situation of a flow when one of its packets may leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// Whether it may be striped.
    pub may: bool,
    /// Whether other flows want the paths, too.
    pub is_crowded: bool,
    /// The longest round trip of a path.
    pub slowest: Span,
    /// Its bytes in the queue.
    pub waiting: u64,
    /// Bytes a second that its path delivers, if a queue stands before the path's bottleneck.
    pub full: Option<f64>,
}

/// The decision for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// One path.
    Routed,
    /// One path, and packets of the time before, on other paths, may be on the way: the far end keeps the order.
    RoutedInOrder,
    /// All paths.
    Striped,
}

impl Trials {
    pub(crate) fn is_striped(&self, flow: u32) -> bool {
        self.flows.get(&flow).is_some_and(|trial| trial.is_striped)
    }

    /// Forgets flows that pause: a flow that is over must not keep others from being striped.
    pub(crate) fn forget_paused(&mut self, now: Time) {
        self.flows.retain(|_, trial| now.since(trial.last) <= PAUSE);
    }

    /// How many flows are striped.
    pub(crate) fn striped(&self) -> usize {
        self.flows.values().filter(|trial| trial.is_striped).count()
    }

    /// The lane of a flow's next packet.
    pub(crate) fn lane(&mut self, now: Time, flow: u32, situation: &Situation) -> Verdict {
        let may = situation.may;
        let phase = PHASE.max(situation.slowest * ROUND_TRIPS);
        let is_over = |trial: &Trial| now.since(trial.last) > PAUSE;
        if self.flows.get(&flow).is_some_and(is_over) {
            self.flows.remove(&flow);
        }
        if let Some(trial) = self.flows.get_mut(&flow).filter(|trial| may || !trial.is_striped) {
            return trial.lane(now, phase, situation);
        }
        if self.flows.remove(&flow).is_some() {
            if situation.is_crowded {
                self.begins_at = now + LEAST_HOLD;
            }
            self.left_at.retain(|_, left| now.since(*left) <= PAUSE);
            self.left_at.insert(flow, now);
        }
        if self.flows.len() >= MOST_FLOWS {
            self.flows.retain(|_, trial| !is_over(trial));
        }
        if !may || now < self.begins_at || self.flows.len() >= MOST_FLOWS {
            let has_left = self.left_at.get(&flow).is_some_and(|left| now.since(*left) <= PAUSE);
            return if has_left { Verdict::RoutedInOrder } else { Verdict::Routed };
        }
        self.flows.insert(flow, Trial::new(now, phase));
        Verdict::Striped
    }

    /// Counts a packet that leaves.
    pub(crate) fn count(&mut self, now: Time, flow: u32, bytes: u64) {
        if let Some(trial) = self.flows.get_mut(&flow) {
            trial.last = now;
            if now >= trial.measured_from() {
                trial.bytes += bytes;
            }
            if let Some(pile) = &mut trial.pile {
                pile.left += bytes;
            }
        }
    }
}

impl Trial {
    fn new(now: Time, phase: Span) -> Self {
        Self {
            last: now,
            is_striped: true,
            left_at: Time::ZERO,
            began: now,
            ends: now + phase,
            bytes: 0,
            pile: None,
            routed: None,
            striped: None,
            hold: LEAST_HOLD,
            is_trial: true,
        }
    }

    fn measured_from(&self) -> Time {
        self.began + (self.ends.since(self.began) / 3).min(PHASE)
    }

    /// Bytes a second in this phase, once it was measured for a while.
    fn rate(&self, now: Time) -> Option<f64> {
        let span = now.since(self.measured_from()).as_secs_f64();
        (span > 0.2).then(|| self.bytes as f64 / span)
    }

    fn lane(&mut self, now: Time, phase: Span, situation: &Situation) -> Verdict {
        let other = if self.is_striped { self.routed } else { self.striped };
        let is_less = |rate: Option<f64>, share: f64| {
            self.is_trial && rate.zip(other).is_some_and(|(rate, other)| rate < other * share)
        };
        let full = situation.full.filter(|_| !self.is_striped && now >= self.began + situation.slowest);
        let is_over = now >= self.ends || is_less(self.rate(now), HOPELESS) || is_less(full, 1.0 / GAIN);
        if let Some(rate) = self.piles_up(now, situation) {
            self.end_phase(now, phase, rate);
        } else if is_over {
            let rate = self.rate(now).or(full).unwrap_or(0.0);
            self.end_phase(now, phase, rate);
        }
        match self.is_striped {
            true => Verdict::Striped,
            false if now.since(self.left_at) <= PAUSE => Verdict::RoutedInOrder,
            false => Verdict::Routed,
        }
    }

    /// The bytes a second that a path carries, if they are too few and the sender does not slow down. A sender that does
    /// sends no more than was acknowledged, a round trip after the phase began.
    ///
    /// The path's own estimate would not do: after a pause it is the rate of a burst.
    fn piles_up(&mut self, now: Time, situation: &Situation) -> Option<f64> {
        let striped = self.striped.filter(|_| !self.is_striped && now >= self.began + situation.slowest)?;
        let waiting = situation.waiting;
        if !self.is_trial && self.pile.is_some_and(|pile| now.since(pile.since) > WATCH) {
            self.pile = None;
        }
        let pile = self.pile.get_or_insert(Pile { since: now, waited: waiting, left: 0 });
        let span = now.since(pile.since);
        let before = striped * span.as_secs_f64();
        let (left, growth) = (pile.left as f64, waiting.saturating_sub(pile.waited) as f64);
        let is_too_slow = match self.is_trial {
            true => growth > striped * PILE.as_secs_f64() && left < before / GAIN,
            false => span >= WATCH / 2 && growth > left * SURPLUS,
        };
        (is_too_slow && left + growth > before * UNCHANGED).then(|| left / span.as_secs_f64())
    }

    /// Decides what follows a phase that carried so many bytes a second.
    fn end_phase(&mut self, now: Time, phase: Span, rate: f64) {
        *(if self.is_striped { &mut self.striped } else { &mut self.routed }) = Some(rate);
        let (Some(routed), Some(striped)) = (self.routed, self.striped) else {
            return self.begin(now, phase, !self.is_striped);
        };
        if !self.is_trial {
            self.is_trial = true;
            return self.begin(now, phase, !self.is_striped);
        }
        let is_better = striped > routed * GAIN;
        let (worse, better) = if is_better { (routed, striped) } else { (striped, routed) };
        self.hold = match self.is_striped == is_better {
            // The alternative won.
            true => LEAST_HOLD,
            false if worse < better * HOPELESS => MOST_HOLD,
            false => (self.hold * 2).min(MOST_HOLD),
        };
        self.is_trial = false;
        self.begin(now, self.hold, is_better);
    }

    fn begin(&mut self, now: Time, length: Span, is_striped: bool) {
        if self.is_striped && !is_striped {
            self.left_at = now;
        }
        (self.began, self.bytes, self.ends, self.is_striped) = (now, 0, now + length, is_striped);
        self.pile = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn situation(may: bool) -> Situation {
        let slowest = Span::from_millis(50);
        Situation { may, is_crowded: true, slowest, waiting: 0, full: None }
    }

    /// Runs a flow for so many milliseconds that is striped or routed at these rates in bytes per 10 ms; returns its bytes of
    /// each kind.
    fn run(trials: &mut Trials, millis: std::ops::Range<u64>, [routed, striped]: [u64; 2]) -> [u64; 2] {
        let mut sent = [0, 0];
        for step in millis.step_by(10) {
            let now = Time::ZERO + Span::from_millis(step);
            let verdict = trials.lane(now, 7, &situation(true));
            let is_striped = verdict == Verdict::Striped;
            let bytes = if is_striped { striped } else { routed };
            trials.count(now, 7, bytes);
            sent[usize::from(is_striped)] += bytes;
        }
        sent
    }

    #[test]
    fn a_flow_keeps_what_carries_more() {
        let [routed, striped] = run(&mut Trials::default(), 0..30_000, [1_000, 1_500]);
        assert!(striped > 8 * routed, "{striped} {routed}");
        let [routed, striped] = run(&mut Trials::default(), 0..30_000, [1_000, 1_020]);
        assert!(routed > 3 * striped, "{striped} {routed}: too little gain");
    }

    #[test]
    fn a_hopeless_trial_ends_early_and_is_not_repeated_soon() {
        let [routed, striped] = run(&mut Trials::default(), 0..60_000, [1_000, 300]);
        assert!(striped <= 300 * 230 && routed > 1_000 * 5_700, "{striped} {routed}");
    }

    #[test]
    fn a_flow_follows_when_the_other_lane_becomes_better() {
        let mut trials = Trials::default();
        run(&mut trials, 0..20_000, [1_000, 900]);
        assert!(!trials.is_striped(7));
        let [routed, striped] = run(&mut trials, 20_000..80_000, [1_000, 2_000]);
        assert!(striped > routed, "{striped} {routed}");
    }

    #[test]
    fn a_flow_that_gives_way_to_others_keeps_its_order_for_a_while() {
        let mut trials = Trials::default();
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        assert_eq!(trials.lane(at(0), 7, &situation(true)), Verdict::Striped);
        let verdicts = [10, 400, 600].map(|millis| trials.lane(at(millis), 7, &situation(false)));
        assert_eq!(verdicts, [Verdict::RoutedInOrder, Verdict::RoutedInOrder, Verdict::Routed]);
    }

    #[test]
    fn a_flow_that_pauses_starts_anew_and_the_table_is_bounded() {
        let mut trials = Trials::default();
        run(&mut trials, 0..2_000, [1_000, 1_500]);
        let later = Time::ZERO + Span::from_secs(10);
        assert_eq!(trials.lane(later, 7, &situation(false)), Verdict::Routed);
        for flow in 0..10_000 {
            trials.lane(later, flow, &situation(true));
        }
        assert_eq!(trials.flows.len(), MOST_FLOWS);
    }

    /// Runs a sender of so many bytes in each 10 ms, whatever becomes of them, for a minute. One path carries 500 of them, all
    /// together 1,000. Returns the bytes sent on one path, and the longest queue.
    fn run_stubborn(offered: u64) -> (u64, u64) {
        let mut trials = Trials::default();
        let (mut waiting, mut longest, mut routed) = (0, 0, 0);
        for step in 0..6_000 {
            let now = Time::ZERO + Span::from_millis(step * 10);
            waiting += offered;
            let is_striped =
                trials.lane(now, 7, &Situation { waiting, ..situation(true) }) == Verdict::Striped;
            let sent = waiting.min(if is_striped { 1_000 } else { 500 });
            trials.count(now, 7, sent);
            waiting -= sent;
            longest = longest.max(waiting);
            routed += if is_striped { 0 } else { sent };
        }
        (routed, longest)
    }

    #[test]
    fn a_flow_that_outgrows_its_path_is_striped_within_two_seconds() {
        let mut trials = Trials::default();
        let mut waiting = 0;
        let mut routed_since = 0;
        for step in 0..4_000 {
            let now = Time::ZERO + Span::from_millis(step * 10);
            waiting += if step < 2_000 { 300 } else { 800 };
            let is_striped =
                trials.lane(now, 7, &Situation { waiting, ..situation(true) }) == Verdict::Striped;
            let sent = waiting.min(if is_striped { 1_000 } else { 500 });
            trials.count(now, 7, sent);
            waiting -= sent;
            assert!(!(200..2_000).contains(&step) || waiting == 0, "{waiting}");
            routed_since += u32::from(step >= 2_000 && !is_striped);
        }
        assert!(routed_since < 200, "{routed_since}0 ms on one path");
    }

    #[test]
    fn a_path_that_claims_the_rate_of_a_burst_is_not_believed() {
        let mut trials = Trials::default();
        let (mut waiting, mut routed) = (0, 0);
        for step in 0..6_000 {
            let now = Time::ZERO + Span::from_millis(step * 10);
            waiting += 800;
            let known = Situation { waiting, full: Some(200_000.0), ..situation(true) };
            let is_striped = trials.lane(now, 7, &known) == Verdict::Striped;
            let sent = waiting.min(if is_striped { 1_000 } else { 500 });
            trials.count(now, 7, sent);
            waiting -= sent;
            routed += u32::from(!is_striped);
        }
        assert!((1..50).contains(&routed), "{routed}0 ms on one path");
    }

    #[test]
    fn a_lone_flow_is_striped_again_as_soon_as_a_second_path_is_back() {
        let mut trials = Trials::default();
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        let alone = |may| Situation { is_crowded: false, ..situation(may) };
        let verdicts = [true, false, true].map(|may| trials.lane(at(10), 7, &alone(may)));
        assert_eq!(verdicts, [Verdict::Striped, Verdict::RoutedInOrder, Verdict::Striped]);
    }

    #[test]
    fn a_trial_lets_no_queue_grow_for_a_sender_that_does_not_slow_down() {
        let (routed, longest) = run_stubborn(800);
        assert!(longest <= 800 * 12, "{longest} bytes wait: 120 ms at its rate");
        assert!(routed > 0 && routed < 500 * 40, "{routed}");
    }

    #[test]
    fn a_sender_that_does_not_slow_down_and_fits_one_path_is_routed() {
        let (routed, longest) = run_stubborn(400);
        assert!(routed > 400 * 4_000 && longest == 0, "{routed} {longest}");
    }

    #[test]
    fn a_path_with_a_queue_that_delivers_less_is_tried_for_a_round_trip_only() {
        let mut trials = Trials::default();
        let mut routed = 0;
        for step in 0..6_000 {
            let now = Time::ZERO + Span::from_millis(step * 10);
            let known = Situation { full: Some(90_000.0), ..situation(true) };
            let is_striped = trials.lane(now, 7, &known) == Verdict::Striped;
            trials.count(now, 7, 1_000);
            routed += u32::from(!is_striped);
        }
        assert!((1..30).contains(&routed), "{routed} of 6,000");
    }
}
