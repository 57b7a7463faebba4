//! Backends of the controller's store, `anabranch_overlay::controller::Store`.
//!
//! | backend | for |
//! |---|---|
//! | memory | trials: everything is lost at the end |
//! | [`Redb`] | one controller: a file, the default |
//! | [`Etcd`] | several controllers: they share an etcd |
//!
//! One conformance suite, `tests/stores.rs`, is run against each.

mod etcd;
mod file;
mod http;
mod redb;

use anabranch_overlay::controller::{Commit, Entry, MemoryStore, Store, StoreError, Transaction};

pub use self::etcd::{Etcd, EtcdSettings};
pub use self::file::OpenError;
pub use self::redb::Redb;

/// Any of the backends.
#[derive(Debug)]
pub enum AnyStore {
    Memory(MemoryStore),
    /// In a file.
    Redb(Redb),
    Etcd(Etcd),
}

impl Store for AnyStore {
    async fn get(&self, keys: &[String]) -> Result<Vec<Entry>, StoreError> {
        match self {
            Self::Memory(store) => store.get(keys).await,
            Self::Redb(store) => store.get(keys).await,
            Self::Etcd(store) => store.get(keys).await,
        }
    }

    async fn range(&self, prefix: &str, after: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        match self {
            Self::Memory(store) => store.range(prefix, after).await,
            Self::Redb(store) => store.range(prefix, after).await,
            Self::Etcd(store) => store.range(prefix, after).await,
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self, Self::Etcd(_))
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Commit, StoreError> {
        match self {
            Self::Memory(store) => store.commit(transaction).await,
            Self::Redb(store) => store.commit(transaction).await,
            Self::Etcd(store) => store.commit(transaction).await,
        }
    }
}
