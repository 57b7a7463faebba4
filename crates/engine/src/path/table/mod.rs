//! All paths of a session, with an index of values that every packet needs.
//!
//! Each packet checks several conditions of every path: does it owe a proof, a probe, an acknowledgement, does its
//! window have room? With eight paths of a kilobyte each, that would be most of the cost of a packet. So the answers
//! are cached: those about all paths in the [`Index`], those about one path in the path itself ([`Cached`]).
//!
//! Only [`Paths::edit`] gives free access to a path. It marks the path stale, and [`Paths::refresh`] updates stale
//! paths. The other methods change only values outside the cache, or update the cache themselves. Congestion windows
//! are cached as well: call [`Paths::forget`] after changing one.

mod calm;
mod index;
mod metering;
mod overflow;

use std::ops::Deref;

use anabranch_wire::{PathId, Span, Time};

use super::receipt::Received;
use super::scoreboard::{Candidate, Content, Contents, Runs};
use super::{Bloat, Others, Path};
use crate::config::Config;
use crate::manager::Standing;
use crate::route::Route;
use calm::Calm;
pub(super) use index::Cached;
pub(crate) use index::Wants;
use index::{Index, Relief};
use overflow::Overflow;
pub(crate) use overflow::Seen;

/// The paths of a session, sorted by id.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    list: Vec<Path>,
    index: Index,
    overflow: Overflow,
    /// Some path has a rate limit.
    limited: bool,
    calm: Calm,
}

/// A packet that leaves on a path.
pub(crate) struct Departure {
    pub now: Time,
    /// UDP payload in bytes.
    pub size: usize,
    /// It asks for an acknowledgement.
    pub eliciting: bool,
    /// The packet takes another route than the path's.
    pub strays: bool,
    /// It uses up pacing credit.
    pub paced: bool,
    pub contents: Contents,
}

impl Paths {
    #[inline]
    pub(crate) fn place_of(&self, id: PathId) -> Option<usize> {
        self.index.place_of(id)
    }

    #[inline]
    pub(crate) fn is_at(&self, place: usize, id: PathId) -> bool {
        self.index.is_at(place, id)
    }

    /// True if a path may carry data: no other has a better grade, or it has the best grade itself. Does not use the
    /// cache.
    pub(crate) fn may_carry(&self, path: &Path) -> bool {
        let mine = path.grade();
        mine > 0 && (mine == Path::BEST || self.list.iter().all(|other| other.grade() <= mine))
    }

    /// The place of the path with the least round-trip time among those that may carry data.
    pub(crate) fn best(&self) -> Option<usize> {
        let usable = (0..self.list.len()).filter(|place| self.may_carry(&self.list[*place]));
        usable.min_by_key(|place| {
            let path = &self.list[*place];
            (!path.is_active(), path.rtt().smoothed(), path.id)
        })
    }

    /// Paths that are not closing.
    pub(crate) fn open_count(&self) -> u32 {
        self.list.iter().filter(|path| !path.is_closing()).count() as u32
    }

    /// True when a path other than `id` is active and may carry data instead of it.
    pub(crate) fn has_active_besides(&self, id: PathId) -> bool {
        self.list.iter().any(|path| path.id != id && Relief::of(path).works)
    }

    /// True if a path other than `id` is in use with nothing in flight.
    pub(crate) fn has_idle_besides(&self, id: PathId) -> bool {
        let is_idle = |path: &Path| path.is_active() && path.board.pipe() == 0 && self.may_carry(path);
        self.list.iter().any(|path| path.id != id && is_idle(path))
    }

    /// True when a silent path need not be waited for: another carries data or, held back, answers.
    pub(crate) fn has_stand_in(&self, id: PathId) -> bool {
        self.list.iter().any(|path| path.id != id && Relief::of(path).stands_in)
    }

    /// True if an open path other than the one at `place` has this route.
    pub(crate) fn is_taken(&self, route: Route, place: usize) -> bool {
        let takes = |(other, path): (usize, &Path)| {
            other != place && path.address.route == route && !path.is_closing()
        };
        self.list.iter().enumerate().any(takes)
    }

    /// Inserts a path in the order of ids.
    pub(crate) fn insert(&mut self, mut path: Path) {
        path.cached = Cached::default();
        let place = self.index.insert(path.id);
        // Paths are large and few, and most sessions are idle: no room for more.
        self.list.reserve_exact(1);
        self.list.insert(place, path);
    }

    /// True when an end has limited the rate of a path.
    #[inline]
    pub(crate) fn are_limited(&self) -> bool {
        self.limited
    }

    /// Follows a change of a path's rate limit.
    pub(crate) fn renew_limited(&mut self) {
        self.limited = self.list.iter().any(|path| path.wishes.rate_limit().is_some());
    }

    /// Removes a path; later paths move up.
    pub(crate) fn remove(&mut self, place: usize) -> Path {
        let path = self.list.remove(place);
        self.index.remove(place, &self.list, &path);
        path
    }

    /// Mutable access to a path, which is stale until the next refresh.
    #[inline]
    pub(crate) fn edit(&mut self, place: usize) -> &mut Path {
        self.index.forget(place);
        &mut self.list[place]
    }

    /// Mutable access to all paths.
    pub(crate) fn edit_all(&mut self) -> std::slice::IterMut<'_, Path> {
        self.index.forget_all();
        self.list.iter_mut()
    }

    /// Marks a path stale, as when its congestion window was changed.
    pub(crate) fn forget(&mut self, place: usize) {
        self.index.forget(place);
    }

    /// Marks all paths stale.
    pub(crate) fn forget_all(&mut self) {
        self.index.forget_all();
    }

    /// Marks a path's timeout as stale, because something outside the path has changed.
    pub(crate) fn forget_timeout(&mut self, place: usize) {
        self.index.forget_timeout(place);
    }

    /// True if nothing changed since the last refresh. `window` returns a path's congestion window.
    pub(crate) fn are_fresh(&self, window: impl Fn(PathId) -> u64) -> bool {
        self.index.is_fresh(&self.list, window)
    }

    /// Updates the stale paths; `window` returns a path's congestion window.
    pub(crate) fn refresh(&mut self, window: impl Fn(PathId) -> u64) {
        self.index.refresh(&mut self.list, window);
    }

    /// Records that a packet was sent on a path without a change of the path's window.
    #[inline]
    pub(crate) fn on_sent(&mut self, place: usize, packet: Departure) {
        let path = &mut self.list[place];
        let size = packet.size as u64;
        // A lost probe of the path MTU says nothing about the path, and may be noticed late. So it counts neither as in
        // flight nor as awaiting an acknowledgement.
        let is_probe = packet.contents.is_mtu_probe();
        if packet.eliciting {
            if !is_probe {
                path.health.on_sent(packet.now);
            }
            // Control frames and probes ignore pacing and so use no credit: at a low rate they would leave none for
            // data.
            if packet.paced {
                path.pacer.on_sent(size);
            }
        }
        if packet.strays {
            path.board.on_stray();
        } else {
            let in_flight = if is_probe { 0 } else { packet.size as u16 };
            path.board.on_sent(packet.now, in_flight, packet.eliciting, packet.contents);
        }
        path.allowance.on_sent(size);
        if path.allowance.waits_for_peer(path.size() as u64) {
            path.health.await_credit(packet.now, path.returns.rtt().pto(Span::ZERO));
        }
        path.stats.packets_sent += 1;
        path.stats.bytes_sent += size;
        self.index.on_sent(place, path, packet.eliciting);
    }

    /// Leaves a packet number out; `random` decides when the next one is left out.
    pub(crate) fn skip_number(&mut self, place: usize, random: u64) {
        self.list[place].board.skip(random);
    }

    /// Records a packet that arrived; true if its number is the highest so far.
    #[inline]
    pub(crate) fn on_received(&mut self, place: usize, now: Time, packet: Received, config: &Config) -> bool {
        self.change_receipt(place, |path| {
            let newest = path.receipt.largest().is_none_or(|largest| packet.fsn.0 > largest);
            path.receipt.on_packet(now, packet, config);
            path.receipt.count(packet.size);
            newest
        })
    }

    /// Records a packet that arrived after the end of the session, without counting it. `None` if its number was known,
    /// otherwise whether it is the highest so far.
    pub(crate) fn on_received_late(
        &mut self,
        place: usize,
        now: Time,
        packet: Received,
        config: &Config,
    ) -> Option<bool> {
        self.change_receipt(place, |path| {
            let largest = path.receipt.largest();
            let known = path.receipt.is_known(packet.fsn);
            path.receipt.on_packet(now, packet, config);
            (!known).then_some(largest.is_none_or(|largest| packet.fsn.0 > largest))
        })
    }

    /// Records that an acknowledgement of a path's packets is sent.
    pub(crate) fn on_acknowledged(&mut self, place: usize, now: Time) {
        self.change_receipt(place, |path| {
            path.receipt.on_acknowledged(now, || path.returns.rtt().smoothed());
            path.stats.acks_sent += 1;
        });
    }

    /// Puts off an acknowledgement that could not leave.
    pub(crate) fn postpone_ack(&mut self, place: usize, until: Time) {
        self.change_receipt(place, |path| path.receipt.postpone(until));
    }

    /// Changes what arrived on a path. In the cache, only acknowledgements depend on it.
    #[inline]
    fn change_receipt<R>(&mut self, place: usize, change: impl FnOnce(&mut Path) -> R) -> R {
        let path = &mut self.list[place];
        let result = change(path);
        self.index.on_receipt_changed(place, &path.receipt);
        result
    }

    /// Adds to the contents of a packet that will leave on a path.
    #[inline]
    pub(crate) fn add_content(&mut self, place: usize, contents: &mut Contents, content: Content) {
        self.list[place].board.add(contents, content);
    }

    /// Counts stream and datagram bytes that leave on a path.
    #[inline]
    pub(crate) fn count_sent_data(&mut self, place: usize, bytes: u64) {
        self.list[place].stats.data_sent += bytes;
    }

    /// Counts stream bytes that arrived on a path.
    #[inline]
    pub(crate) fn count_received_data(&mut self, place: usize, new: u64, duplicate: u64) {
        let stats = &mut self.list[place].stats;
        stats.data_received += new;
        stats.data_duplicate += duplicate;
    }

    /// Sets a path's standing; true if it changed.
    pub(crate) fn set_standing(&mut self, place: usize, standing: Standing) -> bool {
        self.list[place].usage.stand(standing)
    }

    /// Bytes that pacing allows on a path now.
    #[inline]
    pub(crate) fn pacing_budget(&mut self, place: usize, now: Time) -> u64 {
        self.list[place].pacer.budget(now)
    }

    /// Records that the application limits the path's rate, unless its window is full.
    pub(crate) fn on_app_limited(&mut self, place: usize) {
        let path = &mut self.list[place];
        if path.is_active() && path.board.pipe() < path.cached.window() {
            path.board.on_app_limited();
        }
    }

    /// Handles a round trip of a path; true if a standing queue delays the `others` too much.
    pub(crate) fn queue_stands(&mut self, place: usize, now: Time, sample: Span, others: &Others) -> bool {
        let path = &mut self.list[place];
        let limit = others.limit(path.returns.least(), path.delivery.rate());
        let received = path.stats.data_received;
        let bloat: &mut Bloat = path.trouble.bloat_mut();
        bloat.stands(now, sample, limit, received)
    }

    /// The newest packet in flight on a path that may be copied, among the `most` newest ones.
    pub(crate) fn newest_to_copy(&mut self, place: usize, most: usize) -> Option<Candidate> {
        self.list[place].board.newest_to_copy(most)
    }

    /// Passes over the packet that [`Self::newest_to_copy`] found last.
    pub(crate) fn pass_newest(&mut self, place: usize) {
        self.list[place].board.pass_newest();
    }

    /// Number and runs of the next packet of a path to copy that left after `since`. See
    /// [`super::Scoreboard::next_to_copy`].
    pub(crate) fn next_to_copy(&mut self, place: usize, since: Time) -> Option<(u64, Runs)> {
        self.list[place].board.next_to_copy(since)
    }

    /// Records that another path is responsible for a packet's data.
    pub(crate) fn on_copied(&mut self, place: usize, number: u64) {
        self.list[place].board.on_copied(number);
    }

    /// When proofs, probes and acknowledgements are due, as of the last refresh.
    #[inline]
    pub(crate) fn wants(&self) -> Wants {
        self.index.wants()
    }

    /// A path's congestion window in bytes, as of the last refresh.
    #[inline]
    pub(crate) fn window(&self, place: usize) -> u64 {
        self.list[place].cached.window()
    }

    /// Time until a packet sent now arrives, as of the last refresh.
    #[inline]
    pub(crate) fn one_way(&self, place: usize) -> Span {
        self.list[place].cached.one_way()
    }

    /// All congestion windows together, in bytes, as of the last refresh.
    pub(crate) fn total_window(&self) -> u64 {
        debug_assert_eq!(
            self.index.total_window(),
            self.list.iter().map(|path| path.cached.window()).sum::<u64>()
        );
        self.index.total_window()
    }

    /// True when a path may carry data, as of the last refresh: no better one is left.
    #[inline]
    pub(crate) fn is_usable(&self, place: usize) -> bool {
        self.index.is_usable(place)
    }

    /// True when all paths are equally good for data, as of the last refresh.
    #[inline]
    pub(crate) fn are_all_usable(&self) -> bool {
        self.index.are_all_usable()
    }

    /// True when a path's window has room for a packet, as of the last refresh.
    #[inline]
    pub(crate) fn has_room(&self, place: usize) -> bool {
        self.index.have_room().has(place)
    }

    /// True when some window has room for a packet, as of the last refresh.
    #[inline]
    pub(crate) fn have_room(&self) -> bool {
        !self.index.have_room().is_empty()
    }

    /// True if a path has copies of other paths' data to send, as of the last refresh.
    #[inline]
    pub(crate) fn have_copies(&self) -> bool {
        !self.index.have_copies().is_empty()
    }

    /// True when a doubtful path must be probed, as of the last refresh.
    #[inline]
    pub(crate) fn want_probes(&self) -> bool {
        !self.index.want_probes().is_empty()
    }

    /// True if packets in flight on some path were never considered for copies, as of the last refresh.
    pub(crate) fn have_news(&self) -> bool {
        !self.index.have_news().is_empty()
    }

    /// The first path from `place` on with packets in flight that were never considered for copies.
    pub(crate) fn next_with_news(&self, place: usize) -> Option<usize> {
        self.index.have_news().next(place, self.list.len())
    }

    /// Records that all packets in flight on a path were considered for copies.
    pub(crate) fn on_looked_at(&mut self, place: usize) {
        self.index.on_looked_at(place);
    }

    /// True when data is in flight on some path that changed since [`Self::on_tail_looked_at`], as of the
    /// last refresh.
    pub(crate) fn have_tails(&self) -> bool {
        !self.index.have_tails().is_empty()
    }

    /// As [`Self::have_tails`], for one path.
    pub(crate) fn has_tail(&self, place: usize) -> bool {
        self.index.have_tails().has(place)
    }

    /// Records that the newest packets in flight on a path were considered for copies.
    pub(crate) fn on_tail_looked_at(&mut self, place: usize) {
        self.index.on_tail_looked_at(place);
    }

    /// The first path from `place` on whose acknowledgement would report new packets. With `own`, skips other paths
    /// that carry their own acknowledgements.
    #[inline]
    pub(crate) fn next_to_acknowledge(&self, place: usize, own: Option<usize>) -> Option<usize> {
        self.index.next_to_acknowledge(&self.list, place, own)
    }

    /// The first path of which an acknowledgement is due, as of the last refresh.
    pub(crate) fn owing_ack(&self, now: Time) -> Option<usize> {
        self.index.owing_ack(now)
    }

    /// The next timeout of all paths, including acknowledgements; `timeout_of` computes that of one path without them.
    pub(crate) fn next_timeout(&self, timeout_of: impl Fn(&Path) -> Time) -> Time {
        self.index.next_timeout(&self.list, timeout_of)
    }

    /// True if some path was not informed that the application has no more data.
    #[inline]
    pub(crate) fn have_untold(&self) -> bool {
        !self.index.untold().is_empty()
    }

    /// The next path from `place` on that was not informed that the application has no more data; then it counts as
    /// informed.
    pub(crate) fn next_untold(&mut self, place: usize) -> Option<usize> {
        self.index.next_untold(place, self.list.len())
    }

    /// The next path from `place` on whose view for the scheduler may be wrong, and whether not only its bytes in
    /// flight may be. Then the view counts as right.
    pub(crate) fn next_old_view(&mut self, place: usize) -> Option<(usize, bool)> {
        self.index.next_old_view(place, self.list.len())
    }

    /// Records that all views for the scheduler were dropped.
    pub(crate) fn forget_views(&mut self) {
        self.index.forget_views();
    }
}

impl Deref for Paths {
    type Target = [Path];

    #[inline]
    fn deref(&self) -> &[Path] {
        &self.list
    }
}

impl<'a> IntoIterator for &'a Paths {
    type Item = &'a Path;
    type IntoIter = std::slice::Iter<'a, Path>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Pid, ResetToken};

    use super::*;
    use crate::config::Config;
    use crate::manager::IdleReason;
    use crate::path::PathEvent;

    /// Two paths that failed.
    fn failed() -> Paths {
        let mut paths = Paths::default();
        for id in [PathId(0), PathId(1)] {
            let route = Route { socket: id.0, remote: "192.0.2.1:4433".parse().unwrap() };
            let mut path = Path::new(id, route, &Config::default(), Time::ZERO);
            path.set_remote_pid(Pid(9), ResetToken([0; 16]));
            path.transition(PathEvent::Answered);
            path.transition(PathEvent::Silent);
            paths.insert(path);
        }
        paths
    }

    /// The next timeout, if that of a path depends on whether another works.
    fn next(paths: &mut Paths) -> Time {
        paths.refresh(|_| 10_000);
        let has_another = |path: &Path| paths.has_active_besides(path.id);
        paths.next_timeout(|path| if has_another(path) { Time::ZERO } else { Time::NEVER })
    }

    #[test]
    fn timeouts_are_found_again_when_another_path_becomes_good_for_data() {
        let mut paths = failed();
        assert_eq!(next(&mut paths), Time::NEVER);
        paths.edit(1).transition(PathEvent::Recovered);
        assert_eq!(next(&mut paths), Time::ZERO);
    }

    #[test]
    fn timeouts_are_found_again_when_another_path_that_is_left_out_works_again() {
        let mut paths = failed();
        paths.edit(1).usage_mut().leave_out(Some(IdleReason::TooSlow { than: PathId(0) }));
        assert_eq!(next(&mut paths), Time::NEVER);
        paths.edit(1).transition(PathEvent::Recovered);
        assert_eq!(next(&mut paths), Time::ZERO);
    }
}
