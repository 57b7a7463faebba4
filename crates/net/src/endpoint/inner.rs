//! The part of an endpoint that its sessions share: sockets, PIDs, keys, budgets, counters.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use anabranch_agent::{Named, Permission, ProbeBudget, Reaches, may_try};
use anabranch_engine::{
    Config, MemoryBudget, Meter, PathOrigin, PathRule, Priority, Route, Session as Engine,
};
use anabranch_secure::{CookieJar, NodeKey, PublicKey, ResetKey};
use anabranch_wire::{Side, Time};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::config::Limits;
use super::sessions::Sessions;
use super::sockets::{BoundSocket, Sockets};
use crate::address_policy::AddressPolicy;
use crate::authorize::Authorize;
use crate::buffers::BufferPool;
use crate::clock::Clock;
use crate::door::Door;
use crate::fault::contained;
use crate::foreign::Foreign;
use crate::pids::RandomPids;
use crate::session::inner::{Handle, SessionInner};
use crate::tap::Taps;

/// An endpoint without its handle.
pub(crate) struct EndpointInner {
    pub(crate) clock: Clock,
    pub(crate) key: NodeKey,
    /// The settings of all accepted sessions.
    pub(crate) config: Arc<Config>,
    /// The settings of the last session opened from here.
    called_with: Mutex<Weak<Config>>,
    pub(crate) limits: Limits,
    pub(crate) authorize: Arc<dyn Authorize>,
    address_policy: Option<Arc<dyn AddressPolicy>>,
    /// Attempts at addresses that peers announced.
    pub(crate) probes: Mutex<ProbeBudget>,
    pub(crate) cookies: CookieJar,
    pub(crate) reset_key: ResetKey,
    pub(crate) budget: MemoryBudget,
    pub(crate) taps: Taps,
    /// Memory for received datagrams.
    pub(crate) buffers: BufferPool,
    /// Handles datagrams that belong to no session here.
    pub(crate) foreign: OnceLock<Arc<dyn Foreign>>,
    /// Handshakes that wait to be computed.
    pub(crate) door: Arc<Door>,
    pub(crate) incoming: mpsc::Sender<Handle>,
    pub(crate) counters: Counters,
    /// True once no session is accepted any more.
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) sessions: Sessions<SessionInner>,
    pub(crate) sockets: Sockets,
}

/// The parts that an endpoint is made of.
pub(crate) struct Parts {
    pub(crate) key: NodeKey,
    pub(crate) config: Config,
    pub(crate) limits: Limits,
    pub(crate) authorize: Arc<dyn Authorize>,
    pub(crate) address_policy: Option<Arc<dyn AddressPolicy>>,
    pub(crate) reset_key: ResetKey,
    pub(crate) incoming: mpsc::Sender<Handle>,
    pub(crate) taps: Taps,
}

impl EndpointInner {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { key, config, limits, authorize, address_policy, reset_key, incoming, taps } = parts;
        Self {
            clock: Clock::start(),
            cookies: CookieJar::new(key.public(), crate::pids::random()),
            key,
            config: Arc::new(config),
            called_with: Mutex::default(),
            budget: MemoryBudget::new(limits.memory),
            authorize,
            address_policy,
            probes: Mutex::new(ProbeBudget::of_endpoint()),
            reset_key,
            taps,
            buffers: BufferPool::default(),
            foreign: OnceLock::new(),
            door: Arc::default(),
            incoming,
            counters: Counters::default(),
            closing: watch::Sender::new(false),
            sessions: Sessions::new(limits.half_open, limits.lingering()),
            sockets: Sockets::default(),
            limits,
        }
    }

    /// True if an address announced by `peer` may be tried, which is reached at addresses of these reaches.
    pub(crate) fn may_try(&self, address: SocketAddr, peer: &PublicKey, reached: Reaches) -> bool {
        let judged = self.address_policy.as_ref().map_or(Permission::ByRule, |all| all.judge(peer, address));
        match judged {
            Permission::Denied => false,
            Permission::Granted => may_try(address, Named::ByUser, self.sockets.reaches()),
            Permission::ByRule => may_try(address, Named::ByPeer(reached), self.sockets.reaches()),
        }
    }

    /// The origin of paths over a socket, for path rules; for a chain of relays with the relays.
    pub(crate) fn rule_place(&self, socket: u32) -> PathOrigin {
        let relays =
            self.sockets.relayed.find(socket).map(|via| via.chain.relays.clone()).unwrap_or_default();
        let place = self.sockets.get(socket).map(|socket| socket.place());
        PathOrigin {
            interface: place.as_ref().map_or_else(String::new, |place| place.interface.to_string()),
            local: place.map(|place| place.address),
            relays: relays.iter().map(ToString::to_string).collect(),
            ..PathOrigin::default()
        }
    }

    /// The origin of paths over a socket in a session that a peer opened, perhaps through a relay of this node.
    fn place_of_accepted(&self, socket: u32) -> PathOrigin {
        PathOrigin { entrances: self.sockets.relayed.entrances(), ..self.rule_place(socket) }
    }

    /// The origins for all sockets, at this side of a session.
    pub(crate) fn rule_places(&self, side: Side) -> Vec<(u32, PathOrigin)> {
        let ids: Vec<u32> = self.sockets.bound().iter().map(|socket| socket.id).collect();
        let place = |id| if side == Side::Server { self.place_of_accepted(id) } else { self.rule_place(id) };
        ids.into_iter().map(|id| (id, place(id))).collect()
    }

    /// Describes the sockets to a session that has path rules.
    pub(crate) fn describe_sockets(&self, now: Time, engine: &mut Engine<Bytes>) {
        if engine.has_path_rules() {
            for (socket, place) in self.rule_places(engine.side()) {
                engine.describe_socket(now, socket, place);
            }
        }
    }

    /// A source of PIDs for a session.
    pub(crate) fn new_pids(&self) -> Box<RandomPids<SessionInner>> {
        Box::new(RandomPids::new(self.sessions.pids.clone(), self.reset_key.clone()))
    }

    /// Shares equal settings between sessions opened from here, because many sessions of a node have the same.
    pub(crate) fn share(&self, config: Config) -> Arc<Config> {
        let mut last = self.called_with.lock().expect("no panic while held");
        if let Some(known) = last.upgrade().filter(|known| **known == config) {
            return known;
        }
        let config = Arc::new(config);
        *last = Arc::downgrade(&config);
        config
    }

    /// True if the endpoint's rules allow a path over `route`.
    pub(crate) fn allows(&self, route: Route) -> bool {
        let rules = &self.config.rules;
        rules.is_empty() || rules.terms(&self.place_of_accepted(route.socket), route.remote).allow()
    }

    /// The used-up cap that alone forbids a path over `route`, and its rule.
    pub(crate) fn cap_over(&self, route: Route) -> Option<(&PathRule, &Meter)> {
        let rule = self.config.rules.rule_for(&self.place_of_accepted(route.socket), route.remote)?;
        let meter = rule.terms.meter.as_ref().filter(|meter| meter.is_used_up())?;
        (rule.terms.priority != Priority::Never).then_some((rule, meter))
    }

    /// True if no path may begin at a socket.
    pub(crate) fn is_ruled_out(&self, socket: u32) -> bool {
        if self.config.rules.is_empty() {
            return false;
        }
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        !self.allows(Route { socket, remote: nowhere })
    }

    /// Runs `work` on each session; a panic ends only the session it happens in.
    pub(crate) fn each_session(&self, work: impl Fn(&Arc<SessionInner>)) {
        each_of(&self.sessions.all(), work);
    }

    /// True once no session is accepted any more.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow() || self.incoming.is_closed()
    }

    /// True if there is no room for another session.
    pub(crate) fn is_full(&self) -> bool {
        !self.budget.has_room() || self.sessions.count() >= self.limits.sessions
    }

    /// Addresses to announce to a peer that is reached from socket `local`.
    pub(crate) fn addresses_beside(&self, local: u32) -> Vec<(u64, SocketAddr)> {
        let sockets = self.sockets.all();
        let local = self.sockets.relayed.real_socket(local);
        let loopback =
            sockets.iter().find(|socket| Some(socket.id) == local).is_some_and(|s| s.is_loopback());
        let others = sockets.iter().filter(|socket| socket.is_loopback() == loopback);
        let others = others.filter(|socket| !self.is_ruled_out(socket.id));
        let of = |socket: &Arc<BoundSocket>| {
            let own = (u64::from(socket.id), socket.udp.local_addr());
            [own].into_iter().chain(self.sockets.outside_of(socket))
        };
        others.flat_map(of).collect()
    }
}

/// Counters that belong to no single session.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) malformed: AtomicU64,
    pub(crate) unauthentic: AtomicU64,
    pub(crate) unknown_pid: AtomicU64,
    pub(crate) resets_sent: AtomicU64,
    pub(crate) inits: AtomicU64,
    pub(crate) inits_dropped: AtomicU64,
    pub(crate) cookies_sent: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) accepted: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Runs `work` on each of these sessions; a panic ends only the session it happens in.
pub(crate) fn each_of(sessions: &[Arc<SessionInner>], work: impl Fn(&Arc<SessionInner>)) {
    for session in sessions {
        if contained(|| work(session)).is_none() {
            session.wake_driver();
        }
    }
}
