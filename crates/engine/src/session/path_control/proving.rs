//! Proves that the peer answers on a path, and at another address that a path moves to.

use std::net::SocketAddr;

use anabranch_wire::{PathId, Payload, Span, Time};

use super::{PathControl, VALIDATION_PATIENCE};
use crate::control::Control;
use crate::event::{AbandonReason, PathChange};
use crate::path::{CHALLENGE_BYTES, Challenge, Path, PathEvent, PathState};
use crate::route::{Arrival, Route};
use crate::session::flight::Flight;

impl PathControl {
    /// True when the peer has answered at this address, in the handshake or on a path without relays.
    pub(in crate::session) fn is_proven<P: Payload>(&self, flight: &Flight<P>, address: SocketAddr) -> bool {
        let proves = |path: &Path| {
            path.route().remote == address && path.allowance().is_proven() && !self.ids.is_relayed(path.id())
        };
        flight.paths.iter().any(proves) || self.proofs.contain(address) || self.race.is_heard_at(address)
    }

    /// Remembers the proven address of a path that closes or moves.
    pub(super) fn remember_address<P: Payload>(&mut self, flight: &Flight<P>, index: usize) {
        let path = &flight.paths[index];
        if path.allowance().is_proven() && !self.ids.is_relayed(path.id()) {
            self.proofs.remember(path.route().remote);
        }
    }

    /// Counts a packet sent without proof of the path or the route, if its address is unproven too.
    pub(in crate::session) fn on_sent_unproven<P: Payload>(
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
    pub(in crate::session) fn spend_challenge<P: Payload>(
        &mut self,
        now: Time,
        flight: &Flight<P>,
        index: usize,
    ) -> bool {
        let path = &flight.paths[index];
        let Some(challenge) = path.proof().challenge() else { return false };
        let route = challenge.route;
        (self.ids.is_relayed(path.id()) && route == path.route())
            || self.race.is_chosen_here(route)
            || self.is_proven(flight, route.remote)
            || self.proofs.spend_challenge(now, || flight.credit.left(&flight.paths) >= 2 * CHALLENGE_BYTES)
    }

    /// Proves a new address before it is used, after a packet of a proven path came from there.
    pub(in crate::session) fn notice_route<P: Payload>(
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
    pub(in crate::session) fn handle_path_response<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        token: u64,
    ) {
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
        if moves {
            // The address that the path leaves may never have answered.
            self.move_path(now, flight, index, challenge.route);
            self.race.settle();
        }
        let path = flight.paths.edit(index);
        path.allowance_mut().prove();
        if path.state() == PathState::Validating && is_own && !challenge.is_padded() && !moves {
            let grown = challenge.grow(flight.next_token(), now);
            flight.paths.edit(index).proof_mut().set_challenge(grown);
            return;
        }
        let path = flight.paths.edit(index);
        if let Some(sample) = challenge.rtt(now) {
            path.sample_rtt(now, id, sample, Span::ZERO);
        }
        if path.state() == PathState::Suspect && moves {
            // Its probes went to the old address, and the next timeout may be that at which it fails.
            path.health_mut().want_probe();
        }
        if moves && path.state() == PathState::Failed {
            path.health_mut().on_ack(now, false);
            path.trouble_mut().forget_hold();
            self.live.restore(now, flight, index, challenge.rtt(now));
        }
        if flight.paths.edit(index).transition(PathEvent::Answered) {
            self.on_opened(now, flight, index);
        }
        flight.update_pacing(now, index);
        self.close_twin(now, flight, index);
    }

    /// A path was proven and carries data from now on.
    pub(super) fn on_opened<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
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

    /// Abandons a path that the peer never answered.
    pub(super) fn check_validation<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
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
    pub(super) fn waits_for_peer<P: Payload>(&self, flight: &Flight<P>, challenge: &Challenge) -> bool {
        let taken = flight.paths.open_count() + self.ids.reserved_count();
        taken < flight.max_paths() && challenge.is_unheard(flight.clock.last_heard)
    }

    /// Moves a path to another route, which is proven.
    pub(super) fn move_path<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
        route: Route,
    ) {
        self.remember_address(flight, index);
        let path = flight.paths.edit(index);
        let (id, left) = (path.id(), path.route());
        path.set_route(route);
        if id == PathId::FIRST {
            self.race.on_left(left);
        }
        if left.remote.ip() != route.remote.ip() {
            // Packets in flight to the old address say nothing about the new one.
            flight.give_up_flight(now, index);
            flight.paths.edit(index).forget_measurements();
            flight.cc.add_path(id, flight.paths[index].size() as u64, now);
            self.live.coupling.forget(id);
            self.live.coupling.review(now, flight);
        }
        flight.out.tell(id, PathChange::Moved(route));
        flight.out.want(Control::ObservedAddress(id));
        self.apply_rules(now, flight, index);
    }
}
