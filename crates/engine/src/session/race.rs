//! The other routes of the handshake's race, as alternatives while path 0 is the only path.
//!
//! Until each end has named PIDs for further paths, a round trip after the handshake, path 0 is the only path. If it is
//! silent from its first packet on, recovery would take three round trips for the probe timeout, and then the proof of
//! another route. So each end stores the routes on which the other's messages arrived in the handshake, which proves
//! them:
//!
//! - the client moves path 0 to one of them when the first acknowledgement is half a round trip late;
//! - an end follows at once when the newest packet of path 0 arrives over one of them.
//!
//! After the probe timeout, the client challenges the other routes in turn, first those on which a message arrived.
//!
//! The client chooses between the routes of the race, and the server follows. If each followed the newest packets of
//! the other, they might never agree.

use std::net::SocketAddr;

use anabranch_wire::{Span, Time};

use crate::path::Challenge;
use crate::route::Route;

/// Most routes over which INIT is taken and answered, and which are remembered.
pub(super) const MAX_ROUTES: usize = 8;

/// A route over which a message of the handshake went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raced {
    pub route: Route,
    pub sent_at: Time,
    /// How often it went.
    pub attempts: u32,
}

impl Raced {
    /// The round-trip time, if an arrival now can only be the answer to one message.
    pub(super) fn rtt(&self, now: Time) -> Option<Span> {
        (self.attempts == 1).then(|| now.since(self.sent_at))
    }
}

#[derive(Debug, Default)]
pub(super) struct Race {
    /// Routes on which INIT was sent and nothing arrived.
    unheard: Vec<Raced>,
    /// Routes on which INIT or INIT-ACK arrived; at the client with the round-trip time.
    proven: Vec<(Raced, Option<Span>)>,
    /// Path 0 took these until it was silent.
    left: Vec<Route>,
    /// This end sent INIT over these.
    chosen_here: Vec<Route>,
    /// Number of challenges so far.
    challenged: usize,
    /// Challenges that were replaced by others. If a round trip is longer than the probe timeout, their answers arrive
    /// late.
    asked: Vec<Challenge>,
}

impl Race {
    /// The client's, once the first INIT-ACK is there, over `winner`.
    pub(super) fn won_by(winner: Route, others: &[Raced]) -> Self {
        let others = &others[..others.len().min(MAX_ROUTES)];
        let chosen_here = std::iter::once(winner).chain(others.iter().map(|raced| raced.route)).collect();
        Self { unheard: others.to_vec(), chosen_here, ..Self::default() }
    }

    /// True when this end decides about moves of path 0 to `route`.
    pub(super) fn is_chosen_here(&self, route: Route) -> bool {
        self.chosen_here.contains(&route)
    }

    /// True if a message of the handshake came from `address`.
    pub(super) fn is_heard_at(&self, address: SocketAddr) -> bool {
        self.proven.iter().any(|(raced, _)| raced.route.remote == address)
    }

    /// Records an INIT over `route`.
    pub(super) fn on_init(&mut self, now: Time, route: Route) {
        if self.proven.len() < MAX_ROUTES && self.proven.iter().all(|(known, _)| known.route != route) {
            self.proven.push((Raced { route, sent_at: now, attempts: 0 }, None));
        }
    }

    /// INIT-ACK left over `route`.
    pub(super) fn on_answer(&mut self, now: Time, route: Route) {
        if let Some((raced, _)) = self.proven.iter_mut().find(|(known, _)| known.route == route) {
            (raced.sent_at, raced.attempts) = (now, raced.attempts + 1);
        }
    }

    /// Records an INIT-ACK over `route`; true for the first one there.
    pub(super) fn on_init_ack(&mut self, now: Time, route: Route) -> bool {
        let index = self.unheard.iter().position(|unheard| unheard.route == route);
        let raced = index.map(|index| self.unheard.remove(index));
        self.proven.extend(raced.map(|raced| (raced, raced.rtt(now))));
        raced.is_some()
    }

    /// The next route to challenge, in turn. Routes on which a message arrived come first, but only after path 0 has
    /// been silent for longer than one lost packet explains.
    pub(super) fn next_to_challenge(
        &mut self,
        silent_for_long: bool,
        is_used: impl Fn(&Route) -> bool,
    ) -> Option<Route> {
        let heard = self.proven.iter().map(|(raced, _)| raced.route).chain(self.left.iter().copied());
        let heard = heard.filter(|_| silent_for_long);
        let unheard = self.unheard.iter().map(|raced| raced.route);
        let routes: Vec<_> = heard.chain(unheard).filter(|route| !is_used(route)).collect();
        let route = routes.get(self.challenged % routes.len().max(1)).copied();
        self.challenged += usize::from(route.is_some());
        route
    }

    /// Remembers a challenge that another replaces, the latest few.
    pub(super) fn on_replaced(&mut self, challenge: Challenge) {
        if self.asked.len() >= MAX_ROUTES {
            self.asked.remove(0);
        }
        self.asked.push(challenge);
    }

    /// Path 0 has another route now, so answers to earlier challenges do not move it.
    pub(super) fn settle(&mut self) {
        self.asked.clear();
    }

    /// Removes and returns a proven route, as the new one of path 0.
    pub(super) fn take(&mut self, route: Route) -> Option<Raced> {
        let index = self.proven.iter().position(|(proven, _)| proven.route == route);
        index.map(|index| self.proven.remove(index).0)
    }

    /// Removes and returns the latest proven route with its round-trip time.
    pub(super) fn pop_proven(&mut self) -> Option<(Route, Option<Span>)> {
        self.proven.pop().map(|(raced, rtt)| (raced.route, rtt))
    }

    pub(super) fn has_proven(&self) -> bool {
        !self.proven.is_empty()
    }

    /// Records that path 0 has left `route`.
    pub(super) fn on_left(&mut self, route: Route) {
        if self.is_chosen_here(route) && !self.left.contains(&route) {
            self.left.push(route);
        }
    }

    pub(super) fn replaced(&self, token: u64) -> Option<Challenge> {
        self.asked.iter().find(|challenge| challenge.token == token).copied()
    }

    /// Ends the race: another path carries data, so path 0 keeps its route.
    pub(super) fn end(&mut self) {
        self.unheard.clear();
        self.proven.clear();
        self.left.clear();
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Frame, Fsn, Length, Message, Packet, PathId, Pid, ResetToken};

    use super::super::Session;
    use super::super::handshake::local_params;
    use super::*;
    use crate::path::PathState;
    use crate::{Arrival, Config, Ecn, Init, MemoryBudget, PidSource};

    struct Pids(u64);

    impl PidSource for Pids {
        fn next_pid(&mut self) -> (Pid, ResetToken) {
            self.0 += 1;
            (Pid(self.0), ResetToken([1; 16]))
        }
    }

    fn route(socket: u32) -> Route {
        Route { socket, remote: ([192, 0, 2, 1], 443).into() }
    }

    /// Tokens of the challenges that a client sends until `until`, with the routes.
    fn challenges(client: &mut Session<Length>, until: Time) -> Vec<(u64, Route)> {
        let mut found = Vec::new();
        while let Some(now) = client.poll_timeout().filter(|at| *at <= until) {
            client.handle_timeout(now);
            while let Some(sent) = client.poll_transmit(now) {
                let frames = sent.message.packet().map(|packet| packet.frames.clone()).unwrap_or_default();
                found.extend(frames.iter().filter_map(|frame| match frame {
                    Frame::PathChallenge { token } => Some((*token, sent.route)),
                    _ => None,
                }));
            }
        }
        found
    }

    #[test]
    fn a_late_answer_counts_although_another_route_was_challenged_meanwhile() {
        let now = Time::ZERO + Span::from_secs(1);
        let budget = MemoryBudget::new(1 << 30);
        let routes = [route(0), route(1), route(2)];
        let mut client =
            Session::<Length>::connect(Config::default(), &routes, Box::new(Pids(0)), budget, now);
        while client.poll_transmit(now).is_some() {}
        // INIT is sent over one route after the other.
        let now = now + Span::from_secs(2);
        assert!(challenges(&mut client, now).is_empty());
        let params = local_params(&Config::default(), (Pid(9), ResetToken([2; 16])), 1 << 20);
        let arrival =
            |socket| Arrival { route: route(socket), size: 200, ecn: Ecn::NotEct, waited: Span::ZERO };
        client.handle_message(now, &arrival(0), Message::InitAck(params));
        while client.poll_transmit(now).is_some() {}
        let later = now + Span::from_secs(2);
        let asked = challenges(&mut client, later);
        let (first, over) = asked[0];
        assert!(asked.iter().any(|(_, route)| *route != over), "{asked:?}");
        assert_ne!(asked.last().map(|(token, _)| *token), Some(first));
        while client.poll_event().is_some() {}
        // It moves path 0, and later answers do not.
        let other = asked.iter().copied().find(|(_, route)| *route != over);
        for (fsn, (token, route)) in (0..).map(Fsn).zip([(first, over)].into_iter().chain(other)) {
            let frames = [Frame::PathResponse { token }].into_iter().collect();
            let packet = Packet { path: PathId::FIRST, fsn, frames };
            client.handle_message(later, &arrival(route.socket), Message::Packet(packet));
            assert_eq!((client.paths()[0].route, client.paths()[0].state), (over, PathState::Active));
        }
    }

    #[test]
    fn of_routes_that_init_came_over_the_newest_is_answered_first_and_each_once() {
        let (now, budget) = (Time::ZERO + Span::from_secs(1), MemoryBudget::new(1 << 30));
        let params = local_params(&Config::default(), (Pid(9), ResetToken([2; 16])), 1 << 20);
        let first = Init { params: params.clone(), route: route(0) };
        let mut server =
            Session::<Length>::accept(Config::default(), first, Box::new(Pids(0)), budget, now).unwrap();
        for socket in [1, 0, 1] {
            let arrival = Arrival { route: route(socket), size: 200, ecn: Ecn::NotEct, waited: Span::ZERO };
            server.handle_message(now, &arrival, Message::Init(params.clone()));
        }
        let answers = std::iter::from_fn(|| server.poll_transmit(now)).map(|sent| sent.route);
        assert_eq!(answers.collect::<Vec<_>>(), [route(1), route(0)]);
    }
}
