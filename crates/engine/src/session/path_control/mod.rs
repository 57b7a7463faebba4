//! Opens, proves, moves and abandons paths.
//!
//! One end opens a path: it sends a challenge to the PID that the peer provided for the path's id. If the address has
//! no proof, a small challenge comes first, then one padded to the size that every path must carry. The peer creates
//! the path when the packet arrives, answers it, and sends its own challenge.

mod first_path;
mod proving;
mod terms;

use std::collections::BTreeMap;

use anabranch_wire::{PathId, PathRate, PathUse, Payload, Pid, Side, Span, Time, close_code};

use super::flight::Flight;
use super::liveness::{self, Liveness};
use super::path_error::PathError;
use super::path_ids::PathIds;
use super::race::Race;
use super::unproven::Proofs;
use crate::config::{AckPolicy, Config};
use crate::control::Control;
use crate::event::{AbandonReason, CloseReason, Event, PathChange, ProtocolError};
use crate::path::{Challenge, Churn, Path, PathEvent, PathState};
use crate::route::{Arrival, Route};
use crate::stream::{MemoryBudget, Reservation};

/// Paths that the peer may always open, even without memory budget.
const FREE_PATHS: usize = 4;
/// Bytes of the memory budget for each further path.
const PATH_COST: u64 = 4 << 10;
/// How long a new path is challenged before it is given up.
const VALIDATION_PATIENCE: Span = Span::from_secs(5);

/// The peer's requests for a path that it has not opened yet.
#[derive(Clone, Copy, Debug, Default)]
struct EarlyWish {
    /// The requested use, with the request's sequence number.
    usage: (PathUse, u64),
    /// Most bytes that may be sent there.
    limit: Option<u64>,
    /// The highest rate there.
    rate: Option<PathRate>,
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
            path.wishes_mut().hear(wish.usage);
            if let Some(rate) = wish.rate {
                path.wishes_mut().hear_rate(rate);
            }
            if let Some(limit) = wish.limit {
                path.allowance_mut().limit_there(limit);
            }
        }
        let interval = flight.config.initial_rtt.max(Span::from_millis(50)) * 2;
        let challenge = Challenge::new(flight.next_token(), route, now, interval);
        path.proof_mut().set_challenge(if is_proven { challenge.padded() } else { challenge });
        flight.paths.insert(path);
        self.ids.issue(flight);
        if let Some(index) = flight.paths.place_of(id) {
            if flight.paths[index].wishes().rate_limit().is_some() {
                flight.on_rate_limit(now, index);
            }
            self.apply_rules(now, flight, index);
        }
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
        let of_peer = flight.paths.iter().filter(|path| path.id().opener() == id.opener());
        let of_peer = of_peer.filter(|path| !path.is_closing()).count() as u32;
        let full =
            open >= most || flight.paths.len() as u32 >= 2 * most || of_peer >= flight.config.max_peer_paths;
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
            flight.end(now, CloseReason::Local { code: close_code::NO_PATH, reason });
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
        let controls =
            [Control::PathStatus, Control::MaxPathData, Control::MaxPathRate, Control::ObservedAddress];
        controls.iter().for_each(|control| flight.out.control.remove(control(id)));
        self.live.rules.forget(id);
        // Acknowledgements that came after the path was left are evidence again.
        self.live.coupling.forget(id);
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
        let path = &flight.paths[index];
        // A path that used up its cap sends nothing, so no packet shows that the cap has started anew.
        if path.usage().is_metered() && !path.is_closing() && flight.paths.renew_cap(index) {
            self.live.rules.on_slice(flight, index);
        }
        self.live.check_losses(now, flight, index);
        self.check_validation(now, flight, index);
        self.leave_silent_route(now, flight);
        self.live.check_doubts(now, flight, index);
        if Liveness::check_failed(now, flight, index) {
            self.try_alternative(now, flight, index);
        }
        Liveness::check_probe(now, flight, index);
        Liveness::check_credit(now, flight, index);
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
            liveness::path_timeout(flight, path).min(leave_at)
        })
    }
}

/// Bytes of the memory budget for this many paths.
fn cost_of(paths: usize) -> u64 {
    paths.saturating_sub(FREE_PATHS) as u64 * PATH_COST
}
