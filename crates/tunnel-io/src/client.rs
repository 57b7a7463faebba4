//! `tunnel up`: one session with the server, dialed again when it is lost.
//!
//! Device, addresses and routes stay without a session. So programs wait instead of failing, and continue with the next
//! session.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use anabranch_net::{Clock, Lasting, Session};
use anabranch_proxy::message::Head;
use anabranch_proxy::{Connections, Control, Method, Taker};
use anabranch_tunnel::access::PrefixTable;
use anabranch_tunnel::message::{Answer, Request, VERSION};
use anabranch_tunnel::packet::{Header, protocol, quoted, read_quoted};
use anabranch_tunnel::policy::Policy;
pub use anabranch_tunnel::session::{MTU, session_config};
use anabranch_wire::Reach;
use ipnet::IpNet;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::device::Device;
use crate::error::TunnelError;
use crate::guard::Guard;
use crate::pump::{Gate, Link, from_device, to_device};
use crate::server::{follow_mtu, own_addresses};
use crate::status::Status;
use crate::streams;
use crate::system::{self, ClientSystem, Slot, kill_switch, tunnel_network};

/// How long the server may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Bounds of the pause between two attempts to dial.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// How often the system's rules are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// After how many looks the firewall is looked at, too.
pub(crate) const FIREWALL_LOOKS: u32 = 5;

/// Destinations that go through the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All that the server reaches.
    All,
    /// These destinations.
    Networks(Vec<IpNet>),
}

/// Settings of the client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name of the device.
    pub interface: String,
    /// Destinations that go through the tunnel.
    pub scope: Scope,
    /// Whether TCP connections use the stream lane, if the server allows it.
    pub streams: bool,
    /// Name queries go to the server's name servers.
    pub dns: bool,
    /// Whether nothing may be sent outside the tunnel, not even after this program has ended.
    pub kill_switch: bool,
    /// UDP port of the endpoint: its packets stay outside the tunnel.
    pub udp_port: u16,
    /// Networks behind this machine that the server should reach.
    pub networks: Vec<IpNet>,
    /// How packets travel, in both directions.
    pub policy: Policy,
    /// Command line of the own program for [`Guard`].
    pub guard: Vec<OsString>,
}

/// An event, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The tunnel carries packets.
    Up {
        /// The addresses in the tunnel.
        addresses: Vec<IpNet>,
        /// Destinations that go through it.
        routes: Vec<IpNet>,
        /// TCP connections take the stream lane.
        streams: bool,
    },
    /// The session ended; the tunnel dials again.
    Lost(String),
    /// Dialing failed; the next attempt follows.
    Unreachable(String),
    /// Another program deleted the tunnel's rules; they are there again.
    RulesRestored,
    /// A change did not work.
    Trouble(String),
}

/// Opens a session with the server.
pub type Dial = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Session, String>> + Send>> + Send + Sync>;

/// The tunnel of a client.
pub struct Client {
    options: ClientOptions,
    link: Arc<Link>,
    clock: Clock,
    open: Connections,
    /// Changes of the policy, for the server and the firewall.
    policy: watch::Sender<Policy>,
    /// The device while the tunnel is up.
    device: Mutex<Weak<Device>>,
}

/// State that stays from one session to the next.
struct Standing {
    device: Arc<Device>,
    /// Locked while the system changes, so that nothing old is restored meanwhile.
    system: Arc<RwLock<ClientSystem>>,
    taker: Option<Arc<Taker>>,
}

impl Standing {
    fn system(&self) -> ClientSystem {
        self.system.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Redirects the TCP connections that this policy carries as streams.
    fn redirect(&self, policy: &Policy) -> Result<(), TunnelError> {
        let system = self.system();
        system.stream_port.map_or(Ok(()), |port| system.redirect(port, policy))
    }

    /// Takes over what the server of a new session grants.
    fn renew(&self, wanted: ClientSystem) -> Result<(), TunnelError> {
        let mut system = self.system.write().unwrap_or_else(PoisonError::into_inner);
        let is_like = ClientSystem { policy: system.policy.clone(), ..wanted.clone() } == *system;
        if !is_like {
            let mut own = own_addresses()?;
            own.retain(|address| !system.addresses.iter().any(|known| known.addr() == *address));
            check_addresses(&wanted.addresses, &own)?;
            wanted.replace(&system)?;
            *system = wanted;
        }
        Ok(())
    }
}

impl Client {
    /// A tunnel that is not up yet. `seed` keeps others from choosing flows that collide.
    pub fn new(options: ClientOptions, clock: Clock, seed: u64) -> Arc<Self> {
        let link = Link::new(clock, (seed, MTU));
        link.set_policy(options.policy.clone());
        let policy = watch::Sender::new(options.policy.clone());
        let (open, device) = (Connections::default(), Mutex::default());
        Arc::new(Self { options, link, clock, open, policy, device })
    }

    /// The current session.
    pub fn session(&self) -> Option<Session> {
        self.link.session()
    }

    /// How packets travel.
    pub fn policy(&self) -> Policy {
        self.link.policy()
    }

    /// Changes how packets travel, in both directions.
    pub fn set_policy(&self, policy: Policy) {
        self.link.set_policy(policy.clone());
        self.policy.send_replace(policy);
    }

    /// The current status.
    pub fn status(&self) -> Status {
        let node = self.link.session().map(|session| session.peer().to_string()).unwrap_or_default();
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        Status {
            interface: self.options.interface.clone(),
            peers: vec![self.link.status(self.clock.now(), node, Vec::new())],
            streams: self.open.count(),
            device_dropped: device.map_or(0, |device| device.dropped()),
        }
    }

    /// Keeps the tunnel up until this future is dropped.
    pub async fn run(
        &self,
        dial: Dial,
        notice: impl Fn(Notice) + Send + Sync,
    ) -> Result<std::convert::Infallible, TunnelError> {
        let guard = Guard::start(&self.options.interface, &self.options.guard)?;
        if self.options.kill_switch {
            // An earlier one lets only the packets of its own port out.
            kill_switch::close(&self.options.interface, self.options.udp_port)?;
        }
        let session = dial().await.map_err(TunnelError::Unreachable)?;
        let (mut control, mut welcome) = self.open(&session).await?;
        let standing = self.set_up(&welcome, guard.slot())?;
        let reader = from_device(&standing.device, |_| Some(self.link.clone()));
        let taker = self.take_connections(standing.taker.as_deref());
        let sessions = async {
            let mut session = session;
            loop {
                notice(Self::up(standing.system()));
                let why = self.carry(&session, &mut control, &standing, &notice).await;
                self.link.detach();
                // Connections of the stream lane may still hold the session.
                session.abort(0, "the tunnel dials again");
                notice(Notice::Lost(why));
                (session, control, welcome) = self.dial_again(&dial, &notice).await?;
                standing.renew(self.system(&welcome, guard.slot(), standing.taker.as_deref()))?;
            }
        };
        tokio::select! {
            result = reader => Err(result.err().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()).into()),
            result = sessions => result,
            () = taker => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            never = self.look_after(&standing, &notice) => match never {},
        }
    }

    fn up(system: ClientSystem) -> Notice {
        Notice::Up {
            routes: system.reached(),
            streams: system.stream_port.is_some(),
            addresses: system.addresses,
        }
    }

    /// Dials until there is a session. A reason for failures is reported once.
    async fn dial_again(
        &self,
        dial: &Dial,
        notice: &impl Fn(Notice),
    ) -> Result<(Session, Control, Welcome), TunnelError> {
        let (mut pause, mut trouble) = (PAUSE.0, Lasting::default());
        loop {
            let attempt = async {
                let session = dial().await?;
                let (control, welcome) = self.open(&session).await.map_err(|error| error.to_string())?;
                Ok::<_, String>((session, control, welcome))
            };
            match attempt.await {
                Ok(opened) => return Ok(opened),
                Err(why) if trouble.is_news(Some(why.as_str())) => notice(Notice::Unreachable(why)),
                Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Opens the control stream and asks for the tunnel.
    async fn open(&self, session: &Session) -> Result<(Control, Welcome), TunnelError> {
        let opening = async {
            let mut stream = session.open_stream().await?;
            stream.write_all(&Head::Control.to_bytes()).await?;
            let mut control = Control::new(stream);
            let networks = self.options.networks.clone();
            let policy = self.policy();
            control.send(&Request::Hello { version: VERSION, networks, policy }).await?;
            let answer = control.receive::<Answer>().await.map_err(|error| {
                let error = TunnelError::from(error);
                let other = || TunnelError::Protocol("it answers something else".into());
                if error.is_misunderstood() { other() } else { error }
            })?;
            Ok::<_, TunnelError>((control, answer))
        };
        let silent = |_| {
            TunnelError::Protocol("it does not answer; is `anabranch tunnel serve` running there?".into())
        };
        let (control, answer) = timeout(ANSWER, opening).await.map_err(silent)??;
        match answer {
            Some(Answer::Welcome { version: VERSION, addresses, gateways, dns, routes, mtu, streams }) => {
                let mtu = mtu.clamp(576, MTU);
                let welcome = Welcome { addresses, gateways, dns, routes, mtu, streams };
                Ok((control, if system::has_ipv6() { welcome } else { welcome.without_ipv6() }))
            }
            Some(Answer::Welcome { version, .. }) => {
                Err(TunnelError::Protocol(format!("it speaks version {version}, this end version {VERSION}")))
            }
            Some(Answer::Refused { reason }) => {
                Err(TunnelError::Refused(anabranch_wire::Escaped(&reason).to_string()))
            }
            None => Err(TunnelError::Protocol("it closed the control stream".into())),
        }
    }

    /// Makes the device and sets the system up.
    fn set_up(&self, welcome: &Welcome, slot: Slot) -> Result<Standing, TunnelError> {
        let options = &self.options;
        check_addresses(&welcome.addresses, &own_addresses()?)?;
        let device = Arc::new(Device::create(&options.interface, welcome.mtu)?);
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&device);
        // A later session may have streams even if this one does not.
        let taker = options.streams.then(|| Taker::bind(Method::Redirect)).transpose()?.map(Arc::new);
        self.link.mtu.store(welcome.mtu, Ordering::Relaxed);
        let system = self.system(welcome, slot, taker.as_deref());
        system.apply()?;
        Ok(Standing { device, system: Arc::new(RwLock::new(system)), taker })
    }

    /// The system's settings for this grant.
    fn system(&self, welcome: &Welcome, slot: Slot, taker: Option<&Taker>) -> ClientSystem {
        let options = &self.options;
        let routes = match &options.scope {
            Scope::All => welcome.routes.clone(),
            Scope::Networks(networks) => networks.clone(),
        };
        ClientSystem {
            interface: options.interface.clone(),
            slot,
            gateways: welcome.gateways.clone(),
            addresses: welcome.addresses.clone(),
            routes,
            behind: options.networks.clone(),
            dns: if options.dns && options.scope == Scope::All { welcome.dns.clone() } else { Vec::new() },
            udp_port: options.udp_port,
            kill_switch: options.kill_switch,
            stream_port: taker.filter(|_| welcome.streams).map(Taker::port),
            policy: self.policy(),
        }
    }

    /// Carries packets until the session ends; returns the reason.
    async fn carry(
        &self,
        session: &Session,
        control: &mut Control,
        standing: &Standing,
        notice: &impl Fn(Notice),
    ) -> String {
        self.link.attach(session);
        let accepted = Accepted::new(&standing.system());
        let packets = to_device((&standing.device, &self.link), session, &accepted);
        let mut changes = self.policy.subscribe();
        // A change since the greeting, or while there was no session, counts for the server and the firewall, too.
        changes.mark_changed();
        let messages = async {
            loop {
                let policy = tokio::select! {
                    ended = control.receive::<Answer>() => return match ended {
                        Ok(_) => "the server closed the tunnel".to_owned(),
                        Err(error) => error.to_string(),
                    },
                    _ = changes.changed() => changes.borrow_and_update().clone(),
                };
                if let Err(error) = standing.redirect(&policy) {
                    notice(Notice::Trouble(error.to_string()));
                }
                if let Err(error) = control.send(&Request::Policy { policy }).await {
                    return error.to_string();
                }
            }
        };
        tokio::select! {
            error = packets => error.to_string(),
            why = messages => why,
            () = follow_mtu(session, &self.link) => String::new(),
        }
    }

    /// Puts rules back that another program deleted. While there is no session, too: packets wait for the next one, and
    /// must not leave outside the tunnel.
    async fn look_after(&self, standing: &Standing, notice: &impl Fn(Notice)) -> std::convert::Infallible {
        let mut looks = 0_u32;
        loop {
            sleep(LOOK).await;
            looks = looks.wrapping_add(1);
            let system = standing.system.clone();
            let policy = looks.is_multiple_of(FIREWALL_LOOKS).then(|| self.policy());
            let restored = tokio::task::spawn_blocking(move || {
                system.read().unwrap_or_else(PoisonError::into_inner).restore(policy.as_ref())
            });
            if restored.await.unwrap_or(false) {
                notice(Notice::RulesRestored);
            }
        }
    }

    /// Accepts redirected connections until dropped.
    async fn take_connections(&self, taker: Option<&Taker>) {
        let Some(taker) = taker else { return std::future::pending().await };
        loop {
            let taken = taker.accept().await;
            match self.link.session() {
                Some(session) => {
                    tokio::spawn(streams::carry(session, taken, self.open.clone()));
                }
                // Without a session, the program retries on its own.
                None => drop(taken),
            }
        }
    }
}

/// The server's grant.
#[derive(Clone, Debug)]
struct Welcome {
    addresses: Vec<IpNet>,
    gateways: Vec<IpAddr>,
    dns: Vec<IpAddr>,
    routes: Vec<IpNet>,
    mtu: u16,
    streams: bool,
}

impl Welcome {
    /// The part for a machine without IPv6: its devices take no address of it.
    fn without_ipv6(mut self) -> Self {
        self.addresses.retain(|address| address.addr().is_ipv4());
        self.gateways.retain(IpAddr::is_ipv4);
        self.dns.retain(IpAddr::is_ipv4);
        self.routes.retain(|route| route.addr().is_ipv4());
        self
    }
}

/// The server chooses the addresses, but none at which programs of this machine listen for others.
fn check_addresses(addresses: &[IpNet], own: &BTreeSet<IpAddr>) -> Result<(), TunnelError> {
    if addresses.is_empty() || addresses.len() > 8 {
        return Err(TunnelError::Protocol("it gave no address, or too many".into()));
    }
    let is_good = |address: &IpNet| {
        matches!(Reach::of(address.addr()), Reach::Site | Reach::Public)
            && !own.contains(&address.addr().to_canonical())
    };
    match addresses.iter().find(|address| !is_good(address)) {
        Some(wrong) => {
            Err(TunnelError::Protocol(format!("it gave {wrong}, which this machine has for something else")))
        }
        None => Ok(()),
    }
}

/// Which packets out of the tunnel are for this machine: from what is routed into the tunnel, to its own addresses and
/// the networks behind it.
struct Accepted {
    sources: PrefixTable<()>,
    destinations: PrefixTable<()>,
}

impl Accepted {
    fn new(system: &ClientSystem) -> Self {
        let own = system.addresses.iter().map(|address| IpNet::from(address.addr()));
        Self {
            sources: system
                .routes
                .iter()
                .copied()
                .chain(system.addresses.iter().map(tunnel_network))
                .collect(),
            destinations: own.chain(system.behind.iter().copied()).collect(),
        }
    }
}

impl Gate for &Accepted {
    fn allow(&self, header: &Header) -> bool {
        self.destinations.find(header.destination).is_some()
            && self.sources.find(header.source).is_some()
            && is_remote(header.source)
    }

    /// Any router on the path to a destination may report an error. The quoted packet must be one that this end may have
    /// sent.
    fn allow_error(&self, header: &Header, packet: &[u8]) -> bool {
        let Some((about, _)) = quoted(header, packet).and_then(read_quoted) else { return false };
        let is_redirection = header.protocol == protocol::ICMP && packet.get(header.payload) == Some(&5);
        !is_redirection
            && is_remote(header.source)
            && about.source == header.destination
            && self.destinations.find(about.source).is_some()
            && self.sources.find(about.destination).is_some()
    }
}

/// Whether a packet from this address may come through a tunnel. With a link-local IPv6 address, the server could pass
/// for a router, and lead packets into the tunnel that the user left outside.
fn is_remote(source: IpAddr) -> bool {
    match Reach::of(source) {
        Reach::Nowhere | Reach::Loopback => false,
        Reach::Link => source.is_ipv4(),
        Reach::Site | Reach::Public => true,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stays_away_is_reported_once_for_each_reason() {
        let options = ClientOptions {
            interface: "none".to_owned(),
            scope: Scope::All,
            streams: false,
            dns: false,
            kill_switch: false,
            udp_port: 0,
            networks: Vec::new(),
            policy: Policy::default(),
            guard: Vec::new(),
        };
        let client = Client::new(options, Clock::start(), 1);
        let (tries, told) = (Arc::new(AtomicU32::new(0)), AtomicU32::new(0));
        let counted = tries.clone();
        let dial: Dial = Box::new(move || {
            let is_early = counted.fetch_add(1, Ordering::Relaxed) < 3;
            let why = if is_early { "no route" } else { "no answer" };
            Box::pin(async move { Err::<Session, _>(why.to_owned()) })
        });
        let notice = |_: Notice| {
            told.fetch_add(1, Ordering::Relaxed);
        };
        let minute = Duration::from_secs(60);
        assert!(timeout(minute, client.dial_again(&dial, &notice)).await.is_err());
        assert!(tries.load(Ordering::Relaxed) > 5);
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_client_takes_packets_to_its_own_addresses_and_networks_only() {
        let system = ClientSystem {
            addresses: vec!["10.77.0.2/24".parse().unwrap()],
            routes: vec!["0.0.0.0/0".parse().unwrap()],
            behind: vec!["192.168.50.0/24".parse().unwrap()],
            ..ClientSystem::default()
        };
        let accepted = &Accepted::new(&system);
        let allow = |source: [u8; 4], destination: [u8; 4]| {
            let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0];
            packet.extend(source.into_iter().chain(destination));
            accepted.allow(&Header::read(&packet).unwrap())
        };
        assert!(allow([1, 1, 1, 1], [10, 77, 0, 2]));
        assert!(allow([1, 1, 1, 1], [192, 168, 50, 9]));
        // Another client, the network of this machine, and its own services by their loopback address.
        for other in [[10, 77, 0, 3], [192, 168, 1, 1], [127, 0, 0, 1]] {
            assert!(!allow([1, 1, 1, 1], other), "{other:?}");
        }
        assert!(!allow([127, 0, 0, 1], [10, 77, 0, 2]));
    }

    #[test]
    fn routers_outside_report_errors_of_packets_that_this_machine_sent() {
        let system = ClientSystem {
            addresses: vec!["10.77.0.2/24".parse().unwrap()],
            routes: vec!["10.20.0.0/16".parse().unwrap()],
            ..ClientSystem::default()
        };
        let accepted = &Accepted::new(&system);
        let ip = |length: u8, protocol: u8, ends: [[u8; 4]; 2]| {
            [&[0x45, 0, 0, length, 0, 0, 0, 0, 64, protocol, 0, 0][..], &ends.concat()].concat()
        };
        let (own, far, router) = ([10, 77, 0, 2], [10, 20, 0, 9], [192, 0, 2, 1]);
        let allow = |kind: u8, source: [u8; 4], about: [[u8; 4]; 2]| {
            let quote = [ip(28, 17, about), vec![0; 8]].concat();
            let packet = [ip(56, 1, [source, own]), vec![kind, 0, 0, 0, 0, 0, 0, 0], quote].concat();
            let header = Header::read(&packet).unwrap();
            assert!(!accepted.allow(&header));
            accepted.allow_error(&header, &packet)
        };
        assert!(allow(11, router, [own, far]) && allow(3, router, [own, far]));
        assert!(!allow(0, router, [own, far]), "an answer to a ping is no error");
        assert!(!allow(5, router, [own, far]), "a redirection changes routes");
        assert!(!allow(11, [127, 0, 0, 1], [own, far]));
        for about in [[own, [10, 21, 0, 1]], [far, own], [[10, 77, 0, 3], far]] {
            assert!(!allow(11, router, about), "{about:?}");
        }
    }

    #[test]
    fn a_server_does_not_pass_for_a_router_of_the_clients_link() {
        let system = ClientSystem {
            addresses: vec!["fd77::2/64".parse().unwrap()],
            routes: vec!["::/0".parse().unwrap()],
            ..ClientSystem::default()
        };
        let accepted = &Accepted::new(&system);
        let allow = |source: &str| {
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, 58, 255];
            for address in [source, "fd77::2"] {
                packet.extend(address.parse::<std::net::Ipv6Addr>().unwrap().octets());
            }
            accepted.allow(&Header::read(&packet).unwrap())
        };
        assert!(allow("2606:4700::1111") && allow("fd77::1"));
        for link in ["fe80::1", "ff02::1", "::1"] {
            assert!(!allow(link), "{link}");
        }
    }

    #[test]
    fn a_server_gives_no_address_that_this_machine_has_for_something_else() {
        let own = BTreeSet::from(["192.168.1.20".parse().unwrap(), "2001:db8::5".parse().unwrap()]);
        let check = |address: &str| check_addresses(&[address.parse().unwrap()], &own);
        for wrong in [
            "192.168.1.20/32",
            "192.168.1.20/24",
            "2001:db8::5/64",
            "127.0.0.53/8",
            "::1/128",
            "169.254.1.1/16",
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
        assert!(check("10.77.0.2/24").is_ok() && check("fd77::2/64").is_ok());
        let told = check("192.168.1.20/32").unwrap_err().to_string();
        assert!(told.starts_with("no tunnel with the other end: it gave 192.168.1.20/32"), "{told}");
    }
}
