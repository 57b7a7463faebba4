//! Chooses which nodes measure each other: `k` neighbours for each node and as many measurers, for any number of
//! nodes.
//!
//! The links form a random regular graph. A new node is put into the middle of `k` links (u → v becomes u → new → v).
//! When a node leaves, its measurers measure its neighbours instead. So a change affects `k` others, and any two nodes
//! are only a few links apart.

use std::collections::BTreeMap;

use anabranch_secure::PublicKey;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Attempts to find a link to split, for each one needed.
const TRIES: usize = 32;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Mesh {
    k: usize,
    nodes: BTreeMap<PublicKey, u32>,
    /// Nodes by slot; slots of nodes that left are reused.
    slots: Vec<Slot>,
    free: Vec<u32>,
    generator: ChaCha8Rng,
}

#[derive(Clone, Debug)]
struct Slot {
    key: PublicKey,
    measures: Vec<u32>,
    measured_by: Vec<u32>,
}

impl Mesh {
    /// An empty mesh with `k` neighbours for each node.
    pub fn new(k: usize, seed: u64) -> Self {
        let generator = ChaCha8Rng::seed_from_u64(seed);
        Self { k, nodes: BTreeMap::new(), slots: Vec::new(), free: Vec::new(), generator }
    }

    /// Adds a node. False if it was there.
    pub fn join(&mut self, key: PublicKey) -> bool {
        if self.nodes.contains_key(&key) {
            return false;
        }
        let slot = Slot { key, measures: Vec::new(), measured_by: Vec::new() };
        let new = match self.free.pop() {
            Some(free) => {
                self.slots[free as usize] = slot;
                free
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        self.nodes.insert(key, new);
        self.fill_up(new);
        self.split_links(new);
        true
    }

    /// In a small overlay nodes have fewer than `k` links; they take the new node as a neighbour.
    fn fill_up(&mut self, new: u32) {
        for other in self.nodes.values().copied().collect::<Vec<_>>() {
            if other == new {
                continue;
            }
            let (k, slot) = (self.k, &self.slots[other as usize]);
            let (wants, wanted) = (slot.measures.len() < k, slot.measured_by.len() < k);
            if wants && self.slots[new as usize].measured_by.len() < k {
                self.connect(other, new);
            }
            if wanted && self.slots[new as usize].measures.len() < k {
                self.connect(new, other);
            }
        }
    }

    fn split_links(&mut self, new: u32) {
        let others: Vec<u32> = self.nodes.values().copied().filter(|other| *other != new).collect();
        if others.is_empty() {
            return;
        }
        for _ in 0..self.k * TRIES {
            let slot = &self.slots[new as usize];
            if slot.measures.len() >= self.k || slot.measured_by.len() >= self.k {
                return;
            }
            let from = others[self.below(others.len())];
            let targets = self.slots[from as usize].measures.len();
            if targets == 0 {
                continue;
            }
            let at = self.below(targets);
            let to = self.slots[from as usize].measures[at];
            let slot = &self.slots[new as usize];
            if to == new || slot.measured_by.contains(&from) || slot.measures.contains(&to) {
                continue;
            }
            self.disconnect(from, to);
            self.connect(from, new);
            self.connect(new, to);
        }
    }

    /// Removes a node. False if it was not there.
    pub fn leave(&mut self, key: &PublicKey) -> bool {
        let Some(old) = self.nodes.remove(key) else { return false };
        let measured_by = self.slots[old as usize].measured_by.clone();
        let mut measures = self.slots[old as usize].measures.clone();
        measured_by.iter().for_each(|from| self.disconnect(*from, old));
        measures.iter().for_each(|to| self.disconnect(old, *to));
        self.free.push(old);
        for from in measured_by {
            let fits = |to: &u32| *to != from && !self.slots[from as usize].measures.contains(to);
            if let Some(at) = measures.iter().position(fits) {
                let to = measures.swap_remove(at);
                self.connect(from, to);
            }
        }
        true
    }

    /// The nodes that a node measures.
    pub fn measures(&self, key: &PublicKey) -> Vec<PublicKey> {
        self.nodes.get(key).map_or_else(Vec::new, |at| self.keys(&self.slots[*at as usize].measures))
    }

    /// The nodes that measure it.
    pub fn measured_by(&self, key: &PublicKey) -> Vec<PublicKey> {
        self.nodes.get(key).map_or_else(Vec::new, |at| self.keys(&self.slots[*at as usize].measured_by))
    }

    pub fn nodes(&self) -> impl Iterator<Item = &PublicKey> {
        self.nodes.keys()
    }

    /// Approximate size in bytes.
    pub fn memory(&self) -> usize {
        let lists = self.slots.iter().map(|slot| slot.measures.capacity() + slot.measured_by.capacity());
        let tree = self.nodes.len() * size_of::<(PublicKey, u32)>() * 3 / 2;
        lists.sum::<usize>() * size_of::<u32>() + self.slots.capacity() * size_of::<Slot>() + tree
    }

    fn keys(&self, slots: &[u32]) -> Vec<PublicKey> {
        slots.iter().map(|slot| self.slots[*slot as usize].key).collect()
    }

    fn connect(&mut self, from: u32, to: u32) {
        self.slots[from as usize].measures.push(to);
        self.slots[to as usize].measured_by.push(from);
    }

    fn disconnect(&mut self, from: u32, to: u32) {
        self.slots[from as usize].measures.retain(|other| *other != to);
        self.slots[to as usize].measured_by.retain(|other| *other != from);
    }

    fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.generator.next_u64()) * count as u128) >> 64) as usize
    }
}
