//! Grants: allocated, renewed, given back, revoked, confirmed.

use anabranch_secure::PublicKey;

use super::ask::{Ask, RequestId};
use super::denied::{ControlError, Denied, Room};
use super::directory::{Directory, lock};
use super::parts::{Clocks, Controller};
use super::policy::Quota;
use super::record::{
    ClientRecord, Held, MAX_MARKS, RelayRecord, Reserved, TakenBack, check_clock, client_key, relay_key,
};
use super::register::load_relays;
use super::store::{Commit, Entry, Revision, Store, StoreError, Transaction};
use super::{ATTEMPTS, HOLD, MAX_SKEW, REQUEST_AGE};
use crate::MessageError;
use crate::grant::{Grant, GrantId, GrantSigner, Limits, MAX_VALIDITY, UnixTime};

/// A grant that is committed in the store, and so may be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approved(Grant);

impl Approved {
    /// The approved grant.
    pub fn grant(&self) -> &Grant {
        &self.0
    }

    /// Signs the grant and returns it as bytes.
    ///
    /// # Errors
    /// When a field breaks its limits, which cannot happen to an approved grant.
    pub fn sign(&self, signer: &GrantSigner) -> Result<Vec<u8>, MessageError> {
        signer.sign(&self.0)
    }
}

/// Records that were read for one decision.
struct Read {
    client: (Revision, ClientRecord),
    relays: Vec<(PublicKey, Revision, RelayRecord)>,
}

async fn read_client<S: Store>(
    store: &S,
    client: &PublicKey,
    relays: &[PublicKey],
) -> Result<Read, StoreError> {
    let keys: Vec<String> = std::iter::once(client_key(client)).chain(relays.iter().map(relay_key)).collect();
    let mut entries = store.get(&keys).await?.into_iter();
    let first: Entry = entries.next().unwrap_or_default();
    let client = (first.revision, ClientRecord::read(&first)?);
    let read = relays
        .iter()
        .zip(entries)
        .map(|(key, entry)| RelayRecord::read(&entry).map(|record| (*key, entry.revision, record)));
    Ok(Read { client, relays: read.collect::<Result<_, _>>()? })
}

impl Read {
    fn check_clock(&self, store: &impl Store, now: UnixTime) -> Result<(), Denied> {
        let relays = self.relays.iter().map(|(_, _, record)| record.touched);
        std::iter::once(self.client.1.touched)
            .chain(relays)
            .try_for_each(|touched| check_clock(store, now, UnixTime(touched)))
    }

    /// Writes the records back if they are unchanged.
    fn transaction(&mut self, now: UnixTime, client: &PublicKey) -> Transaction {
        let mut transaction = Transaction::default();
        let (revision, record) = &mut self.client;
        transaction.replace(&client_key(client), *revision, record.write(now));
        for (key, revision, record) in &mut self.relays {
            transaction.replace(&relay_key(key), *revision, Some(record.write(now)));
        }
        transaction
    }
}

/// Grants a client's request; a repeated request gets the same grant.
///
/// # Errors
/// Why it is refused. Nothing is committed then, unless the store failed: the client repeats the same request, here
/// or at another controller.
pub async fn allocate<S: Store>(
    controller: &Controller<'_, S>,
    now: Clocks,
    client: PublicKey,
    ask: &Ask,
) -> Result<Approved, ControlError> {
    let Controller { store, policy, directory } = *controller;
    let wall = now.wall;
    let quota = policy.quota(&client)?;
    let ask = &quota.cut(ask)?;
    let request = ask.request.to_string();
    let id = grant_id(&client, &ask.request);
    let mut reloaded = false;
    for _ in 0..ATTEMPTS {
        let choose = || fitting(&lock(directory), now, ask);
        let (mut chosen, mut limits) = choose();
        if (chosen.len() < usize::from(ask.relays) || limits != ask.limits) && !reloaded {
            // This controller's copy of the relays' records may be old.
            load_relays(store, directory).await?;
            reloaded = true;
            (chosen, limits) = choose();
        }
        let mut read = read_client(store, &client, &chosen).await?;
        let record = &read.client.1;
        if let Some(held) = record.grants.get(&request).filter(|held| held.until >= wall.0) {
            return Ok(Approved(held.grant(client, id)?));
        }
        if record.grants.contains_key(&request) || record.answered.contains_key(&request) {
            return Err(Denied::RequestOver.into());
        }
        check_age(wall, ask.request.made)?;
        read.check_clock(store, wall)?;
        for (key, _, record) in &read.relays {
            lock(directory).note(*key, record.clone());
        }
        if chosen.len() < usize::from(ask.least) {
            let (wanted, found) = (ask.least, chosen.len() as u8);
            let more = Reserved::of(&ask.limits);
            let out = lock(directory).left_out(now, &policy.relays, more);
            return Err(Denied::NoCapacity { wanted, found, out }.into());
        }
        let more = Reserved::of(&limits);
        if !read.relays.iter().all(|(_, _, record)| record.fits(wall, more)) {
            continue;
        }
        read.client.1.drop_over(wall);
        check_quota((&client, &read.client.1), &quota, (wall, Some(&limits)))?;
        let grant = Grant {
            id,
            client,
            relays: chosen,
            limits,
            issued: wall,
            not_before: wall,
            not_after: UnixTime(wall.0 + ask.lifetime),
        };
        let held = Held::new(&grant);
        for (_, _, record) in &mut read.relays {
            record.reserve(held.step(), more);
        }
        read.client.1.grants.insert(request.clone(), held);
        if store.commit(&read.transaction(wall, &client)).await? == Commit::Committed {
            for (key, _, record) in read.relays {
                lock(directory).note(key, record);
            }
            return Ok(Approved(grant));
        }
    }
    Err(Denied::Busy.into())
}

/// Chooses relays and limits for a grant. If too few relays have room for the requested paths, half as many paths are
/// tried, and so on down to one.
fn fitting(directory: &Directory, now: Clocks, ask: &Ask) -> (Vec<PublicKey>, Limits) {
    let mut limits = ask.limits;
    loop {
        let chosen = directory.choose(now, ask.relays, Reserved::of(&limits));
        // A path takes two PIDs.
        if chosen.len() >= usize::from(ask.least) || limits.pids < 4 {
            return (chosen, limits);
        }
        limits.pids = limits.pids / 4 * 2;
    }
}

/// Extends a grant: only its end changes, and its reservations stay. Repeating the request is harmless, because the end
/// never moves back.
///
/// # Errors
/// [`Denied::NoSuchGrant`] when it has expired or was revoked, and denials by the current quota.
pub async fn renew<S: Store>(
    controller: &Controller<'_, S>,
    now: UnixTime,
    client: PublicKey,
    grant: GrantId,
    lifetime: u64,
) -> Result<Approved, ControlError> {
    let Controller { store, policy, .. } = *controller;
    let quota = policy.quota(&client)?;
    let until = now.0.saturating_add(lifetime.min(quota.lifetime).min(MAX_VALIDITY));
    for _ in 0..ATTEMPTS {
        let (request, mut read) = read_held(store, &client, grant).await?;
        read.check_clock(store, now)?;
        check_quota((&client, &read.client.1), &quota, (now, None))?;
        let held = read.client.1.grants.get_mut(&request).filter(|held| held.until >= now.0);
        let Some(held) = held else { return Err(Denied::NoSuchGrant.into()) };
        // A grant from a time when this controller's clock was ahead is not valid yet: it is issued again.
        let is_good = held.issued <= now.0 + MAX_SKEW;
        if until <= held.until && is_good {
            return Ok(Approved(held.grant(client, grant)?));
        }
        let (reserved, before) = (held.reserved(), held.step());
        (held.issued, held.until) = (now.0, until);
        let (after, renewed) = (held.step(), held.grant(client, grant)?);
        for (_, _, record) in &mut read.relays {
            record.free(before, reserved);
            record.reserve(after, reserved);
        }
        if store.commit(&read.transaction(now, &client)).await? == Commit::Committed {
            return Ok(Approved(renewed));
        }
    }
    Err(Denied::Busy.into())
}

/// The request that a client got a grant for, and the records of the client and of the grant's relays.
async fn read_held<S: Store>(
    store: &S,
    client: &PublicKey,
    grant: GrantId,
) -> Result<(String, Read), ControlError> {
    for _ in 0..ATTEMPTS {
        let first = read_client(store, client, &[]).await?;
        let is_it =
            |request: &&String| request.parse().is_ok_and(|request| grant_id(client, &request) == grant);
        let request = first.client.1.grants.keys().find(is_it).cloned().ok_or(Denied::NoSuchGrant)?;
        let relays = first.client.1.grants.get(&request).map(Held::relays).unwrap_or(Ok(Vec::new()))?;
        let read = read_client(store, client, &relays).await?;
        if read.client.1.grants.contains_key(&request) {
            return Ok((request, read));
        }
    }
    Err(Denied::Busy.into())
}

/// Keeps a forgotten request from being answered again.
fn check_age(now: UnixTime, made: UnixTime) -> Result<(), Denied> {
    let too_old = made.0.saturating_add(REQUEST_AGE) < now.0;
    let too_new = now.0.saturating_add(MAX_SKEW) < made.0;
    if too_old || too_new { Err(Denied::RequestTime(now.0.abs_diff(made.0))) } else { Ok(()) }
}

/// Checks whether a client's grants, and one more with these limits, are within its quota. For a further grant, those that
/// are over count for as long as relays may accept them: otherwise many short grants would add up.
fn check_quota(
    (client, record): (&PublicKey, &ClientRecord),
    quota: &Quota,
    (now, more): (UnixTime, Option<&Limits>),
) -> Result<(), Denied> {
    let after = if more.is_some() { HOLD } else { 0 };
    let mut good: Vec<&Held> = record.grants.values().filter(|held| held.until + after >= now.0).collect();
    good.sort_by_key(|held| held.until);
    let check = |what, allowed: u64, of: fn(&Held) -> u64, more: u64| {
        let used = good.iter().map(|held| of(held)).fold(0, u64::saturating_add);
        if used.saturating_add(more) <= allowed {
            return Ok(());
        }
        let mut left = used;
        let last = good.iter().find(|held| {
            left = left.saturating_sub(of(held));
            left.saturating_add(more) <= allowed
        });
        // A grant is valid through the second of its end.
        let seconds = |held: &Held| held.until + after - now.0 + 1;
        let room = last.map_or(Room::Never, |held| Room::In { seconds: seconds(held), client: *client });
        Err(Denied::Quota { what, allowed, used, room })
    };
    let (pids, rate) = more.map_or((0, 0), |more| (more.pids.into(), more.rate.as_bits()));
    check("grants", quota.grants.into(), |_| 1, more.is_some().into())?;
    check("PIDs", quota.limits.pids.into(), |held| held.limits.pids.into(), pids)?;
    check("bit/s", quota.limits.rate.as_bits(), |held| held.limits.rate.as_bits(), rate)?;
    if more.is_some() && record.grants.len() + record.answered.len() >= MAX_MARKS {
        return Err(Denied::TooManyRequests);
    }
    Ok(())
}

/// The grant's id is derived from the request, so one request cannot get two grants.
fn grant_id(client: &PublicKey, request: &RequestId) -> GrantId {
    let mut hasher = blake3::Hasher::new_derive_key("anabranch 2026 grant id");
    hasher.update(client.as_bytes());
    hasher.update(&request.made.0.to_be_bytes());
    hasher.update(&request.random);
    let mut id = [0; 16];
    hasher.finalize_xof().fill(&mut id);
    GrantId(id)
}

/// Releases a client's grant. Relays learn it from their heartbeats, and the reservation ends when they confirm it.
pub async fn give_back<S: Store>(
    store: &S,
    now: UnixTime,
    client: PublicKey,
    grant: GrantId,
) -> Result<(), ControlError> {
    take_back(store, now, client, (grant, true)).await
}

/// Revokes a grant of a client. Its relays learn it from their heartbeats, until the grant has expired.
pub async fn revoke<S: Store>(
    store: &S,
    now: UnixTime,
    client: PublicKey,
    grant: GrantId,
) -> Result<(), ControlError> {
    take_back(store, now, client, (grant, false)).await
}

/// Takes a grant back; if it `needs_place`, only while its relays' records have one.
async fn take_back<S: Store>(
    store: &S,
    now: UnixTime,
    client: PublicKey,
    (grant, needs_place): (GrantId, bool),
) -> Result<(), ControlError> {
    for attempt in 0..ATTEMPTS {
        let (request, mut read) = match read_held(store, &client, grant).await {
            // It was there at first: another controller revoked it, or a reply of the store was lost.
            Err(ControlError::Denied(Denied::NoSuchGrant)) if attempt > 0 => return Ok(()),
            read => read?,
        };
        read.check_clock(store, now)?;
        let Some(held) = read.client.1.close(&request) else { continue };
        for (_, _, record) in &mut read.relays {
            record.drop_over(now);
            if needs_place && !record.has_place_for(&client) {
                // The relay would go on accepting a revoked grant.
                return Err(Denied::TooManyRequests.into());
            }
            let (reserved, step) = (held.reserved(), Some(held.step()));
            let client = Some(client.to_string());
            let entry = TakenBack { until: held.until, reserved, client, step };
            record.taken_back.insert(grant.to_string(), entry);
        }
        if store.commit(&read.transaction(now, &client)).await? == Commit::Committed {
            return Ok(());
        }
    }
    Err(Denied::Busy.into())
}

/// Records that a relay has confirmed revoked grants.
///
/// # Errors
/// When the store fails, or other controllers change the records too often.
pub async fn confirm<S: Store>(
    store: &S,
    now: UnixTime,
    relay: PublicKey,
    grants: &[GrantId],
) -> Result<(), ControlError> {
    if grants.is_empty() {
        return Ok(());
    }
    let key = relay_key(&relay);
    for _ in 0..ATTEMPTS {
        let entry = store.get(std::slice::from_ref(&key)).await?.remove(0);
        let mut record = RelayRecord::read(&entry)?;
        check_clock(store, now, UnixTime(record.touched))?;
        if !record.confirm(grants) {
            return Ok(());
        }
        let mut transaction = Transaction::default();
        transaction.replace(&key, entry.revision, Some(record.write(now)));
        if store.commit(&transaction).await? == Commit::Committed {
            return Ok(());
        }
    }
    Err(Denied::Busy.into())
}

/// The grants of a client.
pub async fn held_by<S: Store>(
    store: &S,
    now: UnixTime,
    client: PublicKey,
) -> Result<Vec<Grant>, StoreError> {
    let record = read_client(store, &client, &[]).await?.client.1;
    let good = record.grants.iter().filter(|(_, held)| held.until >= now.0);
    let grant = |(request, held): (&String, &Held)| {
        let request = request.parse().map_err(|_| {
            StoreError::Damaged(format!("`{request}` is no request: it was not written by a controller"))
        })?;
        held.grant(client, grant_id(&client, &request))
    };
    good.map(grant).collect()
}

/// The grants that a relay must not accept, for the answer to its heartbeat.
pub async fn taken_back<S: Store>(store: &S, relay: PublicKey) -> Result<Vec<GrantId>, StoreError> {
    let entry = store.get(&[relay_key(&relay)]).await?.remove(0);
    Ok(RelayRecord::read(&entry)?.revoked())
}
