//! CoDel for one flow (RFC 8289): when a packet that waited for too long is marked or dropped.

use anabranch_wire::{Span, Time};

/// Wait that CoDel accepts.
pub const TARGET: Span = Span::from_millis(5);
/// How long the wait must exceed [`TARGET`] before CoDel acts.
pub const INTERVAL: Span = Span::from_millis(100);

/// CoDel's state (RFC 8289 §5).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Codel {
    first_above: Option<Time>,
    dropping_until: Option<Time>,
    count: u32,
}

impl Codel {
    /// Whether the packet at the head is to be marked or dropped now.
    pub fn wants_drop(&mut self, now: Time, is_late: bool) -> bool {
        if !is_late {
            (self.first_above, self.dropping_until) = (None, None);
            return false;
        }
        let first_above = *self.first_above.get_or_insert(now + INTERVAL);
        if now < first_above {
            return false;
        }
        match self.dropping_until {
            // After a pause CoDel continues from its last state, a little gentler.
            None => self.count = if self.count > 2 { self.count - 2 } else { 1 },
            Some(next) if now >= next => self.count += 1,
            Some(_) => return false,
        }
        let pause = INTERVAL.as_secs_f64() / f64::from(self.count).sqrt();
        self.dropping_until = Some(now + Span::from_secs_f64(pause));
        true
    }
}
