//! The smoothed delivery rate of a path, and the cause of its losses, which may also be spurious.

use anabranch_cc::LossCause;
use anabranch_wire::{Rate, Span};

/// The delivery rate of a path, and losses that may be spurious.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivery {
    rate: Rate,
    /// The rate at which data in flight arrives: in slow start the largest sample, otherwise the delivery rate.
    drain_rate: Rate,
    /// Packets of the latest loss episode that have not arrived since.
    unproved_losses: u64,
    /// The cause of losses, as last reported.
    loss_cause: LossCause,
}

impl Delivery {
    /// The smoothed delivery rate, zero before the first sample.
    #[inline]
    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Adds a sample of the delivery rate. `searching` means slow start, where each round trip delivers more than the
    /// last.
    pub(crate) fn sample(&mut self, sample: Rate, app_limited: bool, searching: bool) {
        self.rate = smooth(self.rate, sample, app_limited);
        let followed = smooth(self.drain_rate, sample, app_limited);
        self.drain_rate = if searching { followed.max(sample) } else { followed };
    }

    /// Replaces the measured rate by another, or by zero to forget it.
    pub(crate) fn set_rate(&mut self, found: Rate) {
        (self.rate, self.drain_rate) = (found, found);
    }

    /// Time until the last of `bytes` in flight has arrived; zero while no rate is known. The first has already
    /// arrived, and its acknowledgement is on its return path, hence `half_rtt` less.
    pub(crate) fn drained_in(&self, bytes: u64, half_rtt: Span) -> Span {
        if self.drain_rate == Rate::ZERO {
            return Span::ZERO;
        }
        self.drain_rate.time_for(bytes).saturating_sub(half_rtt)
    }

    /// Records lost packets, which begin an episode or belong to the latest one.
    pub(crate) fn on_lost(&mut self, packets: u64, begins_episode: bool) {
        self.unproved_losses = if begins_episode { packets } else { self.unproved_losses + packets };
    }

    /// Records what losses come from; true if that has changed.
    pub(crate) fn set_loss_cause(&mut self, cause: LossCause) -> bool {
        std::mem::replace(&mut self.loss_cause, cause) != cause
    }

    /// Records packets that count as lost but arrived; true when all packets of the episode have.
    pub(crate) fn on_spurious(&mut self, packets: u64) -> bool {
        self.unproved_losses = self.unproved_losses.saturating_sub(packets);
        self.unproved_losses == 0
    }
}

/// Smooths the delivery rate. A sample limited by the application may raise it but not lower it.
fn smooth(known: Rate, sample: Rate, app_limited: bool) -> Rate {
    let (known_bits, sample_bits) = (known.as_bits(), sample.as_bits());
    if known_bits == 0 {
        return sample;
    }
    if app_limited && sample_bits < known_bits {
        return known;
    }
    Rate::from_bits(known_bits / 8 * 7 + sample_bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_slow_start_data_in_flight_is_taken_to_arrive_at_the_largest_rate_seen() {
        let mut delivery = Delivery::default();
        let drained_in = |delivery: &Delivery| delivery.drained_in(100_000, Span::from_millis(40));
        assert_eq!(drained_in(&delivery), Span::ZERO, "no rate is known");
        for mbit in [1.0, 2.0, 4.0, 8.0] {
            delivery.sample(Rate::from_mbit(mbit), false, true);
        }
        assert_eq!(drained_in(&delivery), Span::from_millis(100 - 40));
        assert!(delivery.rate() < Rate::from_mbit(3.0), "{delivery:?}");
        for _ in 0..50 {
            delivery.sample(Rate::from_mbit(4.0), false, false);
        }
        let (least, most) = (Span::from_millis(200 - 42), Span::from_millis(200 - 40));
        assert!((least..=most).contains(&drained_in(&delivery)), "{delivery:?}");
    }
}
