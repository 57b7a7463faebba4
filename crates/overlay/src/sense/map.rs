//! A controller's view of all links: reports of nodes, and estimates of the rest.
//!
//! The map holds each node's coordinate and the links that it measures, so its size grows with the number of nodes,
//! not of pairs. It is in memory only; measurements are never stored.

use std::collections::BTreeMap;

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};

use super::coordinate::Coordinate;
use super::estimate::Figures;
use super::message::{Changes, LinkTold};
use super::sensor::MOST_LINKS;

/// Reports of a node that is silent for this long do not count any more.
const SILENT: Span = crate::controller::SILENT;

/// How long the largest capacity of links to a node counts as that of its access link.
const REACHED_FOR: Span = Span::from_secs(7_200);

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct LinkMap {
    index: BTreeMap<PublicKey, u32>,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    key: PublicKey,
    coordinate: Coordinate,
    version: u64,
    heard: Time,
    links: Vec<Stored>,
    /// Upper bound of the loss on the node's own access link, out and in: the lowest over its links, in 1/10,000.
    access_loss: [u16; 2],
    /// Lower bound of the capacity of its access link, out and in, in kbit/s: the highest over links from and to it.
    access_capacity: [u32; 2],
    /// When the latter was last updated.
    told_capacity: Time,
}

/// A link in compact form; units as in [`LinkTold`].
#[derive(Clone, Copy, Debug)]
struct Stored {
    to: u32,
    rtt: u32,
    loss: [u16; 2],
    queue: [u32; 2],
    available: u32,
    capacity: u32,
    up: bool,
}

/// A node as the map knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeView {
    pub key: PublicKey,
    pub coordinate: Coordinate,
    /// Number of links that it measures, and how many of them are down.
    pub links: [usize; 2],
}

impl LinkMap {
    /// Adds a node that may measure and be measured; reports of others are ignored.
    pub fn join(&mut self, node: PublicKey) {
        if !self.index.contains_key(&node) {
            self.index.insert(node, self.nodes.len() as u32);
            self.nodes.push(Node::new(node));
        }
    }

    /// Applies a node's changes; returns the known version, or 0 if the node must send everything.
    pub fn take(&mut self, now: Time, node: &PublicKey, changes: &Changes) -> u64 {
        let Some(&at) = self.index.get(node) else { return 0 };
        let known = &mut self.nodes[at as usize];
        if changes.since != 0 && changes.since != known.version {
            known.version = 0;
            return 0;
        }
        if changes.since == 0 {
            known.links.clear();
        }
        for told in changes.links.iter().take(MOST_LINKS) {
            let Some(&to) = self.index.get(&told.to) else { continue };
            if to != at {
                self.nodes[at as usize].put(Stored::new(to, told));
                self.nodes[to as usize].reached(now, told.capacity);
            }
        }
        let gone: Vec<u32> = changes.gone.iter().filter_map(|node| self.index.get(node).copied()).collect();
        let known = &mut self.nodes[at as usize];
        known.links.retain(|link| !gone.contains(&link.to));
        known.version = changes.version;
        known.coordinate = Coordinate::from(changes.coordinate);
        known.heard = now;
        let least = |way: usize| known.links.iter().filter(|link| link.up).map(|link| link.loss[way]).min();
        known.access_loss = [0, 1].map(|way| least(way).unwrap_or(0));
        known.access_capacity[0] = known.links.iter().map(|link| link.capacity).max().unwrap_or(0);
        known.version
    }

    /// Records that a node is alive; its last report remains valid.
    pub fn hear(&mut self, now: Time, node: &PublicKey) {
        if let Some(&at) = self.index.get(node) {
            self.nodes[at as usize].heard = now;
        }
    }

    /// The known version of a node's report.
    pub fn known(&self, node: &PublicKey) -> u64 {
        self.find(node).map_or(0, |at| self.nodes[at].version)
    }

    /// Number of nodes; [`Self::figures`] counts them from 0.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True without any node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The index of a node.
    pub fn find(&self, node: &PublicKey) -> Option<usize> {
        self.index.get(node).map(|at| *at as usize)
    }

    /// A node by its index.
    pub fn node(&self, at: usize) -> Option<NodeView> {
        let node = self.nodes.get(at)?;
        let down = node.links.iter().filter(|link| !link.up).count();
        Some(NodeView { key: node.key, coordinate: node.coordinate, links: [node.links.len(), down] })
    }

    /// Figures of the path from one node to another: measured by either end (down if either reports it), or
    /// estimated. `None` if one of them is not alive.
    pub fn figures(&self, now: Time, from: usize, to: usize) -> Option<Figures> {
        let (a, b) = (self.nodes.get(from)?, self.nodes.get(to)?);
        if !a.is_alive(now) || !b.is_alive(now) || from == to {
            return None;
        }
        let measured =
            [a.link(to as u32).map(|link| link.figures(0)), b.link(from as u32).map(|link| link.figures(1))];
        // A report that the link is down wins: the other end may not have noticed, or may have died before.
        let better = |own: Figures, other: Figures| if other.loss < 1.0 { own } else { other };
        if let Some(figures) = measured.into_iter().flatten().reduce(better) {
            return Some(figures);
        }
        let loss = [a.access_loss[0], b.access_loss[1]].map(|loss| 1.0 - f64::from(loss) / 1e4);
        Some(Figures {
            rtt: a.coordinate.rtt(&b.coordinate),
            loss: 1.0 - loss[0] * loss[1],
            capacity: kbits(a.access_capacity[0].min(b.access_capacity[1])),
            available: None,
            estimated: Some(a.coordinate.error_to(&b.coordinate)),
        })
    }

    /// Approximate size in bytes: a tree's nodes are two thirds full.
    pub fn memory(&self) -> usize {
        let links: usize = self.nodes.iter().map(|node| node.links.capacity()).sum();
        let tree = self.index.len() * size_of::<(PublicKey, u32)>() * 3 / 2;
        links * size_of::<Stored>() + self.nodes.capacity() * size_of::<Node>() + tree
    }
}

impl Node {
    fn new(key: PublicKey) -> Self {
        Self {
            key,
            coordinate: Coordinate::default(),
            version: 0,
            heard: Time::ZERO,
            links: Vec::new(),
            access_loss: [0; 2],
            access_capacity: [0; 2],
            told_capacity: Time::ZERO,
        }
    }

    /// Records the capacity of a link to this node.
    fn reached(&mut self, now: Time, kbits: u32) {
        if kbits >= self.access_capacity[1] || now.since(self.told_capacity) > REACHED_FOR {
            self.access_capacity[1] = kbits;
            self.told_capacity = now;
        }
    }

    fn is_alive(&self, now: Time) -> bool {
        self.version > 0 && now.since(self.heard) < SILENT
    }

    fn link(&self, to: u32) -> Option<&Stored> {
        self.links.iter().find(|link| link.to == to)
    }

    fn put(&mut self, new: Stored) {
        if let Some(link) = self.links.iter_mut().find(|link| link.to == new.to) {
            *link = new;
        } else if self.links.len() < MOST_LINKS {
            self.links.push(new);
        }
    }
}

impl Stored {
    fn new(to: u32, told: &LinkTold) -> Self {
        let loss = told.loss.map(|loss| loss.min(10_000));
        Self {
            to,
            rtt: told.rtt[0],
            loss,
            queue: told.queue,
            available: told.available,
            capacity: told.capacity,
            up: told.up,
        }
    }

    /// From the measurer's side (0), or from the other end (1).
    fn figures(&self, from: usize) -> Figures {
        let loss = if self.up { f64::from(self.loss[from]) / 1e4 } else { 1.0 };
        // Trains measure one direction only.
        let [capacity, available] =
            [self.capacity, self.available].map(|rate| kbits(rate).filter(|_| from == 0));
        // The smoothed round-trip time already includes queueing, a little later.
        let queued = Span::from_micros(u64::from(self.queue[0]) + u64::from(self.queue[1]));
        let rtt = Span::from_micros(u64::from(self.rtt)).max(queued);
        Figures::measured(rtt, loss).with_rates(capacity, available)
    }
}

/// A rate in kbit/s; 0 means unknown.
fn kbits(rate: u32) -> Option<Rate> {
    (rate > 0).then(|| Rate::from_bits(u64::from(rate) * 1_000))
}
