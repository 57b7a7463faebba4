//! The race for path 0: while it is the only path, it may move to another route that the handshake tried.

use anabranch_wire::{PathId, Payload, Side, Span, Time};

use super::PathControl;
use crate::path::{Challenge, Path, PathState};
use crate::route::Route;
use crate::session::flight::Flight;

impl PathControl {
    /// INIT-ACK arrived over another route than the first.
    pub(in crate::session) fn handle_late_init_ack<P: Payload>(
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
    pub(in crate::session) fn stay<P: Payload>(&mut self, flight: &mut Flight<P>) {
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
    pub(super) fn leave_at<P: Payload>(&self, flight: &Flight<P>, path: &Path) -> Option<Time> {
        let is_client = flight.life.side() == Side::Client;
        if path.id() != PathId::FIRST || !is_client || path.board().has_acks() || !self.race.has_proven() {
            return None;
        }
        path.first_answer_due(flight.config.acks.max_delay)
    }

    /// Moves path 0 to a proven route when nothing was acknowledged in time.
    pub(super) fn leave_silent_route<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>) {
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
    pub(super) fn try_alternative<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, index: usize) {
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
    pub(super) fn recall_challenge<P: Payload>(
        &mut self,
        flight: &mut Flight<P>,
        token: u64,
    ) -> Option<usize> {
        let index = flight.paths.place_of(PathId::FIRST)?;
        let challenge = self.race.replaced(token)?;
        flight.paths.edit(index).proof_mut().set_challenge(challenge);
        Some(index)
    }
}
