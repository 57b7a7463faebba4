//! Head-of-line relief: what a slow path still owes goes again over a faster one that has nothing else to do.
//!
//! A path is idle for one of two reasons: everything has left and only the tail is awaited, or the peer's receive
//! window is used up by data that waits for a gap which a slow path is filling. In both, a copy on the
//! idle path that arrives before the original shortens the wait; and while there is something new to
//! send, nothing is ever sent again for this reason.
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
    /// The next copy, when some path can spare the room.
    pub(super) fn transmit_relief(&mut self, now: Time) -> Option<Transmit<P>> {
        if self.paths.len() < 2
            || !self.paths.have_news()
            || !self.paths.have_room()
            || self.stats.bytes_copied >= ALLOWANCE + self.streams.sent() / SHARE
        {
            return None;
        }
        let mut fast = None;
        for index in 0..self.paths.len() {
            let is_faster = |best| self.paths.one_way(index) < self.paths.one_way(best);
            if fast.is_none_or(is_faster) && self.may_send(now, index) {
                fast = Some(index);
            }
        }
        let fast = fast?;
        let paths = &self.paths;
        let is_slow = |index: &usize| paths.has_news(*index) && paths.one_way(*index) > paths.one_way(fast);
        let mut slow: SmallVec<[usize; 8]> = (0..paths.len()).filter(is_slow).collect();
        slow.sort_by_key(|index| std::cmp::Reverse(paths.one_way(*index)));
        slow.into_iter().find_map(|slow| self.copy_from(now, slow, fast))
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

    fn copy_from(&mut self, now: Time, slow: usize, fast: usize) -> Option<Transmit<P>> {
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
