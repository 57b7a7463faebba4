//! Quotas of clients and the list of relays, from the controller's configuration. The default admits no one.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_secure::PublicKey;
use anabranch_wire::Rate;

use super::ask::Ask;
use super::denied::{Denied, Room};
use crate::grant::{Limits, MAX_GRANT_RELAYS, MAX_VALIDITY};

/// The quota of one client key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Grants at the same time. A relay uses at most 8 of a key at once.
    pub grants: u32,
    /// Relays in one grant, at most [`MAX_GRANT_RELAYS`].
    pub relays: u8,
    /// Limits at each relay: PIDs and rate of all grants together, bytes and type of service of each.
    pub limits: Limits,
    /// Longest life of a grant, in seconds.
    pub lifetime: u64,
}

/// The operator's policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub clients: BTreeMap<PublicKey, Quota>,
    /// Quota of all keys that are not listed; `None` denies them.
    pub others: Option<Quota>,
    /// Keys that may be relays.
    pub relays: BTreeSet<PublicKey>,
}

impl Policy {
    /// The quota of a client.
    pub fn quota(&self, client: &PublicKey) -> Result<Quota, Denied> {
        self.clients.get(client).copied().or(self.others).ok_or(Denied::NotListed)
    }

    /// Whether a key may open a session, as a client or as a relay.
    pub fn admits(&self, key: &PublicKey) -> bool {
        self.may_relay(key).is_ok() || self.quota(key).is_ok()
    }

    /// Whether a node may register as a relay.
    pub fn may_relay(&self, relay: &PublicKey) -> Result<(), Denied> {
        if self.relays.contains(relay) { Ok(()) } else { Err(Denied::RelayNotListed) }
    }
}

impl Quota {
    /// Cuts a request to the quota.
    pub(super) fn cut(&self, ask: &Ask) -> Result<Ask, Denied> {
        let Limits { pids, rate, bytes, .. } = ask.limits;
        let is_nothing = pids == 0 || rate == Rate::ZERO || bytes == 0 || ask.lifetime == 0;
        if ask.least == 0 || ask.relays < ask.least || is_nothing {
            return Err(Denied::Malformed("a grant of nothing was asked for"));
        }
        let most = self.relays.min(MAX_GRANT_RELAYS as u8);
        if ask.least > most {
            let (what, allowed) = ("relays in a grant", most.into());
            return Err(Denied::Quota { what, allowed, used: 0, room: Room::Never });
        }
        let limits = Limits {
            pids: ask.limits.pids.min(self.limits.pids),
            rate: ask.limits.rate.min(self.limits.rate),
            bytes: ask.limits.bytes.min(self.limits.bytes),
            highest_tos: ask.limits.highest_tos.min(self.limits.highest_tos),
        };
        let lifetime = ask.lifetime.min(self.lifetime).min(MAX_VALIDITY);
        Ok(Ask { relays: ask.relays.min(most), limits, lifetime, ..ask.clone() })
    }
}
