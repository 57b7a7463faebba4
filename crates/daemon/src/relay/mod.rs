//! The relay service: sockets, sessions and time around `anabranch_overlay::relay`.
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
//! | `state` | the core under its lock, and the delivery of its output |
//! | `clients` | one client's session |
//! | `source` | the source address for packets to a next hop |
//! | `ledger` | usage of grants and listings over a restart |
//! | `membership` | the registration with controllers |
//! | `status` | counters and state, for people and Prometheus |

mod clients;
pub mod config;
mod ledger;
mod membership;
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

use crate::budget::{Budget, give_back_after_floods};
use crate::sensing::{self, Sensing};
use anabranch_node::{random, wall};
use config::RelaySettings;
use ledger::Ledger;
use membership::Membership;
use state::State;
use status::Status;

/// The session of a silent client ends after this; clients send something every few seconds.
const IDLE: Span = Span::from_secs(20);
/// Streams of a client; one is enough.
const STREAMS: u64 = 4;

/// A running relay. Dropping it ends its tasks.
pub struct RelayService {
    endpoint: Arc<Endpoint>,
    state: Arc<State>,
    membership: Arc<Membership>,
    ledger: Option<Arc<Ledger>>,
    budget: Budget,
    tasks: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for RelayService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayService").field("node", &self.endpoint.node()).finish_non_exhaustive()
    }
}

impl RelayService {
    /// Binds the sockets and starts to serve. Call it within a tokio runtime.
    ///
    /// # Errors
    /// When a port is taken, an address is not this machine's, or the usage file is damaged; the message says what to do.
    pub async fn start(key: NodeKey, settings: &RelaySettings) -> io::Result<Self> {
        let node = key.public();
        let seed: [u8; 32] = random()?;
        let budget = Budget::of_process();
        let core = Relay::new(fitted(settings.core(node), &budget), seed, (Time::ZERO, wall()));
        let state = Arc::new(State::new(core));
        let (admit, judge) = (state.clone(), state.clone());
        let mut config = EndpointConfig::new(key)
            .port(settings.port)
            .addresses(addresses(settings))
            .session(session_config())
            .authorize(move |peer: &PublicKey, share: Option<ShareId>| admit.authorize(peer, share))
            .address_policy(move |peer: &PublicKey, address| judge.judge_address(peer, address));
        config.limits = budget.endpoint;
        config.reset_key = Some(reset_key(&config.key));
        let ledger =
            settings.usage.as_ref().map(|file| Ledger::open(file, &state)).transpose()?.map(Arc::new);
        let endpoint = Arc::new(Endpoint::bind(config).await?);
        state.set_clock(endpoint.clock());
        let moved = endpoint.sockets_changed();
        state.reconfigure(with_sockets(fitted(settings.core(node), &budget), &endpoint.sockets()));
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
            tokio::spawn(give_back_after_floods({
                let endpoint = endpoint.clone();
                move || endpoint.stats().sessions as usize
            })),
        ];
        tasks.extend(ledger.iter().map(|ledger| tokio::spawn(ledger.clone().keep())));
        let instance = u64::from_ne_bytes(random()?);
        let membership = Membership::new((&state, &endpoint, &sensing), ledger.clone(), instance);
        membership.join(settings);
        state.name_users(&settings.users);
        warn(settings, &budget);
        Ok(Self { endpoint, state, membership: Arc::new(membership), ledger, budget, tasks })
    }

    pub fn node(&self) -> PublicKey {
        self.endpoint.node()
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.endpoint.local_addresses()
    }

    /// Applies other users, controllers, rates and next hops. Paths and sessions of removed users end, all others
    /// continue. Port, addresses and key do not change.
    pub fn reload(&self, settings: &RelaySettings) {
        self.membership.offer(settings);
        let mut config = fitted(settings.core(self.node()), &self.budget);
        // Read under the core's lock, so that nothing newer is overwritten.
        self.state.change_now(|relay, now| {
            config.next_hops.public = self.membership.public();
            relay.reconfigure(now, with_sockets(config, &self.endpoint.sockets()));
        });
        self.membership.join(settings);
        self.state.name_users(&settings.users);
        self.membership.limit(settings.rate);
        warn(settings, &self.budget);
    }

    /// Accepts no new paths from now on and ends existing ones after `patience`. Clients are notified and move on.
    pub fn drain(&self, patience: Span) {
        self.state.drain(patience);
    }

    /// Waits until the relay was drained and no path is left.
    pub async fn drained(&self) {
        while !self.state.is_drained() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until an internal error has corrupted the relay. End the process then, so that it is restarted.
    pub async fn torn(&self) {
        while !self.is_torn() {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// True once the state may be half changed, or a task has ended that should run as long as the relay.
    fn is_torn(&self) -> bool {
        self.state.is_torn()
            || self.membership.is_torn()
            || self.ledger.as_ref().is_some_and(|ledger| ledger.is_torn())
            || self.tasks.iter().any(JoinHandle::is_finished)
    }

    /// Counters and current state.
    pub fn status(&self) -> Status {
        self.watch().status()
    }

    /// A handle for other tasks; it does not keep the service running.
    pub fn watch(&self) -> Watch {
        let (endpoint, state) = (self.endpoint.clone(), self.state.clone());
        Watch { endpoint, state, membership: self.membership.clone() }
    }

    /// Stops without notifying any peer, as in a power failure.
    pub fn kill(self) {
        self.endpoint.fall_silent();
    }

    /// Closes all sessions, which notifies the clients, and stops.
    pub async fn close(self) {
        self.endpoint.close().await;
        if let Some(Err(error)) = self.ledger.as_ref().map(|ledger| ledger.write()) {
            tracing::warn!("usage cannot be stored: {error}");
        }
    }
}

impl Drop for RelayService {
    fn drop(&mut self) {
        self.membership.leave();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Reads a relay's state and can drain it.
#[derive(Clone)]
pub struct Watch {
    endpoint: Arc<Endpoint>,
    state: Arc<State>,
    membership: Arc<Membership>,
}

impl Watch {
    /// Counters and current state.
    pub fn status(&self) -> Status {
        self.state.status(&self.endpoint, &self.membership.standings(), &self.membership.links())
    }

    /// As [`RelayService::drain`].
    pub fn drain(&self, patience: Span) {
        self.state.drain(patience);
    }
}

/// Answers `status` and `drain SECONDS`, both with a status.
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
    // A client that reads no replies costs no more than this.
    config.memory.send_buffer = 64 << 10;
    config
}

fn warn(settings: &RelaySettings, budget: &Budget) {
    settings.warnings().iter().for_each(|what| tracing::warn!("{what}"));
    let (most, paths) = (settings.most_flows, budget.paths);
    if most > paths {
        tracing::warn!("this process has memory for {paths} paths, not for {most} as `max_paths` says");
    }
}

/// Lowers the limits to those of the process's memory.
fn fitted(config: RelayConfig, budget: &Budget) -> RelayConfig {
    RelayConfig {
        sessions: budget.sessions,
        most_strangers: budget.strangers,
        most_flows: config.most_flows.min(budget.paths),
        ..config
    }
}

/// Adds the sockets for next hops, and the relay's own addresses and networks.
fn with_sockets(mut config: RelayConfig, sockets: &[SocketInfo]) -> RelayConfig {
    config.exits = sockets.iter().map(exit).collect();
    config.next_hops.own = sockets.iter().map(|socket| socket.local).collect();
    let networks = sockets.iter().map(|socket| IpNet::new(socket.place.address, socket.place.prefix));
    config.next_hops.neighbours = networks.filter_map(Result::ok).collect();
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

/// Keeps the core's list of sockets, and of the networks behind them, up to date.
async fn follow_sockets((state, endpoint): (Arc<State>, Arc<Endpoint>), mut moved: watch::Receiver<()>) {
    while moved.changed().await.is_ok() {
        let sockets = endpoint.sockets();
        state.change_now(|relay, now| {
            let config = with_sockets(relay.config().clone(), &sockets);
            relay.reconfigure(now, config);
        });
    }
}

/// The key of reset tokens, by which a restarted relay can end old sessions. It is derived from the node key.
fn reset_key(key: &NodeKey) -> ResetKey {
    let text = key.to_file_text();
    ResetKey::from_random(*secret::derive("anabranch 2026 relay reset key", &[text.as_bytes()]))
}
