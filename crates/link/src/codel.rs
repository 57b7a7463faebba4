//! CoDel: keeps a standing queue short by dropping (or marking) at the head (RFC 8289).
//!
//! A queue is bad when every packet of a whole `interval` waited longer than `target`. Then one packet is dropped, and
//! further ones at intervals that shrink with the square root of the number dropped, until a packet waits less than
//! `target` again.

use anabranch_wire::{Span, Time};

/// CoDel's two parameters (RFC 8289 §4.2, §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelConfig {
    /// The acceptable waiting time of a standing queue.
    pub target: Span,
    /// The longest round trip in which a queue should drain.
    pub interval: Span,
}

impl Default for CodelConfig {
    /// 5 ms and 100 ms, as the RFC recommends.
    fn default() -> Self {
        Self { target: Span::from_millis(5), interval: Span::from_millis(100) }
    }
}

/// The state of RFC 8289 §5.5, updated once for each packet that reaches the head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codel {
    config: CodelConfig,
    /// When the waiting time will have been above target for an interval.
    condemned_at: Option<Time>,
    dropping: bool,
    drop_next: Time,
    count: u32,
    last_count: u32,
}

/// The packet at the head, as CoDel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) waited: Span,
    /// Bytes queued behind it.
    pub(crate) behind: u64,
    /// The largest packet the queue has held.
    pub(crate) largest: u64,
}

impl Codel {
    pub(crate) fn new(config: CodelConfig) -> Self {
        Self { config, condemned_at: None, dropping: false, drop_next: Time::ZERO, count: 0, last_count: 0 }
    }

    /// True when the packet at the head must be dropped (or marked) at `now` rather than sent.
    pub(crate) fn condemns(&mut self, now: Time, head: Head) -> bool {
        if !self.is_standing(now, head) {
            self.dropping = false;
            return false;
        }
        if self.dropping {
            if now < self.drop_next {
                return false;
            }
            self.count = self.count.saturating_add(1);
            self.drop_next = self.control_law(self.drop_next);
            return true;
        }
        self.dropping = true;
        let recent = now.since(self.drop_next) < self.config.interval * 16;
        let dropped_last_time = self.count - self.last_count;
        self.count = if dropped_last_time > 1 && recent { dropped_last_time } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.control_law(now);
        true
    }

    /// Records that the queue is empty.
    pub(crate) fn on_empty(&mut self) {
        self.condemned_at = None;
    }

    fn is_standing(&mut self, now: Time, head: Head) -> bool {
        if head.waited < self.config.target || head.behind <= head.largest {
            self.condemned_at = None;
            return false;
        }
        let condemned_at = *self.condemned_at.get_or_insert(now + self.config.interval);
        now >= condemned_at
    }

    fn control_law(&self, from: Time) -> Time {
        from + self.config.interval.mul_f64(1.0 / f64::from(self.count).sqrt())
    }
}
