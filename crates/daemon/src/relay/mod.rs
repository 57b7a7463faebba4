//! The relay as a service: sockets, sessions and time around `anabranch_overlay::relay`.
//!
//! ```text
//!  sockets ─▶ Endpoint ─┬─ its own sessions ─▶ clients: one task each ─▶ requests ─┐
//!                       └─ all other datagrams ─▶ forwarder ─▶ core ◀──────────────┘
//!                                                      │        ▲
//!                 sent from the same buffer ◀──────────┘        └── pump: what waited, replies, time
//! ```
//! | file | what |
//! |---|---|
//! | `config` | the configuration file |
//! | `state` | the core under its lock, and who is told what comes out of it |
//! | `clients` | a session of a client |
//! | `pace` | how fast a session may ask |
//! | `source` | from which address the operating system sends to a next hop |
//! | `ledger` | what was used of grants, over a restart |
//! | `membership` | what it tells its controllers, and what it takes from them |
//! | `status` | what the relay did and has, for people and Prometheus |

mod clients;
pub mod config;
mod ledger;
mod membership;
mod pace;
mod source;
mod state;
pub mod status;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_engine::Prefix;
use anabranch_net::{
    Addresses, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, SocketInfo, Span, Time,
};
use anabranch_overlay::relay::{Exit, Relay, RelayConfig};
use anabranch_overlay::sense::SensorConfig;
use anabranch_secure::{ResetKey, ShareId, secret};
use ipnet::IpNet;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::sensing::{self, Sensing};
use anabranch_node::{random, wall};
use config::RelaySettings;
use ledger::Ledger;
use membership::Membership;
use state::State;
use status::Status;

/// A silent client is forgotten after that; clients say something every few seconds.
const IDLE: Span = Span::from_secs(20);
/// Streams of a client: one is enough.
const STREAMS: u64 = 4;

/// A running relay. Dropping it ends its tasks.
pub struct RelayService {
    endpoint: Arc<Endpoint>,
    state: Arc<State>,
    membership: Arc<Membership>,
    ledger: Option<Arc<Ledger>>,
    tasks: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for RelayService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayService").field("node", &self.endpoint.node()).finish_non_exhaustive()
    }
}

impl RelayService {
    /// Binds the sockets and begins to serve. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When a port is taken or an address is not this machine's; the message says what to do.
    pub async fn start(key: NodeKey, settings: &RelaySettings) -> io::Result<Self> {
        let node = key.public();
        let seed: [u8; 32] = random()?;
        let core = Relay::new(settings.core(node), seed, (Time::ZERO, wall()));
        let state = Arc::new(State::new(core));
        let (admit, judge) = (state.clone(), state.clone());
        let mut config = EndpointConfig::new(key)
            .port(settings.port)
            .addresses(addresses(settings))
            .session(session_config())
            .authorize(move |peer: &PublicKey, share: Option<ShareId>| admit.authorize(peer, share))
            .address_policy(move |peer: &PublicKey, address| judge.judge_address(peer, address));
        config.reset_key = Some(reset_key(&config.key));
        let endpoint = Arc::new(Endpoint::bind(config).await?);
        state.set_clock(endpoint.clock());
        let moved = endpoint.sockets_changed();
        state.reconfigure(with_sockets(settings.core(node), &endpoint.sockets()));
        endpoint.set_foreign(state.clone());
        let gate = state.clone();
        let sensing = Sensing::new(&endpoint, SensorConfig::default(), random()?);
        let sensing = Arc::new(sensing.behind(move |bytes| gate.pass_own(bytes)));
        sensing.limit(settings.rate);
        let mut tasks = vec![
            tokio::spawn(state::pump(state.clone(), endpoint.clone())),
            tokio::spawn(clients::accept((state.clone(), sensing.clone()), endpoint.clone())),
            tokio::spawn(sensing::pump(sensing.clone())),
            tokio::spawn(follow_sockets((state.clone(), endpoint.clone()), moved)),
        ];
        let ledger = settings.usage.as_ref().map(|file| Arc::new(Ledger::open(file, &state)));
        tasks.extend(ledger.iter().map(|ledger| tokio::spawn(ledger.clone().keep())));
        let instance = u64::from_ne_bytes(random()?);
        let membership = Membership::new((&state, &endpoint, &sensing), ledger.clone(), instance);
        membership.join(settings);
        warn(settings);
        Ok(Self { endpoint, state, membership: Arc::new(membership), ledger, tasks })
    }

    /// Its identity.
    #[must_use]
    pub fn node(&self) -> PublicKey {
        self.endpoint.node()
    }

    /// The addresses that it listens on.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.endpoint.local_addresses()
    }

    /// Takes over other users, controllers, rates and next hops while sessions go on. Port, addresses and key stay as they are.
    pub fn reload(&self, settings: &RelaySettings) {
        self.state.reconfigure(with_sockets(settings.core(self.node()), &self.endpoint.sockets()));
        self.membership.join(settings);
        self.membership.limit(settings.rate);
        warn(settings);
    }

    /// No new paths from now on; those there are end after `patience`. Clients are told and move on.
    pub fn drain(&self, patience: Span) {
        self.state.drain(patience);
    }

    /// Waits until the relay was drained and no path is left.
    pub async fn drained(&self) {
        while !self.state.is_drained() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a fault of this program made the relay useless: end the process then, so that it is started again.
    pub async fn torn(&self) {
        while !self.is_torn() {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// True once something is half changed, or one of the tasks ended that go on for as long as the relay does.
    fn is_torn(&self) -> bool {
        self.state.is_torn()
            || self.membership.is_torn()
            || self.ledger.as_ref().is_some_and(|ledger| ledger.is_torn())
            || self.tasks.iter().any(JoinHandle::is_finished)
    }

    /// What it did and has.
    #[must_use]
    pub fn status(&self) -> Status {
        self.watch().status()
    }

    /// A handle for other tasks, which does not keep the service running.
    #[must_use]
    pub fn watch(&self) -> Watch {
        let (endpoint, state) = (self.endpoint.clone(), self.state.clone());
        Watch { endpoint, state, membership: self.membership.clone() }
    }

    /// Stops without a word to anybody, as when the power fails.
    pub fn kill(self) {
        self.endpoint.fall_silent();
    }

    /// Closes all sessions and stops; clients are told.
    pub async fn close(self) {
        self.endpoint.close().await;
        if let Some(Err(error)) = self.ledger.as_ref().map(|ledger| ledger.write()) {
            tracing::warn!("what was used of grants cannot be written: {error}");
        }
    }
}

impl Drop for RelayService {
    fn drop(&mut self) {
        self.membership.leave();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Looks at a relay and drains it.
#[derive(Clone)]
pub struct Watch {
    endpoint: Arc<Endpoint>,
    state: Arc<State>,
    membership: Arc<Membership>,
}

impl Watch {
    /// What the relay did and has.
    #[must_use]
    pub fn status(&self) -> Status {
        self.state.status(&self.endpoint, &self.membership.standings(), &self.membership.links())
    }

    /// As [`RelayService::drain`].
    pub fn drain(&self, patience: Span) {
        self.state.drain(patience);
    }
}

/// `status`, or `drain SECONDS`; a status is the answer to both.
#[cfg(unix)]
impl anabranch_service::control::Answer for Watch {
    async fn answer(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        match (words.next(), words.next().map(str::parse::<u64>)) {
            (Some("status"), None) => {}
            (Some("drain"), Some(Ok(seconds))) => self.drain(Span::from_secs(seconds)),
            _ => return anabranch_service::control::refusal("say `status` or `drain SECONDS`"),
        }
        anabranch_service::control::reply(&self.status())
    }
}

fn addresses(settings: &RelaySettings) -> Addresses {
    match &settings.addresses[..] {
        [] => Addresses::All,
        list => Addresses::Exactly(list.to_vec()),
    }
}

fn session_config() -> Config {
    let mut config = Config { max_streams: STREAMS, idle_timeout: IDLE, ..Config::default() };
    // Requests are short.
    config.memory.initial_window = 16 << 10;
    config.memory.max_window = 16 << 10;
    config
}

fn warn(settings: &RelaySettings) {
    settings.warnings().iter().for_each(|what| tracing::warn!("{what}"));
}

/// By which sockets next hops are reached, and which addresses are the relay's own.
fn with_sockets(mut config: RelayConfig, sockets: &[SocketInfo]) -> RelayConfig {
    config.exits = sockets.iter().map(exit).collect();
    config.next_hops.own = sockets.iter().map(|socket| socket.local).collect();
    config
}

fn exit(socket: &SocketInfo) -> Exit {
    let place = &socket.place;
    let own = Prefix { address: place.address, bits: place.prefix };
    let networks = place.routes.iter().chain([&own]).filter_map(|net| IpNet::new(net.address, net.bits).ok());
    let local = socket.local.ip();
    let headers = if local.is_ipv4() { 28 } else { 48 };
    let largest = place.mtu.saturating_sub(headers) as usize;
    Exit { socket: socket.id, local, networks: networks.collect(), largest }
}

/// Has the core know the sockets as they come and go, and what their interfaces reach.
async fn follow_sockets((state, endpoint): (Arc<State>, Arc<Endpoint>), mut moved: watch::Receiver<()>) {
    while moved.changed().await.is_ok() {
        let sockets = endpoint.sockets();
        state.change_now(|relay, now| {
            let config = with_sockets(relay.config().clone(), &sockets);
            relay.reconfigure(now, config);
        });
    }
}

/// What a restarted relay tells old clients by that their sessions are gone: it follows from its key.
fn reset_key(key: &NodeKey) -> ResetKey {
    let text = key.to_file_text();
    ResetKey::from_random(*secret::derive("anabranch 2026 relay reset key", &[text.as_bytes()]))
}
