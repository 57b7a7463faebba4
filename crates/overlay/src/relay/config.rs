//! A relay's configuration.

use std::collections::BTreeMap;

use anabranch_secure::PublicKey;
use anabranch_wire::Rate;

use super::exit::Exit;
use super::policy::NextHopPolicy;
use crate::admission::SessionLimits;
use crate::grant::{ControllerKey, Limits};

/// A relay's configuration.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Its own key, which grants name.
    pub key: PublicKey,
    /// Controllers whose grants count.
    pub controllers: Vec<ControllerKey>,
    /// Keys that need no grant.
    pub listed: BTreeMap<PublicKey, Limits>,
    /// Addresses that it forwards to.
    pub next_hops: NextHopPolicy,
    /// Sockets by which next hops are reached.
    pub exits: Vec<Exit>,
    /// Total rate of all forwarded packets; `None` without a limit.
    pub rate: Option<Rate>,
    pub most_flows: usize,
    /// Sessions that are admitted.
    pub sessions: SessionLimits,
    /// Of these, sessions that may not use the relay: of keys that have shown no grant, and guests without a flow.
    pub most_strangers: usize,
    /// Most relays in a chain. Packets with a higher hop limit are dropped, so a loop ends soon.
    pub most_hops: u8,
}

impl RelayConfig {
    /// A relay without users.
    pub fn new(key: PublicKey) -> Self {
        Self {
            key,
            controllers: Vec::new(),
            listed: BTreeMap::new(),
            next_hops: NextHopPolicy::default(),
            exits: Vec::new(),
            rate: None,
            most_flows: 50_000,
            sessions: SessionLimits::default(),
            most_strangers: 1_024,
            most_hops: 4,
        }
    }
}
