//! The handshake: INIT races over all candidate routes, the first INIT-ACK wins (MPMTP-AR §3.2 [R3]).
//!
//! The client sends the same INIT over every candidate at once and again with doubled pauses. The route
//! whose INIT-ACK comes first becomes path 0. The server answers each route on which INIT reached it and
//! is established by the first packet, whose route becomes its path 0.

use std::sync::Arc;

use anabranch_wire::{MAX_BLOCK, Message, Params, PathId, Payload, Pid, ResetToken, Side, Span, Time};

use super::Session;
use super::race::{Race, Raced};
use crate::config::{AckPolicy, Config};
use crate::event::{CloseReason, Event, PathChange, PidSource, ProtocolError};
use crate::path::{Allowance, Path, PathState};
use crate::route::{Arrival, Route, Transmit};
use crate::state::Trigger;
use crate::stream::{Limits, MemoryBudget, Reservation, Streams};

/// UDP payload of INIT, padded so that an answer never amplifies.
const INIT_SIZE: usize = 1200;
const FIRST_RETRY: Span = Span::from_millis(250);
/// Routes over which INIT is taken and answered.
pub(super) const MAX_GREETINGS: usize = 8;
const LONGEST_RETRY: Span = Span::from_secs(2);

/// A route over which INIT is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    raced: Raced,
    pub due: Time,
    pause: Span,
}

impl<P: Payload> Session<P> {
    /// Opens a session: INIT goes out on every route.
    #[must_use]
    pub fn connect(
        config: impl Into<Arc<Config>>,
        routes: &[Route],
        pids: Box<dyn PidSource + Send>,
        budget: MemoryBudget,
        now: Time,
    ) -> Self {
        let mut session = Self::new(config.into(), Side::Client, pids, (budget, now));
        session.trigger(Trigger::Connect);
        for route in routes {
            session.add_candidate(now, *route);
        }
        session
    }

    /// Accepts the session that a peer's INIT with `params` opens; INIT-ACK goes out over `route`.
    ///
    /// # Errors
    /// [`ProtocolError::Params`] when the peer's parameters are out of range.
    pub fn accept(
        config: impl Into<Arc<Config>>,
        (params, route): (Params, Route),
        pids: Box<dyn PidSource + Send>,
        budget: MemoryBudget,
        now: Time,
    ) -> Result<Self, ProtocolError> {
        let mut session = Self::new(config.into(), Side::Server, pids, (budget, now));
        session.trigger(Trigger::Init);
        session.adopt(params)?;
        session.first_path(now, route);
        session.race.on_init(now, route);
        session.greetings.push(route);
        Ok(session)
    }

    /// One more route to try while the handshake runs.
    pub fn add_candidate(&mut self, now: Time, route: Route) {
        self.next_timeout.set(None);
        let known = self.candidates.iter().any(|candidate| candidate.raced.route == route);
        if !known && self.state == crate::state::State::InitSent {
            let raced = Raced { route, sent_at: now, attempts: 0 };
            self.candidates.push(Candidate { raced, due: now, pause: FIRST_RETRY });
        }
    }

    /// Whether INIT goes out on this route.
    #[must_use]
    pub fn is_candidate(&self, route: Route) -> bool {
        self.candidates.iter().any(|candidate| candidate.raced.route == route)
    }

    /// The driver has got a cookie for this route: INIT goes out there again at once.
    pub fn handle_cookie(&mut self, now: Time, route: Route) {
        self.next_timeout.set(None);
        if let Some(candidate) = self.candidates.iter_mut().find(|candidate| candidate.raced.route == route) {
            (candidate.due, candidate.raced.attempts) = (now, 0);
        }
    }

    fn adopt(&mut self, params: Params) -> Result<(), ProtocolError> {
        if params.max_paths == 0 || usize::from(params.max_udp_payload) < INIT_SIZE {
            return Err(ProtocolError::Params);
        }
        let (data, stream) = (params.initial_max_data, params.initial_max_stream_data);
        self.streams.on_peer_params(data, stream, params.initial_max_streams);
        self.peer = Some(params);
        Ok(())
    }

    fn first_path(&mut self, now: Time, route: Route) {
        let mut path = Path::new(PathId::FIRST, route, &self.config, now);
        if let Some(peer) = &self.peer {
            path.remote_pid = Some(peer.pid);
            path.remote_reset = Some(peer.reset_token);
            path.mtu.limit(peer.max_udp_payload);
        }
        path.state = PathState::Active;
        path.allowance = Allowance::proven();
        self.cc.add_path(path.id, path.size() as u64, now);
        self.paths.insert(path);
        self.apply_rules(now, 0);
    }

    /// The peer's INIT came again, maybe over another route. It is answered until the client is known to hear us: its
    /// first route may be dead already.
    pub(super) fn handle_init(&mut self, now: Time, route: Route) {
        if self.side != Side::Server || self.is_heard() || !self.allows(route) {
            return;
        }
        let owed = self.greetings.iter();
        if owed.len() < MAX_GREETINGS && owed.copied().all(|known| known != route) {
            self.greetings.push(route);
        }
        self.race.on_init(now, route);
    }

    /// True once something that left on path 0 was acknowledged, or another path is there.
    fn is_heard(&self) -> bool {
        let first = self.path(PathId::FIRST);
        first.is_none_or(|path| path.board.has_acks()) || self.paths.len() > 1
    }

    pub(super) fn handle_init_ack(&mut self, now: Time, arrival: &Arrival, params: Params) {
        if self.side != Side::Client {
            return;
        }
        self.addresses.on_received(arrival.size as u64);
        if self.peer.is_some() {
            return self.handle_late_init_ack(now, arrival.route);
        }
        if let Err(error) = self.adopt(params) {
            return self.fail(now, error);
        }
        let mut raced = self.candidates.drain(..).map(|candidate| candidate.raced).collect::<Vec<_>>();
        let winner = raced.iter().position(|raced| raced.route == arrival.route);
        let sample = winner.and_then(|index| raced.remove(index).rtt(now));
        self.race = Race::won_by(arrival.route, &raced);
        self.first_path(now, arrival.route);
        if let Some(sample) = sample {
            self.paths[0].sample_rtt(now, PathId::FIRST, sample, Span::ZERO);
        }
        self.trigger(Trigger::InitAck);
        self.on_established(now);
    }

    /// The first packet proves to the server that the client has its INIT-ACK. Its route becomes that of path 0 if
    /// INIT came over it: a copy of the packet, sent from elsewhere by somebody on the way, must not.
    pub(super) fn handle_first_packet(&mut self, now: Time, arrival: &Arrival) {
        if !self.trigger(Trigger::FirstPacket) {
            return;
        }
        self.greetings.clear();
        let path = &mut self.paths[0];
        if let Some(raced) = self.race.take(arrival.route) {
            path.route = arrival.route;
            if let Some(sample) = raced.rtt(now) {
                path.sample_rtt(now, PathId::FIRST, sample, Span::ZERO);
            }
        }
        self.on_established(now);
    }

    fn on_established(&mut self, now: Time) {
        self.last_heard = now;
        self.events.push_back(Event::Established);
        let route = self.paths[0].route;
        self.events.push_back(Event::Path { path: PathId::FIRST, change: PathChange::Opened(route) });
        self.review_standings();
        self.issue_pids();
        self.update_send_limit();
        if self.config.ack_policy == AckPolicy::Primary {
            self.elect_primary();
        }
    }

    /// Answers to copies of INIT that took another route and came late.
    pub(super) fn transmit_late_answer(&mut self, now: Time) -> Option<Transmit<P>> {
        if self.greetings.is_empty() { None } else { self.transmit_handshake(now) }
    }

    /// The next handshake message to send.
    pub(super) fn transmit_handshake(&mut self, now: Time) -> Option<Transmit<P>> {
        let (route, pid, message) = if self.side == Side::Client {
            let candidate = self.candidates.iter_mut().find(|candidate| candidate.due <= now)?;
            candidate.due = now + candidate.pause;
            candidate.pause = (candidate.pause * 2).min(LONGEST_RETRY);
            let raced = &mut candidate.raced;
            (raced.attempts, raced.sent_at) = (raced.attempts + 1, now);
            (raced.route, Pid::HANDSHAKE, Message::Init(self.local.clone()))
        } else {
            let peer = self.peer.as_ref()?.pid;
            let route = self.greetings.pop_newest()?;
            self.race.on_answer(now, route);
            (route, peer, Message::InitAck(self.local.clone()))
        };
        self.last_sent = now;
        Some(Transmit { route, pid, path: PathId::FIRST, message, size: INIT_SIZE, ecn: false })
    }

    pub(super) fn handshake_timeout(&self) -> Option<Time> {
        let retry = self.candidates.iter().map(|candidate| candidate.due).min();
        let limit = self.started_at + self.config.connect_timeout;
        Some(retry.map_or(limit, |retry| retry.min(limit)))
    }

    pub(super) fn handle_handshake_timeout(&mut self, now: Time) {
        if now >= self.started_at + self.config.connect_timeout {
            self.end(now, CloseReason::ConnectTimeout);
        }
    }
}

pub(super) fn new_streams<P: Payload>(side: Side, config: &Config, budget: MemoryBudget) -> Streams<P> {
    let limits = Limits {
        initial_window: config.memory.initial_window,
        max_window: config.memory.max_window,
        send_buffer: config.memory.send_buffer,
        unsent: 256 << 10,
        peer_stream: 0,
    };
    Streams::new(side, limits, config.max_streams, Reservation::new(budget))
}

pub(super) fn local_params(config: &Config, (pid, reset_token): (Pid, ResetToken), window: u64) -> Params {
    Params {
        pid,
        reset_token,
        initial_max_data: window,
        initial_max_stream_data: window,
        initial_max_streams: config.max_streams,
        max_paths: config.max_paths,
        max_udp_payload: config.mtu.max.max(config.mtu.base),
        max_datagram: config.max_datagram,
        idle_timeout_ms: (config.idle_timeout.as_nanos() / 1_000_000).min(u64::from(u32::MAX)) as u32,
        max_ack_delay_us: config.max_ack_delay.as_micros().min(u64::from(u32::MAX)) as u32,
        max_block: if config.max_datagram > 0 { MAX_BLOCK } else { 0 },
        ordered_classes: config.ordered_classes,
        arrival_times: config.asks_for_arrival_times(),
    }
}
