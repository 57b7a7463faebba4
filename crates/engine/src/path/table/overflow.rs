//! When overflow paths are used: only while the primary paths are full.
//!
//! Primary paths are full once data has waited for them without a break for [`FULL_FOR`]. The overflow paths then join
//! them, and are used like them. They leave once the primary paths have had room for all data for [`ROOM_FOR`].
//!
//! A window that still grows in slow start is not full: the rate of its path is unknown.

use anabranch_wire::{Span, Time};

use super::Paths;

/// Shorter bursts wait for the primary paths.
const FULL_FOR: Span = Span::from_millis(200);
const ROOM_FOR: Span = Span::from_secs(2);

/// Whether the primary paths are full.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overflow {
    full_since: Option<Time>,
    full_at: Time,
    joins: bool,
}

/// The sender's view of the primary paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing waits.
    Drained,
    /// Data waits, and some primary path has room.
    Room,
    /// Data waits, and no primary path has room.
    Full,
}

impl Overflow {
    /// Whether overflow paths are used.
    #[inline]
    pub(crate) fn joins(&self) -> bool {
        self.joins
    }

    /// Notes what the sender sees. Returns whether [`Self::joins`] changed.
    pub(crate) fn note(&mut self, now: Time, seen: Seen) -> bool {
        match seen {
            Seen::Drained => self.full_since = None,
            Seen::Room => {}
            Seen::Full => self.full_at = now,
        }
        let joins = if self.joins {
            now.since(self.full_at) < ROOM_FOR
        } else {
            seen == Seen::Full && now.since(*self.full_since.get_or_insert(now)) >= FULL_FOR
        };
        std::mem::replace(&mut self.joins, joins) != joins
    }
}

impl Paths {
    /// True when some path is no primary one, or overflow paths are used like primary ones, as of the last refresh.
    #[inline]
    pub(crate) fn need_overflow_review(&self) -> bool {
        !self.are_all_usable() || self.overflow.joins()
    }

    /// Notes whether data waits for primary paths. Returns whether overflow paths are used like them.
    pub(crate) fn note_overflow(&mut self, now: Time, seen: Seen) -> bool {
        self.overflow.note(now, seen);
        self.overflow.joins()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_paths_join_after_a_while_without_room_and_leave_after_a_while_with_room() {
        let at = |millis| Time::ZERO + Span::from_millis(millis);
        let mut overflow = Overflow::default();
        for (millis, seen, joins) in [
            (0, Seen::Full, false),
            (100, Seen::Room, false),
            (150, Seen::Drained, false),
            (199, Seen::Full, false),
            (398, Seen::Full, false),
            (399, Seen::Full, true),
            (900, Seen::Drained, true),
            (2_398, Seen::Room, true),
            (2_399, Seen::Room, false),
            (2_400, Seen::Full, false),
        ] {
            let before = overflow.joins();
            assert_eq!(overflow.note(at(millis), seen), before != joins, "{millis}");
            assert_eq!(overflow.joins(), joins, "{millis}");
        }
    }
}
