//! Applies this end's rules and the peer's requests to the paths.

use anabranch_wire::{PathId, PathRate, PathStatus, Payload, Time, VARINT_MAX};

use super::PathControl;
use crate::event::AbandonReason;
use crate::manager::{PathOrigin, PathRules, Priority};
use crate::session::flight::Flight;
use crate::session::path_error::PathError;
use crate::session::rules;

impl PathControl {
    /// Applies the rules to a path. One that they rule out is closed; if it is the only one, it carries no data.
    pub(in crate::session) fn apply_rules<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        index: usize,
    ) {
        let Some(terms) = self.live.rules.terms(flight.paths[index].route()) else { return };
        if terms.priority == Priority::Never && flight.paths.open_count() > 1 {
            // With "requested" as the reason, the peer would open it again at once.
            return self.abandon(now, flight, index, AbandonReason::Refused);
        }
        rules::apply(now, flight, index, terms);
    }

    /// Applies the rules to all open paths, or those of one socket.
    pub(super) fn apply_rules_to<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        socket: Option<u32>,
    ) {
        for index in 0..flight.paths.len() {
            let path = &flight.paths[index];
            if socket.is_none_or(|socket| path.route().socket == socket) && !path.is_closing() {
                self.apply_rules(now, flight, index);
            }
        }
        self.live.rules.review_standings(flight);
    }

    /// Records the local end of a socket, and applies the rules to its paths.
    pub(in crate::session) fn describe_socket<P: Payload>(
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
    pub(in crate::session) fn set_rules<P: Payload>(
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
    pub(in crate::session) fn note_interests<P: Payload>(&self, flight: &mut Flight<P>) {
        flight.has_rules = self.live.rules.are_there();
        flight.wants_evidence = self.live.coupling.wants_evidence();
    }

    /// The peer requests another use of a path.
    pub(in crate::session) fn handle_path_status<P: Payload>(
        &mut self,
        flight: &mut Flight<P>,
        status: PathStatus,
    ) {
        let wish = (status.usage, status.sequence);
        let is_new = match flight.paths.place_of(status.path) {
            Some(index) => flight.paths.edit(index).wishes_mut().hear(wish),
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

    /// The peer limits the rate of a path.
    pub(in crate::session) fn handle_max_path_rate<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        wish: PathRate,
    ) {
        if let Some(index) = flight.paths.place_of(wish.path) {
            if flight.paths.edit(index).wishes_mut().hear_rate(wish) {
                flight.on_rate_limit(now, index);
            }
        } else if self.ids.is_awaited(wish.path, false) {
            let known = &mut self.early_wishes.entry(wish.path).or_default().rate;
            *known = known.filter(|known| known.sequence >= wish.sequence).or(Some(wish));
        }
    }

    /// The peer limits the bytes that may be sent on a path.
    pub(in crate::session) fn handle_max_path_data<P: Payload>(
        &mut self,
        flight: &mut Flight<P>,
        path: PathId,
        limit: u64,
    ) {
        let limit = if limit >= VARINT_MAX { u64::MAX } else { limit };
        if let Some(index) = flight.paths.place_of(path) {
            let usual = flight.config.failure.probe_interval;
            let path = flight.paths.edit(index);
            if path.allowance_mut().limit_there(limit) {
                // It may have waited to save bytes.
                path.health_mut().hasten_probe(usual);
            }
        } else if self.ids.is_awaited(path, false) {
            let known = &mut self.early_wishes.entry(path).or_default().limit;
            *known = Some(known.map_or(limit, |known| known.max(limit)));
        }
    }
}
