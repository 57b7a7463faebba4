//! A relay's counters, for people and metrics.

use anabranch_secure::PublicKey;
use serde::{Deserialize, Serialize};

use super::flow::Tally;
use crate::grant::Limits;

/// Totals since the start, and current values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Packets and bytes forwarded.
    pub forwarded: Tally,
    /// Packets dropped, by reason.
    pub dropped: Dropped,
    /// Challenges sent.
    pub challenges: u64,
    /// Current flows.
    pub flows: usize,
    /// Current sessions of clients.
    pub sessions: usize,
    /// Bytes that wait to leave.
    pub waiting: u64,
}

/// Limits and usage of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStats {
    pub key: PublicKey,
    /// Limits from its listing and all its grants, with the remaining bytes. `None` for a key that may not use the
    /// relay.
    pub limits: Option<Limits>,
    /// Its sessions and those of its guests.
    pub sessions: u32,
    /// Its flows and those of its guests.
    pub flows: usize,
}

/// Packets dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// No header, or a broken one.
    pub malformed: u64,
    pub unknown_pid: u64,
    /// A PID that belongs to another address.
    pub wrong_source: u64,
    /// A kind that is not forwarded in this direction.
    pub wrong_kind: u64,
    /// No hop left, or more than a chain can have.
    pub hop_limit: u64,
    /// The next hop has not agreed.
    pub no_consent: u64,
    /// Above the largest size.
    pub too_long: u64,
    /// The key's bytes are used up.
    pub quota: u64,
    /// No room in the queue.
    pub congested: u64,
}
