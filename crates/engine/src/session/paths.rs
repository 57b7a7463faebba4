//! Opening, proving, moving and abandoning paths; PIDs and addresses.
//!
//! A path id is opened by one end: it sends a challenge, padded to the size that every path must carry, to
//! the PID that the peer gave for that id. The peer creates the path when the packet arrives, answers,
//! and challenges in turn. PIDs for a few ids of each parity are given ahead of need.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anabranch_wire::{NewPid, PathId, PathUse, Payload, Pid, ResetToken, Side, Span, Time};

use super::Session;
use crate::control::Control;
use crate::event::{AbandonReason, CloseReason, Event, PathChange, PidChange, ProtocolError};
use crate::path::{Challenge, Path, PathState};
use crate::route::{Arrival, Route};

/// PIDs given ahead, for ids of each parity.
const PIDS_AHEAD: usize = 4;
/// Addresses of a peer that are remembered.
const MAX_PEER_ADDRESSES: usize = 32;
/// Paths that a session may have by its peer's wish whatever is left in the budget of all sessions ...
const FREE_PATHS: usize = 4;
/// ... and what each further one takes of it.
const PATH_COST: u64 = 4 << 10;
/// Paths given up here of which a peer that acknowledges nothing is told again.
const MAX_ABANDONED: usize = 256;
/// How long a new path is challenged before it is given up.
const VALIDATION_PATIENCE: Span = Span::from_secs(5);

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

/// Addresses on both sides, beyond those in use.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Ours, told to the peer.
    pub ours: Vec<(u64, SocketAddr)>,
    pub peers: BTreeSet<u64>,
}

impl<P: Payload> Session<P> {
    pub(super) fn register_pid(&mut self, path: PathId, pid: Pid, token: ResetToken) {
        self.local_pids.insert(path, (pid, token));
        self.pid_changes.push_back(PidChange::Register { pid, path });
    }

    /// Gives the peer PIDs for the next few paths of each parity.
    pub(super) fn issue_pids(&mut self) {
        for parity in 0..2 {
            for _ in self.ready_count(parity)..PIDS_AHEAD {
                self.issue_pid(parity);
            }
        }
    }

    /// Ids of a parity that have a PID and no use yet.
    fn ready_count(&self, parity: u32) -> usize {
        let used = |path: &PathId| self.path_index(*path).is_some() || self.reserved.contains(path);
        self.local_pids.keys().filter(|path| path.0 % 2 == parity && !used(path)).count()
    }

    fn issue_pid(&mut self, parity: u32) {
        let path = PathId(self.next_pid_path[parity as usize]);
        self.next_pid_path[parity as usize] += 2;
        let (pid, token) = self.pids.next_pid();
        self.register_pid(path, pid, token);
        self.push_control(Control::NewPid(path));
    }

    /// A peer that names PIDs for further ids of its own wants to open many paths: it gets PIDs for as many, within
    /// what may be open at the same time.
    fn follow_peer(&mut self, named: PathId) {
        if named.opener() == self.side {
            return;
        }
        let parity = named.0 % 2;
        while self.next_pid_path[parity as usize] <= named.0
            && self.ready_count(parity) < self.max_paths() as usize
        {
            self.issue_pid(parity);
        }
    }

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
        if id.opener() == self.side {
            // The opener spends its own bytes first.
            path.allowance.prove();
        }
        if let Some(wish) = self.early_wishes.remove(&id) {
            path.peer_usage = wish.usage;
            wish.limit.into_iter().for_each(|limit| path.allowance.limit_there(limit));
        }
        let interval = self.config.initial_rtt.max(Span::from_millis(50)) * 2;
        path.challenge = Some(Box::new(Challenge::new(self.next_token(), route, now, interval)));
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
    pub(super) fn notice_route(&mut self, now: Time, index: usize, arrival: &Arrival) {
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
        if path.route != challenge.route {
            self.move_path(now, index, challenge.route);
        }
        if let Some(sample) = challenge.rtt(now) {
            self.paths[index].sample_rtt(now, id, sample, Span::ZERO);
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

    /// The peer names a PID, in a packet of the path `on`. What the opener of a path says on the path itself comes
    /// after everything it said before.
    pub(super) fn handle_new_pid(&mut self, on: PathId, new: NewPid) -> Result<(), ProtocolError> {
        let is_latest = on == new.path && new.path.opener() != self.side;
        if let Some(index) = self.path_index(new.path) {
            let path = &mut self.paths[index];
            if path.remote_pid.is_none() || is_latest {
                (path.remote_pid, path.remote_reset) = (Some(new.pid), Some(new.reset_token));
            }
            return Ok(());
        }
        // Ids this end has not named a PID for, so many ahead, are not the peer's to name.
        let far = new.path.0 > self.next_pid_path[new.path.0 as usize % 2].max(self.next_path) + 64;
        if far || self.remote_pids.len() > 64 {
            return Err(ProtocolError::PathLimit);
        }
        let opened = new.path.opener() == self.side && new.path.0 < self.next_path;
        let issued = new.path.0 < self.next_pid_path[new.path.0 as usize % 2];
        let over = issued && !self.local_pids.contains_key(&new.path);
        if !opened && !over {
            self.remote_pids.insert(new.path, (new.pid, new.reset_token));
            self.follow_peer(new.path);
        }
        Ok(())
    }

    /// Stops using a path; what is in flight on it goes elsewhere.
    pub fn close_path(&mut self, now: Time, path: PathId, reason: AbandonReason) {
        self.next_timeout.set(None);
        if let Some(index) = self.path_index(path) {
            self.abandon(now, index, reason, true);
        }
    }

    pub(super) fn abandon(&mut self, now: Time, index: usize, reason: AbandonReason, tell: bool) {
        let path = &mut self.paths[index];
        if path.state == PathState::Closing {
            return;
        }
        let was_only = !matches!(path.state, PathState::Validating);
        path.state = PathState::Closing;
        path.forget_at = now + path.rtt().rto(self.config.failure.rto) * 3;
        path.challenge = None;
        path.answers.clear();
        path.clear_copies();
        let id = path.id;
        self.give_up_flight(now, index);
        self.cc.remove_path(id);
        self.forget_sharing(id);
        if tell {
            self.abandoned.insert(id, reason.code());
            if self.abandoned.len() > MAX_ABANDONED {
                self.abandoned.pop_first();
            }
            self.push_control(Control::PathAbandon(id));
        }
        self.events.push_back(Event::Path { path: id, change: PathChange::Closed(reason) });
        self.review_standings();
        if self.primary.0 == Some(id) {
            self.elect_primary();
        }
        let left = self.paths.iter().any(|path| path.state != PathState::Closing);
        // An address that is gone may come back, or another in its place: the idle timeout decides.
        if was_only && !left && reason != AbandonReason::AddressGone {
            self.end(now, CloseReason::Local { code: 0, reason: "the last path was closed".to_owned() });
        }
    }

    /// Forgets a path whose late packets need no answer any more.
    pub(super) fn forget_path(&mut self, index: usize) {
        let path = self.paths.remove(index);
        // Less is always to be had.
        let _ = self.reserved_paths.hold(cost_of(self.paths.len()));
        if let Some((pid, _)) = self.local_pids.remove(&path.id) {
            self.pid_changes.push_back(PidChange::Retire { pid, path: path.id });
        }
        self.reply_pids.remove(&path.id);
        self.control.remove(Control::PathStatus(path.id));
        self.control.remove(Control::MaxPathData(path.id));
        self.control.remove(Control::ObservedAddress(path.id));
        self.forget_management(path.id);
        self.issue_pids();
    }

    /// The peer gives up a path. When nothing of it ever came here, its PID goes back, or the peer would
    /// run out of path ids that are ready.
    pub(super) fn handle_path_abandon(
        &mut self,
        now: Time,
        id: PathId,
        code: u64,
    ) -> Result<(), ProtocolError> {
        if let Some(index) = self.path_index(id) {
            self.abandon(now, index, AbandonReason::from_code(code), false);
            return Ok(());
        }
        if id.opener() == self.side {
            return Ok(());
        }
        if let Some((pid, _)) = self.local_pids.remove(&id) {
            if !self.churn.spend(now) {
                return Err(ProtocolError::PathLimit);
            }
            self.remote_pids.remove(&id);
            self.early_wishes.remove(&id);
            self.pid_changes.push_back(PidChange::Retire { pid, path: id });
            self.issue_pids();
        }
        Ok(())
    }

    /// Gives up paths that nobody answered on.
    pub(super) fn check_validation(&mut self, now: Time, index: usize) {
        let path = &self.paths[index];
        let Some(challenge) = path.challenge.as_ref().filter(|asked| asked.age(now) >= VALIDATION_PATIENCE)
        else {
            return;
        };
        match path.state {
            PathState::Validating if self.waits_for_peer(challenge) => {
                if let Some(challenge) = &mut self.paths[index].challenge {
                    challenge.wait_on(now);
                }
            }
            PathState::Validating => self.abandon(now, index, AbandonReason::Unreachable, true),
            PathState::Failed => {}
            _ => self.paths[index].challenge = None,
        }
    }

    /// New ids come from the peer: one that is given up while the peer is not heard is gone, and when the last is, no other route
    /// can be tried. So a path stays then, as long as there is room for more.
    fn waits_for_peer(&self, challenge: &Challenge) -> bool {
        let room = self.open_count() + (self.reserved.len() as u32) < self.max_paths();
        room && challenge.is_unheard(self.last_heard)
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

    /// Tells the peer an address at which this end can be reached.
    pub fn advertise_address(&mut self, id: u64, address: SocketAddr) {
        self.addresses.ours.retain(|(known, _)| *known != id);
        self.addresses.ours.push((id, address));
        self.push_control(Control::AddAddress(id));
    }

    /// Tells the peer that an address is gone.
    pub fn withdraw_address(&mut self, id: u64) {
        let before = self.addresses.ours.len();
        self.addresses.ours.retain(|(known, _)| *known != id);
        if self.addresses.ours.len() < before {
            self.control.remove(Control::AddAddress(id));
            self.push_control(Control::RemoveAddress(id));
        }
    }

    pub(super) fn handle_add_address(&mut self, id: u64, address: SocketAddr) {
        let known = self.addresses.peers.contains(&id);
        if !known
            && self.addresses.peers.len() < MAX_PEER_ADDRESSES
            && self.announce(Event::PeerAddress { id, address })
        {
            self.addresses.peers.insert(id);
        }
    }

    pub(super) fn handle_remove_address(&mut self, id: u64) {
        if self.addresses.peers.remove(&id) {
            self.events.push_back(Event::PeerAddressGone { id });
        }
    }

    /// The peer says where it sees us on a path.
    pub(super) fn handle_observed_address(&mut self, path: PathId, address: SocketAddr) {
        let Some(index) = self.path_index(path) else { return };
        if self.paths[index].observed != Some(address)
            && self.announce(Event::ObservedAddress { path, address })
        {
            self.paths[index].observed = Some(address);
        }
    }

    /// Paths that may carry data now, best use first: normal ones, else backups, else suspects.
    pub(super) fn usable(&self, path: &Path) -> bool {
        let mine = path.grade();
        mine > 0 && (mine == Path::BEST || self.paths.iter().all(|other| other.grade() <= mine))
    }
}

/// What so many paths take of the budget of all sessions.
fn cost_of(paths: usize) -> u64 {
    paths.saturating_sub(FREE_PATHS) as u64 * PATH_COST
}
