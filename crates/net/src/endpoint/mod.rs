//! The endpoint of a node: its sockets, the sessions over them, and the acceptance of new ones.

mod binding;
mod config;
pub(crate) mod inner;
mod outside;
pub(crate) mod sessions;
pub(crate) mod sockets;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anabranch_engine::{Config, PidSource};
use anabranch_secure::{PublicKey, ResetKey};
use anabranch_wire::Pid;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::connect::{self, ConnectError};
use crate::endpoint::inner::{EndpointInner, Parts, each_of};
use crate::endpoint::sockets::BoundSocket;
use crate::foreign::{Foreign, Gathered, Outlet};
use crate::handshake;
use crate::interfaces::{InterfaceAddress, InterfaceWatch};
use crate::pids::random;
use crate::relayed::Chain;
use crate::session::Session;
use crate::session::inner::{Handle, SessionInner};
use crate::socket::SocketStats;
use crate::tap::Taps;

pub use config::{Addresses, EndpointConfig, Limits, Target};

/// How long [`Endpoint::close`] waits for peers to acknowledge: for those that relays may lead to, and for the others.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);
/// How long it then stays to repeat the end for peers that may have missed it, and how often it checks whether to stop.
const LINGER_PATIENCE: Duration = Duration::from_secs(1);
const LINGER_PAUSE: Duration = Duration::from_millis(20);

/// Counters of an endpoint that belong to no single session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Datagrams of another protocol, or damaged.
    pub malformed: u64,
    /// Packets and handshake messages that were not authentic, or repeated.
    pub unauthentic: u64,
    /// Packets for unknown sessions.
    pub unknown_pid: u64,
    /// Stateless resets sent.
    pub resets_sent: u64,
    /// First handshake messages received.
    pub inits: u64,
    /// First handshake messages without an answer.
    pub inits_dropped: u64,
    pub cookies_sent: u64,
    /// Sessions refused by [`Authorize`].
    pub refused: u64,
    /// Sessions refused because a limit was reached.
    pub busy: u64,
    /// Sessions accepted.
    pub accepted: u64,
    /// Current sessions, including those being closed.
    pub sessions: u64,
}

/// The network endpoint of a node. It opens and accepts sessions over one socket for each local address.
///
/// ```no_run
/// use anabranch_net::{Config, Endpoint, EndpointConfig, NodeKey, PublicKey, ShareId, Target, Verdict};
///
/// # async fn run(key: NodeKey, friend: PublicKey) -> Result<(), Box<dyn std::error::Error>> {
/// // A node that serves one friend …
/// let config = EndpointConfig::new(key).port(4433).authorize(move |peer: &PublicKey, _: Option<ShareId>| {
///     if *peer == friend { Verdict::Accept { secret: None } } else { Verdict::Ignore }
/// });
/// let endpoint = Endpoint::bind(config).await?;
/// while let Some(session) = endpoint.accept().await {
///     println!("{} is here", session.peer());
/// }
///
/// // … and one that calls it.
/// # let key = NodeKey::from_random([0; 32]);
/// let endpoint = Endpoint::bind(EndpointConfig::new(key)).await?;
/// let target = Target::new(friend, vec!["203.0.113.9:4433".parse()?]);
/// let session = endpoint.connect(&target, Config::default()).await?;
/// for path in session.paths() {
///     println!("{}: {} to {}", path.id, path.rtt, path.route.remote);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Endpoint {
    pub(crate) inner: Arc<EndpointInner>,
    incoming: Mutex<mpsc::Receiver<Handle>>,
    follower: Option<JoinHandle<()>>,
    porter: JoinHandle<()>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("node", &self.node()).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Binds the sockets. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the port is taken on an address, or there is no address to use. The message says what to do.
    pub async fn bind(config: EndpointConfig) -> io::Result<Self> {
        let EndpointConfig {
            key,
            port,
            addresses,
            session,
            authorize,
            address_policy,
            limits,
            reset_key,
            tap,
        } = config;
        let watch = InterfaceWatch::start().await?;
        let (sender, incoming) = mpsc::channel(limits.backlog.max(1));
        let reset_key = reset_key.unwrap_or_else(|| ResetKey::from_random(random()));
        let parts = Parts {
            key,
            config: session,
            limits,
            authorize,
            address_policy,
            reset_key,
            incoming: sender,
            taps: Taps(tap),
        };
        let inner = Arc::new(EndpointInner::new(parts));
        let follower = binding::bind(&inner, watch, (addresses, port))?;
        let porter = tokio::spawn(handshake::attend(Arc::downgrade(&inner), inner.door.clone()));
        Ok(Self { inner, incoming: Mutex::new(incoming), follower, porter })
    }

    /// This node's identity.
    pub fn node(&self) -> PublicKey {
        self.inner.key.public()
    }

    /// The addresses that sockets are bound to now.
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.inner.sockets.all().iter().map(|socket| socket.udp.local_addr()).collect()
    }

    /// The sockets, with their interfaces and counters.
    pub fn sockets(&self) -> Vec<SocketInfo> {
        let describe = |socket: &Arc<BoundSocket>| SocketInfo {
            id: socket.id,
            local: socket.udp.local_addr(),
            place: socket.place(),
            bound_to_interface: socket.udp.is_bound_to_interface(),
            ruled_out: self.inner.is_ruled_out(socket.id),
            stats: socket.udp.stats(),
        };
        self.inner.sockets.all().iter().map(describe).collect()
    }

    /// Marked when [`Self::sockets`], or the routes of their interfaces, have changed.
    pub fn sockets_changed(&self) -> watch::Receiver<()> {
        self.inner.sockets.moved.subscribe()
    }

    /// Announces to all peers the address that a router maps to a socket, in addition to the socket's own; `None` when it
    /// maps none any more.
    pub fn announce_mapped(&self, socket: u32, outer: Option<SocketAddr>) {
        if self.inner.sockets.map(socket, outer) {
            self.inner.each_session(|session| session.addresses_changed());
        }
    }

    /// Opens a session. INIT is sent over every promising route, and the first one answered becomes the first path. The
    /// others follow automatically.
    pub async fn connect(&self, target: &Target, config: Config) -> Result<Session, ConnectError> {
        connect::connect(&self.inner, target, config, None).await
    }

    /// Opens a session through relays with prepared flows to the node. The first relay uses the PID `own`, from
    /// [`Endpoint::new_pid`], for return packets. Direct paths follow automatically, if any work.
    pub async fn connect_through(
        &self,
        target: &Target,
        config: Config,
        (own, chain): (Pid, Chain),
    ) -> Result<Session, ConnectError> {
        connect::connect(&self.inner, target, config, Some((own, chain))).await
    }

    /// Records the addresses of a relay through which peers reach this node: rules for that relay apply to the paths
    /// that they open from there.
    pub fn add_entrances(&self, relay: &PublicKey, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.inner.sockets.relayed.add_entrances(relay, addresses);
    }

    /// A PID without a session at this endpoint.
    pub fn new_pid(&self) -> Pid {
        self.inner.new_pids().next_pid().0
    }

    /// Passes datagrams that belong to no session here to `foreign`, such as a relay. Only the first call has an
    /// effect.
    pub fn set_foreign(&self, foreign: Arc<dyn Foreign>) {
        // A second call has no effect, as documented.
        let _ = self.inner.foreign.set(foreign);
    }

    /// Sends forwarded datagrams from this endpoint's sockets.
    pub fn outlet(&self) -> Outlet<'_> {
        Outlet::new(&self.inner.sockets, Gathered::default())
    }

    /// Stops sending and receiving at once and silently, as if the power had failed.
    pub fn fall_silent(&self) {
        for socket in self.inner.sockets.bound() {
            self.inner.sockets.remove(socket.id);
        }
    }

    /// The endpoint's clock.
    pub fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// The next session of an authorised peer; `None` after [`Endpoint::close`].
    pub async fn accept(&self) -> Option<Session> {
        let mut closing = self.inner.closing.subscribe();
        let next = async { self.incoming.lock().await.recv().await };
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => None,
            handle = next => handle.map(Session::new),
        }
    }

    /// Counters that belong to no single session.
    pub fn stats(&self) -> EndpointStats {
        let counters = &self.inner.counters;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        EndpointStats {
            malformed: load(&counters.malformed),
            unauthentic: load(&counters.unauthentic),
            unknown_pid: load(&counters.unknown_pid),
            resets_sent: load(&counters.resets_sent),
            inits: load(&counters.inits),
            inits_dropped: load(&counters.inits_dropped),
            cookies_sent: load(&counters.cookies_sent),
            refused: load(&counters.refused),
            busy: load(&counters.busy),
            accepted: load(&counters.accepted),
            sessions: self.inner.sessions.all().len() as u64,
        }
    }

    /// Accepts no more sessions and closes all; waits a few seconds for their peers.
    pub async fn close(&self) {
        self.inner.closing.send_replace(true);
        let mut incoming = self.incoming.lock().await;
        while incoming.try_recv().is_ok() {}
        drop(incoming);
        // Sessions without relays last, since their peers may be relays of the others.
        for relayed_only in [true, false] {
            let mut sessions = self.inner.sessions.all();
            sessions.retain(|session| !relayed_only || session.may_be_relayed());
            self.close_all(&sessions).await;
        }
    }

    /// Closes sessions, and aborts those whose peers do not answer. Peers that continue to send get the abort again.
    async fn close_all(&self, sessions: &[Arc<SessionInner>]) {
        each_of(sessions, SessionInner::close);
        let closed = async {
            for session in sessions {
                session.closed().await;
            }
        };
        if tokio::time::timeout(CLOSE_PATIENCE, closed).await.is_ok() {
            return;
        }
        each_of(sessions, |session| session.abort(0, "the endpoint closes"));
        let serials: Vec<u64> = sessions.iter().map(|session| session.serial).collect();
        let gone = async {
            while self.inner.sessions.has_any(&serials) {
                tokio::time::sleep(LINGER_PAUSE).await;
            }
        };
        // A session lingers for three retransmission timeouts, which can be long on a slow path.
        drop(tokio::time::timeout(LINGER_PATIENCE, gone).await);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Sessions live on while a handle is held, on the existing sockets.
        self.porter.abort();
        if let Some(follower) = self.follower.take() {
            follower.abort();
        }
    }
}

/// A socket of an endpoint.
#[derive(Clone, Debug)]
pub struct SocketInfo {
    /// Its number, as in [`Route::socket`].
    pub id: u32,
    /// The address it is bound to.
    pub local: SocketAddr,
    pub place: InterfaceAddress,
    /// False if routes decide where packets leave, because the system did not allow binding to the interface.
    pub bound_to_interface: bool,
    /// True if the endpoint's rules allow no path to begin there.
    pub ruled_out: bool,
    /// Its counters.
    pub stats: SocketStats,
}

#[cfg(test)]
mod tests;
