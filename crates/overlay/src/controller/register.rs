//! Writes a relay's offer to its record.

use std::sync::Mutex;

use anabranch_secure::PublicKey;

use super::ATTEMPTS;
use super::denied::{ControlError, Denied};
use super::directory::{Directory, lock};
use super::parts::Controller;
use super::record::{Offer, RelayRecord, check_clock, relay_key};
use super::store::{Commit, PAGE, Store, StoreError, Transaction};
use crate::grant::UnixTime;

/// Longest location in bytes, and most addresses of a relay.
const MAX_PLACE: usize = 64;
pub(super) const MAX_ADDRESSES: usize = 16;

/// Adopts a relay's offer; existing reservations stay.
pub async fn register<S: Store>(
    controller: &Controller<'_, S>,
    now: UnixTime,
    relay: PublicKey,
    offer: &Offer,
) -> Result<(), ControlError> {
    let Controller { store, policy, directory } = *controller;
    policy.may_relay(&relay)?;
    if offer.place.0.raw().len() > MAX_PLACE || offer.addresses.len() > MAX_ADDRESSES {
        return Err(Denied::Malformed("a place has at most 64 bytes, and a relay 16 addresses").into());
    }
    let key = relay_key(&relay);
    for _ in 0..ATTEMPTS {
        let entry = store.get(std::slice::from_ref(&key)).await?.remove(0);
        let mut record = RelayRecord::read(&entry)?;
        if record.offer.as_ref() == Some(offer) {
            lock(directory).note(relay, record);
            return Ok(());
        }
        check_clock(store, now, UnixTime(record.touched))?;
        record.offer = Some(offer.clone());
        let mut transaction = Transaction::default();
        transaction.replace(&key, entry.revision, Some(record.write(now)));
        if store.commit(&transaction).await? == Commit::Committed {
            lock(directory).note(relay, record);
            return Ok(());
        }
    }
    Err(Denied::Busy.into())
}

/// Reads the records of all relays.
pub async fn load_relays<S: Store>(store: &S, directory: &Mutex<Directory>) -> Result<(), StoreError> {
    let mut after = String::new();
    loop {
        let page = store.range("relay/", &after).await?;
        for (key, entry) in &page {
            let relay = key.trim_start_matches("relay/").parse();
            let relay = relay.map_err(|_| {
                StoreError::Damaged(format!("`{key}` is no relay: it was not written by a controller"))
            })?;
            lock(directory).note(relay, RelayRecord::read(entry)?);
        }
        match page.last() {
            Some((last, _)) if page.len() == PAGE => after.clone_from(last),
            _ => return Ok(()),
        }
    }
}
