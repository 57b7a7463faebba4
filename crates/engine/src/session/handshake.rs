//! The handshake: INIT races over all candidate routes, and the first INIT-ACK wins (MPMTP-AR §3.2 [R3]).
//!
//! The client sends the same INIT over every candidate at once, and repeats it with doubling pauses. The route of the
//! first INIT-ACK becomes path 0. The server answers each route on which INIT arrived. The first packet establishes the
//! session, and its route becomes the server's path 0.

use anabranch_wire::{MAX_BLOCK, Message, Params, PathId, Payload, Pid, ResetToken, Side, Span, Time};

use super::flight::Flight;
use super::path_control::PathControl;
use super::race::{MAX_ROUTES, Race, Raced};
use crate::config::Config;
use crate::event::{CloseReason, ProtocolError};
use crate::route::{Arrival, Init, Route, Transmit};
use crate::state::{State, Trigger};
use crate::stream::{Limits, MemoryBudget, Reservation, Streams};

/// UDP payload of INIT, padded so that an answer never amplifies.
const INIT_SIZE: usize = 1200;
const FIRST_RETRY: Span = Span::from_millis(250);
const LONGEST_RETRY: Span = Span::from_secs(2);

/// A route over which INIT is sent.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    raced: Raced,
    due: Time,
    pause: Span,
}

pub(super) struct Handshake {
    /// Routes over which INIT is sent.
    candidates: Vec<Candidate>,
    started_at: Time,
    /// The parameters that this end announces.
    local: Params,
}

impl Handshake {
    pub(super) fn new(local: Params, now: Time) -> Self {
        Self { candidates: Vec::new(), started_at: now, local }
    }

    pub(super) fn local(&self) -> &Params {
        &self.local
    }

    /// Announces the PID at the last relay instead of this end's own.
    pub(super) fn set_local_pid(&mut self, pid: Pid) {
        self.local.pid = pid;
    }

    /// Tries one more route.
    pub(super) fn add_candidate(&mut self, now: Time, route: Route) {
        if !self.is_candidate(route) {
            let raced = Raced { route, sent_at: now, attempts: 0 };
            self.candidates.push(Candidate { raced, due: now, pause: FIRST_RETRY });
        }
    }

    pub(super) fn is_candidate(&self, route: Route) -> bool {
        self.candidates.iter().any(|candidate| candidate.raced.route == route)
    }

    /// Sends INIT over a route again at once: the driver got a cookie for it.
    pub(super) fn handle_cookie(&mut self, now: Time, route: Route) {
        if let Some(candidate) = self.candidates.iter_mut().find(|candidate| candidate.raced.route == route) {
            (candidate.due, candidate.raced.attempts) = (now, 0);
        }
    }

    /// Accepts the session that an INIT opens.
    pub(super) fn accept<P: Payload>(
        now: Time,
        flight: &mut Flight<P>,
        control: &mut PathControl,
        init: Init,
    ) -> Result<(), ProtocolError> {
        flight.life.trigger(Trigger::Init);
        adopt(flight, init.params)?;
        control.create_first(now, flight, init.route);
        control.race.on_init(now, init.route);
        flight.out.greetings.push(init.route);
        Ok(())
    }

    /// Handles a repeated INIT, perhaps over another route. It is answered until a packet shows that the client
    /// receives this end, because its first route may be dead.
    pub(super) fn handle_init<P: Payload>(
        now: Time,
        flight: &mut Flight<P>,
        control: &mut PathControl,
        route: Route,
    ) {
        let first = flight.paths.place_of(PathId::FIRST);
        let has_acks = first.is_none_or(|first| flight.paths[first].board().has_acks());
        let is_heard = has_acks || flight.paths.len() > 1;
        if flight.life.side() != Side::Server || is_heard || !control.live.rules.allow(route) {
            return;
        }
        let owed = flight.out.greetings.iter();
        if owed.len() < MAX_ROUTES && owed.copied().all(|known| known != route) {
            flight.out.greetings.push(route);
        }
        control.race.on_init(now, route);
    }

    pub(super) fn handle_init_ack<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        control: &mut PathControl,
        (arrival, params): (&Arrival, &Params),
    ) {
        if flight.life.side() != Side::Client {
            return;
        }
        flight.credit.on_received(arrival.size as u64);
        if flight.peer.is_some() {
            return control.handle_late_init_ack(now, flight, arrival.route);
        }
        if let Err(error) = adopt(flight, params.clone()) {
            return flight.end(now, CloseReason::Protocol(error));
        }
        let mut raced: Vec<_> = self.candidates.drain(..).map(|candidate| candidate.raced).collect();
        let winner = raced.iter().position(|raced| raced.route == arrival.route);
        let sample = winner.and_then(|index| raced.remove(index).rtt(now));
        control.race = Race::won_by(arrival.route, &raced);
        control.create_first(now, flight, arrival.route);
        if let Some(sample) = sample {
            flight.paths.edit(0).sample_rtt(now, PathId::FIRST, sample, Span::ZERO);
        }
        flight.life.trigger(Trigger::InitAck);
        control.on_established(now, flight);
    }

    /// Handles the first packet, which proves to the server that the client has its INIT-ACK. Its route becomes that of
    /// path 0 if INIT came over it: a copy of the packet, sent from elsewhere by a third party, must not move the path.
    pub(super) fn handle_first_packet<P: Payload>(
        now: Time,
        flight: &mut Flight<P>,
        control: &mut PathControl,
        arrival: &Arrival,
    ) {
        if !flight.life.trigger(Trigger::FirstPacket) {
            return;
        }
        flight.out.greetings.clear();
        let path = flight.paths.edit(0);
        if let Some(raced) = control.race.take(arrival.route) {
            path.set_route(arrival.route);
            if let Some(sample) = raced.rtt(now) {
                path.sample_rtt(now, PathId::FIRST, sample, Span::ZERO);
            }
            // The path still has the rules of the route over which the first INIT came.
            control.apply_rules(now, flight, 0);
        }
        control.on_established(now, flight);
    }

    /// The next handshake message to send.
    pub(super) fn poll_transmit<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        race: &mut Race,
    ) -> Option<Transmit<P>> {
        let (route, pid, message) = if flight.life.side() == Side::Client {
            let candidate = self.candidates.iter_mut().find(|candidate| candidate.due <= now)?;
            candidate.due = now + candidate.pause;
            candidate.pause = (candidate.pause * 2).min(LONGEST_RETRY);
            let raced = &mut candidate.raced;
            (raced.attempts, raced.sent_at) = (raced.attempts + 1, now);
            (raced.route, Pid::HANDSHAKE, Message::Init(self.local.clone()))
        } else {
            let peer = flight.peer.as_ref()?.pid;
            let route = flight.out.greetings.pop_newest()?;
            race.on_answer(now, route);
            (route, peer, Message::InitAck(self.local.clone()))
        };
        flight.clock.last_sent = now;
        Some(Transmit { route, pid, path: PathId::FIRST, message, size: INIT_SIZE, ecn: false })
    }

    /// When INIT is repeated, or the handshake times out.
    pub(super) fn next_timeout(&self, config: &Config) -> Time {
        let retry = self.candidates.iter().map(|candidate| candidate.due).min();
        let limit = self.started_at + config.connect_timeout;
        retry.map_or(limit, |retry| retry.min(limit))
    }

    pub(super) fn handle_timeout<P: Payload>(&self, now: Time, flight: &mut Flight<P>) {
        if now >= self.started_at + flight.config.connect_timeout {
            flight.end(now, CloseReason::ConnectTimeout);
        }
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.candidates.shrink_to_fit();
    }

    /// Stops sending if the session is over.
    pub(super) fn stop_if_over(&mut self, state: State) {
        if state == State::Closed {
            self.candidates.clear();
        }
    }
}

/// Adopts the peer's parameters.
fn adopt<P: Payload>(flight: &mut Flight<P>, params: Params) -> Result<(), ProtocolError> {
    if params.max_paths == 0 || usize::from(params.max_udp_payload) < INIT_SIZE {
        return Err(ProtocolError::Params);
    }
    let (data, stream) = (params.initial_max_data, params.initial_max_stream_data);
    flight.streams.on_peer_params(data, stream, params.initial_max_streams);
    flight.peer = Some(params);
    Ok(())
}

pub(super) fn new_streams<P: Payload>(side: Side, config: &Config, budget: MemoryBudget) -> Streams<P> {
    let limits = Limits {
        initial_window: config.memory.initial_window,
        max_window: config.memory.max_window,
        independent_streams: config.memory.independent_streams,
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
        max_datagram: config.datagrams.largest,
        idle_timeout_ms: (config.idle_timeout.as_nanos() / 1_000_000).min(u64::from(u32::MAX)) as u32,
        max_ack_delay_us: config.acks.max_delay.as_micros().min(u64::from(u32::MAX)) as u32,
        max_block: if config.datagrams.largest > 0 { MAX_BLOCK } else { 0 },
        ordered_classes: config.datagrams.ordered_classes,
        arrival_times: config.asks_for_arrival_times(),
        path_rates: true,
    }
}
