//! A node's side of sensing: measures links and reports them.
//!
//! It does no I/O. The caller sends what [`Sensor::poll_transmit`] returns, passes in messages, calls again at
//! [`Sensor::poll_timeout`], and adds [`Sensor::poll_changes`] to its heartbeats.

mod changes;
mod trains;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::sense::bucket::Bucket;
use crate::sense::coordinate::Coordinate;
use crate::sense::link::{Link, State};
use crate::sense::message::{Answer, LinkTold, PACKET, Probe, SenseMessage, micros};
use crate::sense::train::{Counting, Remembered};
pub use trains::{CALL_COST, CALLED_COST};
use trains::{Calls, Running, TRAINS_SAVED};

/// Size of an acknowledgement as a packet.
const ACK: u64 = 40 + 8 + 16 + 16 + 12;
/// Fewest packets of a train for each acknowledgement.
const CARS_ACKNOWLEDGED: u64 = 2;
/// Bytes of one probe for its measurer: the probe, and the acknowledgement of the answer.
pub(in crate::sense) const PROBE_COST: u64 = PACKET + 5 + ACK;
/// Bytes of one probe for the other end: the acknowledgement of the probe, and the answer.
pub(in crate::sense) const ANSWER_COST: u64 = PACKET + 31 + ACK;
pub(in crate::sense) const MOST_LINKS: usize = 64;
/// Answers to one node's probes, on average and at once. A measurer probes every two seconds, and three more times
/// after a missing answer, so nodes that probe more take nothing from others.
const ANSWERED: (Rate, Span) = (Rate::from_bits(ANSWER_COST * 8), Span::from_secs(5));
/// Most nodes whose probes are answered.
const MOST_SERVED: usize = 1_024;
/// Most removed links that wait to be reported.
const MOST_GONE: usize = 32;

/// A sensor's limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SensorConfig {
    /// Bytes sent for sensing, headers included.
    pub budget: Rate,
    /// Interval of probes on an idle link.
    pub interval: Span,
}

impl Default for SensorConfig {
    /// 20 kbit/s: 8 neighbours every 2 s take 13, trains and handshakes 4.
    fn default() -> Self {
        Self { budget: Rate::from_bits(20_000), interval: Span::from_secs(2) }
    }
}

/// A sensor's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SensorStats {
    /// Probes sent.
    pub probes: u64,
    /// Answers sent.
    pub answers: u64,
    /// Probes that were not answered because the budget was used up.
    pub unanswered: u64,
    /// Packet trains sent.
    pub trains: u64,
    /// Links reported to a controller.
    pub told: u64,
    /// Bytes charged to the budget.
    pub bytes: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Sensor {
    config: SensorConfig,
    links: BTreeMap<PublicKey, Measured>,
    /// Nodes whose probes are answered.
    served: BTreeMap<PublicKey, Served>,
    counting: Counting,
    /// The train in progress.
    train: Option<Running>,
    number: u32,
    probes: Bucket,
    answers: Bucket,
    changes: Bucket,
    /// Pays for trains, handshakes, and packets caused by others' trains.
    trains: Bucket,
    /// This node's rate limit.
    limit: Option<Rate>,
    /// Measurements of links that are not measured now.
    kept: Remembered,
    coordinate: Coordinate,
    told_coordinate: (u64, Coordinate),
    /// Version of the latest change.
    version: u64,
    gone: VecDeque<(u64, PublicKey)>,
    /// A controller with an older version must get everything.
    complete_from: u64,
    generator: ChaCha8Rng,
    stats: SensorStats,
}

/// A node that measures this one.
#[derive(Clone, Debug)]
struct Served {
    /// Probes received.
    received: u32,
    answers: Bucket,
    calls: Calls,
    /// It has no session. Its next one goes on with the same bucket.
    is_gone: bool,
}

#[derive(Clone, Debug)]
struct Measured {
    link: Link,
    /// A client requested this link: its train comes first.
    is_wanted: bool,
    /// Its last report, with version and time.
    told: Option<(u64, Time, LinkTold)>,
}

impl Sensor {
    /// A sensor that measures nothing yet.
    pub fn new(config: SensorConfig, seed: [u8; 32], now: Time) -> Self {
        let bucket =
            |share: f64, depth: u64| Bucket::new(config.budget.mul_f64(share), Span::from_secs(depth), now);
        Self {
            config,
            links: BTreeMap::new(),
            served: BTreeMap::new(),
            counting: Counting::default(),
            train: None,
            number: 0,
            probes: bucket(0.3, 5),
            answers: bucket(0.45, 5),
            changes: bucket(0.05, 24),
            // A train is longer than any other burst, so its bytes are saved up first.
            trains: bucket(0.2, TRAINS_SAVED).empty(),
            limit: None,
            kept: Remembered::default(),
            coordinate: Coordinate::default(),
            told_coordinate: (0, Coordinate::default()),
            version: 0,
            gone: VecDeque::new(),
            complete_from: 0,
            generator: ChaCha8Rng::from_seed(seed),
            stats: SensorStats::default(),
        }
    }

    /// Sets the links to measure: neighbours, and for a while requested ones. At most 64, requested ones first.
    pub fn measure(&mut self, now: Time, neighbours: &BTreeSet<PublicKey>, wanted: &BTreeSet<PublicKey>) {
        let others = neighbours.difference(wanted);
        let nodes: BTreeSet<PublicKey> = wanted.iter().chain(others).take(MOST_LINKS).copied().collect();
        let gone: Vec<PublicKey> = self.links.keys().filter(|node| !nodes.contains(node)).copied().collect();
        for node in gone {
            let Some(Measured { link, told, .. }) = self.links.remove(&node) else { continue };
            self.kept.put(node, link.capacity);
            if told.is_some() {
                self.version += 1;
                self.gone.push_back((self.version, node));
            }
            if self.gone.len() > MOST_GONE {
                self.complete_from = self.gone.pop_front().map_or(self.complete_from, |(version, _)| version);
            }
        }
        for node in nodes {
            let is_wanted = wanted.contains(&node);
            if let Some(known) = self.links.get_mut(&node) {
                known.is_wanted = is_wanted;
                continue;
            }
            self.gone.retain(|(_, gone)| *gone != node);
            // The client is waiting for the result.
            let capacity = self.kept.take(now, &node);
            let later = if is_wanted { Span::ZERO } else { self.config.interval.mul_f64(self.unit()) };
            self.links
                .insert(node, Measured { link: Link::new(now + later, capacity), is_wanted, told: None });
        }
    }

    /// Handles a message of another node; returns the answer, if there is one and the budget allows it.
    pub fn handle_message(
        &mut self,
        now: Time,
        from: &PublicKey,
        message: &SenseMessage,
    ) -> Option<SenseMessage> {
        match message {
            SenseMessage::Probe(probe) => self.answer(now, from, *probe).map(SenseMessage::Answer),
            SenseMessage::Answer(answer) => {
                let rtt = self.links.get_mut(from).and_then(|known| known.link.on_answer(now, answer))?;
                let aside = [(); 2].map(|()| 2.0 * self.unit() - 1.0);
                self.coordinate.learn(&answer.coordinate, rtt, aside);
                None
            }
            SenseMessage::Car(car) => {
                self.pay_for(now, from, ACK / CARS_ACKNOWLEDGED);
                self.counting.on_car(now, from, car);
                None
            }
            SenseMessage::End(number) => {
                self.may_answer(now, from).then(|| SenseMessage::Seen(self.counting.seen(from, *number)))
            }
            SenseMessage::Seen(seen) => {
                self.take_seen(now, from, seen);
                None
            }
        }
    }

    fn answer(&mut self, now: Time, from: &PublicKey, probe: Probe) -> Option<Answer> {
        let received = self.serve(now, from).map(|served| {
            served.received = served.received.wrapping_add(1);
            served.received
        })?;
        let number = probe.number;
        let answer = Answer { number, received, at: micros(now), coordinate: self.coordinate };
        self.may_answer(now, from).then_some(answer)
    }

    fn serve(&mut self, now: Time, from: &PublicKey) -> Option<&mut Served> {
        if self.served.len() >= MOST_SERVED && !self.served.contains_key(from) {
            let gone = self.served.iter().find(|(_, served)| served.is_gone).map(|(node, _)| *node);
            self.served.remove(&gone?);
        }
        let new = || Served {
            received: 0,
            answers: Bucket::new(ANSWERED.0, ANSWERED.1, now),
            calls: Calls::new(now),
            is_gone: false,
        };
        let served = self.served.entry(*from).or_insert_with(new);
        served.is_gone = false;
        Some(served)
    }

    /// Charges an answer to that node's share and to the budget; false if either is used up.
    fn may_answer(&mut self, now: Time, to: &PublicKey) -> bool {
        let is_its_turn = self.serve(now, to).is_some_and(|served| served.answers.take(now, ANSWER_COST));
        let may = is_its_turn && self.answers.take(now, ANSWER_COST);
        if may {
            self.stats.answers += 1;
            self.stats.bytes += ANSWER_COST;
        } else {
            self.stats.unanswered += 1;
        }
        may
    }

    /// A node that measured this one is gone. Its share is remembered until another needs the place.
    pub fn forget(&mut self, node: &PublicKey) {
        if let Some(served) = self.served.get_mut(node) {
            (served.received, served.is_gone) = (0, true);
        }
        self.counting.forget(node);
    }

    /// The next probe to send, and its destination.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(PublicKey, SenseMessage)> {
        let due = self.links.iter().map(|(node, known)| (known.link.next_probe, *node));
        let (at, node) = due.min()?;
        if at > now || !self.probes.take(now, PROBE_COST) {
            return None;
        }
        self.stats.probes += 1;
        self.stats.bytes += PROBE_COST;
        // Vary the interval by a tenth, so that nodes do not fall into step.
        let next = now + self.config.interval.mul_f64(0.9 + 0.2 * self.unit());
        let link = &mut self.links.get_mut(&node)?.link;
        link.next_probe = next;
        Some((node, SenseMessage::Probe(Probe { number: link.on_probe(now) })))
    }

    /// Handles overdue answers: more probes follow at once, until the link counts as down. True if one went down.
    pub fn handle_timeout(&mut self, now: Time) -> bool {
        let mut down = false;
        for Measured { link, .. } in self.links.values_mut() {
            if link.deadline().is_some_and(|at| at <= now) {
                down |= link.on_silence();
                if link.state != State::Down {
                    link.next_probe = now;
                }
            }
        }
        down
    }

    /// When to call [`Self::handle_timeout`] and [`Self::poll_transmit`] again.
    pub fn poll_timeout(&self) -> Option<Time> {
        let deadlines = self.links.values().filter_map(|known| known.link.deadline());
        let probe = self.links.values().map(|known| known.link.next_probe).min();
        let probe = probe.map(|at| at.max(self.probes.ready_at(PROBE_COST)));
        deadlines.chain(probe).min()
    }

    /// This node's coordinate.
    pub fn coordinate(&self) -> Coordinate {
        self.coordinate
    }

    /// Its counters.
    pub fn stats(&self) -> SensorStats {
        self.stats
    }

    /// The current state of every link.
    pub fn links(&self, now: Time) -> Vec<LinkTold> {
        self.links.iter().filter_map(|(node, known)| known.link.told(now, *node)).collect()
    }

    fn unit(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}
