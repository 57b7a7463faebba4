//! The bottleneck of a route: a token bucket shared with other traffic.

use anabranch_overlay::sense::CAR;
use anabranch_wire::{Rate, Span, Time};

/// Bytes of a packet of a train, and of other traffic.
const BYTES: f64 = CAR as f64;
/// For how many seconds other traffic has used the bucket at the start.
const USED_FOR: f64 = 0.1;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Shaper {
    line: Rate,
    rate: Rate,
    depth: f64,
    level: f64,
    /// When the last packet left, in seconds.
    free: f64,
    at: f64,
    others: Rate,
    /// When the next packet of other traffic arrives.
    next_other: f64,
}

impl Shaper {
    /// A line of 1 Gbit/s with a bucket of `depth` bytes that fills at `rate`. Other traffic has used it before `now`.
    pub fn new(now: Time, rate: Rate, depth: u32, others: Rate) -> Self {
        let (line, depth) = (Rate::from_mbit(1_000.0), f64::from(depth));
        let at = now.as_nanos() as f64 / 1e9 - USED_FOR;
        Self { line, rate, depth, level: depth, free: at, at, others, next_other: at }
    }

    /// When a packet that arrives at this time leaves.
    pub fn pass(&mut self, at: Time) -> Time {
        let at = at.as_nanos() as f64 / 1e9;
        while self.others > Rate::ZERO && self.next_other <= at {
            let other = self.next_other;
            self.take(other);
            self.next_other += BYTES / self.others.as_bytes_f64();
        }
        Time::ZERO + Span::from_secs_f64(self.take(at).max(0.0))
    }

    fn take(&mut self, at: f64) -> f64 {
        let begin = at.max(self.free);
        let rate = self.rate.as_bytes_f64();
        self.level = (self.level + (begin - self.at) * rate).min(self.depth);
        let missing = (BYTES - self.level).max(0.0) / rate;
        self.level += missing * rate - BYTES;
        self.at = begin + missing;
        self.free = self.at + BYTES / self.line.as_bytes_f64();
        self.free
    }
}
