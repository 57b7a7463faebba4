//! `tunnel serve`: many clients behind one device.
//!
//! A client is identified by its key: it always gets the same addresses, so its programs' connections survive a new
//! session and a restart of the server. A client may send only from its own addresses and networks, and reach only what
//! [`Destinations`] allows.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::future::Future;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use anabranch_net::{Clock, Lasting, PublicKey, Session};
use anabranch_proxy::message::Head;
use anabranch_proxy::{Connections, Control, OTHER_COMMAND, Target, read_head};
use anabranch_tunnel::access::{Destinations, PrefixTable, Reach};
use anabranch_tunnel::message::{self, Answer, Request, VERSION};
use anabranch_tunnel::packet::Header;
use ipnet::IpNet;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::client::{FIREWALL_LOOKS, MTU};
use crate::device::Device;
use crate::error::TunnelError;
use crate::guard::Guard;

use crate::pump::{Link, from_device, inner_mtu, to_device};
use crate::status::Status;
use crate::streams::Exit;
use crate::system::ServerSystem;
use crate::table::{Client, Newcomer, Table};

/// How long a client may take to send its request.
const HELLO: Duration = Duration::from_secs(10);
/// How often the paths' MTU is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Settings of the server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Name of the device.
    pub interface: String,
    /// The server's addresses; the rest of each network is for clients.
    pub addresses: Vec<IpNet>,
    /// Clients reach other networks through this machine, under its addresses.
    pub exit: bool,
    /// Destinations that clients may reach besides public ones.
    pub allow: Vec<IpNet>,
    /// Name servers for clients.
    pub dns: Vec<IpAddr>,
    /// Clients may use the stream lane.
    pub streams: bool,
    /// Networks behind clients, by their key.
    pub behind: BTreeMap<PublicKey, Vec<IpNet>>,
    /// Most clients at the same time, and most assigned addresses.
    pub most_clients: usize,
    /// Command line of the own program for [`Guard`].
    pub guard: Vec<OsString>,
}

impl ServerOptions {
    /// Bytes of the longest greeting for a client.
    pub fn longest_welcome(&self) -> usize {
        let last = |network: &IpNet| IpNet::new(network.broadcast(), network.prefix_len()).ok();
        let addresses = self.addresses.iter().filter_map(last).collect();
        message::write(&self.welcome(addresses, self.allow.clone())).len()
    }

    /// The greeting for a client with these addresses, while clients may reach these networks besides public ones.
    fn welcome(&self, addresses: Vec<IpNet>, allowed: Vec<IpNet>) -> Answer {
        let mut routes: Vec<IpNet> = self.addresses.iter().map(IpNet::trunc).collect();
        routes.extend(allowed);
        routes.extend(self.dns.iter().map(|server| IpNet::from(*server)));
        if self.exit {
            routes.extend(["0.0.0.0/0", "::/0"].iter().filter_map(|all| all.parse::<IpNet>().ok()));
        }
        Answer::Welcome {
            version: VERSION,
            addresses,
            gateways: self.addresses.iter().map(IpNet::addr).chain(self.dns.iter().copied()).collect(),
            dns: self.dns.clone(),
            routes,
            mtu: MTU,
            streams: self.streams,
        }
    }
}

/// An event, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A client's tunnel is open.
    Joined {
        node: PublicKey,
        /// Its addresses and networks.
        networks: Vec<IpNet>,
    },
    /// A client's session ended.
    Left {
        node: PublicKey,
        /// Why.
        reason: String,
    },
    /// A client was not let in.
    Refused {
        node: PublicKey,
        /// Why.
        reason: String,
    },
}

/// The server's side of all tunnels.
pub struct Server {
    options: ServerOptions,
    /// Destinations that clients may reach besides public ones, as of now.
    allowed: RwLock<Vec<IpNet>>,
    destinations: RwLock<(Reach, Destinations)>,
    /// Counts changes of `destinations`.
    judged: AtomicU64,
    table: RwLock<Table>,
    clock: Clock,
    seed: u64,
    open: Connections,
    device: Mutex<Option<Arc<Device>>>,
}

impl Server {
    /// A server that does not serve yet. `seed` keeps others from choosing flows that collide.
    pub fn new(options: ServerOptions, clock: Clock, seed: u64) -> Arc<Self> {
        let mut table = Table::default();
        table.hosts.reserve(options.behind.keys().copied(), &options.addresses);
        Arc::new(Self {
            allowed: RwLock::new(options.allow.clone()),
            options,
            destinations: RwLock::new((Reach::default(), Destinations::new(&Reach::default()))),
            judged: AtomicU64::new(0),
            table: RwLock::new(table),
            clock,
            seed,
            open: Connections::default(),
            device: Mutex::default(),
        })
    }

    /// Serves the sessions from `accept` until it returns none or this future is dropped.
    pub async fn run<A: Future<Output = Option<Session>> + Send>(
        self: Arc<Self>,
        accept: impl Fn() -> A + Send + Sync,
        notice: impl Fn(Notice) + Clone + Send + Sync + 'static,
    ) -> Result<(), TunnelError> {
        let interface = &self.options.interface;
        let _guard = Guard::start(interface, &self.options.guard)?;
        let device = Arc::new(Device::create(interface, MTU)?);
        let behind: Vec<IpNet> = self.options.behind.values().flatten().copied().collect();
        let system = ServerSystem {
            interface: interface.clone(),
            addresses: self.options.addresses.clone(),
            // Also without an exit: to networks behind this machine and behind clients.
            forwards: self.options.exit || !self.options.allow.is_empty() || !behind.is_empty(),
            behind,
            exit: self.options.exit,
        };
        system.apply()?;
        self.follow_own_addresses()?;
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = Some(device.clone());
        let (server, reads) = (self.clone(), device.clone());
        // A task of its own, on the threads of the sessions: each packet would wake this one otherwise.
        let mut reader = JoinSet::new();
        reader.spawn(async move { from_device(&reads, |header| server.link_to(header.destination)).await });
        let sessions = async {
            while let Some(session) = accept().await {
                let (server, device, notice) = (self.clone(), device.clone(), notice.clone());
                tokio::spawn(async move { server.serve(&device, session, notice).await });
            }
        };
        tokio::select! {
            Some(ended) = reader.join_next() => ended.map_err(std::io::Error::other)?.map_err(TunnelError::from),
            () = sessions => Ok(()),
            () = self.keep_following(&system) => Ok(()),
        }
    }

    /// Denies the machine's current addresses to clients.
    fn follow_own_addresses(&self) -> std::io::Result<()> {
        let own: BTreeSet<IpAddr> = own_addresses()?;
        let options = &self.options;
        let mut gateways: Vec<IpAddr> = options.addresses.iter().map(IpNet::addr).collect();
        gateways.extend(options.dns.iter().filter(|server| own.contains(server)));
        let name_servers = options.dns.iter().filter(|server| !own.contains(server));
        let allowed = self.allowed().into_iter().chain(name_servers.map(|server| IpNet::from(*server)));
        let clients =
            options.addresses.iter().map(IpNet::trunc).chain(options.behind.values().flatten().copied());
        let reach = Reach {
            allowed: allowed.collect(),
            gateways,
            own,
            clients: clients.collect(),
            inside_only: !options.exit,
        };
        if self.destinations().0 != reach {
            let destinations = Destinations::new(&reach);
            *self.destinations.write().unwrap_or_else(PoisonError::into_inner) = (reach, destinations);
            self.judged.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    /// Clients' connections may have used up the descriptors that the question takes: the last list counts until then.
    async fn keep_following(&self, system: &ServerSystem) {
        let (mut looks, mut trouble) = (0_u32, Lasting::default());
        loop {
            sleep(LOOK).await;
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(FIREWALL_LOOKS) {
                let wanted = system.clone();
                if tokio::task::spawn_blocking(move || wanted.restore()).await.unwrap_or(false) {
                    tracing::warn!("another program deleted the tunnel's firewall table; it is there again");
                }
            }
            let problem = self.follow_own_addresses().err().map(|error| error.to_string());
            match &problem {
                _ if !trouble.is_news(problem.as_deref()) => {}
                Some(error) => tracing::warn!(%error, "cannot list this machine's addresses; trying again"),
                None => tracing::warn!("this machine's addresses can be listed again"),
            }
            self.table.read().unwrap_or_else(PoisonError::into_inner).bound_waiting(self.clock.now());
        }
    }

    fn destinations(&self) -> RwLockReadGuard<'_, (Reach, Destinations)> {
        self.destinations.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges packets of a client that may send from these networks. Packets of one flow come in rows: the last pair
    /// that was allowed is remembered.
    fn gate(&self, networks: &[IpNet]) -> impl Fn(&Header) -> bool + use<'_> {
        let sources: PrefixTable<()> = networks.iter().copied().collect();
        let last = Cell::new(None);
        move |header: &Header| {
            let asked = (header.source, header.destination, self.judged.load(Ordering::Acquire));
            if last.get() == Some(asked) {
                return true;
            }
            let is_allowed =
                sources.find(header.source).is_some() && self.destinations().1.allow(header.destination);
            if is_allowed {
                last.set(Some(asked));
            }
            is_allowed
        }
    }

    /// The current status of all tunnels.
    pub fn status(&self) -> Status {
        let (now, table) = (self.clock.now(), self.table.read().unwrap_or_else(PoisonError::into_inner));
        let peers = table.clients.iter().map(|(node, client)| {
            let networks = client.networks.iter().map(ToString::to_string).collect();
            client.link.status(now, node.to_string(), networks)
        });
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        Status {
            interface: self.options.interface.clone(),
            peers: peers.collect(),
            streams: self.open.count(),
            device_dropped: device.as_ref().map_or(0, |device| device.dropped()),
        }
    }

    /// The current sessions of all clients.
    pub fn sessions(&self) -> Vec<Session> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.clients.values().filter_map(|client| client.link.session()).collect()
    }

    /// Changes which destinations clients may reach. Clients learn new ones when they come again.
    pub fn set_allowed(&self, allowed: Vec<IpNet>) -> std::io::Result<()> {
        *self.allowed.write().unwrap_or_else(PoisonError::into_inner) = allowed;
        self.follow_own_addresses()
    }

    fn allowed(&self) -> Vec<IpNet> {
        self.allowed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn link_to(&self, destination: IpAddr) -> Option<Arc<Link>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.routes.find(destination).cloned()
    }

    async fn serve(self: &Arc<Self>, device: &Device, session: Session, notice: impl Fn(Notice)) {
        let node = session.peer();
        let opened = timeout(HELLO, self.open(&session)).await;
        let silent = || TunnelError::Protocol("it did not ask for a tunnel".into());
        let is_other = matches!(&opened, Ok(Err(error)) if error.is_misunderstood());
        let (mut control, joined) = match opened.unwrap_or_else(|_| Err(silent())) {
            Ok(opened) => opened,
            Err(error) => {
                notice(Notice::Refused { node, reason: error.to_string() });
                if is_other {
                    return session.abort(OTHER_COMMAND, "this ticket is for `anabranch tunnel up`");
                }
                return session.abort(0, "no tunnel was opened");
            }
        };
        if !self.attach(node, &joined, &session) {
            return session.abort(0, "a newer session of this client takes over");
        }
        notice(Notice::Joined { node, networks: joined.networks.clone() });
        let reason = tokio::select! {
            error = to_device((device, &joined.link), &session, self.gate(&joined.networks)) => error.to_string(),
            why = follow_requests(&mut control, &joined.link) => why,
            () = self.take_streams(&session) => "the session ended".to_owned(),
            () = follow_mtu(&session, &joined.link) => String::new(),
        };
        self.leave(node, joined.number);
        notice(Notice::Left { node, reason });
        session.abort(0, "the tunnel is closed");
    }

    /// Reads the client's request and answers it.
    async fn open(&self, session: &Session) -> Result<(Control, Joined), TunnelError> {
        let mut stream = session.accept_stream().await?;
        if read_head(&mut stream).await? != Head::Control {
            return Err(TunnelError::Protocol("its first stream is not the control stream".into()));
        }
        let mut control = Control::new(stream);
        let hello = control.receive::<Request>().await?;
        let asked = match hello {
            Some(Request::Hello { version: VERSION, policy, .. }) if !policy.is_bounded() => {
                Err("the client has too many classes".to_owned())
            }
            Some(Request::Hello { version: VERSION, networks, policy }) => {
                let joined = self.join(session, &networks);
                joined.inspect(|joined| joined.link.set_policy(policy))
            }
            Some(Request::Hello { version, .. }) => Err(format!(
                "this server speaks version {VERSION} of the tunnel, the client version {version}"
            )),
            Some(Request::Policy { .. }) => {
                return Err(TunnelError::Protocol("it did not begin with a greeting".into()));
            }
            None => return Err(TunnelError::Protocol("it closed the control stream".into())),
        };
        let joined = match asked {
            Ok(joined) => joined,
            Err(reason) => {
                control.send(&Answer::Refused { reason: reason.clone() }).await?;
                // The answer leaves before the session ends.
                sleep(Duration::from_millis(200)).await;
                return Err(TunnelError::Refused(reason));
            }
        };
        let welcome = self.options.welcome(joined.addresses.clone(), self.allowed());
        if let Err(error) = control.send(&welcome).await {
            self.leave(session.peer(), joined.number);
            return Err(error.into());
        }
        Ok((control, joined))
    }

    /// Assigns a client its addresses, or returns why it gets none.
    fn join(&self, session: &Session, networks: &[IpNet]) -> Result<Joined, String> {
        let (node, now) = (session.peer(), self.clock.now());
        let address = session.remote_ip();
        let granted = self.options.behind.get(&node).map(Vec::as_slice).unwrap_or_default();
        let is_granted = |network: &&IpNet| granted.iter().any(|known| known.trunc() == network.trunc());
        if let Some(network) = networks.iter().find(|network| !is_granted(network)) {
            return Err(format!(
                "this server does not route {network} to you; its operator has to list it for your key, {node}"
            ));
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let table = &mut *table;
        let listed = &self.options.behind;
        let newcomer = Newcomer { node, address, now };
        let is_new = !table.clients.contains_key(&node) && !listed.contains_key(&node);
        if is_new && table.clients.len() >= self.options.most_clients {
            table.forget_one(newcomer, listed)?;
        }
        let addresses = table.addresses_of(newcomer, &self.options.addresses, listed)?;
        let own = addresses.iter().map(|address| IpNet::from(address.addr()));
        let all: Vec<IpNet> = own.chain(granted.iter().copied()).collect();
        let client = table.clients.entry(node).or_insert_with(|| Client {
            link: Link::new(self.clock, (self.seed, MTU)),
            networks: all.clone(),
            session: 0,
            address,
            seen: now,
        });
        if let Some(old) = client.link.session() {
            old.abort(0, "a newer session of this client takes over");
        }
        table.sessions += 1;
        (client.session, client.address, client.seen) = (table.sessions, address, now);
        let joined = Joined { link: client.link.clone(), addresses, networks: all, number: client.session };
        for network in &joined.networks {
            table.routes.insert(*network, joined.link.clone());
        }
        Ok(joined)
    }

    /// Sends to the client through this session, unless it has a newer one.
    fn attach(&self, node: PublicKey, joined: &Joined, session: &Session) -> bool {
        // While this is locked, no other session of the client joins.
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let is_last = table.clients.get(&node).is_some_and(|client| client.session == joined.number);
        if is_last {
            joined.link.attach(session);
        }
        is_last
    }

    /// The client keeps its addresses; its packets wait for its next session.
    fn leave(&self, node: PublicKey, number: u64) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = table.clients.get_mut(&node).filter(|client| client.session == number) {
            client.link.detach();
            client.seen = self.clock.now();
        }
    }

    async fn take_streams(self: &Arc<Self>, session: &Session) {
        let exit = Exit::new(self.open.clone());
        while let Ok(mut stream) = session.accept_stream().await {
            if !self.options.streams {
                continue;
            }
            let (exit, server) = (exit.clone(), self.clone());
            tokio::spawn(async move {
                // A stream that is not a connection is dropped.
                if let Ok(Head::Connect(Target::Address(destination))) = read_head(&mut stream).await {
                    let is_allowed = server.destinations().1.allow_stream(destination.ip());
                    exit.serve(stream, destination, is_allowed).await;
                }
            });
        }
    }
}

/// A client that was given its addresses.
struct Joined {
    link: Arc<Link>,
    addresses: Vec<IpNet>,
    networks: Vec<IpNet>,
    number: u64,
}

/// All addresses of this machine.
pub(crate) fn own_addresses() -> std::io::Result<BTreeSet<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
    };
    Ok(interfaces.filter_map(address).collect())
}

/// Follows the client's wishes until it ends the tunnel; says why it ended.
async fn follow_requests(control: &mut Control, link: &Link) -> String {
    loop {
        match control.receive::<Request>().await {
            Ok(Some(Request::Policy { policy })) if policy.is_bounded() => link.set_policy(policy),
            Ok(Some(Request::Policy { .. })) => return "the client has too many classes".to_owned(),
            Ok(Some(Request::Hello { .. })) => return "the client asked for a second tunnel".to_owned(),
            Ok(None) => return "the client closed the tunnel".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}

/// Follows the MTU of the session's paths.
pub(crate) async fn follow_mtu(session: &Session, link: &Link) {
    // The search for larger packets takes a moment.
    sleep(3 * LOOK).await;
    loop {
        if let Some(mtu) = inner_mtu(session, MTU) {
            link.mtu.store(mtu, Ordering::Relaxed);
        }
        sleep(LOOK).await;
    }
}
