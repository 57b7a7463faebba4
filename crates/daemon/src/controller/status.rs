//! A controller's relays, and the grants of a client, for people and programs.

use anabranch_overlay::controller::{Directory, RelayView, SILENT};
use anabranch_overlay::grant::{Grant, UnixTime};
use anabranch_wire::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sensing::Senses;

/// A controller's state at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Its public key.
    pub node: String,
    /// The key that it signs grants with.
    pub signs: String,
    /// The addresses it listens on.
    pub addresses: Vec<String>,
    /// The relays that it knows.
    pub relays: Vec<RelayStatus>,
}

/// A relay as a controller sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RelayStatus {
    /// Its key.
    pub node: String,
    /// Its location, in its operator's words.
    pub place: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Whether this controller has heard it recently.
    pub alive: bool,
    /// Whether it accepts no new paths.
    pub draining: bool,
    /// PIDs that it offers, that are granted, and that are in use.
    pub pids: [u64; 3],
    /// Bit/s that it offers (`None` without a limit).
    pub rate_offered: Option<u64>,
    /// Bit/s that are granted.
    pub rate_granted: u64,
    /// Bit/s that it forwards.
    pub rate_used: u64,
    /// Links to other relays that it measures, and how many of them are down.
    pub links: [usize; 2],
}

/// A grant of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrantStatus {
    /// Its id.
    pub id: String,
    /// The relays that it is valid at.
    pub relays: Vec<String>,
    /// Paths at each.
    pub paths: u32,
    /// When it ends, in seconds since 1970.
    pub until: u64,
}

/// The relays that a controller knows.
pub(super) fn relays(senses: &Senses, directory: &Directory, times: (Time, UnixTime)) -> Vec<RelayStatus> {
    let status =
        |(node, view)| RelayStatus { links: senses.links(node), ..relay(&node.to_string(), view, times) };
    directory.relays().map(status).collect()
}

fn relay(node: &str, view: &RelayView, (now, wall): (Time, UnixTime)) -> RelayStatus {
    let (offer, load) = (view.record.offer.as_ref(), view.heard.map(|(_, _, load)| load).unwrap_or_default());
    let reserved = view.record.reserved(wall);
    RelayStatus {
        node: node.to_owned(),
        place: offer.map(|offer| offer.place.0.to_string()).unwrap_or_default(),
        addresses: offer
            .map(|offer| offer.addresses.iter().map(ToString::to_string).collect())
            .unwrap_or_default(),
        alive: view.heard.is_some_and(|(at, ..)| now.since(at) < SILENT),
        draining: load.draining,
        pids: [offer.map_or(0, |offer| offer.pids), reserved.pids, load.pids],
        rate_offered: offer.and_then(|offer| offer.rate),
        rate_granted: reserved.rate,
        rate_used: load.rate,
        links: [0; 2],
    }
}

impl GrantStatus {
    pub(super) fn new(grant: &Grant) -> Self {
        Self {
            id: grant.id.to_string(),
            relays: grant.relays.iter().map(ToString::to_string).collect(),
            paths: grant.limits.pids / 2,
            until: grant.not_after.0,
        }
    }
}
