//! What the race of the handshake leaves: other routes for path 0 while it is the only path.
//!
//! Until each end has named PIDs for further paths, a round trip after the handshake, path 0 is all there is. Where it
//! is silent from its first packet on, waiting for the probe timeout, three round trips, and then for the proof of
//! another route would be long. Each end therefore remembers the routes over which the other was heard in the
//! handshake, which proves them:
//!
//! - the client moves path 0 to one of them when the first acknowledgement is half a round trip late;
//! - an end to which the newest packet of path 0 comes over one of them follows at once.
//!
//! From the probe timeout on, the client challenges the other routes in turn, first those over which something was
//! heard.
//!
//! Between the routes of the race the client decides and the server follows: if both followed each other's newest
//! packets, they could change places for ever.

use std::net::SocketAddr;

use anabranch_wire::{PathId, Payload, Side, Span, Time};

use super::Session;
use super::handshake::MAX_GREETINGS;
use crate::control::Control;
use crate::event::{Event, PathChange};
use crate::path::{Challenge, Path, PathState};
use crate::route::Route;

/// A route over which a message of the handshake went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raced {
    pub route: Route,
    pub sent_at: Time,
    /// How often it went.
    pub attempts: u32,
}

impl Raced {
    /// The round-trip time, when what comes now can only answer one message.
    pub(super) fn rtt(&self, now: Time) -> Option<Span> {
        (self.attempts == 1).then(|| now.since(self.sent_at))
    }
}

/// The routes of the race.
#[derive(Debug, Default)]
pub(super) struct Race {
    /// Over which INIT went and nothing came back.
    unheard: Vec<Raced>,
    /// Over which INIT or INIT-ACK came; at the client with the round-trip time.
    proven: Vec<(Raced, Option<Span>)>,
    /// Over which path 0 went until it was silent.
    left: Vec<Route>,
    /// All over which this end sent INIT.
    chosen_here: Vec<Route>,
    /// How many were challenged.
    challenged: usize,
    /// Challenges that others have replaced: where a round trip is longer than the probe timeout, answers come late.
    asked: Vec<Challenge>,
}

impl Race {
    /// The client's, once the first INIT-ACK is there, over `winner`.
    pub(super) fn won_by(winner: Route, others: &[Raced]) -> Self {
        let others = &others[..others.len().min(MAX_GREETINGS)];
        let chosen_here = std::iter::once(winner).chain(others.iter().map(|raced| raced.route)).collect();
        Self { unheard: others.to_vec(), chosen_here, ..Self::default() }
    }

    /// True when this end decides whether path 0 moves to `route`.
    pub(super) fn is_chosen_here(&self, route: Route) -> bool {
        self.chosen_here.contains(&route)
    }

    /// True when a message of the handshake came from `address`.
    pub(super) fn is_heard_at(&self, address: SocketAddr) -> bool {
        self.proven.iter().any(|(raced, _)| raced.route.remote == address)
    }

    /// INIT came over `route`.
    pub(super) fn on_init(&mut self, now: Time, route: Route) {
        if self.proven.len() < MAX_GREETINGS && self.proven.iter().all(|(known, _)| known.route != route) {
            self.proven.push((Raced { route, sent_at: now, attempts: 0 }, None));
        }
    }

    /// INIT-ACK left over `route`.
    pub(super) fn on_answer(&mut self, now: Time, route: Route) {
        if let Some((raced, _)) = self.proven.iter_mut().find(|(known, _)| known.route == route) {
            (raced.sent_at, raced.attempts) = (now, raced.attempts + 1);
        }
    }

    /// INIT-ACK came over `route`; true when it has not before.
    fn on_init_ack(&mut self, now: Time, route: Route) -> bool {
        let index = self.unheard.iter().position(|unheard| unheard.route == route);
        let raced = index.map(|index| self.unheard.remove(index));
        self.proven.extend(raced.map(|raced| (raced, raced.rtt(now))));
        raced.is_some()
    }

    /// The next route to challenge, again and again: those over which something was heard first, but these only when path 0 has
    /// been silent for longer than one lost packet explains.
    fn next_to_challenge(
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
    fn on_replaced(&mut self, challenge: Challenge) {
        if self.asked.len() >= MAX_GREETINGS {
            self.asked.remove(0);
        }
        self.asked.push(challenge);
    }

    /// Path 0 goes over another route now: what was asked over others before moves it no more.
    pub(super) fn settle(&mut self) {
        self.asked.clear();
    }

    /// A proven route, which then can be moved to no more.
    pub(super) fn take(&mut self, route: Route) -> Option<Raced> {
        let index = self.proven.iter().position(|(proven, _)| proven.route == route);
        index.map(|index| self.proven.remove(index).0)
    }
}

impl<P: Payload> Session<P> {
    /// INIT-ACK came over another route than the first.
    pub(super) fn handle_late_init_ack(&mut self, now: Time, route: Route) {
        if self.race.on_init_ack(now, route)
            && let Some(index) = self.path_index(PathId::FIRST)
        {
            self.paths.forget_timeout(index);
            self.leave_silent_route(now);
        }
    }

    /// Another path carries data: path 0 stays where it is.
    pub(super) fn end_race(&mut self) {
        self.race.unheard.clear();
        self.race.proven.clear();
        self.race.left.clear();
        self.stay();
    }

    /// Path 0 is not silent, or no longer alone: an answer over another route of the race moves it no more.
    pub(super) fn stay(&mut self) {
        let Some(index) = self.path_index(PathId::FIRST) else { return };
        self.race.settle();
        let path = &mut self.paths[index];
        let strays = |challenge: &Challenge| {
            challenge.route != path.route && self.race.is_chosen_here(challenge.route)
        };
        if path.challenge.as_deref().is_some_and(strays) {
            path.challenge = None;
        }
    }

    /// True when another path than this one goes over the route.
    pub(super) fn is_taken(&self, route: Route, index: usize) -> bool {
        let takes = |(other, path): (usize, &Path)| {
            other != index && path.route == route && path.state != PathState::Closing
        };
        self.paths.iter().enumerate().any(takes)
    }

    /// When the client moves path 0 unless something is acknowledged.
    pub(super) fn leave_at(&self, path: &Path) -> Option<Time> {
        let leaves = self.side == Side::Client && path.id == PathId::FIRST && !path.board.has_acks();
        if self.race.proven.is_empty() || !leaves {
            return None;
        }
        path.first_answer_due(self.config.max_ack_delay)
    }

    /// Moves path 0 to a proven route when nothing was acknowledged on its own in time.
    pub(super) fn leave_silent_route(&mut self, now: Time) {
        let Some(index) = self.path_index(PathId::FIRST) else { return };
        if self.leave_at(&self.paths[index]).is_none_or(|at| at > now) {
            return;
        }
        if let Some((raced, rtt)) = self.race.proven.pop()
            && !self.is_taken(raced.route, index)
        {
            self.move_path(now, index, raced.route);
            // Also where the address is the same: what is out may be lost, and is not to count against this route.
            self.give_up_flight(now, index);
            if let Some(rtt) = rtt {
                self.paths[index].sample_rtt(now, PathId::FIRST, rtt, Span::ZERO);
            }
            self.update_pacing(now, index);
        }
    }

    /// The client tries the other routes, when path 0 is silent.
    pub(super) fn try_alternative(&mut self, now: Time, index: usize) {
        if self.side == Side::Server || self.paths[index].id != PathId::FIRST {
            return;
        }
        let long = self.paths[index].health.timeouts > 1 || self.paths[index].state == PathState::Failed;
        let used = |route: &Route| self.paths.iter().any(|path| path.route == *route);
        let Some(route) = self.race.next_to_challenge(long, used) else { return };
        let waiting = self.paths[index].challenge.as_ref().map(|challenge| challenge.route);
        if waiting != Some(route) {
            let interval = self.config.initial_rtt;
            let token = self.next_token();
            let replaced =
                self.paths[index].challenge.replace(Box::new(Challenge::new(token, route, now, interval)));
            if let Some(replaced) = replaced.filter(|replaced| self.race.is_chosen_here(replaced.route)) {
                self.race.on_replaced(*replaced);
            }
        }
    }

    /// The answer to a challenge that another has replaced meanwhile: it stands again, on path 0.
    pub(super) fn recall_challenge(&mut self, token: u64) -> Option<usize> {
        let index = self.path_index(PathId::FIRST)?;
        let asked = self.race.asked.iter().find(|challenge| challenge.token == token)?;
        self.paths[index].challenge = Some(Box::new(*asked));
        Some(index)
    }

    /// A path goes on over another route, which is proven.
    pub(super) fn move_path(&mut self, now: Time, index: usize, route: Route) {
        self.remember_address(index);
        let path = &mut self.paths[index];
        let id = path.id;
        let same_host = path.route.remote.ip() == route.remote.ip();
        let left = std::mem::replace(&mut path.route, route);
        if id == PathId::FIRST && self.race.is_chosen_here(left) && !self.race.left.contains(&left) {
            self.race.left.push(left);
        }
        if !same_host {
            path.forget_rtt();
            // What left for the old address says nothing of the new one's room.
            self.give_up_flight(now, index);
            let size = self.paths[index].size() as u64;
            self.cc.add_path(id, size, now);
            self.forget_sharing(id);
            self.review_groups(now);
        }
        self.events.push_back(Event::Path { path: id, change: PathChange::Moved(route) });
        self.push_control(Control::ObservedAddress(id));
        self.apply_rules(now, index);
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Frame, Fsn, Length, Message, Packet, Pid, ResetToken};

    use super::super::handshake::local_params;
    use super::*;
    use crate::{Arrival, Config, Ecn, MemoryBudget, PidSource};

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
        // INIT goes over one route after the other.
        let now = now + Span::from_secs(2);
        assert!(challenges(&mut client, now).is_empty());
        let params = local_params(&Config::default(), (Pid(9), ResetToken([2; 16])), 1 << 20);
        let arrival = |socket| Arrival { route: route(socket), size: 200, ecn: Ecn::NotEct };
        client.handle_message(now, &arrival(0), Message::InitAck(params));
        while client.poll_transmit(now).is_some() {}
        let later = now + Span::from_secs(2);
        let asked = challenges(&mut client, later);
        let (first, over) = asked[0];
        assert!(asked.iter().any(|(_, route)| *route != over), "{asked:?}");
        assert_ne!(asked.last().map(|(token, _)| *token), Some(first));
        while client.poll_event().is_some() {}
        // It moves path 0, and no further answer does.
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
        let first = (params.clone(), route(0));
        let mut server =
            Session::<Length>::accept(Config::default(), first, Box::new(Pids(0)), budget, now).unwrap();
        for socket in [1, 0, 1] {
            let arrival = Arrival { route: route(socket), size: 200, ecn: Ecn::NotEct };
            server.handle_message(now, &arrival, Message::Init(params.clone()));
        }
        let answers = std::iter::from_fn(|| server.poll_transmit(now)).map(|sent| sent.route);
        assert_eq!(answers.collect::<Vec<_>>(), [route(1), route(0)]);
    }
}
