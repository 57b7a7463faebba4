//! Slow start, and leaving it before it floods the bottleneck's queue: HyStart++ (RFC 9406).
//!
//! A window below its `ssthresh` grows by what is acknowledged. In a path's first slow start, HyStart++ compares the least
//! round-trip time of each round with that of the round before. An increase of an eighth (4 to 16 ms) means that a queue
//! builds up: conservative slow start (CSS) begins and grows a quarter as fast. If the round-trip time falls below its
//! value at that point, slow start resumes. After five rounds of CSS, including the one in which it began (§4.2), the
//! window becomes the `ssthresh`.
//!
//! RFC 9406 asks for 8 samples before it judges a round. With an ack for many packets a round may never have that many,
//! so a round with 3 to 7 samples is judged when it ends.

use anabranch_wire::Span;

const SAMPLES: u32 = 8;
const SAMPLES_AT_END: u32 = 3;
const MIN_THRESHOLD: Span = Span::from_millis(4);
const MAX_THRESHOLD: Span = Span::from_millis(16);
const THRESHOLD_DIVISOR: u64 = 8;
const CSS_GROWTH: f64 = 0.25;
const CSS_ROUNDS: u32 = 5;

/// HyStart++ on one path, until the path first leaves slow start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyStart {
    last_round: Option<Span>,
    this_round: Option<Span>,
    samples: u32,
    css: Option<Css>,
}

/// Conservative slow start: the round-trip time at which it began, and the rounds spent in it.
#[derive(Clone, Copy, Debug)]
struct Css {
    baseline: Span,
    rounds: u32,
}

/// The effect of an ack on slow start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Grow by this fraction of what was acknowledged.
    Grow(f64),
    /// Slow start is over: the window is the `ssthresh`.
    Leave,
}

impl HyStart {
    pub(crate) fn new() -> Self {
        Self { last_round: None, this_round: None, samples: 0, css: None }
    }

    /// Handles the round-trip sample of an ack; `round_start` marks the first of a round.
    pub(crate) fn on_ack(&mut self, rtt: Span, round_start: bool) -> Verdict {
        if round_start && self.end_round() {
            return Verdict::Leave;
        }
        self.samples = self.samples.saturating_add(1);
        self.this_round = Some(self.this_round.map_or(rtt, |least| least.min(rtt)));
        if self.samples >= SAMPLES {
            self.judge();
        }
        Verdict::Grow(if self.css.is_some() { CSS_GROWTH } else { 1.0 })
    }

    /// Ends a round; true after the last round of conservative slow start.
    fn end_round(&mut self) -> bool {
        let slowed = self.css.is_some();
        if (SAMPLES_AT_END..SAMPLES).contains(&self.samples) {
            self.judge();
        }
        self.last_round = self.this_round.take().or(self.last_round);
        self.samples = 0;
        let Some(css) = &mut self.css else { return false };
        css.rounds += u32::from(slowed);
        css.rounds >= CSS_ROUNDS
    }

    fn judge(&mut self) {
        let Some(now) = self.this_round else { return };
        match self.css {
            Some(css) if now < css.baseline => self.css = None,
            Some(_) => {}
            None => {
                let Some(before) = self.last_round else { return };
                let threshold = (before / THRESHOLD_DIVISOR).max(MIN_THRESHOLD).min(MAX_THRESHOLD);
                if now >= before + threshold {
                    self.css = Some(Css { baseline: now, rounds: 0 });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(hystart: &mut HyStart, millis: u64, acks: u32) -> Verdict {
        let rtt = Span::from_millis(millis);
        let first = hystart.on_ack(rtt, true);
        if first == Verdict::Leave {
            return first;
        }
        (1..acks).map(|_| hystart.on_ack(rtt, false)).last().unwrap_or(first)
    }

    #[test]
    fn a_steady_round_trip_time_keeps_slow_start_going() {
        let mut hystart = HyStart::new();
        for _ in 0..20 {
            assert_eq!(round(&mut hystart, 50, 10), Verdict::Grow(1.0));
        }
    }

    #[test]
    fn growth_of_the_round_trip_time_leads_through_five_slow_rounds_out_of_slow_start() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 50, 10);
        assert_eq!(round(&mut hystart, 56, 10), Verdict::Grow(1.0), "below an eighth");
        assert_eq!(round(&mut hystart, 63, 10), Verdict::Grow(CSS_GROWTH));
        for extra in 0..4 {
            assert_eq!(round(&mut hystart, 64 + extra, 10), Verdict::Grow(CSS_GROWTH));
        }
        assert_eq!(round(&mut hystart, 70, 10), Verdict::Leave);
    }

    #[test]
    fn a_round_trip_time_that_falls_back_resumes_slow_start() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 50, 10);
        assert_eq!(round(&mut hystart, 60, 10), Verdict::Grow(CSS_GROWTH));
        assert_eq!(round(&mut hystart, 59, 10), Verdict::Grow(1.0));
    }

    #[test]
    fn rounds_of_few_acks_are_judged_when_they_end_and_of_fewer_not_at_all() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 50, 4);
        round(&mut hystart, 80, 4);
        for _ in 0..5 {
            assert_eq!(round(&mut hystart, 80, 1), Verdict::Grow(CSS_GROWTH), "CSS began between two rounds");
        }
        assert_eq!(round(&mut hystart, 80, 1), Verdict::Leave);
        let mut sparse = HyStart::new();
        for millis in [50, 80, 110, 140] {
            assert_eq!(round(&mut sparse, millis, 2), Verdict::Grow(1.0));
        }
    }
}
