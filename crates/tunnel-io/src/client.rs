//! `tunnel up`: one session with the server, dialed again when it is lost.
//!
//! Device, addresses and routes stay without a session. So programs wait instead of failing, and continue with the next
//! session.

use std::ffi::OsString;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anabranch_net::{Clock, Config, DatagramMode, Session, Span};
use anabranch_tunnel::access::PrefixTable;
use anabranch_tunnel::entry::{Lane, class};
use anabranch_tunnel::message::{Answer, Request, StreamHead, VERSION};
use anabranch_tunnel::packet::Header;
use ipnet::IpNet;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use crate::control::Control;
use crate::device::Device;
use crate::error::TunnelError;
use crate::guard::Guard;
use crate::pump::{Classify, Link, from_device, inner_mtu, to_device};
use crate::status::Status;
use crate::streams::{self, Open, Taker};
use crate::system::{self, ClientSystem};

/// Inner MTU of a tunnel over ordinary paths.
pub const MTU: u16 = 1380;
/// How long the server may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Bounds of the pause between two attempts to dial.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// How often the paths' MTU and the system's rules are looked at.
const LOOK: Duration = Duration::from_secs(1);

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
    /// The lane of packets without a class of their own.
    pub lane: Lane,
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
}

/// Opens a session with the server.
pub type Dial = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Session, String>> + Send>> + Send + Sync>;

/// Settings of sessions that carry a tunnel, both ends alike.
#[must_use]
pub fn session_config() -> Config {
    let mut config = Config {
        // Paths may be silent for long: a closed laptop, a train in a tunnel.
        idle_timeout: Span::from_secs(1800),
        keep_alive: Some(Span::from_secs(15)),
        max_streams: streams::MOST_CONNECTIONS as u64,
        ..Config::default()
    };
    config.memory.datagrams = 4096;
    config.datagrams.ordered_classes = class::ORDERED;
    config.datagrams.modes[usize::from(class::REDUNDANT)] = DatagramMode::Redundant;
    config.datagrams.modes[usize::from(class::PROTECTED)] = DatagramMode::Protected;
    config
}

/// The tunnel of a client.
pub struct Client {
    options: ClientOptions,
    link: Arc<Link>,
    clock: Clock,
    open: Open,
}

/// State that stays from one session to the next.
struct Standing {
    device: Arc<Device>,
    system: ClientSystem,
    taker: Option<Arc<Taker>>,
    /// Prefixes that the server reaches, to be accepted as sources.
    _guard: Guard,
}

impl Client {
    /// A tunnel that is not up yet. `seed` keeps others from choosing flows that collide.
    #[must_use]
    pub fn new(options: ClientOptions, clock: Clock, seed: u64) -> Arc<Self> {
        let link = Link::new(clock, (seed, MTU));
        Arc::new(Self { options, link, clock, open: Open::default() })
    }

    /// The current status.
    #[must_use]
    pub fn status(&self) -> Status {
        let node = self.link.session().map(|session| session.peer().to_string()).unwrap_or_default();
        Status {
            interface: self.options.interface.clone(),
            peers: vec![self.link.status(self.clock.now(), node, Vec::new())],
            streams: self.open.count(),
            device_dropped: 0,
        }
    }

    /// Keeps the tunnel up until this future is dropped.
    ///
    /// # Errors
    /// When the first session cannot be opened, the server refuses, or the system cannot be set up.
    pub async fn run(
        &self,
        dial: Dial,
        notice: impl Fn(Notice) + Send + Sync,
    ) -> Result<std::convert::Infallible, TunnelError> {
        system::clean(&self.options.interface);
        if self.options.kill_switch {
            // An earlier one allows only the packets of its own port.
            system::close_kill_switch(&self.options.interface, self.options.udp_port)?;
        }
        let session = dial().await.map_err(TunnelError::Refused)?;
        let (mut control, mut welcome) = self.open(&session).await?;
        let standing = self.set_up(&welcome)?;
        let _cleaner = Cleaner(self.options.interface.clone());
        let reader = from_device(&standing.device, self, |_| Some(self.link.clone()));
        let taker = self.take_connections(standing.taker.as_deref());
        let sessions = async {
            let mut session = session;
            loop {
                notice(self.up(&welcome, &standing));
                let why = self.carry(&session, &mut control, &standing, &notice).await;
                self.link.detach();
                // Connections of the stream lane may still hold the session.
                session.abort(0, "the tunnel dials again");
                notice(Notice::Lost(why));
                (session, control, welcome) = self.dial_again(&dial, &notice).await?;
                let has_streams = standing.taker.is_none() || welcome.streams;
                if welcome.addresses != standing.system.addresses || !has_streams {
                    let changed = "the server grants other addresses or lanes now; start the tunnel again";
                    return Err(TunnelError::Protocol(changed.into()));
                }
            }
        };
        tokio::select! {
            result = reader => Err(result.err().unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()).into()),
            result = sessions => result,
            () = taker => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
        }
    }

    fn up(&self, welcome: &Welcome, standing: &Standing) -> Notice {
        Notice::Up {
            addresses: welcome.addresses.clone(),
            routes: standing.system.routes.clone(),
            streams: standing.taker.is_some() && welcome.streams,
        }
    }

    async fn dial_again(
        &self,
        dial: &Dial,
        notice: &impl Fn(Notice),
    ) -> Result<(Session, Control, Welcome), TunnelError> {
        let mut pause = PAUSE.0;
        loop {
            let attempt = async {
                let session = dial().await?;
                let (control, welcome) = self.open(&session).await.map_err(|error| error.to_string())?;
                Ok::<_, String>((session, control, welcome))
            };
            match attempt.await {
                Ok(opened) => return Ok(opened),
                Err(why) => notice(Notice::Unreachable(why)),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Opens the control stream and asks for the tunnel.
    async fn open(&self, session: &Session) -> Result<(Control, Welcome), TunnelError> {
        let opening = async {
            let mut stream = session.open_stream().await?;
            stream.write_all(&StreamHead::Control.to_bytes()).await?;
            let mut control = Control::new(stream);
            let networks = self.options.networks.clone();
            control.send(&Request::Hello { version: VERSION, networks }).await?;
            let answer = control.receive::<Answer>().await?;
            Ok::<_, TunnelError>((control, answer))
        };
        let silent = |_| {
            TunnelError::Protocol("it does not answer; is `anabranch tunnel serve` running there?".into())
        };
        let (control, answer) = timeout(ANSWER, opening).await.map_err(silent)??;
        match answer {
            Some(Answer::Welcome { version: VERSION, addresses, dns, routes, mtu, streams, .. }) => {
                let mtu = mtu.clamp(576, MTU);
                Ok((control, Welcome { addresses, dns, routes, mtu, streams }))
            }
            Some(Answer::Welcome { version, .. }) => {
                Err(TunnelError::Protocol(format!("it speaks version {version}, this end version {VERSION}")))
            }
            Some(Answer::Refused { reason }) => Err(TunnelError::Refused(printable(&reason))),
            None => Err(TunnelError::Protocol("it closed the control stream".into())),
        }
    }

    /// Makes the device and sets the system up.
    fn set_up(&self, welcome: &Welcome) -> Result<Standing, TunnelError> {
        let options = &self.options;
        if welcome.addresses.is_empty() || welcome.addresses.len() > 8 {
            return Err(TunnelError::Protocol("it gave no address, or too many".into()));
        }
        let device = Arc::new(Device::create(&options.interface, welcome.mtu)?);
        let guard = Guard::start(&options.guard)?;
        let taker = (options.streams && welcome.streams).then(Taker::bind).transpose()?.map(Arc::new);
        let routes = match &options.scope {
            Scope::All => welcome.routes.clone(),
            Scope::Networks(networks) => networks.clone(),
        };
        let system = ClientSystem {
            interface: options.interface.clone(),
            addresses: welcome.addresses.clone(),
            routes,
            dns: if options.dns && options.scope == Scope::All { welcome.dns.clone() } else { Vec::new() },
            udp_port: options.udp_port,
            stream_port: taker.as_ref().map(|taker| taker.port),
        };
        self.link.mtu.store(welcome.mtu, Ordering::Relaxed);
        if let Err(error) = system.apply() {
            system::clean(&options.interface);
            return Err(error);
        }
        Ok(Standing { device, system, taker, _guard: guard })
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
        let sources = Sources::new(&standing.system);
        let packets = to_device((&standing.device, &self.link), session, |header| sources.allow(header));
        tokio::select! {
            error = packets => error.to_string(),
            ended = control.receive::<Answer>() => match ended {
                Ok(_) => "the server closed the tunnel".to_owned(),
                Err(error) => error.to_string(),
            },
            () = self.look_after(session, &standing.system, notice) => String::new(),
        }
    }

    /// Follows the paths' MTU, and puts rules back that another program deleted.
    async fn look_after(&self, session: &Session, system: &ClientSystem, notice: &impl Fn(Notice)) {
        let mut looks = 0_u32;
        loop {
            sleep(LOOK).await;
            // The search for larger packets takes a moment.
            looks += 1;
            if looks >= 3
                && let Some(mtu) = inner_mtu(session, MTU)
            {
                self.link.mtu.store(mtu, Ordering::Relaxed);
            }
            let wanted = system.clone();
            let restored = tokio::task::spawn_blocking(move || {
                let is_missing = !system::rules_are_there(&wanted);
                if is_missing {
                    for rule in wanted.rules() {
                        // Several may be left.
                        let _ = rule.run();
                    }
                }
                is_missing
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
            let Ok(taken) = taker.accept().await else { return };
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

impl Classify for Client {
    fn lane(&self, header: &Header, packet: &[u8]) -> Lane {
        lane_of(self.options.lane, header, packet)
    }
}

/// Packets that ask for low delay by their code point (RFC 2474, RFC 3246, RFC 8622), ICMP and name queries take the fastest path; others `usual`.
pub(crate) fn lane_of(usual: Lane, header: &Header, packet: &[u8]) -> Lane {
    const EXPEDITED: u8 = 46;
    const LOWEST_OF_CLASS_5: u8 = 40;
    let is_urgent = matches!(header.dscp(), EXPEDITED | LOWEST_OF_CLASS_5 | 48 | 56);
    let is_icmp = matches!(header.protocol, 1 | 58);
    let asks_name =
        header.protocol == 17 && header.ports(packet).is_some_and(|(from, to)| from == 53 || to == 53);
    if usual == Lane::Auto && (is_urgent || is_icmp || asks_name) { Lane::LowLatency } else { usual }
}

/// The server's grant.
#[derive(Clone, Debug)]
struct Welcome {
    addresses: Vec<IpNet>,
    dns: Vec<IpAddr>,
    routes: Vec<IpNet>,
    mtu: u16,
    streams: bool,
}

/// The source addresses that packets from the tunnel may have: those routed into it.
struct Sources(PrefixTable<()>);

impl Sources {
    fn new(system: &ClientSystem) -> Self {
        let mut table = PrefixTable::default();
        for prefix in system.routes.iter().chain(&system.addresses) {
            table.insert(*prefix, ());
        }
        Self(table)
    }

    fn allow(&self, header: &Header) -> bool {
        self.0.find(header.source).is_some()
            && !header.source.is_loopback()
            && !header.destination.is_loopback()
    }
}

/// Cleans up when the tunnel ends in order.
struct Cleaner(String);

impl Drop for Cleaner {
    fn drop(&mut self) {
        system::clean(&self.0);
    }
}

/// Text of the peer without control characters.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(200).collect()
}
