//! Head-of-line relief: what a slow path still owes goes again over a faster one that has nothing else to do.
//!
//! A path is idle for one of two reasons. In both, a copy on the idle path that arrives before the original
//! shortens the wait; and while there is something new to send, nothing is ever sent again for this reason.
//!
//! - **The gap.** The peer's receive window is used up by data that waits for what a slow path carries. Its *oldest* packets go again:
//!   each that arrives opens the window. When they arrive is told by when they left and how long packets took lately.
//! - **The tail.** Everything has left, and it is done when the last path is. That path's *newest* packets go again, as long as
//!   they would arrive later than the copy, so that all paths are done at about one moment. What is in flight and the rate at which it
//!   arrives tell when: round-trip times do not know yet of the queue that a path built in its last one. They
//!   are judged again whenever the path has acknowledged something.
//!
//! A packet is copied once, only when the copy is expected to arrive first by more than the variation of
//! both paths, and copies stay within [`SHARE`] of what was sent. From then on the copy's path answers for the
//! data: when the original is lost, nothing more needs to be done.

use anabranch_wire::{Payload, Span, Time};

use smallvec::SmallVec;

use super::Session;
use crate::path::Path;
use crate::route::Transmit;

/// One byte in so many that leave for the first time may be copied ...
const SHARE: u64 = 50;
/// ... and so many from the start, in bytes: a short transfer has a tail as well.
const ALLOWANCE: u64 = 48 << 10;
/// Packets of one path looked at in one search.
const LOOKED_AT: usize = 64;

impl<P: Payload> Session<P> {
    /// True when there may be something to copy, and a path that can spare the room.
    pub(super) fn may_relieve(&self) -> bool {
        let some = if self.streams.unsent() > 0 { self.paths.have_news() } else { self.paths.have_tails() };
        some && self.paths.len() > 1
            && self.paths.have_room()
            && self.stats.bytes_copied < ALLOWANCE + self.streams.sent() / SHARE
    }

    /// The next copy, when some path can spare the room.
    pub(super) fn transmit_relief(&mut self, now: Time) -> Option<Transmit<P>> {
        if !self.may_relieve() {
            return None;
        }
        if self.streams.unsent() > 0 { self.relieve_gap(now) } else { self.relieve_tail(now) }
    }

    /// Everything has left: the newest packet of the path that is done last, on the one that is done first.
    fn relieve_tail(&mut self, now: Time) -> Option<Transmit<P>> {
        let fast = self.least_to_send_on(now, |session, index| session.takes(index))?;
        let mut slow: SmallVec<[(Span, usize); 8]> = SmallVec::new();
        for index in (0..self.paths.len()).filter(|index| *index != fast && self.paths.has_tail(*index)) {
            slow.push((self.takes(index), index));
        }
        slow.sort_by_key(|(takes, _)| std::cmp::Reverse(*takes));
        let arrives = now + self.takes(fast) + margin(&self.paths[fast]);
        slow.into_iter().find_map(|(_, slow)| self.copy_newest(now, (slow, fast), arrives))
    }

    /// How long a packet that leaves on a path now takes to arrive: after all that is in flight there.
    fn takes(&self, index: usize) -> Span {
        let path = &self.paths[index];
        path.drained_in(path.board.pipe() + path.size() as u64).max(self.paths.one_way(index))
    }

    /// Copies the newest packet of a slow path, if the copy is there before it at `arrives`.
    fn copy_newest(&mut self, now: Time, (slow, fast): (usize, usize), arrives: Time) -> Option<Transmit<P>> {
        for _ in 0..LOOKED_AT {
            let path = self.paths.aside(slow);
            let Some(newest) = path.board.newest_to_copy(LOOKED_AT) else { break };
            let comes = (now + path.drained_in(newest.ahead)).max(newest.sent_at + path.one_way());
            if comes <= arrives + margin(path) {
                break;
            }
            let copied = newest.runs.iter().any(|run| self.is_copied(run.stream));
            let built = if copied { None } else { self.build_relief(now, fast, &newest.runs) };
            let board = &mut self.paths.aside(slow).board;
            if built.is_some() {
                board.on_copied(newest.number);
                return built;
            }
            board.pass_newest();
        }
        self.paths.on_tail_looked_at(slow);
        None
    }

    /// The path that may send and has the least of something.
    fn least_to_send_on(&mut self, now: Time, of: impl Fn(&Self, usize) -> Span) -> Option<usize> {
        let mut least = None;
        for index in 0..self.paths.len() {
            let its = of(self, index);
            if least.is_none_or(|(_, best)| its < best) && self.may_send(now, index) {
                least = Some((index, its));
            }
        }
        least.map(|(index, _)| index)
    }

    /// The peer's window is full: the oldest packet of the slowest path.
    fn relieve_gap(&mut self, now: Time) -> Option<Transmit<P>> {
        let fast = self.least_to_send_on(now, |session, index| session.paths.one_way(index))?;
        let mut slow: SmallVec<[usize; 8]> = SmallVec::new();
        let mut next = 0;
        while let Some(index) = self.paths.next_with_news(next) {
            next = index + 1;
            if self.paths.one_way(index) > self.paths.one_way(fast) {
                slow.push(index);
            }
        }
        slow.sort_by_key(|index| std::cmp::Reverse(self.paths.one_way(*index)));
        slow.into_iter().find_map(|slow| self.copy_oldest(now, slow, fast))
    }

    /// True when a path may send a full packet now.
    pub(super) fn may_send(&mut self, now: Time, index: usize) -> bool {
        if !self.paths.has_room(index) || !self.paths.is_usable(index) {
            return false;
        }
        if !self.cc.is_paced() {
            return true;
        }
        let path = self.paths.aside(index);
        path.pacer.budget(now) >= path.size() as u64
    }

    fn copy_oldest(&mut self, now: Time, slow: usize, fast: usize) -> Option<Transmit<P>> {
        let arrives =
            now + self.paths[fast].one_way() + margin(&self.paths[slow]) + margin(&self.paths[fast]);
        // What left the slow path before this moment is there before a copy would be.
        let since = arrives.since(Time::ZERO).saturating_sub(self.paths[slow].one_way());
        for _ in 0..LOOKED_AT {
            let Some((number, runs)) = self.paths.aside(slow).board.next_to_copy(Time::ZERO + since) else {
                self.paths.on_looked_at(slow);
                return None;
            };
            // What leaves on all paths left the fast one already.
            if runs.iter().any(|run| self.is_copied(run.stream)) {
                continue;
            }
            let built = self.build_relief(now, fast, &runs);
            if built.is_some() {
                self.paths.aside(slow).board.on_copied(number);
                return built;
            }
        }
        None
    }
}

fn margin(path: &Path) -> Span {
    path.rtt().variance()
}
