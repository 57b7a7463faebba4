//! The records of clients and relays, as JSON, so that people can read them with the store's own tools.
//!
//! Both stay small. A client's record has its grants (at most its quota) and short marks of answered requests. A
//! relay's record sums reservations by their end, in steps that are coarser for longer grants, so a relay with fifty
//! thousand paths has some hundred steps.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anabranch_secure::PublicKey;
use anabranch_wire::ForeignText;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ask::RequestId;
use super::denied::Denied;
use super::store::{Entry, Store, StoreError};
use super::{HOLD, MAX_SKEW, REQUEST_AGE};
use crate::grant::{Grant, GrantId, Limits, UnixTime};

/// Version of the records; those of other versions are left alone.
const VERSION: u32 = 1;
/// Most marks of requests in a client's record.
pub(super) const MAX_MARKS: usize = 1_024;
/// With fewer revoked grants at a relay than this, every client may give one back.
const MAX_GIVEN_BACK: usize = 256;
/// With more, only clients that have fewer than this among them may.
const OWN_GIVEN_BACK: usize = 16;
/// With this many, no client may.
const MOST_GIVEN_BACK: usize = 1_024;

/// A relay's location, in its operator's words, at most 64 bytes. Relays of different locations are preferred.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location(pub ForeignText);

impl Serialize for Location {
    /// Not escaped, because records and requests are not shown to people.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.raw())
    }
}

impl<'de> Deserialize<'de> for Location {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(text.into()))
    }
}

/// A relay's offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    pub place: Location,
    pub addresses: Vec<SocketAddr>,
    /// Most PIDs of all grants together.
    pub pids: u64,
    /// Rate of all grants together, in bit/s; `None` for no limit.
    pub rate: Option<u64>,
}

/// Reservations at a relay until some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// PIDs.
    pub pids: u64,
    /// In bit/s.
    pub rate: u64,
}

impl Reserved {
    /// The reservation of a grant with these limits. A grant without a rate limit shares the remaining rate and
    /// reserves none.
    pub(super) fn of(limits: &Limits) -> Self {
        let rate = limits.rate.as_bits();
        Self { pids: limits.pids.into(), rate: if rate == u64::MAX { 0 } else { rate } }
    }
}

/// A grant that a relay must not accept any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TakenBack {
    /// Its end.
    pub until: u64,
    /// Its reservation.
    pub reserved: Reserved,
    /// Its client; records of earlier versions lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The step that counts it; `None` once the relay has confirmed it.
    pub step: Option<u64>,
}

/// A relay's record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayRecord {
    version: u32,
    /// The latest time of a change, by the controller that made it.
    pub(super) touched: u64,
    /// The relay's offer; `None` before it registered.
    pub offer: Option<Offer>,
    /// Reservations, by the time until which they count.
    pub(super) steps: BTreeMap<u64, Reserved>,
    /// Revoked grants.
    pub(super) taken_back: BTreeMap<String, TakenBack>,
}

/// A grant as it was committed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub relays: Vec<String>,
    #[serde(flatten)]
    pub limits: Limits,
    pub issued: u64,
    pub until: u64,
}

/// A client's record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    version: u32,
    /// The latest time of a change, by the controller that made it.
    pub(super) touched: u64,
    /// Valid grants, by request.
    pub(super) grants: BTreeMap<String, Held>,
    /// Requests whose grants have ended, with the time when they may be forgotten.
    pub(super) answered: BTreeMap<String, u64>,
}

/// The key of a client's record in the store.
pub(super) fn client_key(client: &PublicKey) -> String {
    format!("client/{client}")
}

/// The key of a relay's record in the store.
pub(super) fn relay_key(relay: &PublicKey) -> String {
    format!("relay/{relay}")
}

/// Refuses to decide by a clock that is behind another controller's. A controller with a store of its own follows its
/// clock back.
pub(super) fn check_clock(store: &impl Store, now: UnixTime, touched: UnixTime) -> Result<(), Denied> {
    let behind = touched.0.saturating_sub(now.0);
    if behind > MAX_SKEW && store.is_shared() { Err(Denied::ClockBehind(behind)) } else { Ok(()) }
}

/// Reads a record; an absent one is empty.
fn read<T: Default + for<'de> Deserialize<'de>>(
    entry: &Entry,
    version: impl Fn(&T) -> u32,
) -> Result<T, StoreError> {
    if entry.value.is_empty() {
        return Ok(T::default());
    }
    let record: T = serde_json::from_slice(&entry.value)
        .map_err(|error| StoreError::Damaged(format!("a record is not what a controller writes: {error}")))?;
    if version(&record) != VERSION {
        let other = version(&record);
        return Err(StoreError::Damaged(format!(
            "a record has version {other} and this controller writes {VERSION}: update the older controllers"
        )));
    }
    Ok(record)
}

impl RelayRecord {
    pub(super) fn read(entry: &Entry) -> Result<Self, StoreError> {
        read(entry, |record: &Self| record.version)
    }

    /// Serialises the record after dropping expired parts.
    pub(super) fn write(&mut self, now: UnixTime) -> Vec<u8> {
        self.version = VERSION;
        self.touched = self.touched.max(now.0);
        self.drop_over(now);
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn drop_over(&mut self, now: UnixTime) {
        self.steps.retain(|until, _| *until >= now.0);
        self.taken_back.retain(|_, grant| grant.until + HOLD >= now.0);
    }

    /// Number of steps and of revoked grants.
    pub fn len(&self) -> (usize, usize) {
        (self.steps.len(), self.taken_back.len())
    }

    /// Current reservations.
    pub fn reserved(&self, now: UnixTime) -> Reserved {
        let counting = self.steps.range(now.0..);
        counting.fold(Reserved::default(), |sum, (_, step)| Reserved {
            pids: sum.pids.saturating_add(step.pids),
            rate: sum.rate.saturating_add(step.rate),
        })
    }

    /// Whether a further reservation fits.
    pub(super) fn fits(&self, now: UnixTime, more: Reserved) -> bool {
        let Some(offer) = &self.offer else { return false };
        let taken = self.reserved(now);
        let rate = offer.rate.is_none_or(|rate| taken.rate.saturating_add(more.rate) <= rate);
        rate && taken.pids.saturating_add(more.pids) <= offer.pids
    }

    pub(super) fn reserve(&mut self, step: u64, more: Reserved) {
        let sum = self.steps.entry(step).or_default();
        sum.pids = sum.pids.saturating_add(more.pids);
        sum.rate = sum.rate.saturating_add(more.rate);
    }

    pub(super) fn free(&mut self, step: u64, less: Reserved) {
        if let Some(sum) = self.steps.get_mut(&step) {
            sum.pids = sum.pids.saturating_sub(less.pids);
            sum.rate = sum.rate.saturating_sub(less.rate);
            if *sum == Reserved::default() {
                self.steps.remove(&step);
            }
        }
    }

    /// Whether a client may give back a further grant. Revoked grants stay until their end, so one client with long
    /// grants could take all places.
    pub(super) fn has_place_for(&self, client: &PublicKey) -> bool {
        let (all, client) = (self.taken_back.len(), Some(client.to_string()));
        let own = || self.taken_back.values().filter(|grant| grant.client == client).count();
        all < MAX_GIVEN_BACK || (all < MOST_GIVEN_BACK && own() < OWN_GIVEN_BACK)
    }

    /// Ends the reservations of revoked grants that the relay has confirmed. True if something changed.
    pub(super) fn confirm(&mut self, grants: &[GrantId]) -> bool {
        let mut changed = false;
        for id in grants {
            let known = self.taken_back.get_mut(&id.to_string());
            if let Some((step, reserved)) = known.and_then(|grant| Some((grant.step.take()?, grant.reserved)))
            {
                self.free(step, reserved);
                changed = true;
            }
        }
        changed
    }

    /// The grants that the relay must not accept, those first that it has not confirmed.
    pub fn revoked(&self) -> Vec<GrantId> {
        let is_new = |(_, grant): &(&String, &TakenBack)| grant.step.is_some();
        let (new, known): (Vec<_>, Vec<_>) = self.taken_back.iter().partition(is_new);
        new.into_iter().chain(known).filter_map(|(id, _)| id.parse().ok()).collect()
    }
}

impl Held {
    pub fn new(grant: &Grant) -> Self {
        Self {
            relays: grant.relays.iter().map(ToString::to_string).collect(),
            limits: grant.limits,
            issued: grant.issued.0,
            until: grant.not_after.0,
        }
    }

    pub fn reserved(&self) -> Reserved {
        Reserved::of(&self.limits)
    }

    /// The step of a relay's record that counts it.
    pub fn step(&self) -> u64 {
        step(self.until, self.until.saturating_sub(self.issued))
    }

    pub fn relays(&self) -> Result<Vec<PublicKey>, StoreError> {
        let keys = self.relays.iter().map(|key| key.parse());
        keys.collect::<Result<_, _>>()
            .map_err(|_| StoreError::Damaged("a client's record names a relay by what is no key".into()))
    }

    pub fn grant(&self, client: PublicKey, id: GrantId) -> Result<Grant, StoreError> {
        Ok(Grant {
            id,
            client,
            relays: self.relays()?,
            limits: self.limits,
            issued: UnixTime(self.issued),
            not_before: UnixTime(self.issued),
            not_after: UnixTime(self.until),
        })
    }
}

/// The end of a grant's reservation, rounded to a minute, a quarter of an hour or half a day.
fn step(until: u64, lifetime: u64) -> u64 {
    let width = match lifetime {
        0..=3_600 => 60,
        3_601..=86_400 => 900,
        _ => 43_200,
    };
    (until + HOLD).next_multiple_of(width)
}

impl ClientRecord {
    pub(super) fn read(entry: &Entry) -> Result<Self, StoreError> {
        read(entry, |record: &Self| record.version)
    }

    /// Serialises the record; `None` if it is empty.
    pub(super) fn write(&mut self, now: UnixTime) -> Option<Vec<u8>> {
        self.version = VERSION;
        self.touched = self.touched.max(now.0);
        self.drop_over(now);
        let empty = self.grants.is_empty() && self.answered.is_empty();
        (!empty).then(|| serde_json::to_vec(self).unwrap_or_default())
    }

    /// Drops expired grants. Their requests stay until they are too old for any controller.
    pub(super) fn drop_over(&mut self, now: UnixTime) {
        let over: Vec<String> = self
            .grants
            .iter()
            .filter(|(_, held)| held.until + HOLD < now.0)
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            self.close(&id);
        }
        self.answered.retain(|_, until| *until >= now.0);
    }

    /// Removes a grant; its request counts as answered.
    pub(super) fn close(&mut self, request: &str) -> Option<Held> {
        let held = self.grants.remove(request)?;
        let made = request.parse::<RequestId>().map_or(held.until, |id| id.made.0);
        self.answered.insert(request.to_owned(), made + REQUEST_AGE + 2 * MAX_SKEW);
        Some(held)
    }

    /// Number of grants and of marks of requests.
    pub fn len(&self) -> (usize, usize) {
        (self.grants.len(), self.answered.len())
    }
}
