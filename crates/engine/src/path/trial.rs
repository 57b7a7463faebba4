//! Tests whether a path that answers also carries data: a train of full packets without data.
//!
//! Probes are small. On a path with a hundredth of its rate left they return as fast as before once the queue has
//! drained, but data sent there would delay all later data. So the last test of a held path is a *train* without data:
//! as many full packets as slow start begins with, at half the usual rate. It passes if all packets arrive within the
//! time that a quarter of the usual rate takes. Below that rate a path counts as stalled.

use anabranch_wire::{Span, Time};

use super::trouble::GRACE;

const TRAIN: u32 = 10;
/// A train that arrives at less than this part of the usual rate is slow.
const LEAST: f64 = 0.25;

/// A train under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// Packets sent from then on belong to it.
    began: Time,
    /// The usual rate, in bytes a second.
    usual_rate: f64,
    /// Longest pause between packets: if little was sent recently, the usual rate is a poor estimate.
    longest_pause: Span,
    sent: u32,
    /// Bytes of a packet.
    size: u64,
    arrived: u32,
    first_arrived_at: Time,
}

/// The result of a trial so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Open,
    Passed,
    Slow,
}

impl Trial {
    /// Begins a trial on a path with this usual round-trip time and rate, in bytes a second.
    pub(super) fn new(now: Time, usual: Span, usual_rate: f64) -> Self {
        let longest_pause = usual.max(GRACE) / u64::from(TRAIN);
        let (sent, size, arrived) = (0, 0, 0);
        Self { began: now, usual_rate, longest_pause, sent, size, arrived, first_arrived_at: Time::NEVER }
    }

    /// Pause after a packet of `size` bytes.
    pub(super) fn pause(&self, size: u64) -> Span {
        Span::from_secs_f64(2.0 * size as f64 / self.usual_rate).min(self.longest_pause)
    }

    /// Records that a packet of `size` bytes was sent; true for the last one.
    pub(super) fn on_sent(&mut self, size: u64) -> bool {
        (self.sent, self.size) = (self.sent + 1, size);
        self.sent >= TRAIN
    }

    /// A packet that left at `sent_at` arrived.
    pub(super) fn on_arrived(&mut self, now: Time, sent_at: Time) {
        if sent_at >= self.began {
            self.first_arrived_at = self.first_arrived_at.min(now);
            self.arrived += 1;
        }
    }

    /// The outcome from the packets that have arrived so far.
    pub(super) fn outcome(&self, now: Time) -> Outcome {
        let allowed = f64::from(TRAIN) * self.size as f64 / (self.usual_rate * LEAST);
        if now.since(self.first_arrived_at) > Span::from_secs_f64(allowed) + GRACE {
            Outcome::Slow
        } else if self.arrived >= TRAIN {
            Outcome::Passed
        } else {
            Outcome::Open
        }
    }

    /// The rate at which the train has arrived so far, in bytes per second; an upper bound if only one packet has
    /// arrived.
    pub(super) fn rate(&self, now: Time) -> Option<f64> {
        let lasted = now.since(self.first_arrived_at).as_secs_f64();
        let bytes = u64::from(self.arrived.saturating_sub(1).max(1)) * self.size;
        (self.arrived > 0 && lasted > 0.0).then(|| bytes as f64 / lasted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 Mbit/s.
    const USUAL_RATE: f64 = 1_250_000.0;

    fn at(micros: u64) -> Time {
        Time::ZERO + Span::from_micros(micros)
    }

    /// Sends a train over a path of 50 ms on which each packet takes `micros`; returns its outcome and when.
    fn carry(micros: u64) -> (Outcome, Time) {
        let mut trial = Trial::new(at(0), Span::from_millis(50), USUAL_RATE);
        let (mut sent_at, mut free, mut arrivals) = (at(0), at(0), Vec::new());
        for number in 1..=TRAIN {
            assert_eq!(trial.on_sent(1250), number == TRAIN);
            free = free.max(sent_at) + Span::from_micros(micros);
            arrivals.push((free + Span::from_millis(50), sent_at));
            sent_at += trial.pause(1250);
        }
        for (now, sent_at) in &arrivals {
            trial.on_arrived(*now, *sent_at);
            let outcome = trial.outcome(*now);
            if outcome != Outcome::Open {
                return (outcome, *now);
            }
        }
        (Outcome::Open, free)
    }

    #[test]
    fn a_train_passes_down_to_a_quarter_of_the_rate() {
        for part in 1..=4 {
            assert_eq!(carry(1_000 * part).0, Outcome::Passed, "1/{part}");
        }
    }

    #[test]
    fn the_second_packet_shows_a_hundredth_of_the_rate() {
        let (outcome, when) = carry(100_000);
        assert_eq!(outcome, Outcome::Slow);
        assert!(when <= at(250_000), "{when:?}");
    }

    #[test]
    fn acknowledgements_of_earlier_packets_do_not_count() {
        let mut trial = Trial::new(at(1_000), Span::from_millis(50), USUAL_RATE);
        trial.on_sent(1250);
        for _ in 0..20 {
            trial.on_arrived(at(2_000), at(999));
        }
        assert_eq!(trial.outcome(at(2_000)), Outcome::Open);
    }

    #[test]
    fn after_little_data_a_train_takes_no_longer_than_a_round_trip() {
        let trial = Trial::new(at(0), Span::from_millis(50), 1_000.0);
        assert_eq!(trial.pause(1250), Span::from_millis(5));
    }
}
