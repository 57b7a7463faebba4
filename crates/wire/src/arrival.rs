//! When a packet arrived, by the receiver's clock, as acknowledgements report it.
//!
//! The clocks of the two ends are unrelated, so a single value of [`ArrivalTime::since`] means nothing. Its change from
//! one packet to another is the change of the one-way delay, without the return path that a round trip includes.

use crate::{Span, Time};

/// A time of the receiver's clock in microseconds, modulo [`ArrivalTime::ROUND`], so that it never takes more than
/// four bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ArrivalTime(u32);

impl ArrivalTime {
    /// The clock starts again after this long: 2^30 microseconds, nearly eighteen minutes.
    pub const ROUND: Span = Span::from_micros(1 << 30);
    /// The largest value, in microseconds.
    pub const LAST: u64 = (1 << 30) - 1;

    /// The arrival time to report for `now`.
    pub const fn of(now: Time) -> Self {
        Self::from_micros(now.as_nanos() / 1000)
    }

    /// A time in microseconds, modulo [`ROUND`](Self::ROUND).
    pub const fn from_micros(micros: u64) -> Self {
        Self((micros & Self::LAST) as u32)
    }

    /// Microseconds, below 2^30.
    pub const fn as_micros(self) -> u64 {
        self.0 as u64
    }

    /// Time from `sent`, by the sender's clock, to this arrival, modulo [`ROUND`](Self::ROUND).
    pub const fn since(self, sent: Time) -> Span {
        let (round, sent) = (Self::ROUND.as_nanos(), sent.as_nanos() % Self::ROUND.as_nanos());
        Span::from_nanos((self.as_micros() * 1000 + round - sent) % round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_starts_again_and_differences_stay_right() {
        let sent = Time::ZERO + Span::from_secs(1073) + Span::from_nanos(999_999_999);
        let arrived = ArrivalTime::of(sent + Span::from_millis(50));
        assert!(arrived.as_micros() < 1_000_000);
        let took = arrived.since(sent);
        assert!(
            took <= Span::from_millis(50) && took + Span::from_micros(1) > Span::from_millis(50),
            "{took:?}"
        );
        assert_eq!(ArrivalTime::of(Time::ZERO + ArrivalTime::ROUND), ArrivalTime::of(Time::ZERO));
    }

    #[test]
    fn another_clock_adds_the_same_to_every_packet() {
        let offset = Span::from_secs(5000);
        let took = |sent: Time, delay| ArrivalTime::of(sent + delay + offset).since(sent);
        let (first, later) = (Time::ZERO + Span::from_secs(7), Time::ZERO + Span::from_secs(1080));
        let change =
            took(later, Span::from_millis(30)).as_nanos() - took(first, Span::from_millis(20)).as_nanos();
        assert_eq!(change, 10_000_000);
    }
}
