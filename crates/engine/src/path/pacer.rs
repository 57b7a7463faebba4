//! Spreads a path's packets over the round trip (RFC 9002 §7.7).
//!
//! A bucket of credit in bytes fills at the pacing rate. Its depth is what the rate gives in
//! [`BURST`], so that a driver with a coarse clock keeps the rate and can hand over packets in batches.

use anabranch_wire::{Rate, Span, Time};

/// Time that a full bucket is worth.
const BURST: Span = Span::from_millis(2);
/// The bucket always holds this many packets.
const MIN_PACKETS: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    credit: u64,
    filled_at: Time,
    rate: Option<Rate>,
    depth: u64,
}

impl Pacer {
    pub(crate) fn new(now: Time, mtu: u64) -> Self {
        Self { credit: mtu * 10, filled_at: now, rate: None, depth: mtu * 10 }
    }

    /// Sets the rate; `None` for no pacing.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Option<Rate>, mtu: u64) {
        self.fill(now);
        self.rate = rate;
        self.depth = rate.map_or(u64::MAX, |rate| rate.bytes_in(BURST).max(MIN_PACKETS * mtu));
    }

    fn fill(&mut self, now: Time) {
        let Some(rate) = self.rate else {
            self.filled_at = now;
            return;
        };
        let earned = rate.bytes_in(now.since(self.filled_at));
        if earned > 0 {
            self.credit = (self.credit + earned).min(self.depth);
            self.filled_at = now;
        }
    }

    /// Bytes that may leave now.
    pub(crate) fn budget(&mut self, now: Time) -> u64 {
        self.fill(now);
        if self.rate.is_none() { u64::MAX } else { self.credit }
    }

    /// When `bytes` may leave.
    pub(crate) fn ready_at(&self, bytes: u64) -> Time {
        match self.rate {
            Some(rate) if self.credit < bytes => self.filled_at + rate.time_for(bytes - self.credit),
            _ => self.filled_at,
        }
    }

    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_a_second_exactly_the_rate_passes() {
        let rate = Rate::from_mbit(10.0);
        let mut pacer = Pacer::new(Time::ZERO, 1250);
        pacer.set_rate(Time::ZERO, Some(rate), 1250);
        let (mut now, mut sent) = (Time::ZERO, 0);
        while now < Time::ZERO + Span::from_secs(1) {
            if pacer.budget(now) >= 1250 {
                pacer.on_sent(1250);
                sent += 1250;
            } else {
                now = pacer.ready_at(1250);
            }
        }
        assert!((1_250_000..1_270_000).contains(&sent), "{sent}");
    }
}
