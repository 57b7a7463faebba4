//! Spreads a path's packets over the round trip (RFC 9002 §7.7).
//!
//! A bucket of credit in bytes fills at the pacing rate. It holds the credit of [`BURST`], so that a driver with a
//! coarse clock keeps the rate and can send packets in batches. After it was empty, it reopens when it holds the credit
//! of [`QUANTUM`], because single packets cost a system call each. Below 50 Mbit/s that is one packet.

use anabranch_wire::{Rate, Span, Time};

/// Time that a full bucket is worth.
const BURST: Span = Span::from_millis(2);
/// Time that an empty bucket gathers credit before it opens again, and the most bytes it waits for.
const QUANTUM: Span = Span::from_micros(250);
const MAX_QUANTUM: u64 = 64 << 10;
/// The bucket always holds this many packets.
const MIN_PACKETS: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    credit: u64,
    filled_at: Time,
    rate: Option<Rate>,
    depth: u64,
    /// Credit at which an empty bucket opens again.
    quantum: u64,
    /// True after the bucket was empty, until it reopens.
    gathering: bool,
}

impl Pacer {
    pub(crate) fn new(now: Time, mtu: u64) -> Self {
        let depth = mtu * 10;
        Self { credit: depth, filled_at: now, rate: None, depth, quantum: mtu, gathering: false }
    }

    /// Sets the rate; `None` for no pacing.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Option<Rate>, mtu: u64) {
        self.fill(now);
        self.rate = rate;
        self.depth = rate.map_or(u64::MAX, |rate| rate.bytes_in(BURST).max(MIN_PACKETS * mtu));
        self.quantum = rate.map_or(mtu, |rate| rate.bytes_in(QUANTUM).clamp(mtu, MAX_QUANTUM));
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
        if self.rate.is_none() {
            return u64::MAX;
        }
        self.fill(now);
        self.gathering &= self.credit < self.quantum;
        if self.gathering { 0 } else { self.credit }
    }

    /// When `bytes` may leave.
    pub(crate) fn ready_at(&self, bytes: u64) -> Time {
        let bytes = if self.gathering { bytes.max(self.quantum) } else { bytes };
        match self.rate {
            Some(rate) if self.credit < bytes => self.filled_at + rate.time_for(bytes - self.credit),
            _ => self.filled_at,
        }
    }

    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(bytes);
        self.gathering |= self.credit < bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_path_lets_packets_go_in_runs_and_a_slow_one_one_by_one() {
        for (mbit, run) in [(10.0, 1), (1000.0, 25)] {
            let rate = Rate::from_mbit(mbit);
            let mut pacer = Pacer::new(Time::ZERO, 1250);
            pacer.set_rate(Time::ZERO, Some(rate), 1250);
            let mut empty = |now| {
                let mut count = 0;
                while pacer.budget(now) >= 1250 {
                    pacer.on_sent(1250);
                    count += 1;
                }
                (count, pacer.ready_at(1250))
            };
            let (_, next) = empty(Time::ZERO);
            let (count, after) = empty(next);
            assert_eq!((count, after.since(next)), (run, rate.time_for(1250 * run)), "{mbit} Mbit/s");
        }
    }

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
