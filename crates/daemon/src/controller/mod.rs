//! The controller service: sessions, time and a store around `anabranch_overlay::controller`.
//!
//! | file | what |
//! |---|---|
//! | `config` | the configuration file |
//! | `peers` | how many sessions there are, and whose |
//! | `others` | how many keys that are not listed ask for grants |
//! | `serve` | a session of a relay or a client |
//! | `http`, `openapi` | its HTTP API, and the description of it |
//! | `sensing` | which relays measure each other, and the links they report |
//! | `status` | relays and grants, for people and programs |
//! | `removed` | grants of clients that are no longer listed |
//! | `registration` | for relays: the registration with controllers |

pub mod config;
pub mod http;
mod openapi;
mod others;
mod peers;
pub mod registration;
mod removed;
mod sensing;
mod serve;
pub mod status;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use anabranch_net::{
    Addresses, Clock, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, Refusal, ShareId, Span, Time,
    Verdict,
};
use anabranch_overlay::controller::{
    ControlError, Denied, Directory, MAX_SKEW, Policy, Store, StoreError, held_by, lead, load_relays, revoke,
    sweep,
};
use anabranch_overlay::grant::{ControllerKey, GrantId, GrantSigner, UnixTime, WallClock};
use anabranch_secure::{ResetKey, secret};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use crate::budget::{Budget, give_back_after_floods};
use crate::pace::{OF_A_CONTROLLER, Paces};
use crate::store::{AnyStore, Etcd, OpenError, Redb};
use anabranch_node::{random, wall};
use config::{ControllerSettings, StoreSettings};
use others::Others;
use peers::Peers;
use sensing::Senses;
use status::{GrantStatus, Status};

/// The session of a silent peer ends after this; relays send a heartbeat every two seconds.
const IDLE: Span = Span::from_secs(20);
/// Streams of a peer; one is enough.
const STREAMS: u64 = 4;
/// How long a leader's term is, in seconds, and how often it is renewed.
const TERM: u64 = 10;
const RENEW: Duration = Duration::from_secs(3);
/// Pause before the store is asked again after it did not answer.
const AGAIN: Duration = Duration::from_millis(500);
/// The leader sweeps once in this many renewals.
const SWEEP_EVERY: u32 = 10;

/// Why a controller could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store's file.
    #[error(transparent)]
    File(#[from] OpenError),
    /// The store's settings.
    #[error("{0}")]
    Etcd(String),
    /// The sockets.
    #[error(transparent)]
    Bind(#[from] io::Error),
}

/// State that all tasks of a controller use.
struct Shared {
    store: AnyStore,
    policy: Arc<RwLock<Policy>>,
    peers: Arc<Peers>,
    paces: Paces,
    others: Others,
    directory: Mutex<Directory>,
    /// Must be locked before the directory if both are needed.
    senses: Mutex<Senses>,
    signer: GrantSigner,
    clock: Clock,
    /// True while clients that the policy does not list may hold grants: at the start, and after a change.
    unchecked: AtomicBool,
    /// True once the controller is closing.
    closing: watch::Sender<bool>,
}

impl Shared {
    fn policy(&self) -> Policy {
        self.policy.read().expect("no panic while held").clone()
    }

    fn directory(&self) -> std::sync::MutexGuard<'_, Directory> {
        self.directory.lock().expect("no panic while held")
    }

    fn senses(&self) -> std::sync::MutexGuard<'_, Senses> {
        self.senses.lock().expect("no panic while held")
    }

    /// True once an internal error may have left state half changed; every access panics from then on.
    fn is_torn(&self) -> bool {
        self.peers.is_torn()
            || self.directory.is_poisoned()
            || self.senses.is_poisoned()
            || self.policy.is_poisoned()
    }
}

/// A running controller. Dropping it ends its tasks.
pub struct ControllerService {
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for ControllerService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControllerService").field("node", &self.endpoint.node()).finish_non_exhaustive()
    }
}

impl ControllerService {
    /// Opens the store, binds the sockets and starts to serve. Call it within a tokio runtime.
    ///
    /// # Errors
    /// When the store is damaged or in use, a port is taken or an address is not this machine's; the message says what to
    /// do. An etcd that does not answer yet is no error.
    pub async fn start(key: NodeKey, settings: &ControllerSettings) -> Result<Self, StartError> {
        let store = match &settings.store {
            StoreSettings::Memory => AnyStore::Memory(Default::default()),
            StoreSettings::File(file) => AnyStore::Redb(Redb::open(file).await?),
            StoreSettings::Etcd(etcd) => AnyStore::Etcd(Etcd::new(etcd).map_err(StartError::Etcd)?),
        };
        let (node, signer) = (key.public(), signer(&key));
        let policy = Arc::new(RwLock::new(settings.policy.clone()));
        let admit = policy.clone();
        let mut session = Config { max_streams: STREAMS, idle_timeout: IDLE, ..Config::default() };
        session.memory.initial_window = 64 << 10;
        session.memory.max_window = 128 << 10;
        // A peer that reads no answers costs no more than this.
        session.memory.send_buffer = 256 << 10;
        // It reads no datagrams.
        session.datagrams.largest = 0;
        let budget = Budget::of_process();
        let peers = Arc::new(Peers::new(budget.sessions));
        let counted = peers.clone();
        let mut config = EndpointConfig::new(key)
            .port(settings.port)
            .addresses(match &settings.addresses[..] {
                [] => Addresses::All,
                list => Addresses::Exactly(list.to_vec()),
            })
            .session(session)
            .authorize(move |peer: &PublicKey, share: Option<ShareId>| {
                admit_peer((&admit, &counted), peer, share)
            });
        config.limits = budget.endpoint;
        config.reset_key =
            Some(ResetKey::from_random(*derive("anabranch 2026 controller reset key", &config.key)));
        let endpoint = Arc::new(Endpoint::bind(config).await?);
        let senses = Mutex::new(Senses::new(u64::from_ne_bytes(random()?)));
        let (directory, clock) = (Mutex::default(), endpoint.clock());
        let closing = watch::Sender::new(false);
        let shared = Arc::new(Shared {
            store,
            policy,
            peers,
            paces: Paces::new(OF_A_CONTROLLER),
            others: Others::new(),
            directory,
            senses,
            signer,
            clock,
            unchecked: AtomicBool::new(true),
            closing,
        });
        let tasks = vec![
            tokio::spawn(serve::accept(shared.clone(), endpoint.clone())),
            tokio::spawn(tend(Watch { endpoint: endpoint.clone(), shared: shared.clone() }, node)),
            tokio::spawn(give_back_after_floods({
                let peers = shared.peers.clone();
                move || peers.len()
            })),
        ];
        Ok(Self { endpoint, shared, tasks })
    }

    pub fn node(&self) -> PublicKey {
        self.endpoint.node()
    }

    /// The key that relays pin.
    pub fn signing_key(&self) -> ControllerKey {
        self.shared.signer.public()
    }

    /// The addresses that it listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.endpoint.local_addresses()
    }

    /// Applies another policy. Sessions of removed keys end, and the grants of removed clients are revoked. Key, port,
    /// addresses and store do not change.
    pub fn reload(&self, settings: &ControllerSettings) {
        let policy = &settings.policy;
        let old =
            std::mem::replace(&mut *self.shared.policy.write().expect("no panic while held"), policy.clone());
        self.shared.peers.keep_only(|key| policy.admits(key));
        // Clients that only `others` covered are not in the old list, and a store that fails now answers later.
        self.shared.unchecked.store(true, Ordering::Relaxed);
        let removed = old.clients.into_keys().filter(|key| policy.quota(key).is_err());
        for client in removed {
            tokio::spawn(removed::revoke_all(self.watch(), client, true));
        }
    }

    /// Waits until an internal error has corrupted the controller. End the process then, so that it is restarted.
    pub async fn torn(&self) {
        while !self.shared.is_torn() && !self.tasks.iter().any(JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// A handle for other tasks; it does not keep the service running.
    pub fn watch(&self) -> Watch {
        Watch { endpoint: self.endpoint.clone(), shared: self.shared.clone() }
    }

    /// Stops without notifying any peer, as in a power failure.
    pub fn kill(self) {
        self.endpoint.fall_silent();
    }

    /// Closes all sessions and streams of events, which notifies the peers, and stops.
    pub async fn close(self) {
        self.shared.closing.send_replace(true);
        self.endpoint.close().await;
    }
}

impl Drop for ControllerService {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Reads a controller's state and can revoke grants.
#[derive(Clone)]
pub struct Watch {
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
}

impl Watch {
    /// Waits until the controller closes.
    pub(super) async fn closing(self) {
        // An error means that the sender is gone: it has closed.
        let _ = self.shared.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// The relays that it knows.
    pub fn status(&self) -> Status {
        let times = (self.shared.clock.now(), wall());
        Status {
            node: self.endpoint.node().to_string(),
            signs: self.shared.signer.public().to_string(),
            addresses: self.endpoint.local_addresses().iter().map(ToString::to_string).collect(),
            relays: status::relays(&self.shared.senses(), &self.shared.directory(), times),
        }
    }

    /// The grants of a client.
    pub async fn grants(&self, client: PublicKey) -> Result<Vec<GrantStatus>, ControlError> {
        let held = held_by(&self.shared.store, wall(), client).await?;
        Ok(held.iter().map(GrantStatus::new).collect())
    }

    /// Revokes one grant of a client, or all, and returns them. Relays learn of it with their next heartbeat.
    pub async fn revoke(
        &self,
        client: PublicKey,
        grant: Option<GrantId>,
    ) -> Result<Vec<GrantStatus>, ControlError> {
        let mut held = held_by(&self.shared.store, wall(), client).await?;
        if let Some(grant) = grant {
            held.retain(|other| other.id == grant);
            if held.is_empty() {
                return Err(Denied::NoSuchGrant.into());
            }
        }
        for grant in &held {
            match revoke(&self.shared.store, wall(), client, grant.id).await {
                // It was given back or revoked meanwhile; the others are still to be revoked.
                Err(ControlError::Denied(Denied::NoSuchGrant)) => {}
                done => done?,
            }
        }
        Ok(held.iter().map(GrantStatus::new).collect())
    }
}

/// Answers `status`, `grants CLIENT` and `revoke CLIENT [GRANT]`.
impl anabranch_service::control::Answer for Watch {
    async fn answer(&self, line: &str) -> String {
        use anabranch_service::control::{refusal, reply};

        let mut words = line.split_whitespace();
        let (verb, client, grant) = (words.next(), words.next(), words.next());
        let client = client.map(str::parse::<PublicKey>);
        let grant = grant.map(str::parse::<GrantId>);
        let done = match (verb, client, grant) {
            (Some("status"), None, None) => return reply(&self.status()),
            (Some("grants"), Some(Ok(client)), None) => self.grants(client).await,
            (Some("revoke"), Some(Ok(client)), None) => self.revoke(client, None).await,
            (Some("revoke"), Some(Ok(client)), Some(Ok(grant))) => self.revoke(client, Some(grant)).await,
            _ => return refusal("say `status`, `grants CLIENT` or `revoke CLIENT [GRANT]`"),
        };
        done.map_or_else(|error| refusal(&error.to_string()), |grants| reply(&grants))
    }
}

/// Admits relays and clients that the policy lists, up to their share of sessions.
fn admit_peer(
    (policy, peers): (&RwLock<Policy>, &Peers),
    peer: &PublicKey,
    share: Option<ShareId>,
) -> Verdict {
    let policy = policy.read().expect("no panic while held");
    if share.is_some() {
        Verdict::Refuse(Refusal::TicketNotValid)
    } else if policy.admits(peer) {
        match peers.has_room_for(peer) {
            true => Verdict::Accept { secret: None },
            false => Verdict::Refuse(Refusal::Busy),
        }
    } else {
        Verdict::Refuse(Refusal::NotAuthorised)
    }
}

/// Reloads the relays' records, and does the leader's work while this controller leads.
async fn tend(watch: Watch, node: PublicKey) {
    let shared = watch.shared.clone();
    let (mut failing, mut is_first) = (false, true);
    let mut clock = WallClock::new(shared.clock.now(), wall());
    for turn in 0_u32.. {
        watch_clock(&mut clock, (shared.clock.now(), wall()), shared.store.is_shared());
        let mut result = tend_once(&shared, &node, turn % SWEEP_EVERY == 1).await;
        if result.is_ok() {
            result = removed::check(&watch, &mut is_first).await;
        }
        match &result {
            Err(error) if !failing => tracing::warn!("{error}; trying again"),
            Ok(()) if failing => tracing::warn!("the store answers again"),
            _ => {}
        }
        failing = result.is_err();
        tokio::time::sleep(if failing { AGAIN } else { RENEW }).await;
    }
}

/// Logs when the machine's clock was set, not merely adjusted, while the controller runs.
fn watch_clock(clock: &mut WallClock, (now, wall): (Time, UnixTime), is_shared: bool) {
    let expected = clock.at(now);
    *clock = WallClock::new(now, wall);
    let leap = Span::from_secs(wall.0.abs_diff(expected.0));
    if leap <= Span::from_secs(MAX_SKEW) {
        return;
    }
    let leap = leap.in_words();
    if wall > expected {
        tracing::warn!(
            "this machine's clock leapt {leap} ahead: if it is wrong now, correct it; grants end too early until then"
        );
    } else if is_shared {
        tracing::warn!(
            "this machine's clock went back by {leap}: if it is wrong now, correct it; records with a later time are left to the other controllers"
        );
    } else {
        tracing::warn!(
            "this machine's clock went back by {leap}: this controller uses the earlier time now, and clients whose grants ended too early ask again"
        );
    }
}

async fn tend_once(shared: &Shared, node: &PublicKey, sweeps: bool) -> Result<(), StoreError> {
    load_relays(&shared.store, &shared.directory).await?;
    shared.senses().forget_silent(shared.clock.now(), &shared.directory());
    if let Ok(term) = lead(&shared.store, wall(), (node, TERM)).await?
        && sweeps
    {
        let swept = sweep(&shared.store, wall(), term).await?;
        tracing::debug!(seen = swept.seen, cleaned = swept.cleaned, "swept expired records");
    }
    Ok(())
}

/// The key that a controller signs grants with. It is derived from the node key, so that there is one secret to protect.
pub fn signer(key: &NodeKey) -> GrantSigner {
    GrantSigner::from_random(*derive("anabranch 2026 controller signing key", key))
}

fn derive(what: &str, key: &NodeKey) -> Zeroizing<[u8; 32]> {
    let text = key.to_file_text();
    // The lines before it are for people.
    secret::derive(what, &[text.lines().last().unwrap_or_default().as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn controller() -> ControllerService {
        let settings = "key = \"k\"\nport = 0\naddresses = [\"127.0.0.1\"]\n[store]\nmemory = true\n";
        let settings = ControllerSettings::parse(settings, "controller.toml").expect("settings");
        ControllerService::start(NodeKey::from_random([7; 32]), &settings).await.expect("it starts")
    }

    async fn is_torn(service: &ControllerService, patience: Duration) -> bool {
        tokio::time::timeout(patience, service.torn()).await.is_ok()
    }

    #[tokio::test]
    async fn a_controller_reports_corrupted_state() {
        let whole = controller().await;
        assert!(!is_torn(&whole, Duration::from_millis(600)).await, "nothing has happened to it");
        let faults: [fn(&Shared); 3] = [
            |shared| {
                let _held = shared.directory();
                panic!("on purpose");
            },
            |shared| {
                let _held = shared.senses();
                panic!("on purpose");
            },
            |shared| {
                let _held = shared.policy.write();
                panic!("on purpose");
            },
        ];
        for (number, fault) in faults.into_iter().enumerate() {
            let service = controller().await;
            let shared = service.shared.clone();
            assert!(std::thread::spawn(move || fault(&shared)).join().is_err());
            assert!(is_torn(&service, Duration::from_secs(10)).await, "{number}");
        }
        for task in 0..whole.tasks.len() {
            let service = controller().await;
            service.tasks[task].abort();
            assert!(is_torn(&service, Duration::from_secs(10)).await, "task {task}");
        }
    }
}
