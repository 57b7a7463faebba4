//! The path that carries urgent data keeps its queue short: other data leave a little less in flight there than would
//! build a queue. Urgent data are datagrams of some classes, and small messages next to a bulk stream.

use anabranch_wire::{PathId, Rate, Span, Time};

use super::{Path, Paths};

/// How long a path stays calm after the last urgent data.
const LASTS: Span = Span::from_secs(2);
/// The delay of the queue that bulk data may build on the calm path.
const QUEUE: Span = Span::from_millis(3);
/// Least packets that bulk data may have in flight on the calm path.
const LEAST_PACKETS: u64 = 4;
/// After this time the calm path's own queue has drained.
const SETTLES: Span = Span::from_millis(500);
/// Another path has to promise a round trip that is shorter by this to be preferred.
const BETTER_BY: Span = Span::from_millis(2);

/// The calm path of a session, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calm {
    path: Option<PathId>,
    since: Time,
    until: Time,
}

impl Calm {
    /// Urgent data left on a path.
    pub(super) fn on_urgent(&mut self, now: Time, path: PathId) {
        if self.path != Some(path) || self.until <= now {
            (self.path, self.since) = (Some(path), now);
        }
        self.until = now + LASTS;
    }

    /// True while a path is calm.
    #[inline]
    pub(super) fn lasts(&self, now: Time) -> bool {
        now < self.until
    }

    fn is(&self, now: Time, path: PathId) -> bool {
        self.lasts(now) && self.path == Some(path)
    }

    /// Bytes that bulk data may have in flight on a path; `None` for any number.
    pub(super) fn window(&self, now: Time, path: &Path) -> Option<u64> {
        let rate = path.delivery().rate();
        if !self.is(now, path.id()) || rate == Rate::ZERO || !path.rtt().has_sample() {
            return None;
        }
        // A path with delays that vary by themselves needs more in flight.
        let delay = path.rtt().min() + QUEUE + path.rtt().variance() * 2;
        Some(rate.bytes_in(delay).max(LEAST_PACKETS * path.size() as u64))
    }

    /// The round trip of urgent data on a path, apart from this session's other data.
    pub(super) fn rtt(&self, now: Time, path: &Path) -> Span {
        let (least, smoothed) = (path.rtt().min(), path.rtt().smoothed());
        if !self.is(now, path.id()) {
            least + BETTER_BY
        } else if now < self.since + SETTLES {
            least
        } else {
            // Of the queue that remains, little is this session's.
            least.max(smoothed.saturating_sub(QUEUE * 2))
        }
    }
}

impl Paths {
    /// Urgent data left on a path, or should have.
    pub(crate) fn on_urgent(&mut self, now: Time, path: PathId) {
        self.calm.on_urgent(now, path);
    }

    /// True while a path keeps its queue short.
    #[inline]
    pub(crate) fn is_one_calm(&self, now: Time) -> bool {
        self.calm.lasts(now)
    }

    /// Bytes that bulk data may have in flight on a path that keeps its queue short; `None` on any other.
    #[inline]
    pub(crate) fn calm_window(&self, now: Time, place: usize) -> Option<u64> {
        if self.calm.lasts(now) { self.calm.window(now, &self.list[place]) } else { None }
    }

    /// The round trip that urgent data can expect on a path.
    pub(crate) fn calm_rtt(&self, now: Time, place: usize) -> Span {
        self.calm.rtt(now, &self.list[place])
    }
}
