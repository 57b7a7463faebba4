//! One budget for all sessions of an endpoint: of memory, and of the time that repairs may take.
//!
//! No session gets more at once than a fraction of the rest, so that a few growing sessions leave something to the others,
//! and the first thousands do not take everything. A part is for first windows alone: however much the sessions of one
//! peer grow, others can open theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anabranch_wire::{Span, Time};

/// A new session is granted at most this fraction of the rest.
const FIRST_SHARE: u64 = 4096;
/// The same whenever a session grows.
const GROWTH_SHARE: u64 = 16;
/// Growing windows and datagrams leave this fraction of the whole to the first windows of new sessions.
const FOR_FIRST: u64 = 8;
/// Receive window in bytes that a session always has. An endpoint with less than this in its budget should not accept
/// sessions.
pub(crate) const MIN_WINDOW: u64 = 16 << 10;

/// Bytes that an endpoint may use for all receive windows, unread datagrams and streams opened by peers.
///
/// Windows reserve their bytes before they are announced, and return them when the session ends. So ten thousand hostile
/// sessions cannot make the endpoint hold more than the budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    left: Arc<AtomicU64>,
    whole: u64,
    /// When the next repair would be due if repairs were made one by one, in nanoseconds.
    next_repair: Arc<AtomicU64>,
}

impl MemoryBudget {
    pub fn new(bytes: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(bytes)), whole: bytes, next_repair: Arc::default() }
    }

    /// True when another session may be accepted.
    pub fn has_room(&self) -> bool {
        self.left() >= MIN_WINDOW
    }

    /// Takes a turn for one repair; false without one. A turn comes each `pause`, and `at_once` after a long rest. Half
    /// of those are reserved for sessions with `needs_few`.
    pub(crate) fn take_repair(&self, now: Time, (pause, at_once): (Span, u64), needs_few: bool) -> bool {
        let at_once = if needs_few { at_once } else { at_once / 2 };
        let taken = self.next_repair.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            next_turn(now, Time::from_nanos(next), pause, at_once).map(Time::as_nanos)
        });
        taken.is_ok()
    }

    /// Bytes not reserved.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// The part of them that is not for first windows alone.
    fn spare(&self) -> u64 {
        self.left().saturating_sub(self.whole / FOR_FIRST)
    }
}

/// When the next turn is due if one is taken now; `None` when it is too early.
pub(crate) fn next_turn(now: Time, due: Time, pause: Span, at_once: u64) -> Option<Time> {
    (due <= now + pause * at_once.saturating_sub(1)).then(|| due.max(now) + pause)
}

/// A session's reservation for one purpose, returned on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: MemoryBudget,
    held: u64,
}

impl Reservation {
    /// An empty reservation.
    pub fn new(budget: MemoryBudget) -> Self {
        Self { budget, held: 0 }
    }

    /// Reserves a first window of up to `wanted` bytes; returns the granted bytes.
    pub(crate) fn reserve_first(&mut self, wanted: u64) -> u64 {
        let least = wanted.min(MIN_WINDOW);
        let share = (self.budget.left() / FIRST_SHARE).clamp(least, wanted);
        self.reserve(share).max(least)
    }

    /// Reserves up to `wanted` more bytes for a growing window; returns the granted bytes.
    pub(crate) fn reserve_more(&mut self, wanted: u64) -> u64 {
        self.reserve(wanted.min(self.budget.spare() / GROWTH_SHARE))
    }

    /// Bytes that a growing window may count on, while other sessions grow, too.
    pub(crate) fn attainable(&self) -> u64 {
        self.held.saturating_add(self.budget.spare() / 2)
    }

    /// Reserves up to `wanted` more bytes for data that no window promised; returns the granted bytes.
    pub(crate) fn reserve_spare(&mut self, wanted: u64) -> u64 {
        self.reserve(wanted.min(self.budget.spare()))
    }

    /// Reserves up to `wanted` more bytes; returns the granted bytes.
    fn reserve(&mut self, wanted: u64) -> u64 {
        let mut granted = 0;
        // The closure always returns a value, so the update cannot fail.
        let _ = self.budget.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            granted = left.min(wanted);
            Some(left - granted)
        });
        self.held += granted;
        granted
    }

    /// Reserves all of `wanted` bytes, or nothing if less than half of the budget would be left for windows.
    pub(crate) fn reserve_all(&mut self, wanted: u64) -> bool {
        let spare = self.budget.left().saturating_sub(self.budget.whole / 2);
        let got = if wanted <= spare { self.reserve(wanted) } else { 0 };
        if got < wanted {
            self.give_back(got);
        }
        got == wanted
    }

    /// Changes the reservation to `bytes`; false and unchanged if it grows and less than half of the budget would be left.
    pub fn hold(&mut self, bytes: u64) -> bool {
        match bytes.checked_sub(self.held) {
            Some(0) => true,
            Some(more) => self.reserve_all(more),
            None => {
                self.give_back(self.held - bytes);
                true
            }
        }
    }

    /// Returns this many bytes to the budget.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.held -= bytes;
        self.budget.left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An empty reservation of the same budget.
    pub(crate) fn sibling(&self) -> Self {
        Self::new(self.budget.clone())
    }

    /// Returns everything to the budget.
    pub(crate) fn release(&mut self) {
        self.give_back(self.held);
    }

    /// Bytes reserved.
    pub fn held(&self) -> u64 {
        self.held
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_share_the_budget_and_give_it_back() {
        let budget = MemoryBudget::new(100);
        let mut first = Reservation::new(budget.clone());
        let mut second = Reservation::new(budget.clone());
        assert_eq!(first.reserve(70), 70);
        assert_eq!(second.reserve(70), 30);
        drop(first);
        assert_eq!(budget.left(), 70);
    }

    #[test]
    fn growing_windows_and_datagrams_leave_an_eighth_to_new_sessions() {
        let budget = MemoryBudget::new(1 << 30);
        let mut greedy: Vec<_> = (0..64).map(|_| Reservation::new(budget.clone())).collect();
        for _ in 0..100 {
            for session in &mut greedy {
                session.reserve_more(96 << 20);
            }
        }
        assert!(((1 << 27)..(1 << 27) + (1 << 10)).contains(&budget.left()), "{}", budget.left());
        greedy[0].reserve_spare(1 << 20);
        assert_eq!((budget.left(), greedy[1].reserve_spare(1)), (1 << 27, 0));
        let mut newcomers = Vec::new();
        while budget.has_room() {
            let mut reservation = Reservation::new(budget.clone());
            assert!(reservation.reserve_first(512 << 10) >= MIN_WINDOW);
            newcomers.push(reservation);
        }
        assert!(newcomers.len() > 6_000, "{}", newcomers.len());
    }

    #[test]
    fn ten_thousand_sessions_all_get_a_window() {
        let budget = MemoryBudget::new(1 << 30);
        let mut windows = Vec::new();
        for _ in 0..10_000 {
            assert!(budget.has_room());
            let mut reservation = Reservation::new(budget.clone());
            windows.push((reservation.reserve_first(512 << 10), reservation));
        }
        assert_eq!(windows[0].0, 256 << 10);
        assert!(
            windows
                .iter()
                .all(|(window, reservation)| *window >= MIN_WINDOW && reservation.held() == *window)
        );
    }
}
