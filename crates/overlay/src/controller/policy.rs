//! Who may use how much, as the controller's configuration says. Nobody, by default.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_secure::PublicKey;
use anabranch_wire::Rate;

use super::{Ask, Denied, Room};
use crate::grant::{Limits, MAX_GRANT_RELAYS, MAX_VALIDITY};

/// What one client key may have at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Grants at the same time. A relay uses at most 8 of a key at once.
    pub grants: u32,
    /// Relays in one grant, at most [`MAX_GRANT_RELAYS`].
    pub relays: u8,
    /// At each relay, of all grants together; bytes and type of service of each.
    pub limits: Limits,
    /// Longest life of a grant, in seconds.
    pub lifetime: u64,
}

/// What the operator decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Who may have grants.
    pub clients: BTreeMap<PublicKey, Quota>,
    /// Quota of every key that is not listed; `None` denies them.
    pub others: Option<Quota>,
    /// Who may be a relay.
    pub relays: BTreeSet<PublicKey>,
}

impl Policy {
    /// What a client may have.
    ///
    /// # Errors
    /// [`Denied::NotListed`].
    pub fn quota(&self, client: &PublicKey) -> Result<Quota, Denied> {
        self.clients.get(client).copied().or(self.others).ok_or(Denied::NotListed)
    }

    /// Whether a node may register as a relay.
    ///
    /// # Errors
    /// [`Denied::RelayNotListed`].
    pub fn may_relay(&self, relay: &PublicKey) -> Result<(), Denied> {
        if self.relays.contains(relay) { Ok(()) } else { Err(Denied::RelayNotListed) }
    }
}

impl Quota {
    /// What is granted at most when this is asked for: all is cut to what is allowed.
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
