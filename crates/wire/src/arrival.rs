//! When a packet arrived, by the clock of the end that received it, as acknowledgements tell it.
//!
//! Two ends' clocks have nothing in common, so only the change of what [`ArrivalTime::since`] gives from one packet to another
//! means anything: it is the change of the way there alone, where a round trip has the way back in it as well.

use crate::{Span, Time};

/// A moment of the receiver's clock, in microseconds, that begins anew every [`ArrivalTime::ROUND`]: then it never takes more
/// than four bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ArrivalTime(u32);

impl ArrivalTime {
    /// After so long the same numbers come again: 2^30 microseconds, near eighteen minutes.
    pub const ROUND: Span = Span::from_micros(1 << 30);
    /// The last number before they begin anew.
    pub const LAST: u64 = (1 << 30) - 1;

    /// What is told of `now`.
    #[must_use]
    pub const fn of(now: Time) -> Self {
        Self::from_micros(now.as_nanos() / 1000)
    }

    /// So many microseconds, less all full [rounds](Self::ROUND).
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self((micros & Self::LAST) as u32)
    }

    /// Microseconds, below 2^30.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 as u64
    }

    /// From `sent`, by another clock, to this: in nanoseconds, less all full [rounds](Self::ROUND).
    #[must_use]
    pub const fn since(self, sent: Time) -> Span {
        let (round, sent) = (Self::ROUND.as_nanos(), sent.as_nanos() % Self::ROUND.as_nanos());
        Span::from_nanos((self.as_micros() * 1000 + round - sent) % round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_begins_anew_and_the_time_between_does_not_notice() {
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
