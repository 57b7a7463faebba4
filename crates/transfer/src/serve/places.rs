//! The places of clients that put files.
//!
//! To take files costs memory for the list and a few threads, so there are [`MOST`] places. A client that moves too little
//! loses its place while others wait; without others it may be silent for half an hour, because it may be hashing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{sleep, timeout};

use crate::error::TransferError;
use crate::progress::Progress;

/// Clients that put files at the same time.
const MOST: usize = 16;
/// How long a client waits for a place.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the clients' progress is checked, and the least bytes in that time while others wait.
const WINDOW: Duration = Duration::from_secs(10);
const LEAST: u64 = 1 << 20;
/// Windows without any progress after which a client is dropped in any case: 30 minutes.
const SILENT: u32 = 180;

#[derive(Debug)]
pub(super) struct Places {
    free: Semaphore,
    waiting: AtomicUsize,
}

impl Default for Places {
    fn default() -> Self {
        Self { free: Semaphore::new(MOST), waiting: AtomicUsize::new(0) }
    }
}

/// One place, free again when dropped.
pub(super) struct Place<'a> {
    places: &'a Places,
    _permit: SemaphorePermit<'a>,
}

/// Counts a client that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Places {
    /// Waits for a place; `None` when none becomes free.
    pub async fn take(&self) -> Option<Place<'_>> {
        if let Ok(permit) = self.free.try_acquire() {
            return Some(Place { places: self, _permit: permit });
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let permit = timeout(PATIENCE, self.free.acquire()).await.ok()?.ok()?;
        Some(Place { places: self, _permit: permit })
    }
}

impl Place<'_> {
    /// Completes when the client loses its place; returns the reason.
    pub async fn loses(&self, progress: &Progress) -> TransferError {
        let (mut before, mut silent) = (0, 0);
        loop {
            sleep(WINDOW).await;
            let done = progress.worked();
            let moved = done.saturating_sub(before);
            before = done;
            silent = if moved == 0 { silent + 1 } else { 0 };
            if silent >= SILENT {
                return TransferError::Stalled { after: WINDOW * SILENT };
            }
            if moved < LEAST && self.places.waiting.load(Ordering::Relaxed) > 0 {
                let why = "others wait, and this transfer moved less than 1 MiB in 10 s; run the same command again: \
                           it continues from what has arrived";
                return TransferError::Refused(why.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_loses_its_place_only_while_another_waits() {
        let places = Places::default();
        let progress = Progress::new();
        let mut held = Vec::new();
        for _ in 0..MOST {
            held.push(places.take().await.unwrap());
        }
        let slow = held.pop().unwrap();
        let stays = timeout(WINDOW * 20, slow.loses(&progress)).await;
        assert!(stays.is_err(), "no one waits");
        let waiting = async {
            // The slow one is dropped after at most one window.
            timeout(WINDOW * 2, places.take()).await.expect("in time").expect("a place")
        };
        let loses = async {
            let why = slow.loses(&progress).await;
            drop(slow);
            why
        };
        let (_place, why) = tokio::join!(waiting, loses);
        assert!(why.to_string().starts_with("others wait"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_moves_enough_keeps_its_place_and_a_silent_one_ends_after_half_an_hour() {
        let places = Places::default();
        let progress = Progress::new();
        let place = places.take().await.unwrap();
        places.waiting.store(1, Ordering::Relaxed);
        let busy = async {
            loop {
                sleep(WINDOW / 2).await;
                progress.add_bytes(LEAST);
            }
        };
        let keeps = async { timeout(WINDOW * 20, place.loses(&progress)).await.is_err() };
        tokio::select! {
            () = busy => {}
            keeps = keeps => assert!(keeps),
        }
        let hashes = async {
            loop {
                sleep(WINDOW / 2).await;
                progress.add_compared(LEAST);
            }
        };
        tokio::select! {
            () = hashes => {}
            keeps = async { timeout(WINDOW * 20, place.loses(&progress)).await.is_err() } => assert!(keeps),
        }
        places.waiting.store(0, Ordering::Relaxed);
        assert!(matches!(place.loses(&progress).await, TransferError::Stalled { .. }));
    }
}
