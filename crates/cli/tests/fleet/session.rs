//! A session over a granted relay that keeps running while controllers die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_daemon::relay::RelayService;
use anabranch_daemon::relay::config::{Controller as Named, RelaySettings};
use anabranch_net::{Config, Endpoint, PathId, PathState, PathUse, Session, Target};
use anabranch_node::{GrantWanted, Grants, RelayPaths};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::{CARRIER, Controller, ip, key, node};

/// Interval between messages.
const EVERY: Duration = Duration::from_millis(10);

/// The session of this module and its two ends.
pub struct Carried {
    relay: RelayService,
    here: Session,
    path: PathId,
    stop: Arc<AtomicBool>,
    sending: JoinHandle<usize>,
    receiving: JoinHandle<(usize, Duration)>,
    // Held to keep the path open.
    _held: (Arc<Endpoint>, Arc<Endpoint>, RelayPaths),
}

/// The result of the session.
#[derive(Debug)]
pub struct Carry {
    /// Messages sent and received.
    pub messages: [usize; 2],
    /// Of these, at least this many passed the relay.
    pub forwarded: u64,
    /// The longest gap between two messages.
    pub gap: Duration,
    /// Whether the relay's path is still the original one.
    pub same_path: bool,
}

impl Carried {
    /// Starts two nodes and the only relay, whose whole capacity is granted to them.
    pub async fn start(controllers: &[Controller]) -> Self {
        let named = controllers.iter();
        let named = named.map(|known| Named { at: known.hint.clone(), signs: known.signing });
        let settings = RelaySettings {
            most_flows: 4,
            controllers: named.collect(),
            ..RelaySettings::local(ip(CARRIER), Vec::new())
        };
        let relay = RelayService::start(key(CARRIER), &settings).await.expect("a relay");
        until(|| relay.status().controllers.iter().all(|known| known.registered)).await;
        let (client, server) = (node(CARRIER + 1).await, node(CARRIER + 2).await);
        let hints: Vec<_> = controllers.iter().map(|known| known.hint.clone()).collect();
        let wanted = GrantWanted { relays: (1, 1), paths: 4 };
        let grants = Grants::obtain(&client, &hints, wanted, None).await.expect("a grant");

        let at = server.local_addresses()[0];
        let target = Target { relayed: 4, ..Target::new(server.node(), vec![at]) };
        let accept = async { Ok(server.accept().await.expect("it takes sessions")) };
        let (here, there) =
            tokio::try_join!(client.connect(&target, Config::default()), accept).expect("a session");
        let paths = RelayPaths::keep_granted(&client, &here, &grants, &[at]);
        until(|| through(&here).is_some()).await;
        here.set_path_use(PathId::FIRST, PathUse::Backup).unwrap();
        let path = through(&here).expect("it is there");
        let stop = Arc::<AtomicBool>::default();
        let sending = tokio::spawn(send(here.clone(), stop.clone()));
        let receiving = tokio::spawn(receive(there));
        Self { relay, here, path, stop, sending, receiving, _held: (client, server, paths) }
    }

    /// Ends the session and returns its result.
    pub async fn end(self) -> Carry {
        let same_path = through(&self.here) == Some(self.path);
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sending.await.unwrap();
        let (came, gap) = self.receiving.await.unwrap();
        let forwarded = self.relay.status().forwarded_packets;
        self.relay.close().await;
        Carry { messages: [sent, came], forwarded, gap, same_path }
    }
}

fn through(session: &Session) -> Option<PathId> {
    let mut paths = session.paths().into_iter();
    let found = paths.find(|path| path.state == PathState::Active && !session.relays(&path.route).is_empty());
    found.map(|path| path.id)
}

async fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the session's relay is not there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn send(session: Session, stop: Arc<AtomicBool>) -> usize {
    let mut stream = session.open_stream().await.unwrap();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&[7; 200]).await.unwrap();
        stream.flush().await.unwrap();
        sent += 1;
        tokio::time::sleep(EVERY).await;
    }
    stream.shutdown().await.unwrap();
    sent
}

/// Receives messages; returns their number and the longest gap.
async fn receive(session: Session) -> (usize, Duration) {
    let mut stream = session.accept_stream().await.unwrap();
    let (mut came, mut gap, mut last) = (0, Duration::ZERO, None);
    while stream.read_exact(&mut [0; 200]).await.is_ok() {
        let now = Instant::now();
        gap = gap.max(last.map_or(Duration::ZERO, |last| now - last));
        last = Some(now);
        came += 1;
    }
    (came, gap)
}
