//! The index of all paths: cached answers to the questions of every packet, side by side.
//!
//! [`Index::refresh`] looks at the paths marked stale. Answers that concern one path at a time lie in the
//! path itself ([`Cached`]).

use anabranch_wire::{PathId, Span, Time};
use smallvec::SmallVec;

use super::super::place_set::PlaceSet;
use super::super::receipt::Receipt;
use super::super::state::PathState;
use super::super::timeouts::{Timeouts, earliest, still_earliest};
use super::Path;

/// The cached part of a path.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Cached {
    /// The congestion window in bytes.
    window: u64,
    /// When a proof or a probe of the path MTU may be due.
    check_at: Time,
    /// See [`Path::one_way`].
    one_way: Span,
    relief: Relief,
}

impl Default for Cached {
    fn default() -> Self {
        Self { window: 0, check_at: Time::NEVER, one_way: Span::ZERO, relief: Relief::default() }
    }
}

impl Cached {
    #[inline]
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    #[inline]
    pub(super) fn one_way(&self) -> Span {
        self.one_way
    }
}

/// How a path can help when another is silent or useless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Relief {
    /// It is active and may carry data instead.
    pub works: bool,
    /// It works or, held back, answers: a silent path need not be waited for.
    pub stands_in: bool,
}

impl Relief {
    pub(super) fn of(path: &Path) -> Self {
        let can = path.can_stand_in();
        let works = can && path.state == PathState::Active;
        let answers = || path.trouble.is_held() && path.health.timeouts() == 0;
        Self { works, stands_in: works || (can && path.state == PathState::Suspect && answers()) }
    }
}

/// When some path wants something.
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

/// One entry for each path in each list, in the order of the paths.
#[derive(Debug, Default)]
pub(super) struct Index {
    ids: SmallVec<[PathId; 8]>,
    /// When an acknowledgement must be sent.
    ack_at: SmallVec<[Time; 8]>,
    /// Next timeouts, without acknowledgements.
    timeouts: Timeouts,
    /// How good the paths are for data, see [`Path::grade`].
    grades: SmallVec<[u8; 8]>,
    /// All windows together, in bytes.
    total_window: u64,
    /// All paths are equally good, and good enough.
    all_usable: bool,
    /// Paths whose cached values may be wrong.
    stale: PlaceSet,
    /// Paths whose acknowledgement would report new packets.
    want_acks: PlaceSet,
    want_probes: PlaceSet,
    /// Paths that are not active, or not reachable.
    inactive: PlaceSet,
    have_copies: PlaceSet,
    /// Paths with packets in flight that were never considered for copies.
    have_news: PlaceSet,
    /// Paths with data in flight that have changed since their newest packets were considered for copies.
    have_tails: PlaceSet,
    /// Paths whose window has room for a packet.
    have_room: PlaceSet,
    /// Paths whose view for the scheduler may be wrong.
    old_views: PlaceSet,
    /// Paths whose view may be wrong only in the bytes in flight.
    moved_views: PlaceSet,
    /// Paths that were not yet informed that the application has no more data.
    untold: PlaceSet,
    /// The earliest wants of all paths.
    wants: Wants,
}

impl Index {
    #[inline]
    pub(super) fn place_of(&self, id: PathId) -> Option<usize> {
        // Each end opens every second id, and usually only one end opens paths: then the path is here.
        let guess = id.0 as usize / 2;
        if self.is_at(guess, id) {
            return Some(guess);
        }
        self.ids.iter().position(|known| *known == id)
    }

    #[inline]
    pub(super) fn is_at(&self, place: usize, id: PathId) -> bool {
        self.ids.get(place) == Some(&id)
    }

    /// Makes room for a path, and returns its place.
    pub(super) fn insert(&mut self, id: PathId) -> usize {
        let place = self.ids.partition_point(|known| *known < id);
        self.ids.insert(place, id);
        self.ack_at.insert(place, Time::NEVER);
        self.timeouts.insert(place);
        self.grades.insert(place, 0);
        self.all_usable = false;
        self.forget_all();
        place
    }

    /// Removes the entries of a path that was `removed`; `list` has the remaining paths.
    pub(super) fn remove(&mut self, place: usize, list: &[Path], removed: &Path) {
        self.total_window -= removed.cached.window;
        self.ids.remove(place);
        self.ack_at.remove(place);
        self.timeouts.remove(place);
        self.grades.remove(place);
        self.all_usable = are_alike(&self.grades);
        self.forget_all();
        let check_at = earliest(list.iter().map(|path| path.cached.check_at));
        let ack_at = earliest(self.ack_at.iter().copied());
        self.wants = Wants { check_at, ack_at };
    }

    #[inline]
    pub(super) fn forget(&mut self, place: usize) {
        self.stale |= PlaceSet::of(place);
        self.forget_timeout(place);
    }

    pub(super) fn forget_all(&mut self) {
        self.stale = PlaceSet::ALL;
        self.timeouts.forget_all();
        let none = PlaceSet::default();
        (self.want_acks, self.want_probes, self.inactive, self.untold) = (none, none, none, none);
        (self.have_copies, self.have_news, self.have_tails, self.have_room) = (none, none, none, none);
    }

    #[inline]
    pub(super) fn forget_timeout(&mut self, place: usize) {
        self.timeouts.forget(place);
    }

    pub(super) fn is_fresh(&self, list: &[Path], window: impl Fn(PathId) -> u64) -> bool {
        let fresh = self.stale.is_empty();
        let is_right = |place: usize| {
            let path = &list[place];
            path.cached.window == window(self.ids[place]) && self.have_room.has(place) == has_room(path)
        };
        debug_assert!(!fresh || (0..list.len().min(63)).all(is_right));
        fresh
    }

    pub(super) fn refresh(&mut self, list: &mut [Path], window: impl Fn(PathId) -> u64) {
        let mut next = 0;
        while let Some(place) = self.stale.next(next, list.len()) {
            let window = window(self.ids[place]);
            let before = std::mem::replace(&mut list[place].cached.window, window);
            self.total_window = self.total_window - before + window;
            self.look(list, place);
            next = place + 1;
        }
        self.stale = PlaceSet::default();
    }

    fn look(&mut self, list: &mut [Path], place: usize) {
        let path = &mut list[place];
        path.cached.one_way = path.one_way();
        let reachable = path.is_reachable();
        self.want_acks.put(place, path.receipt.wants_ack());
        self.want_probes.put(place, reachable && path.health.wants_probe());
        self.have_copies.put(place, path.queued.has_copies());
        let due_at = || path.proof.due_at(|| path.allowance.left() > 0);
        let proof_at = if reachable { due_at() } else { Time::NEVER };
        let searches = reachable && path.searches_mtu();
        let probe_at = if searches { path.mtu.probe_at() } else { Time::NEVER };
        let grade = path.grade();
        // A path that is left out has no grade, and one that is held back the same as a silent one.
        let relief = if grade < 2 { Relief::of(path) } else { Relief { works: true, stands_in: true } };
        if self.grades[place] != grade || path.cached.relief != relief {
            self.grades[place] = grade;
            path.cached.relief = relief;
            self.all_usable = are_alike(&self.grades);
            // Whether a path is suspected depends on the other paths.
            self.timeouts.forget_all();
        }
        self.inactive.put(place, grade < 2);
        self.old_views.put(place, true);
        self.set_ack_at(place, path.receipt.due());
        self.look_at_flight(place, path);
        self.set_check_at(list, place, proof_at.min(probe_at));
    }

    /// Updates the values that depend on the bytes in flight.
    #[inline]
    fn look_at_flight(&mut self, place: usize, path: &Path) {
        self.have_news.put(place, path.board.has_news());
        self.have_tails.put(place, path.board.has_data());
        self.have_room.put(place, has_room(path));
        self.untold.put(place, true);
    }

    /// A packet left on a path.
    #[inline]
    pub(super) fn on_sent(&mut self, place: usize, path: &Path, eliciting: bool) {
        self.moved_views.put(place, true);
        if !path.allowance.is_unlimited() {
            self.forget(place);
        } else if eliciting {
            self.forget_timeout(place);
            self.look_at_flight(place, path);
        }
    }

    /// Updates the values that depend on a path's receipt.
    #[inline]
    pub(super) fn on_receipt_changed(&mut self, place: usize, receipt: &Receipt) {
        self.want_acks.put(place, receipt.wants_ack());
        self.set_ack_at(place, receipt.due());
    }

    #[inline]
    fn set_ack_at(&mut self, place: usize, at: Time) {
        let before = std::mem::replace(&mut self.ack_at[place], at);
        let all = || earliest(self.ack_at.iter().copied());
        self.wants.ack_at = still_earliest(self.wants.ack_at, (before, at), all);
    }

    fn set_check_at(&mut self, list: &mut [Path], place: usize, at: Time) {
        let before = std::mem::replace(&mut list[place].cached.check_at, at);
        let all = || earliest(list.iter().map(|path| path.cached.check_at));
        self.wants.check_at = still_earliest(self.wants.check_at, (before, at), all);
    }

    #[inline]
    pub(super) fn wants(&self) -> Wants {
        self.wants
    }

    pub(super) fn total_window(&self) -> u64 {
        self.total_window
    }

    #[inline]
    pub(super) fn is_usable(&self, place: usize) -> bool {
        let mine = self.grades[place];
        mine > 0 && (mine == Path::BEST || self.grades.iter().all(|other| *other <= mine))
    }

    #[inline]
    pub(super) fn are_all_usable(&self) -> bool {
        debug_assert_eq!(self.all_usable, are_alike(&self.grades));
        self.all_usable
    }

    #[inline]
    pub(super) fn have_room(&self) -> PlaceSet {
        self.have_room
    }

    #[inline]
    pub(super) fn have_copies(&self) -> PlaceSet {
        self.have_copies
    }

    #[inline]
    pub(super) fn want_probes(&self) -> PlaceSet {
        self.want_probes
    }

    #[inline]
    pub(super) fn have_news(&self) -> PlaceSet {
        self.have_news
    }

    #[inline]
    pub(super) fn have_tails(&self) -> PlaceSet {
        self.have_tails
    }

    #[inline]
    pub(super) fn untold(&self) -> PlaceSet {
        self.untold
    }

    pub(super) fn on_looked_at(&mut self, place: usize) {
        self.have_news.put(place, false);
    }

    pub(super) fn on_tail_looked_at(&mut self, place: usize) {
        self.have_tails.put(place, false);
    }

    #[inline]
    pub(super) fn next_to_acknowledge(
        &self,
        list: &[Path],
        mut place: usize,
        own: Option<usize>,
    ) -> Option<usize> {
        let concerned = own.map_or(PlaceSet::ALL, |own| self.inactive | self.stale | PlaceSet::of(own));
        let maybe = (self.want_acks | self.stale) & concerned;
        loop {
            place = maybe.next(place, list.len())?;
            if list[place].receipt.wants_ack() {
                return Some(place);
            }
            place += 1;
        }
    }

    pub(super) fn owing_ack(&self, now: Time) -> Option<usize> {
        self.ack_at.iter().position(|at| *at <= now)
    }

    pub(super) fn next_timeout(&self, list: &[Path], timeout_of: impl Fn(&Path) -> Time) -> Time {
        self.timeouts.earliest(|place| timeout_of(&list[place])).min(self.next_ack_at(list))
    }

    fn next_ack_at(&self, list: &[Path]) -> Time {
        if self.stale.is_empty() {
            return self.wants.ack_at;
        }
        let due_of = |(place, path): (usize, &Path)| {
            if self.stale.has(place) { path.receipt.due() } else { self.ack_at[place] }
        };
        earliest(list.iter().enumerate().map(due_of))
    }

    pub(super) fn next_untold(&mut self, place: usize, end: usize) -> Option<usize> {
        let place = self.untold.next(place, end)?;
        self.untold.put(place, false);
        Some(place)
    }

    pub(super) fn next_old_view(&mut self, place: usize, end: usize) -> Option<(usize, bool)> {
        let place = (self.old_views | self.moved_views).next(place, end)?;
        let whole = self.old_views.has(place);
        self.old_views.put(place, false);
        self.moved_views.put(place, false);
        Some((place, whole))
    }

    pub(super) fn forget_views(&mut self) {
        self.old_views = PlaceSet::ALL;
    }
}

fn are_alike(grades: &[u8]) -> bool {
    grades.iter().all(|grade| *grade > 0 && *grade == grades[0])
}

/// True when the window has room for a packet.
#[inline]
fn has_room(path: &Path) -> bool {
    let size = path.size() as u64;
    let room = path.cached.window.saturating_sub(path.board.pipe());
    room >= size && path.allowance.left_for_data() >= size
}
