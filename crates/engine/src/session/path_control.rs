//! Opens, proves, moves and abandons paths.
//!
//! One end opens a path: it sends a challenge to the PID that the peer provided for the path's id. If the address has
//! no proof, a small challenge comes first, then one padded to the size that every path must carry. The peer creates
//! the path when the packet arrives, answers it, and sends its own challenge.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anabranch_wire::{PathId, PathStatus, PathUse, Payload, Pid, Side, Span, Time, VARINT_MAX};

use super::flight::Flight;
use super::liveness::{self, Liveness};
use super::path_ids::PathIds;
use super::race::Race;
use super::unproven::Proofs;
use crate::config::{AckPolicy, Config};
use crate::control::Control;
use crate::event::{AbandonReason, CloseReason, Event, PathChange, ProtocolError};
use crate::manager::{PathOrigin, PathRules, Priority};
use crate::path::{CHALLENGE_BYTES, Challenge, Churn, Path, PathEvent, PathState};
use crate::route::{Arrival, Route};
use crate::stream::{MemoryBudget, Reservation};

/// Paths that the peer may always open, even without memory budget ...
const FREE_PATHS: usize = 4;
/// ... and the bytes of the budget for each further path.
const PATH_COST: u64 = 4 << 10;
/// How long a new path is challenged before it is given up.
const VALIDATION_PATIENCE: Span = Span::from_secs(5);

/// Why a path was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The session is not established, or over.
    #[error("the session is not established")]
    NotEstablished,
    /// As many paths are open as both ends allow.
    #[error("no more than {0} paths are allowed at the same time")]
    TooMany(u32),
    /// The peer has not provided a PID for the next path yet; try again a round trip later.
    #[error("the peer has not made the next path ready yet")]
    NotReady,
    /// A path over this route exists.
    #[error("there is a path over this route already")]
    Exists,
    /// There is no such path.
    #[error("there is no such path")]
    Unknown,
    /// A rule forbids the path, or the bytes of its cap are used up.
    #[error("a rule forbids a path over this route, or its cap is used up")]
    RuledOut,
    /// The rules would leave the session without a path.
    #[error("that would leave the session without a path")]
    NoneLeft,
}

/// The peer's requests for a path that it has not opened yet.
#[derive(Clone, Copy, Debug, Default)]
struct EarlyWish {
    /// The requested use, with the request's sequence number.
    usage: (PathUse, u64),
    /// Most bytes that may be sent there.
    limit: Option<u64>,
}

/// Opens and closes a session's paths.
pub(super) struct PathControl {
    pub live: Liveness,
    pub ids: PathIds,
    /// Other routes for path 0 while it is the only path.
    pub race: Race,
    proofs: Proofs,
    early_wishes: BTreeMap<PathId, EarlyWish>,
    /// How often the peer may open paths.
    churn: Churn,
    /// Memory reserved for the paths that the peer has opened.
    memory: Reservation,
}

impl PathControl {
    pub(super) fn new(config: &Config, side: Side, budget: MemoryBudget, now: Time) -> Self {
        Self {
            live: Liveness::new(config),
            ids: PathIds::new(side),
            race: Race::default(),
            proofs: Proofs::default(),
            early_wishes: BTreeMap::new(),
            churn: Churn::new(now),
            memory: Reservation::new(budget),
        }
    }

    /// Creates path 0, which the handshake proves.
    pub(super) fn create_first<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, route: Route) {
        let mut path = Path::new(PathId::FIRST, route, &flight.config, now);
        if let Some(peer) = &flight.peer {
            path.set_remote_pid(peer.pid, peer.reset_token);
            path.mtu_mut().limit(peer.max_udp_payload);
        }
        path.transition(PathEvent::Answered);
        path.allowance_mut().prove();
        flight.cc.add_path(path.id(), path.size() as u64, now);
        flight.paths.insert(path);
        self.apply_rules(now, flight, 0);
    }

    /// The handshake is complete, and path 0 carries data.
    pub(super) fn on_established<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>) {
        flight.clock.last_heard = now;
        flight.out.events.push_back(Event::Established);
        let route = flight.paths[0].route();
        flight.out.tell(PathId::FIRST, PathChange::Opened(route));
        self.live.rules.review_standings(flight);
        self.ids.issue(flight);
        flight.update_send_limit();
        if flight.config.acks.policy == AckPolicy::Primary {
            flight.acks.elect_primary(&flight.paths, &mut flight.out);
        }
    }

    /// Opens a path over `route`. While the peer is silent, the last id is kept for [`PathIds::reserve`]: the peer
    /// provides no new ids then, and a path through a relay may still work.
    pub(super) fn open<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        route: Route,
    ) -> Result<PathId, PathError> {
        if !flight.state().carries_data() {
            return Err(PathError::NotEstablished);
        }
        if flight.paths.open_count() >= flight.max_paths() {
            return Err(PathError::TooMany(flight.max_paths()));
        }
        if flight.paths.iter().any(|path| path.route() == route && !path.is_closing()) {
            return Err(PathError::Exists);
        }
        if !self.live.rules.allow(route) {
            return Err(PathError::RuledOut);
        }
        let is_unheard = now.since(flight.clock.last_heard) >= VALIDATION_PATIENCE;
        let id = self.ids.take_next(is_unheard).ok_or(PathError::NotReady)?;
        flight.clock.forget_timeout();
        self.create(now, flight, id, route);
        Ok(id)
    }

    /// Opens a reserved path over `route`; the peer must send with the PID `reply`, at the last relay.
    pub(super) fn open_reserved<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        id: PathId,
        (route, reply): (Route, Pid),
    ) -> Result<(), PathError> {
        if !self.ids.is_reserved(id) {
            return Err(PathError::Unknown);
        }
        let refusal = if !flight.state().carries_data() {
            Some(PathError::NotEstablished)
        } else if !self.live.rules.allow(route) {
            Some(PathError::RuledOut)
        } else if flight.paths.open_count() >= flight.max_paths() {
            Some(PathError::TooMany(flight.max_paths()))
        } else {
            None
        };
        flight.clock.forget_timeout();
        if let Some(refusal) = refusal {
            self.ids.release(&mut flight.out, id);
            return Err(refusal);
        }
        self.ids.take_reserved(id, reply);
        self.create(now, flight, id, route);
        Ok(())
    }

    fn create<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, id: PathId, route: Route) {
        let mut path = Path::new(id, route, &flight.config, now);
        if let Some(peer) = &flight.peer {
            path.mtu_mut().limit(peer.max_udp_payload);
        }
        if let Some((pid, reset_token)) = self.ids.take_remote(id) {
            path.set_remote_pid(pid, reset_token);
        }
        let is_proven = self.ids.is_relayed(id) || self.is_proven(flight, route.remote);
        match (id.opener() == flight.life.side(), is_proven) {
            (true, true) => path.allowance_mut().prove(),
            (true, false) => path.allowance_mut().allow_challenge(),
            (false, _) => {}
        }
        if let Some(wish) = self.early_wishes.remove(&id) {
            path.hear_wish(wish.usage);
            wish.limit.into_iter().for_each(|limit| path.allowance_mut().limit_there(limit));
        }
        let interval = flight.config.initial_rtt.max(Span::from_millis(50)) * 2;
        let challenge = Challenge::new(flight.next_token(), route, now, interval);
        path.proof_mut().set_challenge(if is_proven { challenge.padded() } else { challenge });
        flight.paths.insert(path);
        self.ids.issue(flight);
        if let Some(index) = flight.paths.place_of(id) {
            self.apply_rules(now, flight, index);
        }
    }

    /// True when the peer has answered at this address, in the handshake or on a path without relays.
    pub(super) fn is_proven<P: Payload>(&self, flight: &Flight<P>, address: SocketAddr) -> bool {
        let proves = |path: &Path| {
            path.route().remote == address && path.allowance().is_proven() && !self.ids.is_relayed(path.id())
        };
        flight.paths.iter().any(proves) || self.proofs.contain(address) || self.race.is_heard_at(address)
    }

    /// Remembers the proven address of a path that closes or moves.
    fn remember_address<P: Payload>(&mut self, flight: &Flight<P>, index: usize) {
        let path = &flight.paths[index];
        if path.allowance().is_proven() && !self.ids.is_relayed(path.id()) {
            self.proofs.remember(path.route().remote);
        }
    }

    /// Counts a packet sent without proof of the path or the route, if its address is unproven too.
    pub(super) fn on_sent_unproven<P: Payload>(
        &self,
        flight: &mut Flight<P>,
        address: SocketAddr,
        bytes: u64,
    ) {
        if !self.is_proven(flight, address) {
            flight.credit.on_sent(bytes);
        }
    }

    /// True when a path's challenge may be sent. To an unproven address it needs credit. The user chose the routes of
    /// the handshake.
    pub(super) fn spend_challenge<P: Payload>(
        &mut self,
        now: Time,
        flight: &Flight<P>,
        index: usize,
    ) -> bool {
        let path = &flight.paths[index];
        let Some(challenge) = path.proof().challenge() else { return false };
        let route = challenge.route;
        self.ids.is_relayed(path.id())
            || self.race.is_chosen_here(route)
            || self.is_proven(flight, route.remote)
            || self.proofs.spend_challenge(now, || flight.credit.left(&flight.paths) >= 2 * CHALLENGE_BYTES)
    }

    /// The path of a packet, created if the peer opens it with this packet.
    #[inline]
    pub(super) fn path_of_packet<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        id: PathId,
        arrival: &Arrival,
    ) -> Option<usize> {
        flight.paths.place_of(id).or_else(|| self.create_for_peer(now, flight, id, arrival))
    }

    fn create_for_peer<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        id: PathId,
        arrival: &Arrival,
    ) -> Option<usize> {
        // Closing paths remain for a few round trips, but their number is limited.
        let (open, most) = (flight.paths.open_count(), flight.max_paths());
        let full = open >= most || flight.paths.len() as u32 >= 2 * most;
        if !self.ids.is_awaited(id, false)
            || !flight.state().carries_data()
            || full
            || !self.memory.hold(cost_of(flight.paths.len() + 1))
            || !self.churn.spend(now)
        {
            return None;
        }
        let refused = !self.live.rules.allow(arrival.route);
        self.create(now, flight, id, arrival.route);
        let index = flight.paths.place_of(id)?;
        if refused {
            // Nothing is sent on this path; another one informs the peer.
            flight.paths.edit(index).drop_remote_pid();
            self.abandon(now, flight, index, AbandonReason::Refused);
            return None;
        }
        Some(index)
    }

    /// Proves a new address before it is used, after a packet of a proven path came from there.
    pub(super) fn notice_route<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        arrival: &Arrival,
        is_challenge: bool,
    ) {
        let path = &flight.paths[index];
        if path.route() == arrival.route || path.is_closing() || !self.live.rules.allow(arrival.route) {
            return;
        }
        let path = flight.paths.edit(index);
        if path.id() == PathId::FIRST {
            if self.race.is_chosen_here(arrival.route) {
                return;
            }
            if !path.board().has_acks() && self.race.take(arrival.route).is_some() {
                return self.move_path(now, flight, index, arrival.route);
            }
        }
        let asked = path.proof_mut().challenge_mut().filter(|challenge| challenge.route == arrival.route);
        if let Some(challenge) = asked {
            return challenge.on_received(arrival.size as u64);
        }
        if is_challenge && path.proof().challenge().is_some_and(|challenge| challenge.is_waiting(now)) {
            return;
        }
        let interval = path.rtt().pto(flight.config.acks.max_delay);
        let token = flight.next_token();
        let heard = (interval, arrival.size as u64);
        let challenge = Challenge::to_stranger(token, arrival.route, now, heard);
        flight.paths.edit(index).proof_mut().set_challenge(challenge);
    }

    /// The peer answered a challenge.
    pub(super) fn handle_path_response<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, token: u64) {
        let answered = flight.paths.iter().position(|path| path.proof().has_asked(token));
        let Some(index) = answered.or_else(|| self.recall_challenge(flight, token)) else { return };
        let Some(challenge) = flight.paths.edit(index).proof_mut().take_challenge() else { return };
        let path = flight.paths.edit(index);
        let (id, moves) = (path.id(), path.route() != challenge.route);
        let strays = moves && self.race.is_chosen_here(challenge.route);
        if strays && flight.paths.is_taken(challenge.route, index) {
            return;
        }
        let is_own = id.opener() == flight.life.side();
        let path = flight.paths.edit(index);
        path.allowance_mut().prove();
        if path.state() == PathState::Validating && is_own && !challenge.is_padded() && !moves {
            let grown = challenge.grow(flight.next_token(), now);
            flight.paths.edit(index).proof_mut().set_challenge(grown);
            return;
        }
        if moves {
            self.move_path(now, flight, index, challenge.route);
            self.race.settle();
        }
        let path = flight.paths.edit(index);
        if let Some(sample) = challenge.rtt(now) {
            path.sample_rtt(now, id, sample, Span::ZERO);
        }
        if moves && path.state() == PathState::Failed {
            path.health_mut().on_ack(now, false);
            self.live.restore(now, flight, index, challenge.rtt(now));
        }
        if flight.paths.edit(index).transition(PathEvent::Answered) {
            self.on_opened(now, flight, index);
        }
        flight.update_pacing(now, index);
        self.close_twin(now, flight, index);
    }

    /// A path was proven and carries data from now on.
    fn on_opened<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        let path = &flight.paths[index];
        let id = path.id();
        flight.cc.add_path(id, path.size() as u64, now);
        flight.out.tell(id, PathChange::Opened(path.route()));
        self.live.coupling.review(now, flight);
        flight.out.want(Control::ObservedAddress(id));
        flight.update_send_limit();
        self.race.end();
        self.stay(flight);
        self.live.suspect_silent_others(flight, id);
        self.live.rules.review_standings(flight);
    }

    /// Closes one of two active paths over the same route. Both ends may open one at the same time, for example when a
    /// link returns. Both choose to close the server's. Two paths opened by one end only look alike here: they use one
    /// relay.
    fn close_twin<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        let (id, route) = (flight.paths[index].id(), flight.paths[index].route());
        let is_twin = |path: &&Path| path.id().opener() != id.opener() && path.route() == route;
        let twin = flight.paths.iter().filter(is_twin).find(|path| path.is_active()).map(Path::id);
        if let Some(twin) = twin {
            let loser = if id.opener() == Side::Server { id } else { twin };
            self.close(now, flight, loser, AbandonReason::Requested);
        }
    }

    /// Stops using a path, and informs the peer.
    pub(super) fn close<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        path: PathId,
        reason: AbandonReason,
    ) {
        flight.clock.forget_timeout();
        if let Some(index) = flight.paths.place_of(path) {
            self.abandon(now, flight, index, reason);
        }
    }

    /// Abandons a path, and informs the peer.
    fn abandon<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        reason: AbandonReason,
    ) {
        let id = flight.paths[index].id();
        if !flight.paths[index].is_closing() {
            self.ids.abandon(&mut flight.out, id, reason);
            self.leave(now, flight, index, reason);
        }
    }

    /// Abandons a path; its data in flight is sent on other paths.
    fn leave<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize, reason: AbandonReason) {
        let rto = flight.config.failure.rto;
        let path = flight.paths.edit(index);
        let (id, was_proven) = (path.id(), path.state() != PathState::Validating);
        let forget_at = now + path.rtt().rto(rto) * 3;
        if !path.abandon(forget_at) {
            return;
        }
        flight.give_up_flight(now, index);
        flight.cc.remove_path(id);
        self.live.coupling.forget(id);
        flight.out.tell(id, PathChange::Closed(reason));
        self.live.rules.review_standings(flight);
        if flight.acks.primary() == Some(id) {
            flight.acks.elect_primary(&flight.paths, &mut flight.out);
        }
        // The address may return, or another may replace it, so the idle timeout decides.
        if was_proven && flight.paths.open_count() == 0 && reason != AbandonReason::AddressGone {
            let reason = "the last path was closed".to_owned();
            flight.end(now, CloseReason::Local { code: 0, reason });
        }
    }

    /// The peer abandons a path. If nothing of the path ever arrived here, its PID is released; otherwise the peer would
    /// run out of path ids.
    pub(super) fn handle_path_abandon<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        id: PathId,
        code: u64,
    ) -> Result<(), ProtocolError> {
        if let Some(index) = flight.paths.place_of(id) {
            self.leave(now, flight, index, AbandonReason::from_code(code));
            return Ok(());
        }
        if self.ids.is_awaited(id, false) {
            if !self.churn.spend(now) {
                return Err(ProtocolError::PathLimit);
            }
            self.ids.take_remote(id);
            self.early_wishes.remove(&id);
            self.ids.retire(&mut flight.out, id);
            self.ids.issue(flight);
        }
        Ok(())
    }

    /// Forgets a path once its late packets need no answer.
    fn forget<P: Payload>(&mut self, flight: &mut Flight<P>, index: usize) {
        self.remember_address(flight, index);
        let path = flight.paths.remove(index);
        let id = path.id();
        flight.credit.on_received(path.receipt().bytes());
        // Fewer paths never exceed the reservation.
        let _ = self.memory.hold(cost_of(flight.paths.len()));
        self.ids.retire(&mut flight.out, id);
        for control in [Control::PathStatus(id), Control::MaxPathData(id), Control::ObservedAddress(id)] {
            flight.out.control.remove(control);
        }
        self.live.rules.forget(id);
        self.ids.issue(flight);
    }

    /// Does all due work of the paths.
    pub(super) fn handle_timeout<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>) {
        let mut index = 0;
        while index < flight.paths.len() {
            let path = &flight.paths[index];
            if path.is_closing() && path.health().forget_at() <= now {
                self.forget(flight, index);
                continue;
            }
            self.check(now, flight, index);
            index += 1;
        }
    }

    fn check<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        self.live.check_losses(now, flight, index);
        self.check_validation(now, flight, index);
        self.leave_silent_route(now, flight);
        self.live.check_doubts(now, flight, index);
        if Liveness::check_failed(now, flight, index) {
            self.try_alternative(now, flight, index);
        }
        Liveness::check_probe(now, flight, index);
        if self.live.check_alarm(now, flight, index) {
            self.try_alternative(now, flight, index);
        }
    }

    pub(super) fn next_timeout<P: Payload>(&self, flight: &Flight<P>) -> Time {
        flight.paths.next_timeout(|path| {
            if path.is_closing() {
                return path.health().forget_at();
            }
            let leave_at = self.leave_at(flight, path).unwrap_or(Time::NEVER);
            liveness::path_timeout(&flight.paths, path, &flight.config).min(leave_at)
        })
    }

    /// Abandons a path that the peer never answered.
    fn check_validation<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        let path = &flight.paths[index];
        let Some(challenge) = path.proof().challenge().filter(|asked| asked.age(now) >= VALIDATION_PATIENCE)
        else {
            return;
        };
        match path.state() {
            PathState::Validating if self.waits_for_peer(flight, challenge) => {
                if let Some(challenge) = flight.paths.edit(index).proof_mut().challenge_mut() {
                    challenge.wait_on(now);
                }
            }
            PathState::Validating => self.abandon(now, flight, index, AbandonReason::Unreachable),
            PathState::Failed => {}
            _ => drop(flight.paths.edit(index).proof_mut().take_challenge()),
        }
    }

    /// True if a path keeps waiting for a silent peer. Abandoning it would spend its id, and without ids no other route
    /// can be tried. So the path is kept while more paths are allowed.
    fn waits_for_peer<P: Payload>(&self, flight: &Flight<P>, challenge: &Challenge) -> bool {
        let taken = flight.paths.open_count() + self.ids.reserved_count();
        taken < flight.max_paths() && challenge.is_unheard(flight.clock.last_heard)
    }

    /// Applies the rules to a path. One that they rule out is closed; if it is the only one, it carries no data.
    fn apply_rules<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        let Some(terms) = self.live.rules.terms(flight.paths[index].route()) else { return };
        if terms.priority == Priority::Never && flight.paths.open_count() > 1 {
            // With "requested" as the reason, the peer would open it again at once.
            return self.abandon(now, flight, index, AbandonReason::Refused);
        }
        super::rules::apply(flight, index, terms);
    }

    /// Applies the rules to all open paths, or those of one socket.
    fn apply_rules_to<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, socket: Option<u32>) {
        for index in 0..flight.paths.len() {
            let path = &flight.paths[index];
            if socket.is_none_or(|socket| path.route().socket == socket) && !path.is_closing() {
                self.apply_rules(now, flight, index);
            }
        }
        self.live.rules.review_standings(flight);
    }

    /// Records the local end of a socket, and applies the rules to its paths.
    pub(super) fn describe_socket<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        socket: u32,
        place: PathOrigin,
    ) {
        if self.live.rules.describe(socket, place) {
            self.apply_rules_to(now, flight, Some(socket));
        }
    }

    /// Replaces the rules and applies them.
    pub(super) fn set_rules<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        rules: PathRules,
        places: impl IntoIterator<Item = (u32, PathOrigin)>,
    ) -> Result<(), PathError> {
        if !self.live.rules.replace(rules, places, &flight.paths) {
            return Err(PathError::NoneLeft);
        }
        self.live.coupling.set_for_rules(self.live.rules.leave_out_sharers());
        self.note_interests(flight);
        flight.clock.forget_timeout();
        self.apply_rules_to(now, flight, None);
        Ok(())
    }

    /// Records in the flight whether rules and coupling need acknowledgements.
    pub(super) fn note_interests<P: Payload>(&self, flight: &mut Flight<P>) {
        flight.has_rules = self.live.rules.are_there();
        flight.wants_evidence = self.live.coupling.wants_evidence();
    }

    /// The peer requests another use of a path.
    pub(super) fn handle_path_status<P: Payload>(&mut self, flight: &mut Flight<P>, status: PathStatus) {
        let wish = (status.usage, status.sequence);
        let is_new = match flight.paths.place_of(status.path) {
            Some(index) => flight.paths.edit(index).hear_wish(wish),
            // The frame arrived before the packet that opens the path.
            None if self.ids.is_awaited(status.path, false) => {
                let known = &mut self.early_wishes.entry(status.path).or_default().usage;
                let is_new = wish.1 > known.1;
                *known = if is_new { wish } else { *known };
                is_new
            }
            None => return,
        };
        if is_new {
            flight.choice = None;
            self.live.rules.review_standings(flight);
        }
    }

    /// The peer limits the bytes that may be sent on a path.
    pub(super) fn handle_max_path_data<P: Payload>(
        &mut self,
        flight: &mut Flight<P>,
        path: PathId,
        limit: u64,
    ) {
        let limit = if limit >= VARINT_MAX { u64::MAX } else { limit };
        if let Some(index) = flight.paths.place_of(path) {
            flight.paths.edit(index).allowance_mut().limit_there(limit);
        } else if self.ids.is_awaited(path, false) {
            let known = &mut self.early_wishes.entry(path).or_default().limit;
            *known = Some(known.map_or(limit, |known| known.max(limit)));
        }
    }

    /// INIT-ACK arrived over another route than the first.
    pub(super) fn handle_late_init_ack<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        route: Route,
    ) {
        if self.race.on_init_ack(now, route)
            && let Some(index) = flight.paths.place_of(PathId::FIRST)
        {
            flight.paths.forget_timeout(index);
            self.leave_silent_route(now, flight);
        }
    }

    /// Path 0 is answered, or no longer alone: answers over other routes of the race no longer move it.
    pub(super) fn stay<P: Payload>(&mut self, flight: &mut Flight<P>) {
        let Some(index) = flight.paths.place_of(PathId::FIRST) else { return };
        self.race.settle();
        let path = flight.paths.edit(index);
        let strays = |challenge: &Challenge| {
            challenge.route != path.route() && self.race.is_chosen_here(challenge.route)
        };
        if path.proof().challenge().is_some_and(strays) {
            path.proof_mut().take_challenge();
        }
    }

    /// When the client moves path 0 to another route, unless something is acknowledged before.
    fn leave_at<P: Payload>(&self, flight: &Flight<P>, path: &Path) -> Option<Time> {
        let is_client = flight.life.side() == Side::Client;
        if path.id() != PathId::FIRST || !is_client || path.board().has_acks() || !self.race.has_proven() {
            return None;
        }
        path.first_answer_due(flight.config.acks.max_delay)
    }

    /// Moves path 0 to a proven route when nothing was acknowledged in time.
    fn leave_silent_route<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>) {
        let Some(index) = flight.paths.place_of(PathId::FIRST) else { return };
        if self.leave_at(flight, &flight.paths[index]).is_none_or(|at| at > now) {
            return;
        }
        if let Some((route, rtt)) = self.race.pop_proven()
            && !flight.paths.is_taken(route, index)
        {
            self.move_path(now, flight, index, route);
            // Even for the same address: packets in flight may be lost, and must not count against this route.
            flight.give_up_flight(now, index);
            if let Some(rtt) = rtt {
                flight.paths.edit(index).sample_rtt(now, PathId::FIRST, rtt, Span::ZERO);
            }
            flight.update_pacing(now, index);
        }
    }

    /// Has the client challenge another route while path 0 is silent.
    fn try_alternative<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
        let path = &flight.paths[index];
        if flight.life.side() == Side::Server || path.id() != PathId::FIRST {
            return;
        }
        let long = path.health().timeouts() > 1 || path.state() == PathState::Failed;
        let used = |route: &Route| flight.paths.iter().any(|path| path.route() == *route);
        let Some(route) = self.race.next_to_challenge(long, used) else { return };
        let waiting = flight.paths[index].proof().challenge().map(|challenge| challenge.route);
        if waiting != Some(route) {
            let challenge = Challenge::new(flight.next_token(), route, now, flight.config.initial_rtt);
            let replaced = flight.paths.edit(index).proof_mut().set_challenge(challenge);
            if let Some(replaced) = replaced.filter(|replaced| self.race.is_chosen_here(replaced.route)) {
                self.race.on_replaced(replaced);
            }
        }
    }

    /// Restores a replaced challenge of path 0, since its answer arrived.
    fn recall_challenge<P: Payload>(&mut self, flight: &mut Flight<P>, token: u64) -> Option<usize> {
        let index = flight.paths.place_of(PathId::FIRST)?;
        let challenge = self.race.replaced(token)?;
        flight.paths.edit(index).proof_mut().set_challenge(challenge);
        Some(index)
    }

    /// Moves a path to another route, which is proven.
    fn move_path<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize, route: Route) {
        self.remember_address(flight, index);
        let path = flight.paths.edit(index);
        let (id, left) = (path.id(), path.route());
        path.set_route(route);
        if id == PathId::FIRST {
            self.race.on_left(left);
        }
        if left.remote.ip() != route.remote.ip() {
            path.forget_rtt();
            // Packets in flight to the old address say nothing about the new one.
            flight.give_up_flight(now, index);
            flight.cc.add_path(id, flight.paths[index].size() as u64, now);
            self.live.coupling.forget(id);
            self.live.coupling.review(now, flight);
        }
        flight.out.tell(id, PathChange::Moved(route));
        flight.out.want(Control::ObservedAddress(id));
        self.apply_rules(now, flight, index);
    }
}

/// Bytes of the memory budget for this many paths.
fn cost_of(paths: usize) -> u64 {
    paths.saturating_sub(FREE_PATHS) as u64 * PATH_COST
}
