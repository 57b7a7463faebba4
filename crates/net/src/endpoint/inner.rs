//! The part of an endpoint that its sessions share: sockets, PIDs, keys, budgets, counters.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};

use anabranch_agent::{LocalAddress, Named, Permission, ProbeBudget, Reaches, may_try};
use anabranch_engine::{Arrival, Config, MemoryBudget, PathOrigin, Route};
use anabranch_secure::{CookieJar, InitId, NodeKey, PublicKey, ResetKey};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::address_policy::AddressPolicy;
use crate::authorize::Authorize;
use crate::buffers::BufferPool;
use crate::clock::Clock;
use crate::door::Door;
use crate::endpoint::Limits;
use crate::fault::contained;
use crate::foreign::Foreign;
use crate::half_open::HalfOpen;
use crate::interfaces::InterfaceAddress;
use crate::pids::PidTable;
use crate::relayed::Relayed;
use crate::resets::Resets;
use crate::session::Session;
use crate::session::inner::SessionInner;
use crate::socket::UdpSocket;
use crate::tap::Taps;

/// A socket with its number, which is never used again.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    pub(crate) id: u32,
    pub(crate) udp: UdpSocket,
    /// Its interface and the destinations of its routes, which can change while the address stays.
    place: RwLock<InterfaceAddress>,
    gone: AtomicBool,
}

impl BoundSocket {
    pub(crate) fn new(id: u32, udp: UdpSocket, place: InterfaceAddress) -> Self {
        Self { id, udp, place: RwLock::new(place), gone: AtomicBool::new(false) }
    }

    /// True once its address is no longer this machine's.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// True if it reaches only this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        self.place.read().expect("no panic while held").loopback
    }

    /// Its interface and the destinations of its routes.
    pub(crate) fn place(&self) -> InterfaceAddress {
        self.place.read().expect("no panic while held").clone()
    }

    /// Updates its interface and the destinations of its routes; true if they changed.
    pub(crate) fn update(&self, now: &InterfaceAddress) -> bool {
        let mut place = self.place.write().expect("no panic while held");
        let changed = *place != *now;
        place.clone_from(now);
        changed
    }

    fn as_local(&self) -> LocalAddress {
        let place = self.place();
        // Each loopback address counts as a link of its own, which is how one machine models several links.
        let interface = if place.loopback { u32::MAX - self.id } else { place.index };
        let InterfaceAddress { address, prefix, routes, .. } = place;
        LocalAddress { socket: self.id, address, prefix, interface, routes: routes.to_vec() }
    }
}

/// A known INIT.
pub(crate) enum InitState {
    /// It is being answered; a few copies that arrive in the meantime are kept.
    Pending(Vec<Arrival>),
    /// It opened this session.
    Answered(Arc<SessionInner>),
}

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
    pub(crate) pids: Arc<PidTable>,
    pub(crate) resets: Resets,
    pub(crate) taps: Taps,
    /// Memory for received datagrams.
    pub(crate) buffers: BufferPool,
    /// Chains of relays that sessions use.
    pub(crate) relayed: Relayed,
    /// Handles datagrams that belong to no session here.
    pub(crate) foreign: OnceLock<Arc<dyn Foreign>>,
    pub(crate) inits: Mutex<HashMap<InitId, InitState>>,
    /// Handshakes that wait to be computed.
    pub(crate) door: Arc<Door>,
    pub(crate) incoming: mpsc::Sender<Session>,
    pub(crate) counters: Counters,
    /// True once no session is accepted any more.
    pub(crate) closing: watch::Sender<bool>,
    sessions: Mutex<BTreeMap<u64, Weak<SessionInner>>>,
    next_serial: AtomicU64,
    /// Accepted sessions that are not confirmed yet.
    pub(crate) half_open: Arc<HalfOpen>,
    sockets: RwLock<Vec<Arc<BoundSocket>>>,
    /// Marked when the sockets, or the routes of their interfaces, have changed.
    pub(crate) moved: watch::Sender<()>,
    receivers: Mutex<BTreeMap<u32, AbortHandle>>,
}

/// The parts that an endpoint is made of.
pub(crate) struct Parts {
    pub(crate) key: NodeKey,
    pub(crate) config: Config,
    pub(crate) limits: Limits,
    pub(crate) authorize: Arc<dyn Authorize>,
    pub(crate) address_policy: Option<Arc<dyn AddressPolicy>>,
    pub(crate) reset_key: ResetKey,
    pub(crate) incoming: mpsc::Sender<Session>,
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
            pids: Arc::default(),
            resets: Resets::default(),
            taps,
            buffers: BufferPool::default(),
            relayed: Relayed::default(),
            foreign: OnceLock::new(),
            inits: Mutex::default(),
            door: Arc::default(),
            incoming,
            counters: Counters::default(),
            closing: watch::Sender::new(false),
            sessions: Mutex::default(),
            next_serial: AtomicU64::new(0),
            half_open: Arc::new(HalfOpen::new(limits.half_open)),
            sockets: RwLock::default(),
            moved: watch::Sender::new(()),
            receivers: Mutex::default(),
            limits,
        }
    }

    /// The socket with this number, or the one at which the chain of relays with this number begins; `None` once it is gone.
    pub(crate) fn socket(&self, id: u32) -> Option<Arc<BoundSocket>> {
        let id = self.relayed.real_socket(id)?;
        let sockets = self.sockets.read().expect("no panic while held");
        sockets.iter().find(|socket| socket.id == id).cloned()
    }

    pub(crate) fn sockets(&self) -> Vec<Arc<BoundSocket>> {
        self.sockets.read().expect("no panic while held").clone()
    }

    /// All local addresses now, as the path agent wants them.
    pub(crate) fn locals(&self) -> Vec<LocalAddress> {
        let sockets = self.sockets.read().expect("no panic while held");
        sockets.iter().map(|socket| socket.as_local()).collect()
    }

    /// How far the addresses of the sockets reach.
    pub(crate) fn reaches(&self) -> Reaches {
        self.sockets().iter().map(|socket| socket.udp.local_addr()).collect()
    }

    /// True if an address announced by `peer` may be tried, which is reached at addresses of these reaches.
    pub(crate) fn may_try(&self, address: SocketAddr, peer: &PublicKey, reached: Reaches) -> bool {
        let judged = self.address_policy.as_ref().map_or(Permission::ByRule, |all| all.judge(peer, address));
        match judged {
            Permission::Denied => false,
            Permission::Granted => may_try(address, Named::ByUser, self.reaches()),
            Permission::ByRule => may_try(address, Named::ByPeer(reached), self.reaches()),
        }
    }

    /// The origin of paths over a socket, for path rules; for a chain of relays with the relays.
    pub(crate) fn rule_place(&self, socket: u32) -> PathOrigin {
        let relays = self.relayed.find(socket).map(|via| via.chain.relays.clone()).unwrap_or_default();
        let place = self.socket(socket).map(|socket| socket.place());
        PathOrigin {
            interface: place.as_ref().map_or_else(String::new, |place| place.interface.to_string()),
            local: place.map(|place| place.address),
            relays: relays.iter().map(ToString::to_string).collect(),
        }
    }

    /// The origins for all sockets.
    pub(crate) fn rule_places(&self) -> Vec<(u32, PathOrigin)> {
        let ids: Vec<u32> = self.sockets().iter().map(|socket| socket.id).collect();
        ids.into_iter().map(|id| (id, self.rule_place(id))).collect()
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
        rules.is_empty() || rules.terms(&self.rule_place(route.socket), route.remote).allow()
    }

    /// True if no path may begin at a socket.
    pub(crate) fn is_ruled_out(&self, socket: u32) -> bool {
        if self.config.rules.is_empty() {
            return false;
        }
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        !self.allows(Route { socket, remote: nowhere })
    }

    pub(crate) fn add_socket(&self, socket: Arc<BoundSocket>, receiver: AbortHandle) {
        self.receivers.lock().expect("no panic while held").insert(socket.id, receiver);
        self.sockets.write().expect("no panic while held").push(socket);
    }

    pub(crate) fn remove_socket(&self, id: u32) {
        self.sockets.write().expect("no panic while held").retain(|socket| {
            if socket.id == id {
                socket.gone.store(true, Ordering::Relaxed);
            }
            socket.id != id
        });
        if let Some(receiver) = self.receivers.lock().expect("no panic while held").remove(&id) {
            receiver.abort();
        }
    }

    /// A number for a new session.
    pub(crate) fn next_serial(&self) -> u64 {
        self.next_serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add_session(&self, session: &Arc<SessionInner>) {
        let mut sessions = self.sessions.lock().expect("no panic while held");
        sessions.insert(session.serial, Arc::downgrade(session));
    }

    pub(crate) fn remove_session(&self, serial: u64) {
        self.sessions.lock().expect("no panic while held").remove(&serial);
    }

    /// All sessions, including those being closed.
    pub(crate) fn sessions(&self) -> Vec<Arc<SessionInner>> {
        let sessions = self.sessions.lock().expect("no panic while held");
        sessions.values().filter_map(Weak::upgrade).collect()
    }

    /// Runs `work` on each session; a panic ends only the session it happens in.
    pub(crate) fn each_session(&self, work: impl Fn(&Arc<SessionInner>)) {
        each_of(&self.sessions(), work);
    }

    /// True once no session is accepted any more.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow() || self.incoming.is_closed()
    }

    /// True if there is no room for another session.
    pub(crate) fn is_full(&self) -> bool {
        !self.budget.has_room()
            || self.sessions.lock().expect("no panic while held").len() >= self.limits.sessions
    }

    /// Addresses to announce to a peer that is reached from socket `local`.
    pub(crate) fn addresses_beside(&self, local: u32) -> Vec<(u64, SocketAddr)> {
        let ids = self.sockets().into_iter().map(|socket| socket.id);
        let ruled_out: Vec<u32> = ids.filter(|id| self.is_ruled_out(*id)).collect();
        let sockets = self.sockets.read().expect("no panic while held");
        let local = self.relayed.real_socket(local);
        let loopback =
            sockets.iter().find(|socket| Some(socket.id) == local).is_some_and(|s| s.is_loopback());
        let others = sockets.iter().filter(|socket| socket.is_loopback() == loopback);
        let others = others.filter(|socket| !ruled_out.contains(&socket.id));
        others.map(|socket| (u64::from(socket.id), socket.udp.local_addr())).collect()
    }
}

impl Drop for EndpointInner {
    fn drop(&mut self) {
        for receiver in self.receivers.get_mut().expect("no panic while held").values() {
            receiver.abort();
        }
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
