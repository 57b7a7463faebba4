//! All paths of a session, and the little of each that is asked for every packet.
//!
//! Before a packet leaves, many short questions are put to every path: does it owe a proof, a probe, an
//! acknowledgement, has it room? With eight paths of a kilobyte each that is most of the cost of a packet. So the
//! answers are kept: what is asked of all paths here, side by side by question, and what is asked of one whose turn it is in
//! the path ([`Kept`]). Whoever gets hold of a path to change it makes what is kept of it
//! stale, whatever the change; [`Paths::refresh`] looks at such paths anew. A packet that leaves changes what it is known to
//! change ([`Paths::on_sent`]) and leaves the window as it is kept: so who has congestion control change the window of
//! a path that it names makes that stale, too.

mod look;

use std::ops::{Deref, Index, IndexMut};

use anabranch_wire::{PathId, Span, Time};
use smallvec::SmallVec;

use super::Path;
use super::places::Places;
use super::timeouts::{Timeouts, earliest, still_earliest};

/// The paths of a session, sorted by id.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    list: Vec<Path>,
    // One for each path, in the same order.
    ids: SmallVec<[PathId; 8]>,
    /// When an acknowledgement has to leave.
    ack_at: SmallVec<[Time; 8]>,
    /// Next timeouts beside acknowledgements.
    timeouts: Timeouts,
    /// How good the paths are for data, see [`Path::grade`].
    grades: SmallVec<[u8; 8]>,
    /// All windows together, in bytes.
    total_window: u64,
    /// All are as good as each other, and good enough.
    all_usable: bool,
    /// Whatever is said of these may be wrong.
    stale: Places,
    /// These would tell something new by an acknowledgement to somebody who asked.
    want_acks: Places,
    want_probes: Places,
    /// These are not active, or cannot be reached.
    inactive: Places,
    have_copies: Places,
    /// Something in flight was never looked at for copies.
    have_news: Places,
    /// Data is in flight, and what is known of the path has changed since the newest of it was looked at for copies.
    have_tails: Places,
    /// The window has room for a packet.
    have_room: Places,
    /// A [`PathView`](crate::schedule::PathView) made before may be wrong.
    old_views: Places,
    /// It may be wrong in what is in flight, and what follows from that.
    moved_views: Places,
    /// These do not know yet that the application has nothing more to send.
    untold: Places,
    /// The earliest that any path wants.
    wants: Wants,
}

/// What is kept of a path that is asked for when its turn has come, and so lies in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// The congestion window in bytes.
    window: u64,
    /// When a proof or a probe of the path MTU may be due.
    check_at: Time,
    /// See [`Path::one_way`].
    one_way: Span,
}

impl Default for Kept {
    fn default() -> Self {
        Self { window: 0, check_at: Time::NEVER, one_way: Span::ZERO }
    }
}

/// What some path wants, and from when on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    /// A challenge, an answer to one or a probe of the path MTU may be due.
    pub check_at: Time,
    /// An acknowledgement is due.
    pub ack_at: Time,
}

impl Default for Wants {
    fn default() -> Self {
        Self { check_at: Time::NEVER, ack_at: Time::NEVER }
    }
}

impl Paths {
    /// The place of a path.
    pub(crate) fn place_of(&self, id: PathId) -> Option<usize> {
        // Each end opens paths with every second id, and most often only one does: then it lies there.
        let guess = id.0 as usize / 2;
        if self.is_at(guess, id) {
            return Some(guess);
        }
        self.ids.iter().position(|known| *known == id)
    }

    /// True when this is the place of that path.
    pub(crate) fn is_at(&self, index: usize, id: PathId) -> bool {
        self.ids.get(index) == Some(&id)
    }

    /// What the paths want, as of the last refresh.
    pub(crate) fn wants(&self) -> Wants {
        self.wants
    }

    /// A path's congestion window in bytes, as of the last refresh.
    pub(crate) fn window(&self, index: usize) -> u64 {
        self.list[index].kept.window
    }

    /// All congestion windows together, in bytes, as of the last refresh.
    pub(crate) fn total_window(&self) -> u64 {
        debug_assert_eq!(self.total_window, self.list.iter().map(|path| path.kept.window).sum::<u64>());
        self.total_window
    }

    /// True when a path's window has room for a packet, as of the last refresh.
    pub(crate) fn has_room(&self, index: usize) -> bool {
        self.have_room.has(index)
    }

    /// True when some window has room for a packet, as of the last refresh.
    pub(crate) fn have_room(&self) -> bool {
        !self.have_room.is_empty()
    }

    /// True when a path has copies to send of what others carry, as of the last refresh.
    pub(crate) fn have_copies(&self) -> bool {
        !self.have_copies.is_empty()
    }

    /// True when something in flight on some path was never looked at for copies, as of the last refresh.
    pub(crate) fn have_news(&self) -> bool {
        !self.have_news.is_empty()
    }

    /// The first path from `index` on of which that is true.
    pub(crate) fn next_with_news(&self, index: usize) -> Option<usize> {
        self.have_news.next(index, self.list.len())
    }

    /// Notes that everything in flight on a path was looked at for copies.
    pub(crate) fn on_looked_at(&mut self, index: usize) {
        self.have_news.put(index, false);
    }

    /// True when data is in flight on some path of which something changed since [`Self::on_tail_looked_at`], as of the last refresh.
    pub(crate) fn have_tails(&self) -> bool {
        !self.have_tails.is_empty()
    }

    /// The same of one path.
    pub(crate) fn has_tail(&self, index: usize) -> bool {
        self.have_tails.has(index)
    }

    /// Notes that the newest of what is in flight on a path was looked at for copies.
    pub(crate) fn on_tail_looked_at(&mut self, index: usize) {
        self.have_tails.put(index, false);
    }

    /// How long a packet sent now takes to arrive, as of the last refresh.
    pub(crate) fn one_way(&self, index: usize) -> Span {
        self.list[index].kept.one_way
    }

    /// True when a path may carry data, as of the last refresh: no better one is left.
    pub(crate) fn is_usable(&self, index: usize) -> bool {
        let mine = self.grades[index];
        mine > 0 && (mine == Path::BEST || self.grades.iter().all(|other| *other <= mine))
    }

    /// True when a doubtful path is to be probed, as of the last refresh.
    pub(crate) fn want_probes(&self) -> bool {
        !self.want_probes.is_empty()
    }

    /// The first path from `index` on for which an acknowledgement would tell something new to somebody who asked.
    /// With `own`, paths that carry their own acknowledgements are passed over, but for that one.
    pub(crate) fn next_to_acknowledge(&self, mut index: usize, own: Option<usize>) -> Option<usize> {
        let concerned = own.map_or(Places::ALL, |own| self.inactive | self.stale | Places::of(own));
        let maybe = (self.want_acks | self.stale) & concerned;
        loop {
            index = maybe.next(index, self.list.len())?;
            if self.list[index].receipt.wants_ack() {
                return Some(index);
            }
            index += 1;
        }
    }

    /// The first path of which an acknowledgement is due, as of the last refresh.
    pub(crate) fn owing_ack(&self, now: Time) -> Option<usize> {
        self.ack_at.iter().position(|at| *at <= now)
    }

    /// True when all paths are as good for data as each other, as of the last refresh.
    pub(crate) fn are_all_usable(&self) -> bool {
        debug_assert_eq!(self.all_usable, are_alike(&self.grades));
        self.all_usable
    }

    /// The next timeout of all paths, where `timeout_of` finds it for one, acknowledgements that are due left out.
    pub(crate) fn next_timeout(&self, timeout_of: impl Fn(&Path) -> Time) -> Time {
        self.timeouts.earliest(|place| timeout_of(&self.list[place])).min(self.next_ack_at())
    }

    /// When the next acknowledgement has to leave.
    fn next_ack_at(&self) -> Time {
        if self.stale.is_empty() {
            return self.wants.ack_at;
        }
        let due_of = |(index, path): (usize, &Path)| {
            if self.stale.has(index) { path.receipt.due() } else { self.ack_at[index] }
        };
        earliest(self.list.iter().enumerate().map(due_of))
    }

    /// What a path's timeout depends on outside the path has changed.
    pub(crate) fn forget_timeout(&mut self, index: usize) {
        self.timeouts.forget(index);
    }

    /// Adds a path where its id belongs.
    pub(crate) fn insert(&mut self, mut path: Path) {
        path.kept = Kept::default();
        let index = self.ids.partition_point(|known| *known < path.id);
        self.ids.insert(index, path.id);
        self.ack_at.insert(index, Time::NEVER);
        self.timeouts.insert(index);
        self.grades.insert(index, 0);
        self.all_usable = false;
        // Paths are large and few, and most sessions are idle: no room is kept for more.
        self.list.reserve_exact(1);
        self.list.insert(index, path);
        self.forget_all();
    }

    pub(crate) fn remove(&mut self, index: usize) -> Path {
        let path = self.list.remove(index);
        self.total_window -= path.kept.window;
        self.ids.remove(index);
        self.ack_at.remove(index);
        self.timeouts.remove(index);
        self.grades.remove(index);
        self.all_usable = are_alike(&self.grades);
        self.forget_all();
        let check_at = earliest(self.list.iter().map(|path| path.kept.check_at));
        let ack_at = earliest(self.ack_at.iter().copied());
        self.wants = Wants { check_at, ack_at };
        path
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Path> {
        self.forget_all();
        self.list.iter_mut()
    }

    /// Makes everything stale that is kept of any path.
    pub(crate) fn forget_all(&mut self) {
        self.stale = Places::ALL;
        self.timeouts.forget_all();
        let none = Places::default();
        (self.want_acks, self.want_probes, self.inactive, self.untold) = (none, none, none, none);
        (self.have_copies, self.have_news, self.have_tails, self.have_room) = (none, none, none, none);
    }

    /// A path, to change what nothing depends on that is kept: pacing, counters, or what rates are measured by.
    pub(crate) fn aside(&mut self, index: usize) -> &mut Path {
        &mut self.list[index]
    }

    /// Notes that a packet left on a path, whose window did not change; `eliciting` when it asks for an acknowledgement.
    pub(crate) fn on_sent(&mut self, index: usize, eliciting: bool) {
        self.moved_views.put(index, true);
        if !self.list[index].allowance.is_unlimited() {
            self.forget(index);
        } else if eliciting {
            self.forget_timeout(index);
            self.look_at_flight(index);
        }
    }

    /// Makes everything stale that is kept of a path, as when its window was changed.
    pub(crate) fn forget(&mut self, index: usize) {
        self.stale |= Places::of(index);
        self.forget_timeout(index);
    }

    /// Changes what arrived on a path: of what is kept only acknowledgements depend on it.
    pub(crate) fn change_receipt<R>(&mut self, index: usize, change: impl FnOnce(&mut Path) -> R) -> R {
        let path = &mut self.list[index];
        let result = change(path);
        self.want_acks.put(index, path.receipt.wants_ack());
        let due = path.receipt.due();
        self.set_ack_at(index, due);
        result
    }

    fn set_ack_at(&mut self, index: usize, at: Time) {
        let before = std::mem::replace(&mut self.ack_at[index], at);
        let all = || earliest(self.ack_at.iter().copied());
        self.wants.ack_at = still_earliest(self.wants.ack_at, (before, at), all);
    }

    fn set_check_at(&mut self, index: usize, at: Time) {
        let before = std::mem::replace(&mut self.list[index].kept.check_at, at);
        let all = || earliest(self.list.iter().map(|path| path.kept.check_at));
        self.wants.check_at = still_earliest(self.wants.check_at, (before, at), all);
    }

    /// True when some path was not told yet that there is nothing to send.
    pub(crate) fn have_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// The next path from `index` on that was not told yet that there is nothing to send, with its window; it counts
    /// as told now.
    pub(crate) fn next_untold(&mut self, index: usize) -> Option<(usize, u64)> {
        let index = self.untold.next(index, self.list.len())?;
        self.untold.put(index, false);
        Some((index, self.list[index].kept.window))
    }

    /// The next path from `index` on of which a view made before may be wrong, and whether in more than what is in flight; it
    /// counts as right now.
    pub(crate) fn next_old_view(&mut self, index: usize) -> Option<(usize, bool)> {
        let index = (self.old_views | self.moved_views).next(index, self.list.len())?;
        let whole = self.old_views.has(index);
        self.old_views.put(index, false);
        self.moved_views.put(index, false);
        Some((index, whole))
    }

    /// Notes that no view of any path is kept.
    pub(crate) fn forget_views(&mut self) {
        self.old_views = Places::ALL;
    }
}

fn are_alike(grades: &[u8]) -> bool {
    grades.iter().all(|grade| *grade > 0 && *grade == grades[0])
}

impl Deref for Paths {
    type Target = [Path];

    fn deref(&self) -> &[Path] {
        &self.list
    }
}

impl Index<usize> for Paths {
    type Output = Path;

    fn index(&self, index: usize) -> &Path {
        &self.list[index]
    }
}

impl IndexMut<usize> for Paths {
    fn index_mut(&mut self, index: usize) -> &mut Path {
        self.forget(index);
        &mut self.list[index]
    }
}

impl<'a> IntoIterator for &'a Paths {
    type Item = &'a Path;
    type IntoIter = std::slice::Iter<'a, Path>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl<'a> IntoIterator for &'a mut Paths {
    type Item = &'a mut Path;
    type IntoIter = std::slice::IterMut<'a, Path>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::path::PathState;
    use crate::route::Route;

    #[test]
    fn timeouts_are_found_anew_when_another_path_becomes_good_for_data() {
        let mut paths = Paths::default();
        for id in [PathId(0), PathId(1)] {
            let route = Route { socket: id.0, remote: "192.0.2.1:4433".parse().unwrap() };
            let mut path = Path::new(id, route, &Config::default(), Time::ZERO);
            path.remote_pid = Some(anabranch_wire::Pid(9));
            path.state = PathState::Failed;
            paths.insert(path);
        }
        let others = |paths: &Paths, of: &Path| {
            let is_active = |path: &&Path| path.id != of.id && path.state == PathState::Active;
            if paths.iter().any(|path| is_active(&path)) { Time::ZERO } else { Time::NEVER }
        };
        let next = |paths: &Paths| paths.next_timeout(|path| others(paths, path));
        paths.refresh(|_| 10_000);
        assert_eq!(next(&paths), Time::NEVER);
        paths[1].state = PathState::Active;
        paths.refresh(|_| 10_000);
        assert_eq!(next(&paths), Time::ZERO);
    }
}
