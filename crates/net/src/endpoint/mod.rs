//! An endpoint: the sockets of this machine, the sessions over them, and the door for new ones.

mod binding;
mod config;
pub(crate) mod inner;

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
use crate::door;
use crate::foreign::{Foreign, Gathered, Outlet};
use crate::handshake::new_pids;
use crate::interfaces::{InterfaceAddress, InterfaceWatch};
use crate::pids::random;
use crate::relayed::Chain;
use crate::session::Session;
use crate::session::inner::SessionInner;
use crate::endpoint::inner::{BoundSocket, Parts, EndpointInner, each_of};
use crate::socket::SocketStats;
use crate::tap::Taps;

pub(crate) use binding::pinned_route;
pub use config::{Addresses, EndpointConfig, Limits, Target};

/// How long [`Endpoint::close`] waits for peers to acknowledge.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);
/// How long it then stays to answer those that were told of the end and may not have heard, and how often it
/// looks whether it may go.
const LINGER_PATIENCE: Duration = Duration::from_secs(1);
const LINGER_PAUSE: Duration = Duration::from_millis(20);

/// What an endpoint has seen that concerns no single session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Datagrams that are none of this protocol, or damaged.
    pub malformed: u64,
    /// Packets and handshake messages that were not authentic, or came twice.
    pub unauthentic: u64,
    /// Packets for sessions that are not here.
    pub unknown_pid: u64,
    /// Stateless resets sent.
    pub resets_sent: u64,
    /// First handshake messages received.
    pub inits: u64,
    /// Those of them that got no answer.
    pub inits_dropped: u64,
    /// Cookies sent.
    pub cookies_sent: u64,
    /// Sessions refused by [`Authorize`].
    pub refused: u64,
    /// Sessions refused because a limit was reached.
    pub busy: u64,
    /// Sessions accepted.
    pub accepted: u64,
    /// Sessions there are now, those being closed included.
    pub sessions: u64,
}

/// The network endpoint of a node: it opens sessions and accepts them, over one socket for each local address.
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
    incoming: Mutex<mpsc::Receiver<Session>>,
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
    /// When the port is taken on an address, or there is no address to use; the message says what to do.
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
        let porter = tokio::spawn(door::attend(Arc::downgrade(&inner), inner.door.clone()));
        Ok(Self { inner, incoming: Mutex::new(incoming), follower, porter })
    }

    /// This node's identity.
    #[must_use]
    pub fn node(&self) -> PublicKey {
        self.inner.key.public()
    }

    /// The addresses that sockets are bound to now.
    #[must_use]
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.inner.sockets().iter().map(|socket| socket.udp.local_addr()).collect()
    }

    /// The interfaces in use, with what each socket has done and whether it is bound to its interface.
    #[must_use]
    pub fn sockets(&self) -> Vec<SocketInfo> {
        let describe = |socket: &Arc<BoundSocket>| SocketInfo {
            id: socket.id,
            local: socket.udp.local_addr(),
            place: socket.place(),
            bound_to_interface: socket.udp.is_bound_to_interface(),
            ruled_out: self.inner.is_ruled_out(socket.id),
            stats: socket.udp.stats(),
        };
        self.inner.sockets().iter().map(describe).collect()
    }

    /// Tells when [`Self::sockets`] are others, or their interfaces reach something else.
    #[must_use]
    pub fn sockets_changed(&self) -> watch::Receiver<()> {
        self.inner.moved.subscribe()
    }

    /// Opens a session. INIT races over every route that seems possible, and the first to be answered
    /// becomes the first path; the others follow by themselves.
    ///
    /// # Errors
    /// [`ConnectError`] says what was tried and what to do.
    pub async fn connect(&self, target: &Target, config: Config) -> Result<Session, ConnectError> {
        connect::connect(&self.inner, target, config, None).await
    }

    /// Opens a session through relays that are ready for first handshake messages to the node; the first of them has
    /// been told to use the PID `own`, of [`Endpoint::new_pid`], for what comes back. Direct paths follow by
    /// themselves where there are any.
    ///
    /// # Errors
    /// As of [`Endpoint::connect`].
    pub async fn connect_through(
        &self,
        target: &Target,
        config: Config,
        (own, chain): (Pid, Chain),
    ) -> Result<Session, ConnectError> {
        connect::connect(&self.inner, target, config, Some((own, chain))).await
    }

    /// A PID that no session of this endpoint has.
    #[must_use]
    pub fn new_pid(&self) -> Pid {
        new_pids(&self.inner).next_pid().0
    }

    /// Has somebody take the datagrams that are for no session here, as a relay does. The first to be named stays.
    pub fn set_foreign(&self, foreign: Arc<dyn Foreign>) {
        // A second one is not taken: the trait says so.
        let _ = self.inner.foreign.set(foreign);
    }

    /// Sends datagrams of others from this endpoint's sockets.
    #[must_use]
    pub fn outlet(&self) -> Outlet<'_> {
        Outlet::new(&self.inner, Gathered::default())
    }

    /// Stops sending and receiving at once, without a word to anybody: what a machine does whose power fails.
    pub fn fall_silent(&self) {
        for socket in self.inner.sockets() {
            self.inner.remove_socket(socket.id);
        }
    }

    /// The clock by which the endpoint counts time.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// The next session that a peer opened and was authorised for; `None` after [`Endpoint::close`].
    pub async fn accept(&self) -> Option<Session> {
        let mut closing = self.inner.closing.subscribe();
        let next = async { self.incoming.lock().await.recv().await };
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => None,
            session = next => session,
        }
    }

    /// What has been seen that concerns no single session.
    #[must_use]
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
            sessions: self.inner.sessions().len() as u64,
        }
    }

    /// Lets nobody in any more and closes all sessions; waits a few seconds for their peers.
    pub async fn close(&self) {
        self.inner.closing.send_replace(true);
        let mut incoming = self.incoming.lock().await;
        while incoming.try_recv().is_ok() {}
        drop(incoming);
        let all = async {
            // Those last whose peers may be the relays of others.
            for may_be_relayed in [true, false] {
                let mut sessions = self.inner.sessions();
                sessions.retain(|session| session.may_be_relayed() == may_be_relayed);
                each_of(&sessions, SessionInner::close);
                for session in sessions {
                    session.closed().await;
                }
            }
        };
        // What has not answered by then is told at once that it is over, and again if it goes on talking.
        if tokio::time::timeout(CLOSE_PATIENCE, all).await.is_err() {
            self.inner.each_session(|session| session.abort(0, "the endpoint closes"));
            let gone = async {
                while !self.inner.sessions().is_empty() {
                    tokio::time::sleep(LINGER_PAUSE).await;
                }
            };
            // A session lingers for three retransmission timeouts, which a path of seconds would make long.
            drop(tokio::time::timeout(LINGER_PATIENCE, gone).await);
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Sessions live on as long as somebody holds them, on the sockets there are.
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
    /// What it is bound to.
    pub local: SocketAddr,
    /// The interface.
    pub place: InterfaceAddress,
    /// False when the routes decide where packets leave, because the system did not allow it to be bound.
    pub bound_to_interface: bool,
    /// True when the rules of this endpoint let no path begin there.
    pub ruled_out: bool,
    /// What it has done.
    pub stats: SocketStats,
}

#[cfg(test)]
mod tests;
