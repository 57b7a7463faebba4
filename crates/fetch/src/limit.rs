//! A limit on the rate of a whole download.

use std::num::NonZeroU64;

use anabranch_wire::{Span, Time};

/// Unused time that counts for later, in seconds.
const BURST_S: f64 = 0.25;

/// Bytes a second that all lanes share.
#[derive(Debug)]
pub struct Limit {
    rate: f64,
    /// When all bytes so far are paid for.
    paid: f64,
}

impl Limit {
    /// A limit of so many bits a second.
    pub fn new(bits: NonZeroU64) -> Self {
        Self { rate: bits.get() as f64 / 8.0, paid: 0.0 }
    }

    /// Counts bytes; returns how long to wait before more are read.
    pub fn spend(&mut self, bytes: u64, now: Time) -> Span {
        let now = now.as_secs_f64();
        self.paid = self.paid.max(now - BURST_S) + bytes as f64 / self.rate;
        Span::from_secs_f64(self.paid - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_wait_until_they_are_paid_for() {
        let mut limit = Limit::new(NonZeroU64::new(8_000_000).unwrap());
        let mut now = Time::ZERO + Span::from_secs(10);
        let begin = now;
        for _ in 0..100 {
            now = now + limit.spend(100_000, now);
        }
        let took = now.since(begin).as_secs_f64();
        assert!((9.7..=10.0).contains(&took), "{took} s for 10 MB at 1 MB/s");
    }
}
