//! Limits the memory that all receivers of a share hold together.
//!
//! A receiver that requests data and does not read it keeps memory busy: chunks here, and bytes in its session. All
//! receivers of a share have one limit in common. The less memory is free, the smaller the next chunk, so receivers
//! that stall do not starve the others. When three quarters are in use, the largest receiver that has read nothing for
//! [`SHORT_PATIENCE`] is dropped. A receiver that reads nothing for [`PATIENCE`] is always dropped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::hash::BLOCK;

/// The default limit.
pub(crate) const LIMIT: usize = 64 << 20;
/// A receiver that reads nothing for this long is dropped.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// A receiver that requests nothing for this long is dropped.
pub(crate) const SILENCE: Duration = Duration::from_secs(30 * 60);
/// Replaces [`PATIENCE`] for the largest receiver while memory is short.
pub(crate) const SHORT_PATIENCE: Duration = Duration::from_secs(10);
/// How often the bytes in a session are counted.
const COUNT: Duration = Duration::from_secs(1);
/// The smallest chunk, even without free memory.
const SMALLEST: usize = 16 << 10;
/// Room beyond a chunk's size: the end of a piece, and frames without data.
const SLACK: usize = 8 << 10;
/// Number of buffers kept for later chunks.
const SPARES: usize = 4;

/// The memory of one share.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: usize,
    next: AtomicU64,
    spares: Mutex<Vec<Vec<u8>>>,
    consumers: Mutex<BTreeMap<u64, Arc<Usage>>>,
}

/// The memory of one receiver.
#[derive(Debug)]
struct Usage {
    chunks: AtomicUsize,
    session: AtomicUsize,
    /// When it last read something.
    took: Mutex<Instant>,
    must_yield: Notify,
}

impl Usage {
    fn held(&self) -> usize {
        self.chunks.load(Ordering::Relaxed) + self.session.load(Ordering::Relaxed)
    }

    fn idle(&self) -> Duration {
        lock(&self.took).elapsed()
    }

    /// Records the bytes in the session. Fewer than before means that the receiver read some.
    fn count(&self, session: usize) {
        if session < self.session.swap(session, Ordering::Relaxed) {
            *lock(&self.took) = Instant::now();
        }
    }
}

impl Memory {
    pub fn new(limit: usize) -> Self {
        Self { limit, next: AtomicU64::new(0), spares: Mutex::default(), consumers: Mutex::default() }
    }

    /// Registers a receiver.
    pub fn consumer(self: &Arc<Self>) -> Consumer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let usage = Arc::new(Usage {
            chunks: AtomicUsize::new(0),
            session: AtomicUsize::new(0),
            took: Mutex::new(Instant::now()),
            must_yield: Notify::new(),
        });
        lock(&self.consumers).insert(id, Arc::clone(&usage));
        Consumer { id, usage, memory: Arc::clone(self) }
    }

    /// Bytes that all receivers hold together.
    pub fn used(&self) -> usize {
        lock(&self.consumers).values().map(|usage| usage.held()).sum()
    }

    fn is_short(&self) -> bool {
        self.used() > self.limit / 4 * 3
    }

    /// Size of the next chunk.
    fn chunk_size(&self) -> usize {
        (self.limit.saturating_sub(self.used()) / 8).clamp(SMALLEST, BLOCK)
    }

    /// Drops the largest receiver that has stalled.
    fn make_room(&self) {
        let consumers = lock(&self.consumers);
        let stalled = consumers.values().filter(|usage| usage.held() > 0 && usage.idle() >= SHORT_PATIENCE);
        if let Some(largest) = stalled.max_by_key(|usage| usage.held()) {
            largest.must_yield.notify_one();
        }
    }
}

/// One receiver's part of the memory; dropping it frees that part.
#[derive(Debug)]
pub(crate) struct Consumer {
    id: u64,
    usage: Arc<Usage>,
    memory: Arc<Memory>,
}

impl Consumer {
    /// A buffer for this receiver's next chunk; counted until it is dropped. If memory is short, this drops a stalled
    /// receiver.
    pub fn buffer(&self) -> Buffer {
        if self.memory.is_short() {
            self.memory.make_room();
        }
        let size = self.memory.chunk_size();
        let spare = if size == BLOCK { lock(&self.memory.spares).pop() } else { None };
        let bytes = spare.unwrap_or_else(|| Vec::with_capacity(size + SLACK));
        let (usage, memory) = (Arc::clone(&self.usage), Arc::clone(&self.memory));
        let mut buffer = Buffer { bytes, size, counted: 0, usage, memory };
        buffer.count();
        buffer
    }

    /// Records that the receiver read something, and the bytes in its session.
    pub fn note_taken(&self, session: usize) {
        *lock(&self.usage.took) = Instant::now();
        self.usage.session.store(session, Ordering::Relaxed);
    }

    /// True when the session should wait for more data: memory is short, and it holds its share.
    pub fn should_wait(&self, session: usize) -> bool {
        self.usage.count(session);
        let consumers = lock(&self.memory.consumers).len().max(1);
        self.memory.is_short() && session > (self.memory.limit / consumers).max(4 * SMALLEST)
    }

    /// Completes when this receiver is dropped for lack of memory. Until then, counts the bytes in its session, which it
    /// reads also while there is nothing to write.
    pub async fn yields(&self, in_session: impl Fn() -> usize) {
        while timeout(COUNT, self.usage.must_yield.notified()).await.is_err() {
            self.usage.count(in_session());
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        lock(&self.memory.consumers).remove(&self.id);
    }
}

/// A chunk's bytes, counted for its receiver.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub bytes: Vec<u8>,
    /// Greatest size of the chunk.
    pub size: usize,
    counted: usize,
    usage: Arc<Usage>,
    memory: Arc<Memory>,
}

impl Buffer {
    /// Updates the count to the buffer's present size.
    pub fn count(&mut self) {
        let holds = self.bytes.capacity();
        self.usage.chunks.fetch_add(holds, Ordering::Relaxed);
        self.usage.chunks.fetch_sub(self.counted, Ordering::Relaxed);
        self.counted = holds;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.usage.chunks.fetch_sub(self.counted, Ordering::Relaxed);
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut spares = lock(&self.memory.spares);
        if (BLOCK..=4 * BLOCK).contains(&bytes.capacity()) && spares.len() < SPARES {
            bytes.clear();
            spares.push(bytes);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn however_many_receivers_stall_they_hold_little_more_than_the_limit() {
        let memory = Arc::new(Memory::new(16 << 20));
        let stalled: Vec<_> = (0..200).map(|_| memory.consumer()).map(|one| (one.buffer(), one)).collect();
        assert!(memory.used() <= (16 << 20) + 200 * (SMALLEST + SLACK), "{}", memory.used());
        let honest = memory.consumer();
        assert!(honest.buffer().size >= SMALLEST, "others still get something");
        drop(stalled);
        assert_eq!(memory.used(), 0);
        assert_eq!(honest.buffer().size, BLOCK, "memory came back");
    }

    #[tokio::test(start_paused = true)]
    async fn when_memory_is_short_the_largest_of_those_that_take_nothing_gives_way() {
        let memory = Arc::new(Memory::new(4 << 20));
        let [busy, large, small, other] = std::array::from_fn(|_| memory.consumer());
        for (consumer, session) in [(&busy, 2 << 20), (&large, 1 << 20), (&small, 200 << 10)] {
            consumer.note_taken(session);
        }
        let yields = async |consumer: &Consumer| {
            timeout(Duration::from_millis(1), consumer.yields(|| 0)).await.is_ok()
        };
        drop(other.buffer());
        assert!(!yields(&large).await, "a pause is no stall");
        tokio::time::sleep(SHORT_PATIENCE).await;
        busy.note_taken(2 << 20);
        drop(other.buffer());
        assert!(!yields(&busy).await && !yields(&small).await && yields(&large).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_receiver_has_read_since_the_last_write_is_not_charged_to_it() {
        let memory = Arc::new(Memory::new(4 << 20));
        let [idle, other] = std::array::from_fn(|_| memory.consumer());
        let session = AtomicUsize::new(7 << 19);
        idle.note_taken(7 << 19);
        let in_session = || session.load(Ordering::Relaxed);
        let reads = async {
            tokio::time::sleep(SHORT_PATIENCE).await;
            session.store(0, Ordering::Relaxed);
            tokio::time::sleep(2 * COUNT).await;
            assert_eq!(memory.used(), 0);
            other.note_taken(7 << 19);
            // Memory is short, but this receiver holds none.
            tokio::time::sleep(SHORT_PATIENCE).await;
            drop(other.buffer());
            tokio::time::sleep(COUNT).await;
        };
        tokio::select! {
            () = idle.yields(in_session) => panic!("it was dropped"),
            () = reads => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_gets_its_share_only_while_memory_is_short() {
        let memory = Arc::new(Memory::new(1 << 20));
        let [one, two] = [memory.consumer(), memory.consumer()];
        assert!(!one.should_wait(700 << 10), "there is enough");
        assert!(one.should_wait(800 << 10) && !two.should_wait(100 << 10));
    }
}
