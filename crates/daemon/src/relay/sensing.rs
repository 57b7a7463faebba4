//! A relay measures its neighbours and answers those that measure it.
//!
//! The sensor decides when and what (`anabranch_overlay::sense`); probes and answers are unreliable messages of a session from the measurer to its
//! neighbour, which is kept as long as the neighbour is one. Which those are the controller says that this relay listens to: the first that does, and
//! another only when that one has been silent.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anabranch_engine::MtuConfig;
use anabranch_net::{Config, Datagram, Endpoint, PublicKey, Session, Target};
use anabranch_overlay::controller::message::{GrantedRelay, Neighbours};
use anabranch_overlay::sense::{Changes, LinkTold, SenseMessage, Sensor, SensorConfig, SensorStats};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// A controller that was silent for so long says no more whom to measure.
const GUIDE_SILENT: Duration = Duration::from_secs(10);
/// Pause before a neighbour is called again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// In the absence of anything to do.
const FAR: Duration = Duration::from_secs(60);
/// Longest message.
const LONGEST: u16 = 64;

/// See the module's documentation.
pub(super) struct Sensing {
    endpoint: Arc<Endpoint>,
    sensor: Mutex<Sensor>,
    wake: Notify,
    /// Counts what controllers should hear at once.
    urgent: watch::Sender<u64>,
    peers: Mutex<Peers>,
}

#[derive(Default)]
struct Peers {
    /// Who says whom to measure, and when it did last.
    guide: Option<(PublicKey, Instant)>,
    measured: BTreeMap<PublicKey, Neighbour>,
    measured_by: BTreeSet<PublicKey>,
}

/// A relay that is measured.
struct Neighbour {
    relay: GrantedRelay,
    session: Arc<Mutex<Option<Session>>>,
    task: JoinHandle<()>,
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sensing {
    pub(super) fn new(endpoint: &Arc<Endpoint>, seed: [u8; 32]) -> Self {
        let sensor = Sensor::new(SensorConfig::default(), seed, endpoint.clock().now());
        Self {
            endpoint: endpoint.clone(),
            sensor: Mutex::new(sensor),
            wake: Notify::new(),
            urgent: watch::Sender::new(0),
            peers: Mutex::default(),
        }
    }

    fn sensor(&self) -> MutexGuard<'_, Sensor> {
        self.sensor.lock().expect("no panic while held")
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().expect("no panic while held")
    }

    /// What a controller does not know yet.
    pub(super) fn changes(&self, known: u64) -> Option<Changes> {
        self.sensor().poll_changes(self.endpoint.clock().now(), known)
    }

    /// Changes when controllers should hear of a link at once.
    pub(super) fn urgent(&self) -> watch::Receiver<u64> {
        self.urgent.subscribe()
    }

    /// Every link, and what was sent to know it.
    pub(super) fn status(&self) -> (Vec<LinkTold>, SensorStats) {
        let sensor = self.sensor();
        (sensor.links(self.endpoint.clock().now()), sensor.stats())
    }

    /// A controller says whom to measure, and who measures this relay.
    pub(super) fn measure(self: &Arc<Self>, controller: &PublicKey, neighbours: &Neighbours) {
        let Neighbours { measure: to, measured_by: by } = neighbours;
        let mut peers = self.peers();
        let is_another =
            |(guide, at): (PublicKey, Instant)| guide != *controller && at.elapsed() < GUIDE_SILENT;
        if peers.guide.is_some_and(is_another) {
            return;
        }
        peers.guide = Some((*controller, Instant::now()));
        peers.measured_by = by.iter().copied().collect();
        let stays = |known: &Neighbour| to.contains(&known.relay);
        let before = peers.measured.len();
        peers.measured.retain(|_, known| stays(known));
        let mut is_new = before != peers.measured.len();
        for relay in to.iter().filter(|relay| relay.node != self.endpoint.node()) {
            if let Entry::Vacant(free) = peers.measured.entry(relay.node) {
                let session = Arc::default();
                let task = tokio::spawn(keep(self.clone(), relay.clone(), Arc::clone(&session)));
                free.insert(Neighbour { relay: relay.clone(), session, task });
                is_new = true;
            }
        }
        if is_new {
            let nodes: BTreeSet<PublicKey> = peers.measured.keys().copied().collect();
            self.sensor().measure(self.endpoint.clock().now(), &nodes);
            self.wake.notify_one();
        }
    }

    /// Whether this relay measures that one's links.
    pub(super) fn is_measurer(&self, node: &PublicKey) -> bool {
        self.peers().measured_by.contains(node)
    }

    /// Answers the probes that come over a session for as long as it lives.
    pub(super) async fn answer(&self, session: &Session) {
        let node = session.peer();
        while let Ok(datagram) = session.recv_datagram().await {
            if self.is_measurer(&node) {
                self.handle(session, &datagram.data);
            }
        }
        self.sensor().forget(&node);
    }

    fn handle(&self, session: &Session, bytes: &[u8]) {
        let Ok(message) = SenseMessage::decode(bytes) else { return };
        let now = self.endpoint.clock().now();
        let answer = self.sensor().handle_message(now, &session.peer(), &message);
        if let Some(answer) = answer {
            send(session, &answer);
        }
        self.wake.notify_one();
    }
}

fn send(session: &Session, message: &SenseMessage) {
    // What cannot be sent is lost, and counts as that.
    let _ = session.send_datagram(Datagram::from(bytes::Bytes::from(message.encode())));
}

/// Keeps a session with a neighbour and takes in its answers.
async fn keep(sensing: Arc<Sensing>, relay: GrantedRelay, place: Arc<Mutex<Option<Session>>>) {
    let hold = |session| *place.lock().expect("no panic while held") = session;
    let mut pause = FIRST_PAUSE;
    loop {
        let target = Target::new(relay.node, relay.addresses.clone());
        if let Ok(session) = sensing.endpoint.connect(&target, session_config()).await {
            hold(Some(session.clone()));
            while let Ok(datagram) = session.recv_datagram().await {
                sensing.handle(&session, &datagram.data);
                pause = FIRST_PAUSE;
            }
            hold(None);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One path, no search for larger packets: little beside the probes.
fn session_config() -> Config {
    let mtu = Config::default().mtu.base;
    Config {
        max_paths: 1,
        max_datagram: LONGEST,
        mtu: MtuConfig { base: mtu, max: mtu },
        ..Config::default()
    }
}

/// Sends probes when the sensor wants to, and tells of links that went down.
pub(super) async fn pump(sensing: Arc<Sensing>) {
    let clock = sensing.endpoint.clock();
    loop {
        let now = clock.now();
        let (probe, next) = {
            let mut sensor = sensing.sensor();
            if sensor.handle_timeout(now) {
                sensing.urgent.send_modify(|count| *count += 1);
            }
            (sensor.poll_transmit(now), sensor.poll_timeout())
        };
        if let Some((node, probe)) = probe {
            let session = sensing.peers().measured.get(&node).map(|known| known.session.clone());
            let session = session.and_then(|held| held.lock().expect("no panic while held").clone());
            if let Some(session) = session {
                send(&session, &probe);
            }
        }
        let far = Instant::now() + FAR;
        let until = next.map_or(far, |at| clock.instant(at).min(far));
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => {}
            () = sensing.wake.notified() => {}
        }
    }
}
