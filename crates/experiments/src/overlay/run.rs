//! Sensors, a controller and the packets between them, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use anabranch_overlay::controller::Load;
use anabranch_overlay::controller::message::Request;
use anabranch_overlay::sense::{
    CALL_COST, CALLED_COST, CAR, Changes, LinkMap, Mesh, SenseMessage, Sensor, SensorConfig, Train,
};
use anabranch_secure::PublicKey;
use anabranch_wire::{Span, Time};

use super::measure::{Failure, Traffic};
use super::{ENOUGH, MEASURED, OverlayConfig, Shaper, WARM_UP, World};
use crate::scenario::Metrics;
use anabranch_sim::chance::{Chance, seed_of};

/// The kind of these seeds, which separates them from other seeds.
const KIND: u64 = 0x6f76_6572;
/// How often a relay sends a heartbeat.
const HEARTBEAT: Span = Span::from_secs(2);
/// Round-trip time between a relay and the controller.
const TO_CONTROLLER: Span = Span::from_millis(60);
/// Headers of IPv6, UDP and packet, the tag, and the head of a frame.
const HEADERS: u64 = 40 + 8 + 16 + 16 + 8;
/// Bytes of a packet with only an acknowledgement.
const ACK: u64 = 40 + 8 + 16 + 16 + 12;

/// See the module's documentation.
pub(super) struct Runner {
    pub world: World,
    pub config: OverlayConfig,
    pub now: Time,
    pub map: LinkMap,
    pub mesh: Mesh,
    pub chance: Chance,
    pub traffic: Traffic,
    pub failures: Vec<Failure>,
    relays: Vec<Relay>,
    events: BinaryHeap<Reverse<Event>>,
    count: u64,
    failed: BTreeSet<(usize, usize)>,
}

struct Relay {
    sensor: Sensor,
    /// When it is called next; other calls in the queue are outdated.
    wake: Time,
    /// The version that the controller has, and whether an update is under way.
    known: u64,
    is_telling: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: Time,
    /// In order of creation.
    count: u64,
    what: What,
}

/// A relay reports to the controller (`Tell`), the report arrives (`Told`), and then the answer (`Heard`).
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Wake(usize),
    Arrive { from: usize, to: usize, bytes: Vec<u8> },
    End { from: usize, to: usize, number: u32 },
    Tell { relay: usize, by_itself: bool },
    Told { relay: usize, body: Vec<u8> },
    Heard { relay: usize, known: u64 },
}

fn key(index: usize) -> PublicKey {
    let mut bytes = [0; 32];
    for (part, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&seed_of(index as u64, KIND, part as u64).to_be_bytes());
    }
    PublicKey::from_bytes(bytes)
}

impl Runner {
    /// An overlay whose relays have measured nothing yet.
    pub fn new(world: World, config: OverlayConfig, seed: u64) -> Self {
        let (mut mesh, mut map) = (Mesh::new(config.neighbours, seed), LinkMap::default());
        for index in 0..world.len() {
            mesh.join(key(index));
            map.join(key(index));
        }
        let sensor = |index: usize| {
            let mut draw = [0; 32];
            draw[..8].copy_from_slice(&seed_of(seed, KIND, index as u64).to_be_bytes());
            let mut sensor = Sensor::new(SensorConfig::default(), draw, Time::ZERO);
            sensor.measure(Time::ZERO, &mesh.measures(&key(index)).into_iter().collect(), &BTreeSet::new());
            Relay { sensor, wake: Time::NEVER, known: 0, is_telling: false }
        };
        let relays = (0..world.len()).map(sensor).collect();
        let traffic = Traffic::new(world.len());
        let (now, chance) = (Time::ZERO, Chance::new(seed_of(seed, KIND, u64::MAX)));
        let (events, failed) = (BinaryHeap::new(), BTreeSet::new());
        let failures = Vec::new();
        Self { world, config, now, map, mesh, chance, traffic, failures, relays, events, count: 0, failed }
    }

    /// Runs to the end and returns the metrics.
    pub fn go(&mut self) -> Metrics {
        for relay in 0..self.relays.len() {
            let first = self.now + HEARTBEAT.mul_f64(self.chance.unit());
            self.schedule(first, What::Tell { relay, by_itself: true });
            self.arm(relay);
        }
        self.until(Time::ZERO + WARM_UP);
        self.traffic.begin(self.now);
        self.until(self.now + MEASURED);
        let mut metrics = self.traffic.metrics(self.now);
        self.judge_estimates(&mut metrics);
        for _ in 0..self.config.failures {
            self.fail_some_link();
            self.until(self.now + Span::from_secs(1));
        }
        self.until(self.now + ENOUGH);
        self.judge_failures(&mut metrics);
        self.weigh(&mut metrics);
        metrics
    }

    /// The controller's map at the end.
    pub fn into_map(self) -> (LinkMap, Time) {
        (self.map, self.now)
    }

    /// Cuts the link between two relays, in both directions.
    pub fn fail(&mut self, from: usize, to: usize) {
        self.failed.extend([(from, to), (to, from)]);
    }

    fn schedule(&mut self, at: Time, what: What) {
        self.count += 1;
        self.events.push(Reverse(Event { at, count: self.count, what }));
    }

    fn until(&mut self, end: Time) {
        while self.events.peek().is_some_and(|event| event.0.at <= end) {
            let Some(Reverse(event)) = self.events.pop() else { break };
            self.now = event.at;
            self.handle(event.what);
        }
        self.now = end;
    }

    fn handle(&mut self, what: What) {
        match what {
            What::Wake(relay) if self.relays[relay].wake == self.now => self.wake(relay),
            What::Wake(_) => {}
            What::Arrive { from, to, bytes } => self.arrive(from, to, &bytes),
            What::End { from, to, number } => self.send(from, to, &SenseMessage::End(number)),
            What::Tell { relay, by_itself } => self.tell(relay, by_itself),
            What::Told { relay, body } => self.take(relay, &body),
            What::Heard { relay, known } => {
                self.relays[relay].known = known;
                self.relays[relay].is_telling = false;
            }
        }
    }

    /// Schedules the next call of a relay.
    fn arm(&mut self, relay: usize) {
        let sensor = &self.relays[relay].sensor;
        let next = [sensor.poll_timeout(), sensor.train_timeout(self.now)].into_iter().flatten().min();
        let wanted = next.map(|at| at.max(self.now));
        if let Some(at) = wanted.filter(|at| *at != self.relays[relay].wake || *at == self.now) {
            self.relays[relay].wake = at;
            self.schedule(at, What::Wake(relay));
        }
    }

    fn wake(&mut self, relay: usize) {
        let now = self.now;
        self.relays[relay].wake = Time::NEVER;
        if self.relays[relay].sensor.handle_timeout(now) {
            let links = self.relays[relay].sensor.links(now);
            let down = links.iter().filter(|link| !link.up).filter_map(|link| self.map.find(&link.to));
            let down: Vec<usize> = down.collect();
            self.note_down(relay, &down);
            self.tell(relay, false);
        }
        while let Some((node, message)) = self.relays[relay].sensor.poll_transmit(now) {
            if let Some(to) = self.map.find(&node) {
                self.send(relay, to, &message);
            }
        }
        if let Some(train) = self.relays[relay].sensor.poll_train(now) {
            self.send_train(relay, &train);
        }
        self.arm(relay);
    }

    /// The packets of a train leave the bottleneck one after the other; its end is reported when all should have arrived.
    fn send_train(&mut self, from: usize, train: &Train) {
        let Some(to) = self.map.find(&train.to) else { return };
        let between = self.world.between(from, to);
        let [rate, others] = between.rate;
        let mut shaper = Shaper::new(self.now, rate, between.bucket, others);
        let mut last = self.now;
        // The session that carries it.
        self.traffic.sent(self.now, from, CALL_COST, false);
        self.traffic.sent(self.now, to, CALLED_COST, false);
        self.relays[to].sensor.on_called(self.now, &key(from));
        for index in 0..train.packets {
            let left = self.now + train.offset(index);
            self.traffic.sent(self.now, from, CAR, false);
            last = shaper.pass(left) + between.rtt / 2;
            if !self.failed.contains(&(from, to)) && self.chance.unit() >= between.loss {
                let bytes = SenseMessage::Car(train.car(index, left)).encode();
                self.schedule(last, What::Arrive { from, to, bytes });
            }
        }
        self.schedule(last, What::End { from, to, number: train.number });
    }

    /// Counts a message and the packet that acknowledges it.
    fn send(&mut self, from: usize, to: usize, message: &SenseMessage) {
        let bytes = message.encode();
        self.traffic.sent(self.now, from, HEADERS + bytes.len() as u64, false);
        let between = self.world.between(from, to);
        if self.failed.contains(&(from, to)) || self.chance.unit() < between.loss {
            return;
        }
        let delay = between.rtt / 2 + Span::from_micros((500.0 * self.chance.exponential()) as u64);
        self.schedule(self.now + delay, What::Arrive { from, to, bytes });
    }

    fn arrive(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let Ok(message) = SenseMessage::decode(bytes) else { return };
        // Every second packet of a train is acknowledged.
        if !matches!(message, SenseMessage::Car(car) if car.index % 2 == 0) {
            self.traffic.sent(self.now, to, ACK, false);
        }
        let answer = self.relays[to].sensor.handle_message(self.now, &key(from), &message);
        if let Some(answer) = answer {
            self.send(to, from, &answer);
        }
        self.arm(to);
    }

    /// Reports to the controller: every two seconds, and at once after a link failed.
    fn tell(&mut self, relay: usize, by_itself: bool) {
        if by_itself {
            self.schedule(self.now + HEARTBEAT, What::Tell { relay, by_itself });
        }
        if self.relays[relay].is_telling {
            return;
        }
        let Relay { sensor, known, .. } = &mut self.relays[relay];
        let links = sensor.poll_changes(self.now, *known);
        let body = |links: Option<Changes>| {
            let (load, mut body) = (Load::default(), Vec::new());
            Request::Heartbeat { load, confirmed: Vec::new(), links }.encode(&mut body);
            body
        };
        let plain = body(None).len() as u64;
        let has_links = links.is_some();
        let body = body(links);
        // A regular heartbeat is sent anyway, so only its links are extra bytes.
        let more = if by_itself { body.len() as u64 - plain } else { body.len() as u64 + HEADERS + ACK };
        if has_links || !by_itself {
            self.traffic.sent(self.now, relay, more, true);
        }
        self.relays[relay].is_telling = true;
        self.schedule(self.now + TO_CONTROLLER / 2, What::Told { relay, body });
    }

    fn take(&mut self, relay: usize, body: &[u8]) {
        let links = match Request::decode(body) {
            Ok(Some((Request::Heartbeat { links, .. }, _))) => links,
            _ => None,
        };
        self.map.hear(self.now, &key(relay));
        let known = match links {
            Some(changes) => self.map.take(self.now, &key(relay), &changes),
            None => self.relays[relay].known,
        };
        self.note_known();
        self.schedule(self.now + TO_CONTROLLER / 2, What::Heard { relay, known });
    }

    /// The indices of the relays that one measures.
    pub fn neighbours(&self, relay: usize) -> Vec<usize> {
        self.mesh.measures(&key(relay)).iter().filter_map(|node| self.map.find(node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_were_not_noticed_have_no_time() {
        let config = OverlayConfig { relays: 2, neighbours: 2, failures: 0 };
        let mut runner = Runner::new(World::new(2, 1), config, 1);
        runner.fail_some_link();
        let mut metrics = Metrics::new();
        runner.judge_failures(&mut metrics);
        assert_eq!((metrics["failures"], metrics["failures_known"]), (1.0, 0.0));
        runner.judge_estimates(&mut metrics);
        let quantiles = metrics.keys().filter(|name| name.contains(".p") || name.ends_with(".max"));
        assert_eq!(quantiles.count(), 0, "nothing was measured: {metrics:?}");
    }
}
