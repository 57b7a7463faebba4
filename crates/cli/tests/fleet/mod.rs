//! Three controllers on three members of etcd, and relays registered with them.

pub mod clients;
pub mod session;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_daemon::controller::registration::{Registrant, Registration};
use anabranch_net::{Addresses, Endpoint, EndpointConfig, NodeKey, PublicKey, ShareId, Verdict};
use anabranch_node::ControllerHint;
use anabranch_overlay::controller::message::Neighbours;
use anabranch_overlay::controller::{Load, Location, Offer};
use anabranch_overlay::grant::{ControllerKey, GrantId, UnixTime};
use anabranch_overlay::relay::Heartbeat;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::common::clock::WallClock;
use crate::common::programs::program;

/// Number of relays to which grants apply; a fourth carries the session.
pub const RELAYS: u8 = 3;
/// Seed of the first of them.
pub const FIRST_RELAY: u8 = 100;
/// Seed of the relay that carries the session, followed by those of the session's ends.
pub const CARRIER: u8 = 110;

pub fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

pub fn ip(seed: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, seed).into()
}

/// A node that accepts everybody.
pub async fn node(seed: u8) -> Arc<Endpoint> {
    let config = EndpointConfig::new(key(seed))
        .addresses(Addresses::Exactly(vec![ip(seed)]))
        .authorize(|_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None });
    Arc::new(Endpoint::bind(config).await.expect("a node on loopback"))
}

/// The current time.
pub fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}

/// The longest pause of the machine in milliseconds, as a thread sees it that only sleeps.
pub struct Pauses(Arc<AtomicU64>);

impl Pauses {
    /// Watches for pauses until it is dropped.
    pub fn watch() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let noted = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            while let Some(longest) = noted.upgrade() {
                let begin = Instant::now();
                std::thread::sleep(Duration::from_millis(10));
                longest.fetch_max(begin.elapsed().as_millis() as u64, Ordering::Relaxed);
            }
        });
        Self(longest)
    }

    /// The allowance for a measured time, which may hold several pauses.
    pub fn allowance(&self) -> Duration {
        4 * Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// A running `anabranch controller`; killed when dropped.
pub struct Controller {
    config: PathBuf,
    child: Child,
    pub hint: ControllerHint,
    pub signing: ControllerKey,
}

impl Controller {
    /// Starts one, under the test's clock if given.
    pub fn start(config: &Path, clock: Option<&WallClock>) -> Self {
        let mut command = program(&["--quiet", "controller", "--config"]);
        command.arg(config).stdout(Stdio::piped());
        if let Some(clock) = clock {
            clock.command(&mut command);
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().expect("it says where it is").unwrap();
        let signing = lines.next().expect("it says what it signs with").unwrap();
        let hint = address.parse().unwrap();
        Self { config: config.to_owned(), child, hint, signing: signing.parse().unwrap() }
    }

    /// Kills it, like a power failure.
    pub fn kill(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it, like a power failure, and starts it again.
    pub fn restart(&mut self, clock: Option<&WallClock>) {
        self.kill();
        *self = Self::start(&self.config, clock);
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes the configuration of a controller at `127.0.2.seed` in `dir`.
pub fn configure(dir: &Path, (seed, port): (u8, u16), endpoints: &[String]) -> PathBuf {
    std::fs::write(dir.join(format!("{seed}.key")), key(200 + seed).to_file_text().as_bytes()).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(dir.join(format!("{seed}.key")), private).unwrap();
    let relays: String = (0..RELAYS)
        .map(|at| FIRST_RELAY + at)
        .chain([CARRIER])
        .map(|seed| format!("[[relay]]\nkey = \"{}\"\n", key(seed).public()))
        .collect();
    let text = format!(
        "key = \"{seed}.key\"\nport = {port}\naddresses = [\"127.0.2.{seed}\"]\n[store]\netcd = {endpoints:?}\n{relays}[others]\n\
         grants = 1000\npaths = 1000\n"
    );
    let file = dir.join(format!("{seed}.toml"));
    std::fs::write(&file, text).unwrap();
    file
}

/// A relay without a forwarder; it trusts its controllers.
pub struct Silent {
    offer: Offer,
    /// Controllers that sent measurement targets, as each does when it answers the first heartbeat of a session.
    heard: Mutex<BTreeSet<PublicKey>>,
}

impl Registrant for Silent {
    fn offer(&self) -> Offer {
        self.offer.clone()
    }

    fn load(&self) -> Load {
        Load::default()
    }

    fn heartbeat(&self, _: &PublicKey, heartbeat: &Heartbeat) -> Vec<GrantId> {
        heartbeat.revoked.clone()
    }

    fn measure(&self, controller: &PublicKey, _: &Neighbours) {
        self.heard.lock().unwrap().insert(*controller);
    }
}

/// A relay and its registration; dropping it ends the registration.
pub type Registered = (Registration, Arc<Silent>);

/// Starts relays with `pids` PIDs each, and waits until every controller has heard of them.
pub async fn relays(hints: &[ControllerHint], pids: u64) -> Vec<Registered> {
    let mut relays = Vec::new();
    for at in 0..RELAYS {
        let offer = Offer {
            place: Location(format!("place {at}").into()),
            addresses: vec!["127.0.0.1:4600".parse().unwrap()],
            pids,
            rate: None,
        };
        let endpoint = node(FIRST_RELAY + at).await;
        let relay = Arc::new(Silent { offer, heard: Mutex::default() });
        relays.push((Registration::start(&endpoint, hints, u64::from(at), &relay), relay));
    }
    heard(&relays, hints).await;
    relays
}

/// Clears the record of controllers heard.
pub fn forget(relays: &[Registered]) {
    relays.iter().for_each(|(_, relay)| relay.heard.lock().unwrap().clear());
}

/// Waits until every relay has registered with each of these controllers.
pub async fn heard(relays: &[Registered], hints: &[ControllerHint]) {
    let all = |relay: &Silent| {
        let heard = relay.heard.lock().unwrap();
        hints.iter().all(|hint| heard.contains(&hint.node()))
    };
    while !relays.iter().all(|(_, relay)| all(relay)) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Proxies a controller's connection to a member of etcd until cut.
pub async fn proxy(member: String, cut: watch::Receiver<bool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let target: SocketAddr = member.trim_start_matches("http://").parse().unwrap();
    let mut over = cut.clone();
    tokio::spawn(async move {
        let mut pairs = JoinSet::new();
        let serve = async {
            while let Ok((mut near, _)) = listener.accept().await {
                pairs.spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    // Either side may close the connection.
                    drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
                });
            }
        };
        tokio::select! {
            () = serve => {}
            _ = over.wait_for(|cut| *cut) => {}
        }
    });
    format!("http://{address}")
}
