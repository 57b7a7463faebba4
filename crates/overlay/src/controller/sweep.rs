//! The leader's work: drops expired parts from the records of clients and relays that are no longer used.
//!
//! Only the size of the store depends on it, since every reader ignores expired parts.
//!
//! The leader is the controller whose key is in the record `leader` with a term that has not ended, and it renews its
//! term. Another controller may take over when the term has ended by its own clock. It may also take over a term that
//! ends later than any clock within [`MAX_SKEW`] would set it: a fast clock wrote it, and would otherwise keep the
//! others from sweeping for too long. So with different clocks two controllers may lead for a while. Each sweep
//! compares the revision of `leader`, so the older leader's fails.

use anabranch_secure::PublicKey;
use serde::{Deserialize, Serialize};

use super::MAX_SKEW;
use super::record::{ClientRecord, RelayRecord};
use super::store::{Commit, Entry, PAGE, Revision, Store, StoreError, Transaction};
use crate::grant::UnixTime;

const LEADER: &str = "leader";
const CLIENTS: &str = "client/";

/// The current leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The controller, by its node key.
    pub node: String,
    /// The end of its term, unless it is renewed.
    pub until: u64,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Records read.
    pub seen: usize,
    /// Records that were changed.
    pub cleaned: usize,
}

/// Becomes or stays the leader for `term` seconds. Returns the revision to sweep with, or the other leader.
pub async fn lead<S: Store>(
    store: &S,
    now: UnixTime,
    (node, term): (&PublicKey, u64),
) -> Result<Result<Revision, Leader>, StoreError> {
    let read = || async {
        let entry = store.get(&[LEADER.to_owned()]).await?.remove(0);
        // An unreadable record names no leader.
        let leader: Option<Leader> = serde_json::from_slice(&entry.value).ok();
        Ok::<_, StoreError>((entry.revision, leader))
    };
    let own = node.to_string();
    let (revision, leader) = read().await?;
    let latest = now.0.saturating_add(term + MAX_SKEW);
    let leads = |leader: &Leader| leader.node != own && (now.0..=latest).contains(&leader.until);
    if let Some(leader) = leader.filter(leads) {
        return Ok(Err(leader));
    }
    let mine = Leader { node: own.clone(), until: now.0 + term };
    let mut transaction = Transaction::default();
    transaction.replace(LEADER, revision, Some(serde_json::to_vec(&mine).unwrap_or_default()));
    let committed = store.commit(&transaction).await? == Commit::Committed;
    let (revision, leader) = read().await?;
    match leader {
        Some(leader) if leader.node == own => Ok(Ok(revision)),
        Some(leader) => Ok(Err(leader)),
        None => Ok(Err(Leader { node: if committed { own } else { String::new() }, until: now.0 })),
    }
}

/// Drops expired parts from all records, while `leader` has the revision that [`lead`] returned.
pub async fn sweep<S: Store>(store: &S, now: UnixTime, leader: Revision) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    for (prefix, clean) in [(CLIENTS, client as Clean), ("relay/", relay)] {
        let mut after = String::new();
        loop {
            let page = store.range(prefix, &after).await?;
            swept.seen += page.len();
            for (key, entry) in &page {
                let Some(cleaned) = clean(entry, now)? else { continue };
                let mut transaction = Transaction::default();
                transaction.expect(LEADER, leader);
                transaction.replace(key, entry.revision, cleaned);
                // A conflicting change has dropped the same parts.
                swept.cleaned += usize::from(store.commit(&transaction).await? == Commit::Committed);
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => after.clone_from(last),
                _ => break,
            }
        }
    }
    Ok(swept)
}

/// The clients with a record that a controller would not serve now.
pub async fn unlisted<S: Store>(
    store: &S,
    is_listed: impl Fn(&PublicKey) -> bool,
) -> Result<Vec<PublicKey>, StoreError> {
    let (mut unlisted, mut after) = (Vec::new(), String::new());
    loop {
        let page = store.range(CLIENTS, &after).await?;
        let keys = page.iter().filter_map(|(key, _)| key.strip_prefix(CLIENTS)?.parse().ok());
        unlisted.extend(keys.filter(|client| !is_listed(client)));
        match page.last() {
            Some((last, _)) if page.len() == PAGE => after.clone_from(last),
            _ => return Ok(unlisted),
        }
    }
}

/// The record to write instead, if anything is left of it; `None` if nothing was dropped.
type Clean = fn(&Entry, UnixTime) -> Result<Option<Option<Vec<u8>>>, StoreError>;

fn client(entry: &Entry, now: UnixTime) -> Result<Option<Option<Vec<u8>>>, StoreError> {
    let mut record = ClientRecord::read(entry)?;
    let before = record.len();
    record.drop_over(now);
    let is_clean = record.len() == before && before != (0, 0);
    Ok((!is_clean).then(|| record.write(now)))
}

fn relay(entry: &Entry, now: UnixTime) -> Result<Option<Option<Vec<u8>>>, StoreError> {
    let mut record = RelayRecord::read(entry)?;
    let before = record.len();
    record.drop_over(now);
    Ok((record.len() != before).then(|| Some(record.write(now))))
}
