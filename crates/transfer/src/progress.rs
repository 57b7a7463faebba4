//! The progress of a transfer, readable at any time from any thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// Counters of one transfer; clones share them.
///
/// Pass one to [`send`](crate::send) or [`receive`](crate::receive), and read [`Progress::snapshot`] at each redraw.
/// Each transfer needs its own.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    bytes_resumed: AtomicU64,
    bytes_compared: AtomicU64,
    bytes_moved: AtomicU64,
    files_done: AtomicU64,
    files_kept: AtomicU64,
    files_total: AtomicU64,
    stream: AtomicBool,
    current: Mutex<String>,
    began: OnceLock<Instant>,
    listed: Notify,
}

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Bytes verified and written (receiver) or handed to the connection (sender), including resumed ones.
    pub bytes_done: u64,
    /// Bytes of all files of known length.
    pub bytes_total: u64,
    /// The part of `bytes_done` that the receiver's disk already had.
    pub bytes_resumed: u64,
    /// Bytes that crossed the connection, those of an unfinished block included.
    pub bytes_moved: u64,
    /// Files finished.
    pub files_done: u64,
    /// The part of `files_done` that the receiver's disk already had.
    pub files_kept: u64,
    /// Files in the share.
    pub files_total: u64,
    /// True for a stream, which can be received only once; at the sender, when the receiver has begun to read it.
    pub is_stream: bool,
    /// The current file, printable.
    pub current: String,
}

impl Progress {
    /// Counters at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// The current counters.
    pub fn snapshot(&self) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            bytes_done: read(&self.0.bytes_done),
            bytes_total: read(&self.0.bytes_total),
            bytes_resumed: read(&self.0.bytes_resumed),
            bytes_moved: read(&self.0.bytes_moved),
            files_done: read(&self.0.files_done),
            files_kept: read(&self.0.files_kept),
            files_total: read(&self.0.files_total),
            is_stream: self.0.stream.load(Ordering::Relaxed),
            current: self.0.current.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Waits until the files are counted, once; returns their number and the bytes of those of known length.
    pub async fn totals(&self) -> (u64, u64) {
        self.0.listed.notified().await;
        let Snapshot { files_total, bytes_total, .. } = self.snapshot();
        (files_total, bytes_total)
    }

    /// When the receiver began to fetch what it agreed to.
    pub fn began(&self) -> Option<Instant> {
        self.0.began.get().copied()
    }

    pub(crate) fn begin(&self) {
        self.0.began.get_or_init(Instant::now);
    }

    pub(crate) fn set_totals(&self, (files, bytes): (u64, u64)) {
        self.0.files_total.store(files, Ordering::Relaxed);
        self.0.bytes_total.store(bytes, Ordering::Relaxed);
        self.0.listed.notify_one();
    }

    pub(crate) fn set_stream(&self, is_stream: bool) {
        self.0.stream.store(is_stream, Ordering::Relaxed);
    }

    pub(crate) fn set_current(&self, name: String) {
        *self.0.current.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.0.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that cross the connection.
    pub(crate) fn add_moved(&self, bytes: u64) {
        self.0.bytes_moved.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_resumed(&self, bytes: u64) {
        self.0.bytes_resumed.fetch_add(bytes, Ordering::Relaxed);
        self.add_bytes(bytes);
    }

    /// Subtracts bytes that the receiver does not have after all.
    pub(crate) fn take_back(&self, bytes: u64) {
        for counter in [&self.0.bytes_done, &self.0.bytes_resumed] {
            let less = |count: u64| Some(count.saturating_sub(bytes));
            // The closure always gives a value.
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Counts bytes on the disk here that were read to be compared.
    pub(crate) fn add_compared(&self, bytes: u64) {
        self.0.bytes_compared.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes done and compared: while this grows, the transfer is at work.
    pub(crate) fn worked(&self) -> u64 {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        read(&self.0.bytes_done).saturating_add(read(&self.0.bytes_compared))
    }

    pub(crate) fn add_file(&self) {
        self.0.files_done.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a file of this length that was there already.
    pub(crate) fn keep_file(&self, bytes: u64) {
        self.0.files_kept.fetch_add(1, Ordering::Relaxed);
        self.add_file();
        self.add_resumed(bytes);
    }
}
