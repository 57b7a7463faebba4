//! Relays as this controller sees them now, and the choice among them.
//!
//! A relay's offer and reservations come from the store and may be old; a decision reads them again. Liveness and load
//! come from heartbeats and are not stored. Only relays in the configuration are admitted, which bounds the directory.
//!
//! Relays are chosen one at a time: first by the location chosen least often so far, then by the lowest resulting use,
//! then by the lowest load, then by key.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};

use anabranch_secure::PublicKey;
use anabranch_wire::Time;
use serde::{Deserialize, Serialize};

use super::SILENT;
use super::denied::{Denied, LeftOut};
use super::parts::Clocks;
use super::record::{Location, RelayRecord, Reserved};
use crate::grant::UnixTime;

/// A relay's load, from its heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// PIDs in use.
    pub pids: u64,
    /// Its forwarding rate in bit/s.
    pub rate: u64,
    /// Whether it accepts no new paths.
    pub draining: bool,
}

/// A relay as this controller sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayView {
    /// Its record, as last read from the store.
    pub record: RelayRecord,
    /// The last heartbeat: its time, the instance of the program, and the load.
    pub heard: Option<(Time, u64, Load)>,
    /// The instance that was replaced by the current one.
    pub replaced: Option<u64>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory(BTreeMap<PublicKey, RelayView>);

impl Directory {
    /// Registers a relay at these addresses. After a crash, a new instance at one of the same addresses replaces the
    /// previous one at once, because that one cannot return.
    pub fn begin(
        &mut self,
        now: Time,
        (relay, instance): (PublicKey, u64),
        addresses: &[SocketAddr],
    ) -> Result<(), Denied> {
        let view = self.0.entry(relay).or_default();
        let known = view.record.offer.as_ref().map(|offer| &offer.addresses[..]).unwrap_or_default();
        if let Some((_, other, _)) = view.heard
            && other != instance
            && view.replaced != Some(instance)
            && addresses.iter().any(|address| known.contains(address))
        {
            (view.heard, view.replaced) = (None, Some(other));
        }
        self.hear(now, (relay, instance), Load::default())
    }

    /// Handles a relay's heartbeat; `instance` was drawn when its program started.
    ///
    /// # Errors
    /// [`Denied::KeyInUse`] when another instance with the same key was heard recently.
    pub fn hear(&mut self, now: Time, (relay, instance): (PublicKey, u64), load: Load) -> Result<(), Denied> {
        let view = self.0.entry(relay).or_default();
        if let Some((at, other, _)) = view.heard
            && other != instance
            && now.since(at) < SILENT
        {
            let offer = view.record.offer.as_ref();
            let known = offer.and_then(|offer| offer.addresses.first()).map(ToString::to_string);
            return Err(Denied::KeyInUse(known.unwrap_or_else(|| "an unknown address".into())));
        }
        view.heard = Some((now, instance, load));
        Ok(())
    }

    /// Removes an instance of a relay that stops, or whose session has ended. `last` is when that session was last heard:
    /// an instance that was heard later has another session and stays.
    pub fn forget(&mut self, relay: &PublicKey, (instance, last): (u64, Time)) {
        if let Some(view) = self.0.get_mut(relay)
            && view.heard.is_some_and(|(at, known, _)| known == instance && at <= last)
        {
            view.heard = None;
        }
    }

    /// Adopts a relay's record from the store.
    pub fn note(&mut self, relay: PublicKey, record: RelayRecord) {
        self.0.entry(relay).or_default().record = record;
    }

    pub fn relays(&self) -> impl Iterator<Item = (&PublicKey, &RelayView)> {
        self.0.iter()
    }

    pub fn relay(&self, relay: &PublicKey) -> Option<&RelayView> {
        self.0.get(relay)
    }

    /// Relays that were heard and accept new paths.
    pub fn alive(&self, now: Time) -> impl Iterator<Item = (&PublicKey, &RelayView)> {
        self.0.iter().filter(move |(_, view)| {
            view.heard.is_some_and(|(at, _, load)| now.since(at) < SILENT && !load.draining)
        })
    }

    /// Why [`Self::choose`] leaves some of these relays out.
    pub(super) fn left_out(&self, now: Clocks, listed: &BTreeSet<PublicKey>, more: Reserved) -> LeftOut {
        let mut out = LeftOut::default();
        for relay in listed {
            let view = self.0.get(relay);
            let heard = view.and_then(|view| view.heard).filter(|(at, ..)| now.local.since(*at) < SILENT);
            match (heard, view) {
                (None, _) | (_, None) => out.silent += 1,
                (Some((_, _, load)), _) if load.draining => out.drained += 1,
                (_, Some(view)) => out.full += usize::from(!view.record.fits(now.wall, more)),
            }
        }
        out
    }

    /// Chooses relays with room for `more` each; fewer if there are not enough.
    pub(super) fn choose(&self, now: Clocks, wanted: u8, more: Reserved) -> Vec<PublicKey> {
        let mut left: Vec<(&PublicKey, &RelayView)> =
            self.alive(now.local).filter(|(_, view)| view.record.fits(now.wall, more)).collect();
        let mut places: BTreeMap<&Location, usize> = BTreeMap::new();
        let mut chosen = Vec::new();
        while chosen.len() < usize::from(wanted) {
            let rank = |(_, (key, view)): &(usize, &(&PublicKey, &RelayView))| {
                let (_, _, load) = view.heard.unwrap_or_default();
                let taken = view.record.offer.as_ref().and_then(|offer| places.get(&offer.place));
                (taken.copied().unwrap_or(0), filled(&view.record, now.wall, more), load.rate, **key)
            };
            let best = left.iter().enumerate().min_by_key(rank).map(|(at, _)| at);
            let Some(best) = best else { break };
            let (key, view) = left.swap_remove(best);
            if let Some(offer) = &view.record.offer {
                *places.entry(&offer.place).or_default() += 1;
            }
            chosen.push(*key);
        }
        chosen
    }
}

/// The lock is held only for short computations.
pub(super) fn lock(directory: &Mutex<Directory>) -> MutexGuard<'_, Directory> {
    directory.lock().expect("no panic while held")
}

/// The use of a relay's scarcest resource with `more`, in thousandths.
fn filled(record: &RelayRecord, wall: UnixTime, more: Reserved) -> u64 {
    let Some(offer) = &record.offer else { return u64::MAX };
    let taken = record.reserved(wall);
    let part = |taken: u64, more: u64, all: u64| {
        let parts = u128::from(taken.saturating_add(more)) * 1_000 / u128::from(all.max(1));
        u64::try_from(parts).unwrap_or(u64::MAX)
    };
    let rate = offer.rate.map_or(0, |all| part(taken.rate, more.rate, all));
    rate.max(part(taken.pids, more.pids, offer.pids))
}
