//! The file of a single-file store: opens and checks it, and opens it again after its disk failed.
//!
//! The whole file is checked when it is opened. A damaged one is left as it is, and the error says what to do.
//!
//! After a failed read or write, mostly because the disk is full, the library refuses everything until the file is
//! opened again. The next transaction does that, at most once in [`PAUSE`]; transactions in between return the earlier
//! error. So the controller recovers as soon as the disk does.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anabranch_overlay::controller::StoreError;
use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, StorageError};

/// Shortest time between two attempts to open the file.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a store's file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another program has it open.
    #[error("{0} is in use: does another controller run with it? several controllers share an etcd instead")]
    InUse(PathBuf),
    /// Its contents are damaged.
    #[error(
        "{file} is damaged ({why}) and was left as it is: restore a copy of it, or move it away to begin with an empty \
         store. Relays register again by themselves then; grants given so far stay good until they end, but are not counted \
         against capacity or quota, so leave the controller off for the longest lifetime of a grant if that matters"
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The damage.
        why: String,
    },
    /// The disk is full.
    #[error("cannot open {file}: {why}; free space on that disk")]
    Disk {
        /// The file.
        file: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
    /// The operating system does not allow it.
    #[error("cannot open {file}: {why}; does the directory exist, and may this user write there?")]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        why: std::io::Error,
    },
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct StoreFile {
    path: PathBuf,
    database: RwLock<Opened>,
    /// Why the file has to be opened again; set under a shared lock of `database`, cleared under the exclusive one.
    failure: Mutex<Option<StoreError>>,
}

#[derive(Debug)]
struct Opened {
    /// `None` if it could not be opened again.
    database: Option<Database>,
    at: Instant,
}

impl StoreFile {
    /// Opens or creates the file; `prepare` is its first transaction.
    pub fn open(
        path: &Path,
        prepare: impl FnOnce(&Database) -> Result<(), redb::Error>,
    ) -> Result<Self, OpenError> {
        if let Ok(mut existing) = File::open(path) {
            // The library would initialise an empty file, but something may have emptied it.
            let begins = existing.read(&mut [0]).map_err(|why| refused(path, why))?;
            if begins == 0 {
                return Err(damaged(path, &"it is empty"));
            }
        }
        let file = opened(path).map_err(|why| refused(path, why))?;
        let database = FileBackend::new(file).and_then(|file| checked().create_with_backend(file));
        let database = database.map_err(|error| explained(path, error))?;
        prepare(&database).map_err(|error| match error {
            redb::Error::Io(why) => refused(path, why),
            error => damaged(path, &error),
        })?;
        let database = RwLock::new(Opened { database: Some(database), at: Instant::now() });
        Ok(Self { path: path.to_owned(), database, failure: Mutex::default() })
    }

    /// Runs a transaction.
    pub fn run<T>(&self, act: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        if self.failure().is_some() {
            self.open_again()?;
        }
        let opened = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let Some(database) = &opened.database else {
            return Err(self.unavailable(&redb::Error::PreviousIo));
        };
        act(database).map_err(|error| match error {
            redb::Error::Corrupted(why) => StoreError::Damaged(format!("{}: {why}", self.path.display())),
            error @ (redb::Error::Io(_) | redb::Error::PreviousIo) => {
                let why = self.unavailable(&error);
                self.failure().get_or_insert(why).clone()
            }
            other => self.unavailable(&other),
        })
    }

    /// Opens the file again, unless another task has done so or has just tried.
    fn open_again(&self) -> Result<(), StoreError> {
        let mut opened = self.database.write().unwrap_or_else(PoisonError::into_inner);
        let Some(failure) = self.failure().clone() else { return Ok(()) };
        if opened.at.elapsed() < PAUSE {
            return Err(failure);
        }
        // This releases the lock on the file.
        opened.database = None;
        opened.at = Instant::now();
        // A missing file is not created again: that would silently discard all records.
        let again = checked().open(&self.path).map_err(|error| match explained(&self.path, error) {
            OpenError::Disk { why, .. } | OpenError::Io { why, .. } => {
                self.unavailable(&redb::Error::Io(why))
            }
            damage @ OpenError::Damaged { .. } => StoreError::Damaged(damage.to_string()),
            used @ OpenError::InUse(_) => StoreError::Unavailable(used.to_string()),
        });
        match again {
            Ok(database) => {
                opened.database = Some(database);
                *self.failure() = None;
                Ok(())
            }
            Err(why) => {
                *self.failure() = Some(why.clone());
                Err(why)
            }
        }
    }

    fn unavailable(&self, error: &redb::Error) -> StoreError {
        let what = match error {
            redb::Error::Io(why) => format!("{why}; {}", remedy(why)),
            other => other.to_string(),
        };
        StoreError::Unavailable(format!("{}: {what}", self.path.display()))
    }

    fn failure(&self) -> MutexGuard<'_, Option<StoreError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file; a new one is readable by its owner only.
fn opened(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn checked() -> Builder {
    let mut builder = Builder::new();
    builder.set_check_integrity_on_open(true);
    builder
}

pub(super) fn damaged(file: &Path, why: &dyn ToString) -> OpenError {
    OpenError::Damaged { file: file.to_owned(), why: why.to_string() }
}

fn explained(file: &Path, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse(file.to_owned()),
        DatabaseError::Storage(StorageError::Io(why)) if why.kind() != ErrorKind::InvalidData => {
            refused(file, why)
        }
        DatabaseError::UpgradeRequired(version) => {
            damaged(file, &format!("format {version} of an older program"))
        }
        other => damaged(file, &other),
    }
}

fn refused(file: &Path, why: io::Error) -> OpenError {
    let file = file.to_owned();
    if is_full(&why) { OpenError::Disk { file, why } } else { OpenError::Io { file, why } }
}

fn is_full(why: &io::Error) -> bool {
    matches!(why.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Advice for a disk error.
fn remedy(why: &io::Error) -> &'static str {
    if is_full(why) {
        "free space on that disk; the controller then recovers by itself"
    } else {
        "check that disk; the controller recovers once the file can be read and written"
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        StoreFile::open(&path, |_| Ok(())).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
