//! An endpoint: the sockets of this machine, the sessions over them, and the door for new ones.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anabranch_engine::{Config, Route};
use anabranch_secure::{Limits as KeyLimits, NodeKey, PublicKey, ResetKey, ShareId, TicketSecret};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;

use crate::authorize::{Authorize, DenyAll};
use crate::connect::{self, ConnectError};
use crate::interfaces::{InterfaceAddress, InterfaceWatch};
use crate::pids::random;
use crate::receive::receive_loop;
use crate::session::Session;
use crate::shared::{BoundSocket, Parts, Shared};
use crate::socket::{BindTo, SocketStats, UdpSocket, explain_bind_error};

/// Ports tried when any free one will do but it has to be the same on every address.
const PORT_ATTEMPTS: usize = 16;
/// When to try again to bind to an address that has come.
const BIND_PAUSE: Duration = Duration::from_millis(500);
/// In the absence of news.
const FAR: Duration = Duration::from_secs(3600);
/// How long [`Endpoint::close`] waits for peers to acknowledge.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);
/// How long it then stays to answer those that were told of the end and may not have heard, and how often it
/// looks whether it may go.
const LINGER_PATIENCE: Duration = Duration::from_secs(1);
const LINGER_PAUSE: Duration = Duration::from_millis(20);

/// Which local addresses an endpoint uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// All that lead out of this machine, loopback too, as they come and go.
    #[default]
    All,
    /// The addresses of these interfaces, as they come and go.
    Interfaces(Vec<String>),
    /// Exactly these.
    Exactly(Vec<IpAddr>),
}

/// What an endpoint holds at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions at the same time.
    pub sessions: usize,
    /// Sessions at the same time whose peer has not proven that it has our answer.
    pub half_open: usize,
    /// Sessions that wait for [`Endpoint::accept`].
    pub backlog: usize,
    /// Bytes that all receive windows together may promise.
    pub memory: u64,
    /// When the keys of a session change.
    pub keys: KeyLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 20_000,
            half_open: 1_000,
            backlog: 1_000,
            memory: 1 << 30,
            keys: KeyLimits::default(),
        }
    }
}

/// How an endpoint is set up. Start with [`EndpointConfig::new`] and change what you need.
pub struct EndpointConfig {
    /// This node's identity.
    pub key: NodeKey,
    /// The UDP port, the same on every address; 0 for any free one.
    pub port: u16,
    /// Where to listen and send from.
    pub addresses: Addresses,
    /// Settings of the sessions that are accepted.
    pub session: Config,
    /// Who may open one; nobody by default.
    pub authorize: Arc<dyn Authorize>,
    /// What is held at most.
    pub limits: Limits,
    /// 32 random bytes kept across restarts, with which a restarted node tells its old peers that their
    /// sessions are gone; without it they find out by timeout.
    pub reset_key: Option<[u8; 32]>,
}

impl EndpointConfig {
    /// Any free port on all addresses, and nobody is let in.
    #[must_use]
    pub fn new(key: NodeKey) -> Self {
        Self {
            key,
            port: 0,
            addresses: Addresses::All,
            session: Config::default(),
            authorize: Arc::new(DenyAll),
            limits: Limits::default(),
            reset_key: None,
        }
    }

    /// Uses this port on every address.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Listens on and sends from these addresses.
    #[must_use]
    pub fn addresses(mut self, addresses: Addresses) -> Self {
        self.addresses = addresses;
        self
    }

    /// Lets in whom `authorize` says.
    #[must_use]
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize = Arc::new(authorize);
        self
    }

    /// Settings of the sessions that are accepted.
    #[must_use]
    pub fn session(mut self, session: Config) -> Self {
        self.session = session;
        self
    }
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("EndpointConfig");
        debug.field("node", &self.key.public()).field("port", &self.port).finish_non_exhaustive()
    }
}

/// Whom to connect to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The node's identity: nobody else can answer.
    pub node: PublicKey,
    /// Where it may be; more are learned from it.
    pub addresses: Vec<SocketAddr>,
    /// Share and secret of a ticket, if one is used.
    pub credential: Option<(ShareId, TicketSecret)>,
    /// Use exactly these pairs of local address and remote address as paths.
    pub pins: Vec<(IpAddr, SocketAddr)>,
}

impl Target {
    /// A node by its key, without a ticket.
    #[must_use]
    pub fn new(node: PublicKey, addresses: Vec<SocketAddr>) -> Self {
        Self { node, addresses, credential: None, pins: Vec::new() }
    }
}

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
    shared: Arc<Shared>,
    incoming: Mutex<mpsc::Receiver<Session>>,
    follower: Option<JoinHandle<()>>,
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
        let EndpointConfig { key, port, addresses, session, authorize, limits, reset_key } = config;
        let watch = InterfaceWatch::start().await?;
        let (sender, incoming) = mpsc::channel(limits.backlog.max(1));
        let reset_key = ResetKey::from_random(reset_key.unwrap_or_else(random));
        let parts = Parts { key, config: session, limits, authorize, reset_key, incoming: sender };
        let shared = Arc::new(Shared::new(parts));
        let binder = Binder { next_id: AtomicU32::new(0), addresses };
        let places = binder.choose(&watch.current())?;
        let port = binder.bind_all(&shared, &places, port)?;
        let follower = match &binder.addresses {
            Addresses::Exactly(_) => None,
            _ => Some(tokio::spawn(follow(Arc::downgrade(&shared), watch, binder, port))),
        };
        Ok(Self { shared, incoming: Mutex::new(incoming), follower })
    }

    /// This node's identity.
    #[must_use]
    pub fn node(&self) -> PublicKey {
        self.shared.key.public()
    }

    /// The addresses that sockets are bound to now.
    #[must_use]
    pub fn local_addresses(&self) -> Vec<SocketAddr> {
        self.shared.sockets().iter().map(|socket| socket.udp.local_addr()).collect()
    }

    /// The interfaces in use, with what each socket has done and whether it is bound to its interface.
    #[must_use]
    pub fn sockets(&self) -> Vec<SocketInfo> {
        let describe = |socket: &Arc<BoundSocket>| SocketInfo {
            id: socket.id,
            local: socket.udp.local_addr(),
            place: socket.place(),
            bound_to_interface: socket.udp.is_bound_to_interface(),
            stats: socket.udp.stats(),
        };
        self.shared.sockets().iter().map(describe).collect()
    }

    /// Opens a session. INIT races over every route that seems possible, and the first to be answered
    /// becomes the first path; the others follow by themselves.
    ///
    /// # Errors
    /// [`ConnectError`] says what was tried and what to do.
    pub async fn connect(&self, target: &Target, config: Config) -> Result<Session, ConnectError> {
        connect::connect(&self.shared, target, config).await
    }

    /// The next session that a peer opened and was authorised for; `None` after [`Endpoint::close`].
    pub async fn accept(&self) -> Option<Session> {
        let mut closing = self.shared.closing.subscribe();
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
        let counters = &self.shared.counters;
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
            sessions: self.shared.sessions().len() as u64,
        }
    }

    /// Lets nobody in any more and closes all sessions; waits a few seconds for their peers.
    pub async fn close(&self) {
        self.shared.closing.send_replace(true);
        let mut incoming = self.incoming.lock().await;
        while incoming.try_recv().is_ok() {}
        drop(incoming);
        let sessions = self.shared.sessions();
        for session in &sessions {
            session.close();
        }
        let all = async {
            for session in sessions {
                session.closed().await;
            }
        };
        // What has not answered by then is told at once that it is over, and again if it goes on talking.
        if tokio::time::timeout(CLOSE_PATIENCE, all).await.is_err() {
            for session in self.shared.sessions() {
                session.abort(0, "the endpoint closes");
            }
            let gone = async {
                while !self.shared.sessions().is_empty() {
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
    /// What it has done.
    pub stats: SocketStats,
}

/// Chooses addresses and binds sockets to them.
struct Binder {
    next_id: AtomicU32,
    addresses: Addresses,
}

impl Binder {
    fn choose(&self, found: &[InterfaceAddress]) -> io::Result<Vec<InterfaceAddress>> {
        let chosen = match &self.addresses {
            Addresses::All => found.to_vec(),
            Addresses::Interfaces(names) => {
                let named = |place: &&InterfaceAddress| names.iter().any(|name| **name == *place.interface);
                found.iter().filter(named).cloned().collect()
            }
            Addresses::Exactly(list) => {
                list.iter().map(|address| place_of(*address, found)).collect::<Result<_, _>>()?
            }
        };
        if chosen.is_empty() {
            let message = match &self.addresses {
                Addresses::Interfaces(names) => format!(
                    "no usable address on {}: are these interfaces up? `ip address` lists them",
                    names.join(", ")
                ),
                _ => "this machine has no usable address: is a network interface up?".to_owned(),
            };
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message));
        }
        Ok(chosen)
    }

    /// Binds one socket an address, all to one port; gives the port.
    fn bind_all(&self, shared: &Arc<Shared>, places: &[InterfaceAddress], port: u16) -> io::Result<u16> {
        let attempts = if port == 0 { PORT_ATTEMPTS } else { 1 };
        let mut result = Ok(Vec::new());
        for _ in 0..attempts {
            result = self.bind_once(places, port);
            if result.is_ok() {
                break;
            }
        }
        let sockets = result?;
        let port = sockets.first().map_or(port, |socket| socket.udp.local_addr().port());
        for socket in sockets {
            start(shared, socket);
        }
        Ok(port)
    }

    fn bind_once(&self, places: &[InterfaceAddress], mut port: u16) -> io::Result<Vec<Arc<BoundSocket>>> {
        let mut sockets = Vec::new();
        for place in places {
            let socket = self.bind(place, port)?;
            port = socket.udp.local_addr().port();
            sockets.push(socket);
        }
        Ok(sockets)
    }

    fn bind(&self, place: &InterfaceAddress, port: u16) -> io::Result<Arc<BoundSocket>> {
        let address = SocketAddr::new(place.address, port);
        // Packets between two addresses of one machine go over loopback whatever the interface.
        let interface = (!place.loopback && !place.interface.is_empty()).then(|| place.interface.to_string());
        let udp = UdpSocket::bind(&BindTo { address, interface });
        let udp = udp.map_err(|error| explain_bind_error(&error, address))?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(BoundSocket::new(id, udp, place.clone())))
    }
}

/// An address that was named, as it was found; loopback addresses need not be configured.
fn place_of(address: IpAddr, found: &[InterfaceAddress]) -> io::Result<InterfaceAddress> {
    if let Some(place) = found.iter().find(|place| place.address == address) {
        return Ok(place.clone());
    }
    let loopback = found.iter().find(|place| place.loopback && place.address.is_ipv4() == address.is_ipv4());
    match loopback.filter(|_| address.is_loopback()) {
        Some(place) => Ok(InterfaceAddress { address, ..place.clone() }),
        None => Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!("{address} is not a usable address of this machine: `ip address` lists those there are"),
        )),
    }
}

fn start(shared: &Arc<Shared>, socket: Arc<BoundSocket>) {
    let receiver = tokio::spawn(receive_loop(Arc::downgrade(shared), socket.clone()));
    shared.add_socket(socket, receiver.abort_handle());
}

/// Binds and unbinds sockets as addresses come and go.
async fn follow(shared: Weak<Shared>, watch: InterfaceWatch, binder: Binder, port: u16) {
    let mut news = watch.subscribe();
    let mut complete = true;
    loop {
        // A port may not be free yet when its address comes back quickly.
        let pause = if complete { FAR } else { BIND_PAUSE };
        if let Ok(Err(_)) = tokio::time::timeout(pause, news.changed()).await {
            return;
        }
        let found = news.borrow_and_update().clone();
        let Some(shared) = shared.upgrade() else { return };
        let wanted = binder.choose(&found).unwrap_or_default();
        complete = apply(&shared, &binder, &wanted, port);
    }
}

/// Makes the sockets fit the addresses; false when one could not be bound.
fn apply(shared: &Arc<Shared>, binder: &Binder, wanted: &[InterfaceAddress], port: u16) -> bool {
    let sockets: Vec<_> = shared.sockets().into_iter().map(|socket| (socket.place(), socket)).collect();
    let same = |a: &InterfaceAddress, b: &InterfaceAddress| a.address == b.address && a.index == b.index;
    let gone: BTreeSet<u32> = sockets
        .iter()
        .filter(|(old, _)| !wanted.iter().any(|place| same(place, old)))
        .map(|(_, socket)| socket.id)
        .collect();
    for id in &gone {
        shared.remove_socket(*id);
    }
    let (mut changed, mut complete) = (false, true);
    for place in wanted {
        if let Some((_, socket)) = sockets.iter().find(|(old, _)| same(place, old)) {
            changed |= socket.update(place);
            continue;
        }
        match binder.bind(place, port) {
            Ok(socket) => {
                tracing::info!(local = %socket.udp.local_addr(), interface = %place.interface, "new address");
                start(shared, socket);
                changed = true;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot use a new address yet");
                complete = false;
            }
        }
    }
    for session in shared.sessions() {
        for id in &gone {
            session.socket_gone(*id);
        }
        if changed {
            session.addresses_changed();
        }
    }
    complete
}

/// The route of a pinned pair.
pub(crate) fn pinned_route(shared: &Shared, local: IpAddr, remote: SocketAddr) -> Option<Route> {
    let sockets = shared.sockets();
    let socket = sockets.iter().find(|socket| socket.udp.local_addr().ip() == local)?;
    Some(Route { socket: socket.id, remote })
}

#[cfg(test)]
mod tests;
