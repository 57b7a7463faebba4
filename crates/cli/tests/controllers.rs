//! Three controllers, real programs, on three members of etcd; what happens when some of them are ended in the middle of it.

mod common;
#[path = "../../daemon/tests/etcd/mod.rs"]
mod etcd;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_daemon::controller::asking::Controllers;
use anabranch_daemon::controller::link::{ControllerHint, LinkError};
use anabranch_daemon::controller::registration::{Registrant, Registration};
use anabranch_daemon::store::{Etcd, EtcdSettings};
use anabranch_net::{Addresses, Endpoint, EndpointConfig, NodeKey, PublicKey, Rate};
use anabranch_overlay::controller::message::{Again, Neighbours};
use anabranch_overlay::controller::{Ask, Leader, Load, Offer, Place, RequestId, Store};
use anabranch_overlay::grant::{ControllerKey, GrantId, Limits, UnixTime, open};
use anabranch_overlay::relay::Heartbeat;
use anabranch_overlay::sense::Changes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// 5 s are promised, and it is 2 to 3 s also on a busy machine: etcd elects its leader by the clock. The rest is for one that is overloaded.
const LONGEST: Duration = Duration::from_secs(8);
const CLIENTS: u8 = 10;
/// Relays, and PIDs that each offers; every request takes one PID.
const RELAYS: u8 = 3;

/// Requests in all; `ANABRANCH_ALLOCATIONS=1000` for the full measure.
fn requests() -> usize {
    std::env::var("ANABRANCH_ALLOCATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(240)
}

fn key(seed: u8) -> NodeKey {
    NodeKey::from_random([seed; 32])
}

async fn node(seed: u8) -> Arc<Endpoint> {
    let address: IpAddr = Ipv4Addr::new(127, 0, 1, seed).into();
    let config = EndpointConfig::new(key(seed)).addresses(Addresses::Exactly(vec![address]));
    Arc::new(Endpoint::bind(config).await.expect("a node on loopback"))
}

fn now() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs())
}

/// `anabranch controller`, ended when dropped.
struct Controller {
    config: PathBuf,
    child: Child,
    hint: ControllerHint,
    signing: ControllerKey,
}

impl Controller {
    fn start(config: &Path) -> Self {
        let mut child = common::programs::program(&["--quiet", "controller", "--config"])
            .arg(config)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().expect("it says where it is").unwrap();
        let signing = lines.next().expect("it says what it signs with").unwrap();
        let (node, addresses) = address.split_once('@').unwrap();
        let hint = ControllerHint {
            node: node.parse().unwrap(),
            addresses: addresses.split(',').map(|text| text.parse().unwrap()).collect(),
        };
        Self { config: config.to_owned(), child, hint, signing: signing.parse().unwrap() }
    }

    /// As a power failure would.
    fn kill(&mut self) {
        // One that has ended already needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A configuration of a controller at `127.0.2.seed` in a directory.
fn configure(dir: &Path, (seed, port): (u8, u16), endpoints: &[String]) -> PathBuf {
    std::fs::write(dir.join(format!("{seed}.key")), key(200 + seed).to_file_text().as_bytes()).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(dir.join(format!("{seed}.key")), private).unwrap();
    let relays: String =
        (0..RELAYS).map(|at| format!("[[relay]]\nkey = \"{}\"\n", key(100 + at).public())).collect();
    let text = format!(
        "key = \"{seed}.key\"\nport = {port}\naddresses = [\"127.0.2.{seed}\"]\n[store]\netcd = {endpoints:?}\n{relays}[others]\n\
         grants = 1000\npaths = 1000\n"
    );
    let file = dir.join(format!("{seed}.toml"));
    std::fs::write(&file, text).unwrap();
    file
}

/// A relay without a forwarder: it takes the word of its controllers.
struct Silent {
    offer: Offer,
    heard: AtomicUsize,
}

impl Registrant for Silent {
    fn offer(&self) -> Offer {
        self.offer.clone()
    }

    fn load(&self) -> Load {
        Load::default()
    }

    fn changes(&self, _: u64) -> Option<Changes> {
        None
    }

    fn measure(&self, _: &PublicKey, _: &Neighbours) {}

    fn urgent(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    fn heartbeat(&self, heartbeat: &Heartbeat) -> Vec<GrantId> {
        self.heard.fetch_add(1, Ordering::Relaxed);
        heartbeat.revoked.clone()
    }
}

/// Stands between a controller and a member of etcd until it is cut.
async fn proxy(member: String, cut: watch::Receiver<bool>) -> String {
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
                    // Either side may end it.
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

/// A client and its request.
type Name = (u8, [u8; 8]);

/// What the clients of one run have seen.
#[derive(Default)]
struct Record {
    answered: AtomicUsize,
    granted: Mutex<BTreeMap<Name, Vec<u8>>>,
    full: AtomicUsize,
    longest: Mutex<Duration>,
}

/// Asks until there is an answer, then once more, as a client that did not hear it would.
async fn ask_all(seed: u8, hints: Vec<ControllerHint>, count: usize, record: Arc<Record>) {
    let controllers = Controllers::new(node(seed).await, hints);
    for number in 0..count {
        let random = (number as u64).to_be_bytes();
        let limits = Limits { pids: 1, rate: Rate::from_bits(1_000), bytes: 1 << 30, highest_tos: 3 };
        let request = RequestId { made: now(), random };
        let ask = Ask { request, relays: 1, least: 1, limits, lifetime: 600 };
        let begun = Instant::now();
        loop {
            match controllers.allocate(&ask).await {
                Ok(granted) => {
                    let known = (seed, random);
                    record.granted.lock().unwrap().insert(known, granted.bytes);
                    break;
                }
                Err(LinkError::Denied { why, .. }) if why.contains("with room") => {
                    record.full.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(LinkError::Denied { why, again: Again::Never }) => panic!("denied: {why}"),
                Err(error) => eprintln!("client {seed}: {error}"),
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "no allocation for 20 s");
        }
        let took = begun.elapsed();
        if took > Duration::from_secs(1) {
            eprintln!("client {seed} waited {took:.2?}");
        }
        let mut longest = record.longest.lock().unwrap();
        *longest = longest.max(took);
        drop(longest);
        record.answered.fetch_add(1, Ordering::Relaxed);
    }
}

async fn reach(record: &Record, count: usize) {
    while record.answered.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allocations_go_on_when_the_leaders_are_killed_and_a_controller_is_cut_off() {
    let Some(mut cluster) = etcd::Cluster::start(3).await else { return };
    let dir = tempfile::tempdir().unwrap();
    let (cut, is_cut) = watch::channel(false);
    let mut proxies = Vec::new();
    for member in cluster.endpoints() {
        proxies.push(proxy(member, is_cut.clone()).await);
    }
    let mut controllers = Vec::new();
    for seed in 1..=3 {
        let endpoints = if seed == 3 { &proxies } else { &cluster.endpoints() };
        controllers.push(Controller::start(&configure(dir.path(), (seed, 4_700), endpoints)));
    }
    let hints: Vec<ControllerHint> = controllers.iter().map(|controller| controller.hint.clone()).collect();
    let signing: Vec<ControllerKey> = controllers.iter().map(|controller| controller.signing).collect();
    let total = requests();
    // One tenth of the requests is more than there is.
    let each = (total * 9 / 10 / usize::from(RELAYS)) as u64;
    let mut relays = Vec::new();
    for at in 0..RELAYS {
        let offer = Offer {
            place: Place(format!("place {at}")),
            addresses: vec!["127.0.0.1:4600".parse().unwrap()],
            pids: each,
            rate: None,
        };
        let endpoint = node(100 + at).await;
        let relay = Arc::new(Silent { offer, heard: AtomicUsize::new(0) });
        relays.push((Registration::start(&endpoint, &hints, u64::from(at), &relay), relay));
    }
    // Each by every controller.
    while relays.iter().any(|(_, relay)| relay.heard.load(Ordering::Relaxed) < 3) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let record = Arc::new(Record::default());
    let mut clients = JoinSet::new();
    let begun = Instant::now();
    for client in 0..CLIENTS {
        // They do not all begin with the same controller.
        let mut own = hints.clone();
        own.rotate_left(usize::from(client) % 3);
        clients.spawn(ask_all(1 + client, own, total / usize::from(CLIENTS), record.clone()));
    }
    let settings = EtcdSettings { endpoints: cluster.endpoints(), prefix: "anabranch/".into() };
    let store = Etcd::new(&settings).unwrap();

    reach(&record, total / 4).await;
    let leader = loop {
        let record = store.get(&["leader".into()]).await.unwrap().remove(0);
        match serde_json::from_slice::<Leader>(&record.value) {
            Ok(leader) => break leader,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let at = hints.iter().position(|hint| hint.node.to_string() == leader.node).unwrap();
    controllers[at].kill();
    eprintln!("controller {at}, the leader, killed after {:?}", begun.elapsed());

    reach(&record, total / 2).await;
    let member = cluster.kill_leader().await;
    eprintln!("member {member} of etcd, its leader, killed after {:?}", begun.elapsed());
    let config = controllers[at].config.clone();
    controllers[at] = Controller::start(&config);

    reach(&record, total * 3 / 4).await;
    cut.send_replace(true);
    eprintln!("controller 2 cut off from etcd after {:?}", begun.elapsed());

    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let longest = *record.longest.lock().unwrap();
    eprintln!("{total} requests in {:?}, the longest took {longest:?}", begun.elapsed());
    assert!(longest < LONGEST, "an allocation took {longest:?}");

    // Exactly as many as there is room for, each signed, no two for one request, and no more in the store than that.
    let granted = record.granted.lock().unwrap().clone();
    let mut taken: BTreeMap<_, u64> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for bytes in granted.values() {
        let grant = open(bytes, &signing).expect("signed by a controller");
        assert!(ids.insert(grant.id), "two requests with one grant");
        for relay in grant.relays {
            *taken.entry(relay).or_default() += 1;
        }
    }
    assert!(taken.values().all(|taken| *taken <= each), "more than the capacity: {taken:?}");
    assert_eq!(taken.values().sum::<u64>(), each * u64::from(RELAYS), "not all that there is");
    assert_eq!(granted.len() + record.full.load(Ordering::Relaxed), total);
}
