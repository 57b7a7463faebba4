//! A store in one file, for one controller.
//!
//! A transaction is on the disk before it counts. [`StoreFile`] opens the file, and opens it again after a disk error. Each
//! value follows its revision (8 bytes). One counter, stored in the file, numbers the revisions of all keys.

use std::path::Path;
use std::sync::Arc;

use anabranch_overlay::controller::{Commit, Entry, PAGE, Revision, Store, StoreError, Transaction};
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};

use super::file::{OpenError, StoreFile, damaged};

const ENTRIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("entries");
const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");
const LAST: &str = "last revision";

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Redb {
    file: Arc<StoreFile>,
}

impl Redb {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// If the file cannot be used; the message says what to do. The file is left as it is.
    pub async fn open(file: &Path) -> Result<Self, OpenError> {
        let path = file.to_owned();
        // A panic of the library means damage too.
        match tokio::task::spawn_blocking(move || StoreFile::open(&path, prepare)).await {
            Ok(opened) => opened.map(|file| Self { file: Arc::new(file) }),
            Err(_) => Err(damaged(file, &"its structure makes no sense")),
        }
    }

    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Database) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = self.file.clone();
        let done = tokio::task::spawn_blocking(move || file.run(act)).await;
        done.map_err(|_| StoreError::Damaged("the file's structure makes no sense".into()))?
    }
}

/// Creates missing tables.
fn prepare(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(ENTRIES)?;
    transaction.open_table(COUNTERS)?;
    Ok(transaction.commit()?)
}

fn entry(stored: &[u8]) -> Result<Entry, redb::Error> {
    let short = || redb::Error::Corrupted("a value without revision".into());
    let (revision, value) = stored.split_first_chunk().ok_or_else(short)?;
    Ok(Entry { value: value.to_vec(), revision: Revision(u64::from_be_bytes(*revision)) })
}

fn get_all(transaction: &ReadTransaction, keys: &[String]) -> Result<Vec<Entry>, redb::Error> {
    let table = transaction.open_table(ENTRIES)?;
    let read = keys.iter().map(|key| match table.get(key.as_str())? {
        Some(stored) => entry(stored.value()),
        None => Ok(Entry::default()),
    });
    read.collect()
}

fn page(
    transaction: &ReadTransaction,
    prefix: &str,
    after: &str,
) -> Result<Vec<(String, Entry)>, redb::Error> {
    let table = transaction.open_table(ENTRIES)?;
    let from = prefix.max(after);
    let mut found = Vec::new();
    for item in table.range(from..)? {
        let (key, stored) = item?;
        if !key.value().starts_with(prefix) || found.len() == PAGE {
            break;
        }
        if key.value() > after {
            found.push((key.value().to_owned(), entry(stored.value())?));
        }
    }
    Ok(found)
}

fn commit(database: &Database, transaction: &Transaction) -> Result<Commit, redb::Error> {
    let write = database.begin_write()?;
    {
        let mut entries = write.open_table(ENTRIES)?;
        for (key, expected) in &transaction.expect {
            let stored = entries.get(key.as_str())?;
            let current = stored.map(|stored| entry(stored.value())).transpose()?.unwrap_or_default();
            if current.revision != *expected {
                return Ok(Commit::Conflict);
            }
        }
        let mut counters = write.open_table(COUNTERS)?;
        let last = counters.get(LAST)?.map_or(0, |last| last.value()) + 1;
        counters.insert(LAST, last)?;
        for (key, value) in &transaction.writes {
            match value {
                Some(value) => {
                    let stored = [&last.to_be_bytes()[..], value].concat();
                    entries.insert(key.as_str(), stored.as_slice())?;
                }
                None => drop(entries.remove(key.as_str())?),
            }
        }
    }
    write.commit()?;
    Ok(Commit::Committed)
}

impl Store for Redb {
    async fn get(&self, keys: &[String]) -> Result<Vec<Entry>, StoreError> {
        let keys = keys.to_vec();
        self.with(move |database| get_all(&database.begin_read()?, &keys)).await
    }

    async fn range(&self, prefix: &str, after: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.with(move |database| page(&database.begin_read()?, &prefix, &after)).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Commit, StoreError> {
        let transaction = transaction.clone();
        self.with(move |database| commit(database, &transaction)).await
    }
}
