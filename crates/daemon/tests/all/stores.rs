//! One suite for every backend of the store.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anabranch_daemon::store::{AnyStore, Etcd, EtcdSettings, OpenError, Redb};
use anabranch_net::{Rate, Time};
use anabranch_overlay::controller::{
    Ask, Clocks, Commit, Controller, Directory, Load, Location, MemoryStore, Offer, Policy, Quota, RequestId,
    Revision, Store, StoreError, Transaction, allocate, register, renew,
};
use anabranch_overlay::grant::{Limits, UnixTime};

fn key(name: &str) -> [String; 1] {
    [name.to_owned()]
}

fn replace(name: &str, read: Revision, value: Option<&[u8]>) -> Transaction {
    let mut transaction = Transaction::default();
    transaction.replace(name, read, value.map(<[u8]>::to_vec));
    transaction
}

async fn revision(store: &AnyStore, name: &str) -> Revision {
    store.get(&key(name)).await.unwrap().remove(0).revision
}

/// Decisions of one controller before, while and after its clock is a day ahead.
async fn goes_back_with_the_clock(store: AnyStore) {
    let key = |seed| anabranch_net::NodeKey::from_random([seed; 32]).public();
    let (relay, client) = (key(100), key(1));
    let limits = Limits { pids: 4, rate: Rate::from_bits(1_000_000), bytes: 1 << 30, highest_tos: 15 };
    let mut policy = Policy::default();
    policy.clients.insert(
        client,
        Quota {
            grants: 4,
            relays: 1,
            limits: Limits { pids: 8, rate: Rate::from_bits(8_000_000), ..limits },
            lifetime: 3_600,
        },
    );
    policy.relays.insert(relay);
    let directory = Mutex::new(Directory::default());
    directory.lock().unwrap().hear(Time::ZERO, (relay, 7), Load::default()).unwrap();
    let offer = Offer {
        place: Location::default(),
        addresses: vec!["192.0.2.7:1".parse().unwrap()],
        pids: 20,
        rate: None,
    };
    let controller = Controller { store: &store, policy: &policy, directory: &directory };
    let asked = async |wall: u64, number| {
        let offer = Offer { pids: 20 + u64::from(number), ..offer.clone() };
        register(&controller, UnixTime(wall), relay, &offer).await?;
        let request = RequestId { made: UnixTime(wall), random: [number; 8] };
        let ask = Ask { request, relays: 1, least: 1, limits, lifetime: 600 };
        allocate(&controller, Clocks { local: Time::ZERO, wall: UnixTime(wall) }, client, &ask).await
    };
    let (right, ahead) = (1_800_000_000, 1_800_000_000 + 86_400);
    asked(right, 1).await.unwrap();
    let early = asked(ahead, 2).await.unwrap().grant().clone();
    let back = asked(right, 3).await.unwrap().grant().clone();
    assert_eq!(back.issued, UnixTime(right));
    // A grant from the time of the fast clock is valid again after a renewal.
    let renewed = renew(&controller, UnixTime(right), client, early.id, 600).await.unwrap();
    assert_eq!((renewed.grant().not_before, renewed.grant().not_after.0), (UnixTime(right), right + 600));
}

#[tokio::test]
async fn a_controller_with_a_store_of_its_own_goes_back_with_its_clock() {
    goes_back_with_the_clock(AnyStore::Memory(MemoryStore::default())).await;
    let dir = tempfile::tempdir().unwrap();
    goes_back_with_the_clock(AnyStore::Redb(Redb::open(&dir.path().join("store")).await.unwrap())).await;
}

async fn conforms(store: AnyStore) {
    a_key_that_is_not_there_is_empty(&store).await;
    a_transaction_is_done_only_if_nothing_it_rests_on_has_changed(&store).await;
    revisions_never_come_back(&store).await;
    all_writes_are_done_or_none(&store).await;
    ranges_are_in_order_and_come_in_pages(&store).await;
    of_many_at_the_same_time_one_wins(store).await;
}

async fn a_key_that_is_not_there_is_empty(store: &AnyStore) {
    let read = store.get(&["a".into(), "b".into()]).await.unwrap();
    assert!(read.iter().all(|entry| entry.revision == Revision::ABSENT && entry.value.is_empty()));
    assert_eq!(store.get(&[]).await.unwrap(), []);
}

async fn a_transaction_is_done_only_if_nothing_it_rests_on_has_changed(store: &AnyStore) {
    assert_eq!(store.commit(&replace("t", Revision::ABSENT, Some(b"1"))).await, Ok(Commit::Committed));
    assert_eq!(store.commit(&replace("t", Revision::ABSENT, Some(b"2"))).await, Ok(Commit::Conflict));
    let first = revision(store, "t").await;
    assert_eq!(store.commit(&replace("t", Revision(first.0 + 1), Some(b"2"))).await, Ok(Commit::Conflict));
    assert_eq!(store.commit(&replace("t", first, Some(b"\0\xff"))).await, Ok(Commit::Committed));
    assert_eq!(store.commit(&replace("t", first, None)).await, Ok(Commit::Conflict));
    assert_eq!(store.get(&key("t")).await.unwrap()[0].value, b"\0\xff");
    // A revision that is only compared counts too.
    let mut other = replace("other", Revision::ABSENT, Some(b"x"));
    other.expect("t", first);
    assert_eq!(store.commit(&other).await, Ok(Commit::Conflict));
    assert_eq!(revision(store, "other").await, Revision::ABSENT);
}

async fn revisions_never_come_back(store: &AnyStore) {
    let mut seen = Vec::new();
    for _ in 0..3 {
        assert_eq!(store.commit(&replace("r", Revision::ABSENT, Some(b"same"))).await, Ok(Commit::Committed));
        let now = revision(store, "r").await;
        assert!(now > Revision::ABSENT && !seen.contains(&now), "{now:?} after {seen:?}");
        seen.push(now);
        assert_eq!(store.commit(&replace("r", now, None)).await, Ok(Commit::Committed));
        assert_eq!(revision(store, "r").await, Revision::ABSENT);
    }
}

async fn all_writes_are_done_or_none(store: &AnyStore) {
    let mut both = replace("x", Revision::ABSENT, Some(b"1"));
    both.replace("y", Revision::ABSENT, Some(b"1".to_vec()));
    assert_eq!(store.commit(&both).await, Ok(Commit::Committed));
    let (x, y) = (revision(store, "x").await, revision(store, "y").await);
    let mut again = replace("x", x, Some(b"2"));
    again.replace("y", Revision(y.0 + 1), Some(b"2".to_vec()));
    assert_eq!(store.commit(&again).await, Ok(Commit::Conflict));
    assert_eq!((revision(store, "x").await, revision(store, "y").await), (x, y));
}

async fn ranges_are_in_order_and_come_in_pages(store: &AnyStore) {
    let names: Vec<String> = (0..300).map(|at| format!("page/{at:03}")).collect();
    for names in names.chunks(50) {
        let mut transaction = Transaction::default();
        names.iter().for_each(|name| transaction.replace(name, Revision::ABSENT, Some(vec![1])));
        assert_eq!(store.commit(&transaction).await, Ok(Commit::Committed));
    }
    for outside in ["page", "page.", "page0"] {
        store.commit(&replace(outside, Revision::ABSENT, Some(b"x"))).await.unwrap();
    }
    let first = store.range("page/", "").await.unwrap();
    assert_eq!(first.len(), 256);
    let rest = store.range("page/", &first[255].0).await.unwrap();
    let all: Vec<String> = first.iter().chain(&rest).map(|(name, _)| name.clone()).collect();
    assert_eq!(all, names);
    assert_eq!(store.range("page/", "page/299").await.unwrap(), []);
    assert_eq!(store.range("nothing/", "").await.unwrap(), []);
    assert!(first.iter().all(|(_, entry)| entry.value == [1] && entry.revision > Revision::ABSENT));
}

async fn of_many_at_the_same_time_one_wins(store: AnyStore) {
    const WORKERS: u64 = 8;
    const TIMES: u64 = 10;
    let store = Arc::new(store);
    let count = |store: Arc<AnyStore>| async move {
        for _ in 0..TIMES {
            loop {
                let read = store.get(&key("counter")).await.unwrap().remove(0);
                let value = read.value.try_into().map_or(0, u64::from_be_bytes) + 1;
                let next = replace("counter", read.revision, Some(&value.to_be_bytes()));
                if store.commit(&next).await.unwrap() == Commit::Committed {
                    break;
                }
            }
        }
    };
    let workers: Vec<_> = (0..WORKERS).map(|_| tokio::spawn(count(store.clone()))).collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let end = store.get(&key("counter")).await.unwrap().remove(0);
    assert_eq!(end.value, (WORKERS * TIMES).to_be_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_in_memory_conforms() {
    conforms(AnyStore::Memory(MemoryStore::default())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_in_a_file_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conforms(AnyStore::Redb(Redb::open(&dir.path().join("store")).await.unwrap())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_in_etcd_conforms() {
    let Some(cluster) = crate::etcd::Cluster::start(1).await else { return };
    let settings = EtcdSettings { endpoints: cluster.endpoints(), prefix: "test/".into() };
    conforms(AnyStore::Etcd(Etcd::new(&settings).unwrap())).await;
    let other = EtcdSettings { prefix: "other/".into(), ..settings };
    assert_eq!(Etcd::new(&other).unwrap().range("", "").await.unwrap(), [], "prefixes are apart");
}

#[tokio::test]
async fn an_etcd_that_is_not_there_is_reported_by_its_address() {
    let settings = EtcdSettings { endpoints: vec!["http://127.0.0.1:9".into()], prefix: String::new() };
    let why = Etcd::new(&settings).unwrap().get(&key("x")).await.unwrap_err();
    assert!(matches!(why, StoreError::Unavailable(_)) && why.to_string().contains("127.0.0.1:9"), "{why}");
}

#[tokio::test]
async fn a_file_keeps_what_was_committed_and_belongs_to_one_controller() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store");
    let store = Redb::open(&file).await.unwrap();
    store.commit(&replace("k", Revision::ABSENT, Some(b"v"))).await.unwrap();
    let why = Redb::open(&file).await.unwrap_err();
    assert!(matches!(why, OpenError::InUse(_)) && why.to_string().contains("another controller"), "{why}");
    drop(store);
    let store = AnyStore::Redb(Redb::open(&file).await.unwrap());
    assert_eq!(store.get(&key("k")).await.unwrap()[0].value, b"v");
    let before = revision(&store, "k").await;
    store.commit(&replace("k2", Revision::ABSENT, Some(b"v"))).await.unwrap();
    assert!(revision(&store, "k2").await > before);
}

/// A file with some entries, and its bytes.
async fn filled(dir: &tempfile::TempDir) -> (PathBuf, Vec<u8>) {
    let file = dir.path().join("store");
    let store = Redb::open(&file).await.unwrap();
    for at in 0..50 {
        store.commit(&replace(&format!("k{at}"), Revision::ABSENT, Some(&[7; 500]))).await.unwrap();
    }
    drop(store);
    let bytes = std::fs::read(&file).unwrap();
    (file, bytes)
}

#[tokio::test]
async fn a_damaged_file_is_left_as_it_is_and_the_error_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let (file, good) = filled(&dir).await;
    let mut noise = good.clone();
    noise.iter_mut().skip(4_096).for_each(|byte| *byte ^= 0x5a);
    for (what, bytes) in [
        ("other", b"this is no store at all, but somebody's notes".to_vec()),
        ("empty", Vec::new()),
        ("noise", noise),
        ("cut", good[..good.len() / 2].to_vec()),
    ] {
        std::fs::write(&file, &bytes).unwrap();
        let why = Redb::open(&file).await.expect_err(what);
        let text = why.to_string();
        assert!(matches!(why, OpenError::Damaged { .. }), "{what}: {text}");
        assert!(text.contains("move it away") && text.contains("restore a copy"), "{what}: {text}");
        assert_eq!(std::fs::read(&file).unwrap(), bytes, "{what}: the file was changed");
    }
    std::fs::write(&file, &good).unwrap();
    let store = Redb::open(&file).await.unwrap();
    assert_eq!(store.get(&key("k49")).await.unwrap()[0].value, [7; 500]);
}

#[tokio::test]
async fn a_directory_that_is_missing_is_named() {
    let why = Redb::open(&PathBuf::from("/nowhere/store")).await.unwrap_err();
    assert!(why.to_string().contains("/nowhere/store") && why.to_string().contains("directory"), "{why}");
}

/// A small file system, or `None` where mounting is not allowed.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(dir.path());
        mount.output().is_ok_and(|done| done.status.success()).then(|| Self(dir))
    }

    /// Takes all remaining room, until the returned file is removed.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.path().join("ballast");
        let mut file = std::fs::File::create(&ballast).unwrap();
        while file.write_all(&[1; 4_096]).is_ok() {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").args(["--lazy".as_ref(), self.0.path().as_os_str()]).status());
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_with_the_files_name_and_the_store_recovers_once_there_is_room() {
    let Some(disk) = SmallDisk::new("8m") else { return eprintln!("skipped: mounting needs root") };
    let file = disk.0.path().join("store");
    let store = Redb::open(&file).await.unwrap();
    store.commit(&replace("kept", Revision::ABSENT, Some(b"v"))).await.unwrap();
    let ballast = disk.fill();
    let large = |at: u32| replace(&format!("large{at}"), Revision::ABSENT, Some(&[7; 100_000]));
    let mut told = BTreeSet::new();
    let full = Instant::now();
    // Long enough for a failed attempt to open the file again.
    for at in 0.. {
        match store.commit(&large(at)).await {
            Ok(_) => assert!(at < 100, "the disk is not full"),
            Err(why) => drop(told.insert(why.to_string())),
        }
        if full.elapsed() > Duration::from_millis(2_500) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!told.is_empty());
    for why in &told {
        assert!(why.contains(file.to_str().unwrap()) && why.contains("free space on that disk"), "{why}");
    }
    std::fs::remove_file(ballast).unwrap();
    let room = Instant::now();
    while let Err(why) = store.commit(&replace("after", Revision::ABSENT, Some(b"v"))).await {
        assert!(room.elapsed() < Duration::from_secs(60), "{why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let values = store.get(&["kept".into(), "after".into()]).await.unwrap();
    assert!(values.iter().all(|entry| entry.value == b"v"), "{values:?}");
}
