//! A store in one file, for one controller.
//!
//! Each transaction is on the disk before it counts. The whole file is checked when it is opened; a damaged one is left as
//! it is, and the error says what to do. A value is kept behind its revision (8 bytes); revisions are counted up over all
//! keys and the count is kept too.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_overlay::controller::{Commit, Entry, PAGE, Revision, Store, StoreError, Transaction};
use redb::{
    Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition,
};

const ENTRIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("entries");
const COUNTERS: TableDefinition<'_, &str, u64> = TableDefinition::new("counters");
const LAST: &str = "last revision";

/// Why a store's file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another program has it open.
    #[error("{0} is in use: does another controller run with it? several controllers share an etcd instead")]
    InUse(PathBuf),
    /// It is not what this program wrote.
    #[error(
        "{file} is damaged ({why}) and was left as it is: restore a copy of it, or move it away to begin with an empty \
         store. Relays register again by themselves then; grants given so far stay good until they end, but are not counted \
         against capacity or quota, so leave the controller off for the longest lifetime of a grant if that matters"
    )]
    Damaged {
        /// Which.
        file: PathBuf,
        /// What was found.
        why: String,
    },
    /// The operating system does not allow it.
    #[error("cannot open {file}: {why}; does the directory exist, and may this user write there?")]
    Io {
        /// Which.
        file: PathBuf,
        /// What the system said.
        why: std::io::Error,
    },
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Redb {
    database: Arc<Database>,
}

impl std::fmt::Debug for Redb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redb").finish_non_exhaustive()
    }
}

impl Redb {
    /// Opens the file, or makes it when there is none.
    ///
    /// # Errors
    /// Says what is wrong with the file and what to do. It is never changed then.
    pub async fn open(file: &Path) -> Result<Self, OpenError> {
        let path = file.to_owned();
        // What the library does not survive is damage too.
        match tokio::task::spawn_blocking(move || open(&path)).await {
            Ok(opened) => opened,
            Err(_) => Err(damaged(file, &"its structure makes no sense")),
        }
    }

    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Database) -> Result<T, redb::Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let database = self.database.clone();
        let done = tokio::task::spawn_blocking(move || act(&database)).await;
        let done = done.map_err(|_| StoreError::Damaged("the file's structure makes no sense".into()))?;
        done.map_err(|error| match error {
            redb::Error::Corrupted(why) => StoreError::Damaged(why),
            redb::Error::Io(why) => StoreError::Unavailable(format!("{why}: is the disk full?")),
            other => StoreError::Unavailable(other.to_string()),
        })
    }
}

fn damaged(file: &Path, why: &dyn ToString) -> OpenError {
    OpenError::Damaged { file: file.to_owned(), why: why.to_string() }
}

fn open(file: &Path) -> Result<Redb, OpenError> {
    let io = |why| OpenError::Io { file: file.to_owned(), why };
    if let Ok(mut existing) = std::fs::File::open(file) {
        // The library would begin anew in an empty file, and something may have emptied it.
        let begins = existing.read(&mut [0]).map_err(io)?;
        if begins == 0 {
            return Err(damaged(file, &"it is empty"));
        }
    }
    let explain = |error| match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse(file.to_owned()),
        DatabaseError::Storage(StorageError::Io(why)) if why.kind() != std::io::ErrorKind::InvalidData => {
            io(why)
        }
        DatabaseError::UpgradeRequired(version) => {
            damaged(file, &format!("format {version} of an older program"))
        }
        other => damaged(file, &other),
    };
    let database = Builder::new().set_check_integrity_on_open(true).create(file).map_err(explain)?;
    let prepare = || -> Result<(), redb::Error> {
        let transaction = database.begin_write()?;
        transaction.open_table(ENTRIES)?;
        transaction.open_table(COUNTERS)?;
        Ok(transaction.commit()?)
    };
    prepare().map_err(|error| damaged(file, &error))?;
    Ok(Redb { database: Arc::new(database) })
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
