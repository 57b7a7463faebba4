//! A node's side of sensing: what it measures, when, and what it tells.
//!
//! Without I/O: the caller sends what [`Sensor::poll_transmit`] gives, hands over what comes, calls again at
//! [`Sensor::poll_timeout`], and puts [`Sensor::poll_changes`] into what it says to its controllers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::bucket::Bucket;
use super::coordinate::Coordinate;
use super::link::{Link, Live, State};
use super::message::{Answer, Changes, LinkTold, Probe, SenseMessage, micros};

/// An IPv6 packet with a datagram frame, without the message: headers of IP, UDP and packet, tag, head of the frame.
const PACKET: u64 = 40 + 8 + 16 + 16 + 8;
/// A packet that acknowledges another.
const ACK: u64 = 40 + 8 + 16 + 16 + 12;
/// What measuring a link once costs its measurer: the probe, and the acknowledgement of the answer.
pub(super) const PROBE_COST: u64 = PACKET + 5 + ACK;
/// What it costs the other end: the acknowledgement of the probe, and the answer.
pub(super) const ANSWER_COST: u64 = PACKET + 31 + ACK;
/// Changes go out with what is said anyway; a link's share of the text is at most so long.
const CHANGE_COST: u64 = 200;
/// A link that has changed noticeably is told at most so often; one that went down or came up at once.
const TOLD_EVERY: Span = Span::from_secs(5);
/// Most links of a node.
pub(super) const MOST_LINKS: usize = 64;
/// Most nodes whose probes are answered.
const MOST_SERVED: usize = 1_024;
/// Links that are measured no more, to be told.
const MOST_GONE: usize = 32;

/// How much a node does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SensorConfig {
    /// All that it sends for sensing, headers included.
    pub budget: Rate,
    /// Between two probes of a link that nobody uses.
    pub interval: Span,
}

impl Default for SensorConfig {
    /// 20 kbit/s, of which 8 neighbours every 2 s take 12.5.
    fn default() -> Self {
        Self { budget: Rate::from_bits(20_000), interval: Span::from_secs(2) }
    }
}

/// What a sensor did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SensorStats {
    /// Probes sent.
    pub probes: u64,
    /// Answers sent.
    pub answers: u64,
    /// Probes left without answer since the budget was spent.
    pub unanswered: u64,
    /// Links told to a controller.
    pub told: u64,
    /// Bytes charged to the budget.
    pub bytes: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Sensor {
    config: SensorConfig,
    links: BTreeMap<PublicKey, Measured>,
    /// How many probes came from whom.
    served: BTreeMap<PublicKey, u32>,
    probes: Bucket,
    answers: Bucket,
    changes: Bucket,
    coordinate: Coordinate,
    told_coordinate: (u64, Coordinate),
    /// Counts changes.
    version: u64,
    gone: VecDeque<(u64, PublicKey)>,
    /// Who knows less than this version must be told everything.
    complete_from: u64,
    generator: ChaCha8Rng,
    stats: SensorStats,
}

#[derive(Clone, Debug)]
struct Measured {
    link: Link,
    /// As it was told last, in which version and when.
    told: Option<(u64, Time, LinkTold)>,
}

impl Sensor {
    /// A sensor that measures nothing yet.
    #[must_use]
    pub fn new(config: SensorConfig, seed: [u8; 32], now: Time) -> Self {
        let bucket =
            |share: f64, depth: u64| Bucket::new(config.budget.mul_f64(share), Span::from_secs(depth), now);
        Self {
            config,
            links: BTreeMap::new(),
            served: BTreeMap::new(),
            probes: bucket(0.4, 4),
            answers: bucket(0.45, 4),
            changes: bucket(0.15, 8),
            coordinate: Coordinate::default(),
            told_coordinate: (0, Coordinate::default()),
            version: 0,
            gone: VecDeque::new(),
            complete_from: 0,
            generator: ChaCha8Rng::from_seed(seed),
            stats: SensorStats::default(),
        }
    }

    /// The links to measure from now on: neighbours, and for a while those that somebody wants to know. At most 64 are taken.
    pub fn measure(&mut self, now: Time, nodes: &BTreeSet<PublicKey>) {
        let nodes: BTreeSet<PublicKey> = nodes.iter().take(MOST_LINKS).copied().collect();
        let gone: Vec<PublicKey> = self.links.keys().filter(|node| !nodes.contains(node)).copied().collect();
        for node in gone {
            let told = self.links.remove(&node).and_then(|measured| measured.told);
            if told.is_some() {
                self.version += 1;
                self.gone.push_back((self.version, node));
            }
            if self.gone.len() > MOST_GONE {
                self.complete_from = self.gone.pop_front().map_or(self.complete_from, |(version, _)| version);
            }
        }
        for node in nodes {
            if !self.links.contains_key(&node) {
                self.gone.retain(|(_, gone)| *gone != node);
                let first = now + self.config.interval.mul_f64(self.unit());
                self.links.insert(node, Measured { link: Link::new(first), told: None });
            }
        }
    }

    /// The nodes that are measured.
    pub fn measured(&self) -> impl Iterator<Item = &PublicKey> {
        self.links.keys()
    }

    /// A session over the link saw something: probes are put off.
    pub fn handle_live(&mut self, now: Time, node: &PublicKey, live: Live) {
        let next = now + self.config.interval;
        if let Some(Measured { link, .. }) = self.links.get_mut(node) {
            link.on_live(now, live);
            if !live.rtt.is_zero() {
                link.next_probe = link.next_probe.max(next);
            }
        }
    }

    /// A message from another node; gives the answer to it, when there is one and the budget allows it.
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
        }
    }

    fn answer(&mut self, now: Time, from: &PublicKey, probe: Probe) -> Option<Answer> {
        if self.served.len() >= MOST_SERVED && !self.served.contains_key(from) {
            return None;
        }
        let received = self.served.entry(*from).or_default();
        *received = received.wrapping_add(1);
        if !self.answers.take(now, ANSWER_COST) {
            self.stats.unanswered += 1;
            return None;
        }
        self.stats.answers += 1;
        self.stats.bytes += ANSWER_COST;
        let (number, received) = (probe.number, *received);
        Some(Answer { number, received, at: micros(now), coordinate: self.coordinate })
    }

    /// A node that measured this one is gone.
    pub fn forget(&mut self, node: &PublicKey) {
        self.served.remove(node);
    }

    /// A probe to send now, and to whom.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(PublicKey, SenseMessage)> {
        let due = self.links.iter().map(|(node, known)| (known.link.next_probe, *node));
        let (at, node) = due.min()?;
        if at > now || !self.probes.take(now, PROBE_COST) {
            return None;
        }
        self.stats.probes += 1;
        self.stats.bytes += PROBE_COST;
        // A tenth more or less, so that nodes do not fall into step.
        let next = now + self.config.interval.mul_f64(0.9 + 0.2 * self.unit());
        let link = &mut self.links.get_mut(&node)?.link;
        link.next_probe = next;
        Some((node, SenseMessage::Probe(Probe { number: link.on_probe(now) })))
    }

    /// Probes whose answer is overdue: others follow at once, until the link counts as down. True when one has gone down by that.
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
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let deadlines = self.links.values().filter_map(|known| known.link.deadline());
        let probe = self.links.values().map(|known| known.link.next_probe).min();
        let probe = probe.map(|at| at.max(self.probes.ready_at(PROBE_COST)));
        deadlines.chain(probe).min()
    }

    /// What a controller that knows this node up to version `known` should be told now, as far as the budget goes. 0 is who knows
    /// nothing.
    pub fn poll_changes(&mut self, now: Time, known: u64) -> Option<Changes> {
        self.note_changes(now);
        let since = if known < self.complete_from { 0 } else { known };
        let mut links: Vec<(u64, &LinkTold)> = self
            .links
            .values()
            .filter_map(|known| known.told.as_ref().map(|(version, _, told)| (*version, told)))
            .filter(|(version, _)| *version > since)
            .collect();
        links.sort_by_key(|(version, _)| *version);
        let (mut told, mut version) = (Vec::new(), self.version);
        for (at, link) in links {
            if !self.changes.take(now, CHANGE_COST) {
                version = at - 1;
                break;
            }
            told.push(link.clone());
        }
        let is_gone = |at: u64| since != 0 && at > since && at <= version;
        let gone: Vec<PublicKey> =
            self.gone.iter().filter(|(at, _)| is_gone(*at)).map(|(_, node)| *node).collect();
        if version <= since && (known != 0 || told.is_empty()) {
            return None;
        }
        self.stats.told += told.len() as u64;
        self.stats.bytes += told.len() as u64 * CHANGE_COST;
        Some(Changes { since, version, coordinate: self.coordinate.into(), links: told, gone })
    }

    /// Gives a new version to each link that differs noticeably from what was told.
    fn note_changes(&mut self, now: Time) {
        for (node, Measured { link, told }) in &mut self.links {
            let Some(new) = link.told(now, *node) else { continue };
            let differs = told.as_ref().is_none_or(|(_, at, old)| {
                old.up != new.up || now.since(*at) >= TOLD_EVERY && is_noticeable(old, &new)
            });
            if differs {
                self.version += 1;
                *told = Some((self.version, now, new));
            }
        }
        if self.coordinate.differs(&self.told_coordinate.1) {
            self.version += 1;
            self.told_coordinate = (self.version, self.coordinate);
        }
    }

    /// Where this node is.
    #[must_use]
    pub fn coordinate(&self) -> Coordinate {
        self.coordinate
    }

    /// What it did.
    #[must_use]
    pub fn stats(&self) -> SensorStats {
        self.stats
    }

    /// Every link as it stands.
    #[must_use]
    pub fn links(&self, now: Time) -> Vec<LinkTold> {
        self.links.iter().filter_map(|(node, known)| known.link.told(now, *node)).collect()
    }

    fn unit(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

/// Round-trip time by a tenth and 2 ms, loss by one in a hundred, queues by 5 ms, what is carried by a quarter.
fn is_noticeable(old: &LinkTold, new: &LinkTold) -> bool {
    let moved = |old: u32, new: u32, least: u32, part: u32| old.abs_diff(new) > least.max(old / part);
    let loss = (0..2).any(|way| old.loss[way].abs_diff(new.loss[way]) >= 100);
    let queue = (0..2).any(|way| moved(old.queue[way], new.queue[way], 5_000, 2));
    moved(old.rtt[0], new.rtt[0], 2_000, 10) || loss || queue || moved(old.carried, new.carried, 100, 4)
}
