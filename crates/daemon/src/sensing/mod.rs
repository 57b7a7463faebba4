//! Measures relays, and answers nodes that measure this one.
//!
//! The sensor (`anabranch_overlay::sense`) decides what to measure and when. Probes and answers are datagrams of a
//! session from the measurer to its neighbour; each packet train has a session of its own. One controller chooses a
//! relay's neighbours: the first to name some, and another only when that one is silent. Requested links may come from
//! any controller ([`Sensing::measure`]). A node that is not a relay measures the relays that it chooses
//! ([`Sensing::want`]).

mod trains;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anabranch_engine::MtuConfig;
use anabranch_net::{Config, Datagram, Endpoint, PublicKey, Rate, Session, Target, Time};
use anabranch_overlay::controller::message::{GrantedRelay, Neighbours};
use anabranch_overlay::sense::{Changes, LinkTold, SenseMessage, Sensor, SensorConfig, SensorStats};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// A controller that is silent for this long no longer chooses the neighbours.
const GUIDE_SILENT: Duration = Duration::from_secs(10);
/// Pause before reconnecting to a neighbour; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// The pump's pause without a deadline.
const FAR: Duration = Duration::from_secs(60);
/// Longest message, in bytes.
const LONGEST: u16 = 64;

/// Measures relays, and answers nodes that measure this one.
pub struct Sensing {
    endpoint: Arc<Endpoint>,
    sensor: Mutex<Sensor>,
    wake: Notify,
    /// Counts changes that controllers should learn at once.
    urgent: watch::Sender<u64>,
    peers: Mutex<Peers>,
    gate: Gate,
}

/// Charges bytes if they may be sent now; otherwise returns when to try again.
type Gate = Box<dyn Fn(u64) -> Result<(), Time> + Send + Sync>;

#[derive(Default)]
struct Peers {
    /// The controller that chooses the neighbours.
    guide: Option<PublicKey>,
    /// Each controller's last message, and its time.
    told: BTreeMap<PublicKey, (Instant, Neighbours)>,
    measured: BTreeMap<PublicKey, Neighbour>,
    measured_by: BTreeSet<PublicKey>,
    /// Number of sessions by which each node probes.
    answered: BTreeMap<PublicKey, u32>,
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
    /// Without neighbours yet. [`pump`] must run. The seed spreads the probes in time.
    pub fn new(endpoint: &Arc<Endpoint>, config: SensorConfig, seed: [u8; 32]) -> Self {
        let sensor = Sensor::new(config, seed, endpoint.clock().now());
        Self {
            endpoint: endpoint.clone(),
            sensor: Mutex::new(sensor),
            wake: Notify::new(),
            urgent: watch::Sender::new(0),
            peers: Mutex::default(),
            gate: Box::new(|_| Ok(())),
        }
    }

    /// Makes packet trains wait for `gate`, for a node with a rate limit.
    #[must_use]
    pub fn behind(self, gate: impl Fn(u64) -> Result<(), Time> + Send + Sync + 'static) -> Self {
        Self { gate: Box::new(gate), ..self }
    }

    /// Sets this node's rate limit, which bounds what a train can measure.
    pub fn limit(&self, rate: Option<Rate>) {
        self.sensor().limit(rate);
    }

    fn sensor(&self) -> MutexGuard<'_, Sensor> {
        self.sensor.lock().expect("no panic while held")
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().expect("no panic while held")
    }

    /// True once an internal error may have left the state half changed.
    pub fn is_torn(&self) -> bool {
        self.sensor.is_poisoned() || self.peers.is_poisoned()
    }

    /// Changes since the version that a controller has.
    pub(crate) fn changes(&self, known: u64) -> Option<Changes> {
        self.sensor().poll_changes(self.endpoint.clock().now(), known)
    }

    /// Changes when controllers should learn of a link at once.
    pub(crate) fn urgent(&self) -> watch::Receiver<u64> {
        self.urgent.subscribe()
    }

    /// Every link, and counters of the probes.
    pub fn status(&self) -> (Vec<LinkTold>, SensorStats) {
        let sensor = self.sensor();
        (sensor.links(self.endpoint.clock().now()), sensor.stats())
    }

    /// Applies a controller's choice of neighbours, and its list of nodes that may measure this relay.
    pub(crate) fn measure(self: &Arc<Self>, controller: &PublicKey, neighbours: &Neighbours) {
        let mut peers = self.peers();
        let now = Instant::now();
        peers.told.insert(*controller, (now, neighbours.clone()));
        peers.told.retain(|_, (at, _)| now - *at < GUIDE_SILENT);
        if peers.guide.is_none_or(|guide| !peers.told.contains_key(&guide)) {
            peers.guide = Some(*controller);
        }
        self.follow(&mut peers);
    }

    /// Forgets what controllers other than these chose.
    pub(crate) fn forget_others(self: &Arc<Self>, controllers: &BTreeSet<PublicKey>) {
        let mut peers = self.peers();
        peers.told.retain(|controller, _| controllers.contains(controller));
        let other = peers.told.keys().next().copied();
        peers.guide = peers.guide.filter(|guide| controllers.contains(guide)).or(other);
        self.follow(&mut peers);
    }

    /// Measures what the controllers chose last.
    fn follow(self: &Arc<Self>, peers: &mut Peers) {
        let all = || peers.told.values().map(|(_, told)| told);
        let measured_by = all().flat_map(|told| &told.measured_by).copied().collect();
        let wanted: Vec<GrantedRelay> = all().flat_map(|told| &told.wanted).cloned().collect();
        let guide = peers.guide.and_then(|guide| peers.told.get(&guide));
        let measure = guide.map(|(_, told)| told.measure.clone()).unwrap_or_default();
        peers.measured_by = measured_by;
        self.keep_to(peers, &measure, &wanted);
    }

    /// Measures exactly these relays from now on.
    pub fn want(self: &Arc<Self>, relays: &[GrantedRelay]) {
        self.keep_to(&mut self.peers(), &[], relays);
    }

    fn keep_to(self: &Arc<Self>, peers: &mut Peers, neighbours: &[GrantedRelay], wanted: &[GrantedRelay]) {
        let relays = || wanted.iter().chain(neighbours).filter(|relay| relay.node != self.endpoint.node());
        peers.measured.retain(|_, known| relays().any(|relay| *relay == known.relay));
        for relay in relays() {
            if let Entry::Vacant(free) = peers.measured.entry(relay.node) {
                let session = Arc::default();
                let task = tokio::spawn(keep(self.clone(), relay.clone(), Arc::clone(&session)));
                free.insert(Neighbour { relay: relay.clone(), session, task });
            }
        }
        let keys = |relays: &[GrantedRelay]| -> BTreeSet<PublicKey> {
            let nodes = relays.iter().map(|relay| relay.node);
            nodes.filter(|node| peers.measured.contains_key(node)).collect()
        };
        let (neighbours, wanted) = (keys(neighbours), keys(wanted));
        self.sensor().measure(self.endpoint.clock().now(), &neighbours, &wanted);
        self.wake.notify_one();
    }

    /// Sends a packet train if one is due.
    fn send_train(self: &Arc<Self>, now: Time) {
        let Some(train) = self.sensor().poll_train(now) else { return };
        let relay = self.peers().measured.get(&train.to).map(|known| known.relay.clone());
        if let Some(relay) = relay {
            tokio::spawn(trains::run(self.clone(), relay, train));
        }
    }

    /// Whether this node may measure this relay.
    pub(crate) fn is_measurer(&self, node: &PublicKey) -> bool {
        self.peers().measured_by.contains(node)
    }

    /// Answers the probes of a session until it ends.
    pub(crate) async fn answer(&self, session: &Session) {
        let node = session.peer();
        if self.is_measurer(&node) {
            self.sensor().on_called(self.endpoint.clock().now(), &node);
        }
        *self.peers().answered.entry(node).or_default() += 1;
        while let Ok((at, datagram)) = session.recv_datagram_at().await {
            if self.is_measurer(&node) {
                self.handle(session, (at, &datagram.data));
            }
        }
        // A train's session ends while the session for probes goes on.
        let mut peers = self.peers();
        let left = peers.answered.get_mut(&node).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            peers.answered.remove(&node);
            self.sensor().forget(&node);
        }
    }

    /// Handles a message that arrived at `at`.
    fn handle(&self, session: &Session, (at, bytes): (Time, &[u8])) {
        let Ok(message) = SenseMessage::decode(bytes) else { return };
        let answer = self.sensor().handle_message(at, &session.peer(), &message);
        if let Some(answer) = answer {
            send(session, &answer);
        }
        if matches!(message, SenseMessage::Answer(_) | SenseMessage::Seen(_)) {
            self.wake.notify_one();
        }
    }
}

/// Sends a message; false if it cannot be sent, which counts as loss.
fn send(session: &Session, message: &SenseMessage) -> bool {
    session.send_datagram(Datagram::from(bytes::Bytes::from(message.encode()))).is_ok()
}

/// Keeps a session with a neighbour open and handles its answers.
async fn keep(sensing: Arc<Sensing>, relay: GrantedRelay, place: Arc<Mutex<Option<Session>>>) {
    let hold = |session| *place.lock().expect("no panic while held") = session;
    let mut pause = FIRST_PAUSE;
    let clock = sensing.endpoint.clock();
    loop {
        let call = || sensing.sensor().call(clock.now());
        while let Err(at) = call() {
            tokio::time::sleep_until(clock.instant(at).into()).await;
        }
        let target = Target::new(relay.node, relay.addresses.clone());
        match sensing.endpoint.connect(&target, session_config()).await {
            Ok(session) => {
                hold(Some(session.clone()));
                while let Ok((at, datagram)) = session.recv_datagram_at().await {
                    sensing.handle(&session, (at, &datagram.data));
                    pause = FIRST_PAUSE;
                }
                hold(None);
            }
            Err(_) => sensing.sensor().on_call_failed(clock.now()),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One path and no search for larger packets, so that little is sent besides probes.
fn session_config() -> Config {
    let mut config = Config::default();
    config.datagrams.largest = LONGEST;
    let mtu = config.mtu.base;
    Config { max_paths: 1, mtu: MtuConfig { base: mtu, max: mtu }, ..config }
}

/// Sends probes and trains when they are due, and signals links that went down.
pub async fn pump(sensing: Arc<Sensing>) {
    let clock = sensing.endpoint.clock();
    loop {
        let now = clock.now();
        sensing.send_train(now);
        let (probe, next) = {
            let mut sensor = sensing.sensor();
            if sensor.handle_timeout(now) {
                sensing.urgent.send_modify(|count| *count += 1);
            }
            let probe = sensor.poll_transmit(now);
            let next = [sensor.poll_timeout(), sensor.train_timeout(now)].into_iter().flatten().min();
            (probe, next)
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

#[cfg(test)]
mod tests {
    use anabranch_net::{Addresses, EndpointConfig, NodeKey};

    use super::*;

    #[tokio::test]
    async fn nothing_is_measured_for_a_controller_that_was_removed() {
        let config = EndpointConfig::new(NodeKey::from_random([1; 32]))
            .addresses(Addresses::Exactly(vec![[127, 0, 0, 1].into()]));
        let endpoint = Arc::new(Endpoint::bind(config).await.expect("it binds"));
        let sensing = Arc::new(Sensing::new(&endpoint, SensorConfig::default(), [2; 32]));
        let [first, second, node, measurer] = [3, 4, 5, 6].map(|byte| PublicKey::from_bytes([byte; 32]));
        let relay = GrantedRelay { node, addresses: vec![([127, 0, 0, 1], 9).into()] };
        let chosen = Neighbours { measure: vec![relay], measured_by: vec![measurer], wanted: Vec::new() };
        sensing.measure(&first, &chosen);
        sensing.measure(&second, &Neighbours::default());
        sensing.forget_others(&[first, second].into());
        assert!(sensing.is_measurer(&measurer));
        assert!(sensing.peers().measured.contains_key(&node));
        sensing.forget_others(&[second].into());
        assert!(!sensing.is_measurer(&measurer));
        assert!(sensing.peers().measured.is_empty());
    }
}
