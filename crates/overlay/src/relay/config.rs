//! How a relay is set up.

use std::collections::BTreeMap;

use anabranch_secure::PublicKey;
use anabranch_wire::Rate;

use super::{Exit, NextHopPolicy};
use crate::grant::{ControllerKey, Limits};

/// How a relay is set up.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Its own key, which grants name.
    pub key: PublicKey,
    /// Controllers whose grants count.
    pub controllers: Vec<ControllerKey>,
    /// Keys that need no grant.
    pub listed: BTreeMap<PublicKey, Limits>,
    /// Where it forwards to.
    pub next_hops: NextHopPolicy,
    /// By which sockets next hops are reached.
    pub exits: Vec<Exit>,
    /// What it forwards in all; `None` for as much as it can.
    pub rate: Option<Rate>,
    /// Most flows.
    pub most_flows: usize,
    /// Most sessions without a flow of keys that show no grant yet, and of guests.
    pub most_strangers: usize,
    /// Most relays in a chain: packets with a higher hop limit are dropped, so a loop ends soon.
    pub most_hops: u8,
}

impl RelayConfig {
    /// A relay that nobody may use yet.
    #[must_use]
    pub fn new(key: PublicKey) -> Self {
        Self {
            key,
            controllers: Vec::new(),
            listed: BTreeMap::new(),
            next_hops: NextHopPolicy::default(),
            exits: Vec::new(),
            rate: None,
            most_flows: 50_000,
            most_strangers: 1_024,
            most_hops: 4,
        }
    }
}
