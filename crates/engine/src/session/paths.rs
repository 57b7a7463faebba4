//! Opening, proving, moving and setting paths.
//!
//! A path id is opened by one end: it sends a challenge to the PID that the peer gave for that id, a small one first where
//! the address has no proof, then one padded to the size that every path must carry. The peer creates the path when the
//! packet arrives, answers, and challenges in turn.

use anabranch_wire::{PathId, PathUse, Payload, Side, Span, Time};

use super::Session;
use super::abandon::VALIDATION_PATIENCE;
use crate::control::Control;
use crate::event::{AbandonReason, Event, PathChange};
use crate::path::{Challenge, Path, PathState};
use crate::route::{Arrival, Route};

/// Paths that a session may have by its peer's wish whatever is left in the budget of all sessions ...
const FREE_PATHS: usize = 4;
/// ... and what each further one takes of it.
const PATH_COST: u64 = 4 << 10;

/// Why a path cannot be opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The session is not established, or over.
    #[error("the session is not established")]
    NotEstablished,
    /// As many paths are open as both ends allow.
    #[error("no more than {0} paths are allowed at the same time")]
    TooMany(u32),
    /// The peer has not given a PID for the next path yet; try again a round trip later.
    #[error("the peer has not made the next path ready yet")]
    NotReady,
    /// A path over this route exists.
    #[error("there is a path over this route already")]
    Exists,
    /// There is no such path.
    #[error("there is no such path")]
    Unknown,
    /// A rule says that there is to be no such path, or the bytes of its cap are used up.
    #[error("a rule keeps this way unused")]
    RuledOut,
    /// The rules would leave the session without a path.
    #[error("that would leave the session without a path")]
    NoneLeft,
}

impl<P: Payload> Session<P> {
    pub(super) fn max_paths(&self) -> u32 {
        self.peer.as_ref().map_or(1, |peer| peer.max_paths.min(self.config.max_paths))
    }

    pub(super) fn open_count(&self) -> u32 {
        self.paths.iter().filter(|path| path.state != PathState::Closing).count() as u32
    }

    /// Opens a path over `route`. It carries data once the peer has answered on it. While the peer is not heard, the last id is
    /// left for [`Self::reserve_path`]: no new ones come then, and a relay may be the way that works.
    ///
    /// # Errors
    /// [`PathError`] when it cannot be opened now.
    pub fn open_path(&mut self, now: Time, route: Route) -> Result<PathId, PathError> {
        if !self.state.carries_data() {
            return Err(PathError::NotEstablished);
        }
        if self.open_count() >= self.max_paths() {
            return Err(PathError::TooMany(self.max_paths()));
        }
        if self.paths.iter().any(|path| path.route == route && path.state != PathState::Closing) {
            return Err(PathError::Exists);
        }
        if !self.allows(route) {
            return Err(PathError::RuledOut);
        }
        let [id, next] = [0, 2].map(|further| PathId(self.next_path + further));
        let is_unheard = now.since(self.last_heard) >= VALIDATION_PATIENCE;
        if !self.has_pids(id) || is_unheard && !self.has_pids(next) {
            return Err(PathError::NotReady);
        }
        self.next_path += 2;
        self.next_timeout.set(None);
        self.create_path(now, id, route);
        Ok(id)
    }

    /// Both ends have named their PIDs for a path id.
    fn has_pids(&self, id: PathId) -> bool {
        self.local_pids.contains_key(&id) && self.remote_pids.contains_key(&id)
    }

    pub(super) fn create_path(&mut self, now: Time, id: PathId, route: Route) {
        let mut path = Path::new(id, route, &self.config, now);
        if let Some(peer) = &self.peer {
            path.mtu.limit(peer.max_udp_payload);
        }
        if let Some((pid, reset_token)) = self.remote_pids.remove(&id) {
            path.remote_pid = Some(pid);
            path.remote_reset = Some(reset_token);
        }
        let is_proven = self.reply_pids.contains_key(&id) || self.is_proven(route.remote);
        match (id.opener() == self.side, is_proven) {
            (true, true) => path.allowance.prove(),
            (true, false) => path.allowance.allow_challenge(),
            (false, _) => {}
        }
        if let Some(wish) = self.early_wishes.remove(&id) {
            path.peer_usage = wish.usage;
            wish.limit.into_iter().for_each(|limit| path.allowance.limit_there(limit));
        }
        let interval = self.config.initial_rtt.max(Span::from_millis(50)) * 2;
        let challenge = Challenge::new(self.next_token(), route, now, interval);
        path.challenge = Some(Box::new(if is_proven { challenge.padded() } else { challenge }));
        self.paths.insert(path);
        self.issue_pids();
        if let Some(index) = self.path_index(id) {
            self.apply_rules(now, index);
        }
    }

    /// True for a path that the peer may open and has not.
    pub(super) fn is_awaited(&self, id: PathId) -> bool {
        id.opener() != self.side && self.local_pids.contains_key(&id) && self.path_index(id).is_none()
    }

    /// Finds the path that a packet came on, creating it when the peer opens it so.
    pub(super) fn path_of_packet(&mut self, now: Time, id: PathId, arrival: &Arrival) -> Option<usize> {
        if let Some(index) = self.path_index(id) {
            return Some(index);
        }
        let allowed = self.is_awaited(id);
        // Those that are closing are kept for a few round trips, but not in any number.
        let full = self.open_count() >= self.max_paths() || self.paths.len() as u32 >= 2 * self.max_paths();
        if !allowed
            || !self.state.carries_data()
            || full
            || !self.has_room_for_path()
            || !self.churn.spend(now)
        {
            return None;
        }
        let refused = !self.allows(arrival.route);
        self.create_path(now, id, arrival.route);
        let index = self.path_index(id)?;
        if refused {
            self.refuse(now, index);
            return None;
        }
        Some(index)
    }

    /// False when the budget has no room for one more path that the peer opens.
    fn has_room_for_path(&mut self) -> bool {
        self.reserved_paths.hold(cost_of(self.paths.len() + 1))
    }

    /// A packet of a proven path came from another address: prove that one before using it.
    pub(super) fn notice_route(&mut self, now: Time, index: usize, arrival: &Arrival, probes: bool) {
        let path = &self.paths[index];
        if path.route == arrival.route || path.state == PathState::Closing || !self.allows(arrival.route) {
            return;
        }
        let path = &mut self.paths[index];
        if path.id == PathId::FIRST {
            if self.race.is_chosen_here(arrival.route) {
                return;
            }
            let settled = path.board.has_acks();
            if !settled && self.race.take(arrival.route).is_some() {
                return self.move_path(now, index, arrival.route);
            }
        }
        let asked = path.challenge.as_mut().filter(|challenge| challenge.route == arrival.route);
        if let Some(challenge) = asked {
            return challenge.on_received(arrival.size as u64);
        }
        if probes && path.challenge.as_ref().is_some_and(|challenge| challenge.is_waiting(now)) {
            return;
        }
        let interval = path.rtt().pto(self.config.max_ack_delay);
        let token = self.next_token();
        let heard = (interval, arrival.size as u64);
        self.paths[index].challenge =
            Some(Box::new(Challenge::to_stranger(token, arrival.route, now, heard)));
    }

    pub(super) fn handle_path_response(&mut self, now: Time, token: u64) {
        let answered =
            |path: &Path| path.challenge.as_ref().is_some_and(|challenge| challenge.token == token);
        let index = self.paths.iter().position(answered).or_else(|| self.recall_challenge(token));
        let Some(index) = index else { return };
        let Some(challenge) = self.paths[index].challenge.take() else { return };
        let strays = self.paths[index].route != challenge.route && self.race.is_chosen_here(challenge.route);
        if strays && self.is_taken(challenge.route, index) {
            return;
        }
        let path = &mut self.paths[index];
        let id = path.id;
        path.allowance.prove();
        let moves = path.route != challenge.route;
        if path.state == PathState::Validating && id.opener() == self.side && !challenge.is_padded() && !moves
        {
            let grown = challenge.grow(self.next_token(), now);
            self.paths[index].challenge = Some(Box::new(grown));
            return;
        }
        if moves {
            self.move_path(now, index, challenge.route);
            self.race.settle();
        }
        if let Some(sample) = challenge.rtt(now) {
            self.paths[index].sample_rtt(now, id, sample, Span::ZERO);
        }
        if moves && self.paths[index].state == PathState::Failed {
            self.paths[index].health.on_ack(now, false);
            self.restore(now, index, challenge.rtt(now));
        }
        if self.paths[index].state == PathState::Validating {
            self.paths[index].state = PathState::Active;
            let size = self.paths[index].size() as u64;
            self.cc.add_path(id, size, now);
            let route = self.paths[index].route;
            self.events.push_back(Event::Path { path: id, change: PathChange::Opened(route) });
            self.review_groups(now);
            self.push_control(Control::ObservedAddress(id));
            self.update_send_limit();
            self.end_race();
            self.suspect_silent_others(id);
            self.review_standings();
        }
        self.update_pacing(now, index);
        self.close_twin(now, index);
    }

    /// A path that let probes go unanswered while it was the only one is in doubt as soon as another carries data.
    fn suspect_silent_others(&mut self, fresh: PathId) {
        if !self.config.failure.suspect {
            return;
        }
        for index in 0..self.paths.len() {
            let path = &self.paths[index];
            if path.id != fresh && path.state == PathState::Active && path.health.timeouts > 0 {
                self.suspect(index);
            }
        }
        self.relieve_suspects();
    }

    /// Both ends may open a path over one route at the same moment, as when a link comes back. Of two that
    /// work, the server's goes: both ends choose the same. (Two by one opener only look alike from here: they go
    /// through one relay.)
    fn close_twin(&mut self, now: Time, index: usize) {
        let (id, route) = (self.paths[index].id, self.paths[index].route);
        let twin = |path: &&Path| path.id.opener() != id.opener() && path.route == route;
        if let Some(twin) = self.paths.iter().filter(twin).find(|path| path.state == PathState::Active) {
            let loser = if id.opener() == Side::Server { id } else { twin.id };
            self.close_path(now, loser, AbandonReason::Requested);
        }
    }

    /// Says how a path should be used, to the peer too.
    ///
    /// # Errors
    /// [`PathError::Unknown`] when there is no such path.
    pub fn set_path_use(&mut self, path: PathId, usage: PathUse) -> Result<(), PathError> {
        let index = self.path_index(path).ok_or(PathError::Unknown)?;
        self.paths[index].wanted = usage;
        self.renew_wish(index);
        self.review_standings();
        Ok(())
    }

    /// Limits the UDP payload on a path, to what its local interface takes.
    ///
    /// # Errors
    /// [`PathError::Unknown`] when there is no such path.
    pub fn set_path_mtu_limit(&mut self, path: PathId, most: u16) -> Result<(), PathError> {
        let index = self.path_index(path).ok_or(PathError::Unknown)?;
        self.paths[index].mtu.limit(most);
        let size = self.paths[index].size() as u64;
        self.cc.set_mss(path, size);
        Ok(())
    }

    /// Puts paths into congestion-control groups: paths of one group are coupled. From then on groups are the caller's to
    /// say ([`Coupling::Fixed`]).
    ///
    /// # Errors
    /// [`PathError::Unknown`] when there is no such path.
    pub fn set_path_group(&mut self, path: PathId, group: u32) -> Result<(), PathError> {
        self.path_index(path).ok_or(PathError::Unknown)?;
        self.groups_are_given();
        self.cc.set_group(path, group);
        Ok(())
    }

    /// Paths that may carry data now, best use first: normal ones, else backups, else suspects.
    pub(super) fn usable(&self, path: &Path) -> bool {
        let mine = path.grade();
        mine > 0 && (mine == Path::BEST || self.paths.iter().all(|other| other.grade() <= mine))
    }
}

/// What so many paths take of the budget of all sessions.
pub(super) fn cost_of(paths: usize) -> u64 {
    paths.saturating_sub(FREE_PATHS) as u64 * PATH_COST
}
