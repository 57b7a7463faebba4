//! What is kept of paths, found again where it may have changed.

use anabranch_wire::{PathId, Time};

use super::super::places::Places;
use super::{Paths, are_alike};

impl Paths {
    /// True when nothing has changed since the last refresh.
    pub(crate) fn are_fresh(&self, window: impl Fn(PathId) -> u64) -> bool {
        let fresh = self.stale.is_empty();
        debug_assert!(
            !fresh
                || (0..self.list.len().min(63)).all(|index| {
                    self.list[index].kept.window == window(self.ids[index])
                        && self.has_room(index) == self.has_room_now(index)
                })
        );
        fresh
    }

    /// Looks at the paths of which something may have changed; `window` gives a path's congestion window.
    pub(crate) fn refresh(&mut self, window: impl Fn(PathId) -> u64) {
        let mut index = 0;
        while let Some(place) = self.stale.next(index, self.list.len()) {
            self.set_window(place, window(self.ids[place]));
            self.look(place);
            index = place + 1;
        }
        self.stale = Places::default();
    }

    fn set_window(&mut self, index: usize, window: u64) {
        let before = std::mem::replace(&mut self.list[index].kept.window, window);
        self.total_window = self.total_window - before + window;
    }

    fn look(&mut self, index: usize) {
        let path = &mut self.list[index];
        path.kept.one_way = path.one_way();
        let reachable = path.is_reachable();
        self.want_acks.put(index, path.receipt.wants_ack());
        self.want_probes.put(index, reachable && path.health.probes_due > 0);
        self.have_copies.put(index, path.has_copies());
        let proof_at = if reachable { path.proof_at() } else { Time::NEVER };
        let searches = reachable && path.searches_mtu();
        let probe_at = if searches { path.mtu.probe_at() } else { Time::NEVER };
        let grade = path.grade();
        if self.grades[index] != grade {
            self.grades[index] = grade;
            self.all_usable = are_alike(&self.grades);
            // Whether a path is in doubt depends on what others are good for.
            self.timeouts.forget_all();
        }
        self.inactive.put(index, grade < 2);
        self.old_views.put(index, true);
        let due = self.list[index].receipt.due();
        self.set_ack_at(index, due);
        self.set_check_at(index, proof_at.min(probe_at));
        self.look_at_flight(index);
    }

    /// What depends on how much is in flight.
    pub(super) fn look_at_flight(&mut self, index: usize) {
        let path = &self.list[index];
        self.have_news.put(index, path.board.has_news());
        self.have_tails.put(index, path.board.has_data());
        self.have_room.put(index, self.has_room_now(index));
        self.untold.put(index, true);
    }

    fn has_room_now(&self, index: usize) -> bool {
        let path = &self.list[index];
        let size = path.size() as u64;
        let room = path.kept.window.saturating_sub(path.board.pipe());
        room >= size && path.allowance.left() >= size
    }
}
