//! Three controllers on three members of etcd: some are killed in mid-work, and every resource is free once all grants expire.

mod common;
#[path = "../../daemon/tests/etcd/mod.rs"]
mod etcd;
mod fleet;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_daemon::store::{Etcd, EtcdSettings};
use anabranch_node::ControllerHint;
use anabranch_overlay::controller::{ClientRecord, Leader, RelayRecord, Store};
use anabranch_overlay::grant::{ControllerKey, UnixTime};
use common::clock::WallClock;
use common::programs::Scratch;
use fleet::clients::{Client, Record};
use fleet::session::Carried;
use fleet::{Controller, Pauses, RELAYS, configure, now};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Longest time for an allocation, whichever process dies, without pauses of the machine.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest gap between two messages of the concurrent session, which sends one every 10 ms. Its packets pass no
/// controller, so only a busy machine delays them.
const GAP: Duration = Duration::from_millis(500);
const CLIENTS: u8 = 10;
/// How far the controllers' clocks jump, in seconds: every grant has expired by then, and every request is forgotten.
const LATER: u64 = 10_000;

/// Total requests; set `ANABRANCH_ALLOCATIONS=1000` for the full test.
fn requests() -> usize {
    std::env::var("ANABRANCH_ALLOCATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(240)
}

/// Clients' hints and keys of the controllers, and the record of their grants.
struct Clients<'a> {
    hints: &'a [ControllerHint],
    signing: &'a [ControllerKey],
    record: &'a Arc<Record>,
    made: fn() -> UnixTime,
}

impl Clients<'_> {
    /// Starts clients, which together request `total` grants of `pids` PIDs and begin with different controllers.
    async fn ask(&self, base: u8, total: usize, pids: u32) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        for at in 0..CLIENTS {
            let mut own = self.hints.to_vec();
            own.rotate_left(usize::from(at) % self.hints.len());
            let client = Client::new(base + at, own, self.signing, self.record).await;
            let (count, made) = (total / usize::from(CLIENTS), self.made);
            clients.spawn(async move { client.ask_many(count, pids, made).await });
        }
        clients
    }
}

async fn finish(mut clients: JoinSet<()>) {
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

/// Returns which of the controllers leads.
async fn leader(store: &Etcd, hints: &[ControllerHint]) -> usize {
    loop {
        let record = store.get(&["leader".into()]).await.unwrap().remove(0);
        if let Ok(leader) = serde_json::from_slice::<Leader>(&record.value) {
            return hints.iter().position(|hint| hint.node().to_string() == leader.node).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the grants in the store, and what is reserved for them at the relays.
async fn stored(store: &Etcd, at: UnixTime) -> (usize, u64, usize) {
    let clients = store.range("client/", "").await.unwrap();
    let relays = store.range("relay/", "").await.unwrap();
    let read = |value: &[u8]| serde_json::from_slice::<ClientRecord>(value).unwrap().len();
    let held = clients.iter().map(|(_, entry)| read(&entry.value)).map(|(grants, marks)| grants + marks);
    let relays: Vec<RelayRecord> =
        relays.iter().map(|(_, entry)| serde_json::from_slice(&entry.value).unwrap()).collect();
    let reserved = relays.iter().map(|relay| relay.reserved(at).pids).sum();
    let steps = relays.iter().map(|relay| relay.len()).map(|(steps, taken_back)| steps + taken_back).sum();
    (held.sum(), reserved, steps)
}

#[tokio::test(flavor = "multi_thread")]
async fn allocations_go_on_when_the_leaders_are_killed_and_a_controller_is_cut_off() {
    let Some(mut cluster) = etcd::Cluster::start(3).await else { return };
    let dir = tempfile::tempdir().unwrap();
    let (scratch, pauses) = (Scratch::new(), Pauses::watch());
    let clock = WallClock::new(&scratch).inspect_err(|why| common::skip("the end of all grants", why)).ok();
    let (cut, is_cut) = watch::channel(false);
    let mut proxies = Vec::new();
    for member in cluster.endpoints() {
        proxies.push(fleet::proxy(member, is_cut.clone()).await);
    }
    let mut controllers = Vec::new();
    for seed in 1..=3 {
        let endpoints = if seed == 3 { &proxies } else { &cluster.endpoints() };
        let config = configure(dir.path(), (seed, 4_700), endpoints);
        controllers.push(Controller::start(&config, clock.as_ref()));
    }
    let hints: Vec<ControllerHint> = controllers.iter().map(|controller| controller.hint.clone()).collect();
    let signing: Vec<ControllerKey> = controllers.iter().map(|controller| controller.signing).collect();
    let session = Carried::start(&controllers).await;
    let total = requests();
    // The requests exceed the capacity by a tenth.
    let each = (total * 9 / 10 / usize::from(RELAYS)) as u64;
    let relays = fleet::relays(&hints, each).await;
    let settings = EtcdSettings { endpoints: cluster.endpoints(), prefix: "anabranch/".into() };
    let store = Etcd::new(&settings).unwrap();
    let (others, other_pids, _) = stored(&store, now()).await;

    let (record, begun) = (Arc::new(Record::default()), Instant::now());
    let all = Clients { hints: &hints, signing: &signing, record: &record, made: now };
    let clients = all.ask(1, total, 1).await;
    record.reach(total / 4).await;
    let at = leader(&store, &hints).await;
    controllers[at].kill();
    eprintln!("controller {at}, the leader, killed after {:?}", begun.elapsed());

    record.reach(total / 2).await;
    let member = cluster.kill_leader().await;
    eprintln!("member {member} of etcd, its leader, killed after {:?}", begun.elapsed());
    controllers[at].restart(clock.as_ref());

    record.reach(total * 3 / 4).await;
    cut.send_replace(true);
    eprintln!("controller 2 cut off from etcd after {:?}", begun.elapsed());
    finish(clients).await;
    let (longest, confirmed) = (record.longest(), record.confirmed());
    eprintln!(
        "{total} requests in {:?}, the longest took {longest:?}; {confirmed} confirmed",
        begun.elapsed()
    );
    assert!(longest < LONGEST + pauses.allowance(), "an allocation took {longest:?}");

    // The grants fill the capacity exactly, each request has one, and the store agrees.
    let taken = record.taken();
    assert!(taken.values().all(|taken| *taken <= each), "more than the capacity: {taken:?}");
    assert_eq!(taken.values().sum::<u64>(), each * u64::from(RELAYS), "not all that there is");
    let granted = record.granted().len();
    assert_eq!(granted + record.full(), total);
    assert!(confirmed * 2 > granted, "only {confirmed} of {granted} were asked of two controllers");
    let (held, reserved, _) = stored(&store, now()).await;
    assert_eq!((held - others, reserved - other_pids), (granted, granted as u64), "the store knows others");

    // None of this delayed the session.
    let carried = session.end().await;
    eprintln!("the session meanwhile: {carried:?}; {:?} allowed for pauses", pauses.allowance());
    assert!(carried.gap < GAP + pauses.allowance() && carried.same_path, "{carried:?}");
    assert_eq!(carried.messages[0], carried.messages[1], "{carried:?}");
    assert!(carried.forwarded >= carried.messages[0] as u64 / 2, "{carried:?}");

    let Some(clock) = clock else { return };
    clock.set_off(LATER as i64);
    controllers.iter_mut().for_each(|controller| controller.restart(Some(&clock)));
    fleet::forget(&relays);
    let begun = Instant::now();
    while stored(&store, now()).await != (0, 0, 0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?} are left", stored(&store, now()).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eprintln!("nothing left of them {:?} after their end", begun.elapsed());

    // After expiry everything is free again, and no more than that can be granted.
    let later = || UnixTime(now().0 + LATER);
    fleet::heard(&relays, &hints[..2]).await;
    let record = Arc::new(Record::default());
    let pids = each as u32 / 6;
    let left = Clients { hints: &hints[..2], record: &record, made: later, ..all };
    finish(left.ask(41, 30, pids).await).await;
    let taken = record.taken();
    assert!(
        taken.len() == usize::from(RELAYS) && taken.values().all(|taken| *taken == u64::from(6 * pids)),
        "{taken:?}"
    );
    assert_eq!(record.full(), 30 - 18);
}
