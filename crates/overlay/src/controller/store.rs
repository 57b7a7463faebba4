//! The store that controllers share: keys and values, and transactions that compare revisions.
//!
//! Every backend passes one conformance suite, in `anabranch-daemon`. It requires:
//!
//! - [`commit`](Store::commit) is atomic and linearizable: all writes or none, and none unless every expected revision
//!   is current;
//! - a revision is never used twice, not even for a key that was deleted and created again; an absent key has revision
//!   0;
//! - committed data is not lost.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Mutex;

/// A version of a key's value; [`Revision::ABSENT`] for an absent key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of an absent key.
    pub const ABSENT: Self = Self(0);
}

/// A value and its revision; empty with [`Revision::ABSENT`] for an absent key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The bytes.
    pub value: Vec<u8>,
    /// Their version.
    pub revision: Revision,
}

/// Writes that are done together if the records that they depend on are unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Keys and the revisions they must have.
    pub expect: Vec<(String, Revision)>,
    /// Keys and their new values; `None` deletes.
    pub writes: Vec<(String, Option<Vec<u8>>)>,
}

impl Transaction {
    /// Also requires that a key is unchanged.
    pub fn expect(&mut self, key: &str, revision: Revision) {
        self.expect.push((key.to_owned(), revision));
    }

    /// Also writes a value over the one that was read.
    pub fn replace(&mut self, key: &str, read: Revision, value: Option<Vec<u8>>) {
        self.expect(key, read);
        self.writes.push((key.to_owned(), value));
    }
}

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    Committed,
    /// Not committed: a revision had changed.
    Conflict,
}

/// Why a store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached. A transaction may have been committed or not.
    #[error("the controller's store does not answer: {0}")]
    Unavailable(String),
    /// Its data are damaged, or the machine cannot store them.
    #[error("the controller's store is damaged: {0}")]
    Damaged(String),
}

/// Most entries of one [`Store::range`].
pub const PAGE: usize = 256;

/// See the module's documentation.
pub trait Store: Send + Sync {
    /// The entries of these keys, in their order.
    fn get(&self, keys: &[String]) -> impl Future<Output = Result<Vec<Entry>, StoreError>> + Send;

    /// The first [`PAGE`] entries in the order of keys that begin with `prefix` and are greater than `after`.
    fn range(
        &self,
        prefix: &str,
        after: &str,
    ) -> impl Future<Output = Result<Vec<(String, Entry)>, StoreError>> + Send;

    /// Whether other controllers may write here too. In a store of one controller, a time in the future can only be its
    /// own.
    fn is_shared(&self) -> bool {
        true
    }

    /// Commits a transaction if its revisions match.
    fn commit(&self, transaction: &Transaction) -> impl Future<Output = Result<Commit, StoreError>> + Send;
}

/// A store in memory: for tests and trials.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    entries: BTreeMap<String, Entry>,
    last: u64,
}

impl MemoryStore {
    fn with<T>(&self, act: impl FnOnce(&mut Memory) -> T) -> T {
        act(&mut self.0.lock().expect("no panic while held"))
    }
}

impl Store for MemoryStore {
    async fn get(&self, keys: &[String]) -> Result<Vec<Entry>, StoreError> {
        let read = |key| self.with(|memory| memory.entries.get(key).cloned().unwrap_or_default());
        Ok(keys.iter().map(read).collect())
    }

    async fn range(&self, prefix: &str, after: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = if after < prefix { Included(prefix) } else { Excluded(after) };
        Ok(self.with(|memory| {
            let found = memory.entries.range::<str, _>((from, Unbounded));
            let found = found.take_while(|(key, _)| key.starts_with(prefix)).take(PAGE);
            found.map(|(key, entry)| (key.clone(), entry.clone())).collect()
        }))
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Commit, StoreError> {
        Ok(self.with(|memory| {
            let revision = |key| memory.entries.get(key).map_or(Revision::ABSENT, |entry| entry.revision);
            if transaction.expect.iter().any(|(key, expected)| revision(key) != *expected) {
                return Commit::Conflict;
            }
            memory.last += 1;
            for (key, value) in &transaction.writes {
                match value {
                    Some(value) => {
                        let entry = Entry { value: value.clone(), revision: Revision(memory.last) };
                        memory.entries.insert(key.clone(), entry);
                    }
                    None => {
                        memory.entries.remove(key);
                    }
                }
            }
            Commit::Committed
        }))
    }
}
