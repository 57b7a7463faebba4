//! A session's engine, its path agent and the driver's own state, all under one lock.
//!
//! The driver sends the engine's output, passes its events to the path agent and to waiting tasks, and carries out the
//! agent's decisions.

use std::collections::BTreeSet;
use std::sync::Arc;

use anabranch_agent::{Action, Direct, View};
use anabranch_engine::{
    AbandonReason, CloseReason, Event, PathChange, PathError, PathRules, PathState, PidChange, Route,
    Session as Engine,
};
use anabranch_secure::{InitId, Refusal};
use anabranch_wire::{KeyExchange, Kind, Message, PathId, Pid, Side, Span, Time, close_code};
use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::broadcast;

use super::greeting::Handshake;
use super::inner::SessionInner;
use super::outbox::{Outgoing, plain_datagram};
use super::wakers::{Wait, Wakers, Woken};
use crate::endpoint::inner::EndpointInner;
use crate::fault::lock;
use crate::obstacle::Obstacle;
use crate::places::Hold;
use crate::relayed::is_chain;

/// Most events kept for a slow listener.
const EVENTS_KEPT: usize = 256;
/// After the application has read this many bytes, the driver checks whether to give the peer more credit.
const READ_TOLD: usize = 64 << 10;
/// How often the key retention time is adapted to the paths' round-trip times.
const RETENTION_PAUSE: Span = Span::from_secs(1);

/// Problems of a client's handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// An INIT-ACK was not authentic: the ticket's secret is wrong.
    pub(crate) unauthentic: bool,
    /// A data cap of the node leaves nothing for a session over one of the routes.
    pub(crate) over_cap: bool,
    /// The node refused.
    pub(crate) refused: Option<Refusal>,
    /// The node speaks another version.
    pub(crate) version: Option<u8>,
}

/// Work for the pump after it has released the lock.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The session was established just now.
    pub(crate) established: bool,
    /// It was, and this end is the server.
    pub(crate) accepted: bool,
    /// The session is over.
    pub(crate) finished: bool,
    /// How long to keep old keys, if that has changed.
    pub(crate) retention: Option<Span>,
    /// The peer's half of a fresh key exchange.
    pub(crate) half: Option<KeyExchange>,
    /// The session has come to rest.
    pub(crate) rests: bool,
    /// Closed paths for which no late packets are expected any more.
    pub(crate) retired_paths: SmallVec<[PathId; 2]>,
}

/// The part of a session under its lock.
pub(crate) struct Core {
    pub(crate) engine: Engine<Bytes>,
    pub(crate) handshake: Handshake,
    pub(crate) wakers: Wakers,
    /// Decides about direct paths.
    pub(crate) agent: Direct,
    /// Problems of the handshake, for the error message.
    pub(crate) trouble: Trouble,
    pub(crate) established: bool,
    pub(crate) closed: Option<CloseReason>,
    /// Its task has ended, and it sends nothing more.
    pub(crate) is_forgotten: bool,
    events: Option<broadcast::Sender<Event>>,
    pids: BTreeSet<Pid>,
    /// The place among unconfirmed sessions, until the client confirms.
    pub(crate) half_open: Option<Hold<SessionInner>>,
    /// The place among ended sessions that answer late packets.
    pub(crate) lingering: Option<Hold<SessionInner>>,
    advertised: BTreeSet<u64>,
    /// Sockets whose interfaces were logged as too small.
    told_small: BTreeSet<u32>,
    /// Bytes read since the driver was last woken to grant credit.
    read_untold: usize,
    /// A reader has read all available data.
    dry: bool,
    retention_at: Time,
}

impl Core {
    pub(crate) fn new(engine: Engine<Bytes>, handshake: Handshake, agent: Direct) -> Self {
        Self {
            engine,
            handshake,
            wakers: Wakers::default(),
            agent,
            trouble: Trouble::default(),
            established: false,
            closed: None,
            is_forgotten: false,
            events: None,
            pids: BTreeSet::new(),
            half_open: None,
            lingering: None,
            advertised: BTreeSet::new(),
            told_small: BTreeSet::new(),
            read_untold: 0,
            dry: false,
            retention_at: Time::ZERO,
        }
    }

    /// Replaces the engine after a panic by one that has ended. The peer gets a reset when it next sends.
    pub(crate) fn fail(&mut self, endpoint: &EndpointInner) {
        let (now, pids) = (endpoint.clock.now(), endpoint.new_pids());
        let mut engine = Engine::connect(Arc::default(), &[], pids, endpoint.budget.clone(), now);
        while engine.poll_pid_change().is_some() {}
        engine.abort(now, close_code::INTERNAL, "a fault of this program, see its log");
        self.engine = engine;
    }

    /// Records that the application has read bytes from a stream.
    pub(crate) fn note_read(&mut self, bytes: usize) {
        self.read_untold += bytes;
    }

    /// Records that the application has read all available data of a stream.
    pub(crate) fn note_dry(&mut self) {
        self.dry = true;
    }

    /// True if the driver should be woken to grant credit for bytes read: after many bytes, or after a reader has read
    /// all available data.
    pub(crate) fn credit_to_tell(&mut self) -> bool {
        let dry = std::mem::take(&mut self.dry);
        let tell = self.read_untold >= READ_TOLD || (dry && self.read_untold > 0);
        if tell {
            self.read_untold = 0;
        }
        tell
    }

    /// A receiver of events from now on; it has ended if the session is forgotten.
    pub(crate) fn subscribe(&mut self) -> broadcast::Receiver<Event> {
        if self.is_forgotten {
            return broadcast::channel(1).1;
        }
        self.events.get_or_insert_with(|| broadcast::channel(EVENTS_KEPT).0).subscribe()
    }

    /// Does all due work, and moves messages from the engine to `queue` until it holds `room` of them.
    pub(crate) fn poll(
        &mut self,
        session: &Arc<SessionInner>,
        now: Time,
        queue: &mut Vec<Outgoing>,
        (room, woken): (usize, &mut Woken),
    ) -> Outcome {
        let mut outcome = Outcome { retention: self.retention(now), ..Outcome::default() };
        if self.engine.poll_timeout().is_some_and(|at| at <= now) {
            self.engine.handle_timeout(now);
            if self.engine.is_at_rest() {
                outcome.rests = true;
                self.rest();
            }
        }
        self.take_events(session, now, (&mut outcome, woken));
        if self.agent.is_due(now) {
            self.follow_agent(session, now);
        }
        while queue.len() < room {
            let Some(transmit) = self.engine.poll_transmit(now) else { break };
            let (route, pid) = (transmit.route, transmit.pid);
            let bytes = match &transmit.message {
                Message::Packet(_) => {
                    queue.push(Outgoing::Packet(transmit));
                    continue;
                }
                Message::Init(_) => self.init_for(session, route),
                Message::InitAck(_) => self.init_ack(pid),
                Message::Reset(_) => None,
            };
            queue.extend(bytes.map(|bytes| Outgoing::Ready { route, bytes }));
        }
        // Sending may have changed the session: closed it, or registered PIDs for the peer.
        self.take_events(session, now, (&mut outcome, woken));
        outcome
    }

    /// When [`Core::poll`] wants to be called again at the latest.
    pub(crate) fn deadline(&self, now: Time) -> Time {
        const SHORTEST: Span = Span::from_micros(50);
        let engine = self.engine.poll_timeout().unwrap_or(Time::NEVER);
        coarse(now, engine.min(self.agent.next_at()).max(now + SHORTEST))
    }

    fn init_for(&self, session: &SessionInner, route: Route) -> Option<Vec<u8>> {
        let Handshake::Client(dialing) = &self.handshake else { return None };
        let cookie = dialing.cookies.iter().find(|(known, _)| *known == route).map(|(_, cookie)| cookie);
        let forward = session.endpoint.sockets.relayed.find(route.socket).map(|via| via.chain.forward);
        let pid = forward.unwrap_or(Pid::HANDSHAKE);
        Some(plain_datagram(Kind::Init, pid, &dialing.initiator.init_body(cookie)))
    }

    fn init_ack(&self, pid: Pid) -> Option<Vec<u8>> {
        let Handshake::Answered { body, .. } = &self.handshake else { return None };
        Some(plain_datagram(Kind::InitAck, pid, body))
    }

    fn take_events(
        &mut self,
        session: &Arc<SessionInner>,
        now: Time,
        (outcome, woken): (&mut Outcome, &mut Woken),
    ) {
        while let Some(change) = self.engine.poll_pid_change() {
            match change {
                PidChange::Register { pid, .. } => {
                    self.pids.insert(pid);
                }
                PidChange::Retire { pid, path } => {
                    self.pids.remove(&pid);
                    outcome.retired_paths.push(path);
                    session.endpoint.sockets.relayed.remove(pid);
                }
            }
            session.endpoint.sessions.pids.apply(session, change);
        }
        outcome.half = outcome.half.or_else(|| self.engine.poll_key_exchange());
        while let Some(event) = self.engine.poll_event() {
            self.on_event(session, now, &event, (outcome, woken));
            let telling = matches!(
                event,
                Event::Established
                    | Event::Path { .. }
                    | Event::PeerAddress { .. }
                    | Event::PeerAddressGone { .. }
                    | Event::ObservedAddress { .. }
                    | Event::PeerClosing
                    | Event::Closed(_)
            );
            if let Some(listeners) = self.events.as_ref().filter(|_| telling) {
                // There may be no listener left.
                let _ = listeners.send(event);
            }
        }
    }

    fn on_event(
        &mut self,
        session: &Arc<SessionInner>,
        now: Time,
        event: &Event,
        (outcome, woken): (&mut Outcome, &mut Woken),
    ) {
        match event {
            Event::Established => {
                self.established = true;
                outcome.established = true;
                outcome.accepted = self.engine.side() == Side::Server;
                self.half_open = None;
                self.advertise(session);
                let first = self.engine.paths().into_iter().next();
                let rtt = first.as_ref().map_or(Span::ZERO, |path| path.rtt);
                let direct = first.map(|path| path.route).filter(|route| !is_chain(route.socket));
                self.agent.on_established(now, direct, rtt);
            }
            Event::StreamOpened(_) => self.wakers.wake(Wait::Accept, woken),
            Event::StreamReadable(stream) => self.wakers.wake_reader(*stream, woken),
            Event::StreamWritable(stream)
            | Event::StreamFinished(stream)
            | Event::StreamStopped { stream, .. } => self.wakers.wake_writer(*stream, woken),
            Event::StreamsAvailable => self.wakers.wake(Wait::Open, woken),
            Event::DatagramReceived => self.wakers.wake(Wait::Datagram, woken),
            Event::Path { path, change } => self.on_path(session, now, *path, change),
            Event::PeerAddress { id, address } => {
                self.agent.on_peer_address(now, *id, *address);
            }
            Event::PeerAddressGone { id } => self.agent.on_peer_address_gone(*id),
            Event::ObservedAddress { .. } | Event::PeerClosing => {}
            Event::Closed(reason) => {
                // The first reason counts. The application may close a session whose task has ended.
                self.closed.get_or_insert_with(|| reason.clone());
                self.agent.on_closed();
                outcome.finished = true;
                self.half_open = None;
                self.wakers.wake_all(woken);
            }
        }
    }

    fn on_path(&mut self, session: &Arc<SessionInner>, now: Time, path: PathId, change: &PathChange) {
        let mut is_direct = true;
        match change {
            PathChange::Opened(route) | PathChange::Moved(route) => {
                is_direct = !is_chain(route.socket);
                self.limit_mtu(session, path, *route);
                self.tell_small_mtu(session, *route);
            }
            PathChange::Standing(standing) => tracing::info!(%path, "{standing}"),
            PathChange::Losses(cause) => tracing::info!(%path, "losses come from {cause}"),
            PathChange::Closed(_)
            | PathChange::Suspect
            | PathChange::Failed
            | PathChange::Recovered
            | PathChange::Grouped { .. } => {}
        }
        self.agent.on_path(now, path, change, is_direct);
    }

    /// How long to keep old keys, at intervals: three probe timeouts of the slowest path (RFC 9001 §6.5).
    fn retention(&mut self, now: Time) -> Option<Span> {
        if !self.established || now < self.retention_at {
            return None;
        }
        self.retention_at = now + RETENTION_PAUSE;
        let pto = |path: anabranch_engine::PathInfo| path.rtt + path.rtt_variance * 4;
        let slowest = self.engine.paths().into_iter().map(pto).max()?;
        Some((slowest * 3).max(RETENTION_PAUSE))
    }

    /// Limits packets to the local interface's size. Probes find the path's limit.
    fn limit_mtu(&mut self, session: &Arc<SessionInner>, path: PathId, route: Route) {
        let headers = if route.remote.is_ipv4() { 28 } else { 48 };
        let mtu = session.endpoint.sockets.get(route.socket).map_or(0, |socket| socket.place().mtu);
        if let Ok(most) = u16::try_from(mtu.saturating_sub(headers))
            && most >= anabranch_wire::MIN_UDP_PAYLOAD
        {
            // The path may be gone again by now.
            let _ = self.engine.set_path_mtu_limit(path, most);
        }
    }

    /// Logs once that an interface is too small for packets with data.
    fn tell_small_mtu(&mut self, session: &Arc<SessionInner>, route: Route) {
        let Some(socket) = session.endpoint.sockets.get(route.socket) else { return };
        let (place, headers) = (socket.place(), if route.remote.is_ipv4() { 28 } else { 48 });
        let is_small = place.mtu > 0 && place.mtu < u32::from(anabranch_wire::MIN_UDP_PAYLOAD) + headers;
        if is_small && self.told_small.insert(route.socket) {
            let interface = place.interface.to_string();
            tracing::warn!("{}", Obstacle::SmallMtu { interface, mtu: place.mtu });
        }
    }

    /// Announces this machine's addresses to the peer, and withdraws those that are gone.
    fn advertise(&mut self, session: &Arc<SessionInner>) {
        let Some(first) = self.engine.paths().first().map(|path| path.route.socket) else { return };
        let addresses = session.endpoint.addresses_beside(first);
        let gone: Vec<u64> = self
            .advertised
            .iter()
            .filter(|id| !addresses.iter().any(|(known, _)| known == *id))
            .copied()
            .collect();
        for id in gone {
            self.advertised.remove(&id);
            self.engine.withdraw_address(id);
        }
        for (id, address) in addresses {
            if self.advertised.insert(id) {
                self.engine.advertise_address(id, address);
            }
        }
    }

    /// Replaces the path rules, and opens paths that they allow now.
    pub(crate) fn set_path_rules(
        &mut self,
        session: &Arc<SessionInner>,
        now: Time,
        rules: PathRules,
    ) -> Result<(), PathError> {
        let chains = self.engine.paths().into_iter().map(|path| path.route.socket);
        let chains: Vec<u32> = chains.filter(|socket| is_chain(*socket)).collect();
        let chains = chains.into_iter().map(|socket| (socket, session.endpoint.rule_place(socket)));
        let places: Vec<_> =
            session.endpoint.rule_places(self.engine.side()).into_iter().chain(chains).collect();
        self.engine.set_path_rules(now, rules, places)?;
        self.agent.on_change(now);
        Ok(())
    }

    /// Closes a path if another one works, or if it never opened; false if it stays.
    pub(crate) fn close_spare_path(&mut self, now: Time, path: PathId) -> bool {
        let paths = self.engine.paths();
        let is_open = |state| !matches!(state, PathState::Validating | PathState::Closing);
        let is_last = paths.iter().any(|other| other.id == path && is_open(other.state))
            && !paths.iter().any(|other| other.id != path && other.state == PathState::Active);
        if !is_last {
            self.engine.close_path(now, path, AbandonReason::Requested);
        }
        !is_last
    }

    /// This machine's addresses changed.
    pub(crate) fn addresses_changed(&mut self) {
        self.agent.on_change(Time::ZERO);
    }

    /// Reports changes of this machine to peer and engine, and carries out the agent's decisions.
    fn follow_agent(&mut self, session: &Arc<SessionInner>, now: Time) {
        let endpoint = &session.endpoint;
        if self.established && self.closed.is_none() {
            self.advertise(session);
            for path in self.engine.paths().iter().filter(|path| path.state != PathState::Closing) {
                self.limit_mtu(session, path.id, path.route);
            }
            endpoint.describe_sockets(now, &mut self.engine);
        }
        let (locals, outside) = (endpoint.sockets.locals(), endpoint.sockets.outside_ips());
        // A panic of another session's agent leaves the budget usable.
        let mut probes = lock(&endpoint.probes, |_| {});
        loop {
            let mut paths = self.engine.paths();
            paths.retain(|path| !self.is_relayed(session, path.route));
            let (engine, reached) = (&self.engine, self.agent.reached(&outside));
            let view = View {
                locals: &locals,
                paths: &paths,
                may_try: &|address| endpoint.may_try(address, &session.peer, reached),
                allows: &|route| engine.allows(route),
                is_proven: &|address| engine.is_proven(address),
            };
            match self.agent.poll(now, &view, &mut probes) {
                Some(Action::Open(route)) => {
                    let result = self.engine.open_path(now, route);
                    self.agent.on_open(now, route, result, &mut probes);
                }
                Some(Action::Close(path, reason)) => self.engine.close_path(now, path, reason),
                None => break,
            }
        }
    }

    /// True for a path that is known to lead through relays. At the end that accepted the session, it comes from the
    /// relay that introduced the two.
    fn is_relayed(&self, session: &SessionInner, route: Route) -> bool {
        let is_server = self.engine.side() == Side::Server;
        is_chain(route.socket) || (is_server && session.endpoint.sockets.leads_to_relay(route))
    }

    /// Frees memory that an idle session does not need, such as the state for late handshake messages.
    fn rest(&mut self) {
        let init = self.handshake.finish();
        self.handshake = Handshake::Done { init };
    }

    /// Handles the end of the session's task. If the session has not ended, it ends now, and all waiting tasks are
    /// woken.
    pub(crate) fn end_unheard(&mut self, woken: &mut Woken) {
        if self.closed.is_none() {
            let reason =
                "its task has ended: a fault of this program, see its log, or the runtime is gone".to_owned();
            self.closed = Some(CloseReason::Local { code: close_code::INTERNAL, reason });
        }
        self.is_forgotten = true;
        self.wakers.wake_all(woken);
    }

    /// The entries of this session in the endpoint's tables.
    pub(crate) fn forget(&mut self) -> (BTreeSet<Pid>, Option<InitId>) {
        (self.events, self.lingering) = (None, None);
        (std::mem::take(&mut self.pids), self.handshake.finish())
    }
}

/// Delays a distant deadline, by at most a 64th of the wait, to a multiple that other sessions' deadlines fall on too. So
/// thousands of idle sessions wake the process only a few times a second.
fn coarse(now: Time, deadline: Time) -> Time {
    const FAR: Span = Span::from_millis(500);
    const COARSEST: u64 = 256_000_000;
    if deadline == Time::NEVER || deadline.since(now) < FAR {
        return deadline;
    }
    // The power of two below keeps multiples of the coarse steps multiples of the finer ones.
    let step = 1 << (deadline.since(now) / 64).as_nanos().min(COARSEST).ilog2();
    Time::from_nanos(deadline.as_nanos().next_multiple_of(step))
}
