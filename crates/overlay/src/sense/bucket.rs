//! A token bucket: limits an average rate and a burst.

use anabranch_wire::{Rate, Span, Time};

/// A token bucket: fills at a rate up to a depth; a sender takes bytes out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    rate: Rate,
    depth: Span,
    /// Bytes.
    level: f64,
    at: Time,
}

impl Bucket {
    /// A full bucket whose depth is filled in the time `depth`.
    pub fn new(rate: Rate, depth: Span, now: Time) -> Self {
        Self { rate, depth, level: rate.as_bytes_f64() * depth.as_secs_f64(), at: now }
    }

    /// An empty bucket of the same kind.
    #[must_use]
    pub fn empty(self) -> Self {
        Self { level: 0.0, ..self }
    }

    /// Takes out `bytes` if available.
    pub fn take(&mut self, now: Time, bytes: u64) -> bool {
        self.fill(now);
        let enough = self.level >= bytes as f64;
        if enough {
            self.level -= bytes as f64;
        }
        enough
    }

    /// Takes out `bytes` that were already sent; a deficit is paid off later.
    pub fn charge(&mut self, now: Time, bytes: u64) {
        self.fill(now);
        self.level -= bytes as f64;
    }

    /// Whether its deficit is smaller than `bytes`.
    pub fn owes_less_than(&mut self, now: Time, bytes: u64) -> bool {
        self.fill(now);
        self.level > -(bytes as f64)
    }

    /// When it will hold `bytes`; never, if that is more than its depth.
    pub fn ready_at(&self, bytes: u64) -> Time {
        let missing = bytes as f64 - self.level;
        if missing <= 0.0 {
            return self.at;
        }
        if self.rate == Rate::ZERO || bytes as f64 > self.rate.as_bytes_f64() * self.depth.as_secs_f64() {
            return Time::NEVER;
        }
        // Rounded up, so that the bytes are there at that time.
        self.at + Span::from_secs_f64(missing / self.rate.as_bytes_f64()) + Span::from_micros(1)
    }

    fn fill(&mut self, now: Time) {
        let full = self.rate.as_bytes_f64() * self.depth.as_secs_f64();
        let more = self.rate.as_bytes_f64() * now.since(self.at).as_secs_f64();
        self.level = (self.level + more).min(full);
        self.at = self.at.max(now);
    }
}
