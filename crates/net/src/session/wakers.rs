//! The tasks that wait for a session.

use std::collections::BTreeMap;
use std::task::Waker;

use anabranch_wire::StreamId;
use smallvec::SmallVec;
use tokio::sync::Notify;

/// Wakers collected under the session's lock, and woken after it is released.
pub(crate) type Woken = SmallVec<[Waker; 8]>;

/// Events that a task can wait for, other than those of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A stream opened by the peer.
    Accept,
    /// Credit to open a stream.
    Open,
    Datagram,
}

/// The tasks that wait.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    readers: BTreeMap<StreamId, Waker>,
    writers: BTreeMap<StreamId, Waker>,
    others: [Vec<Waker>; 3],
}

impl Wakers {
    /// The reader of each stream; the last to wait replaces others.
    pub(crate) fn wait_to_read(&mut self, stream: StreamId, waker: &Waker) {
        insert(&mut self.readers, stream, waker);
    }

    /// The writer of each stream; the last to wait replaces others.
    pub(crate) fn wait_to_write(&mut self, stream: StreamId, waker: &Waker) {
        insert(&mut self.writers, stream, waker);
    }

    pub(crate) fn wait(&mut self, what: Wait, waker: &Waker) {
        let list = &mut self.others[what as usize];
        if !list.iter().any(|known| known.will_wake(waker)) {
            list.push(waker.clone());
        }
    }

    pub(crate) fn wake_reader(&mut self, stream: StreamId, woken: &mut Woken) {
        woken.extend(self.readers.remove(&stream));
    }

    pub(crate) fn wake_writer(&mut self, stream: StreamId, woken: &mut Woken) {
        woken.extend(self.writers.remove(&stream));
    }

    pub(crate) fn wake(&mut self, what: Wait, woken: &mut Woken) {
        woken.extend(self.others[what as usize].drain(..));
    }

    /// Wakes all, since the session is over.
    pub(crate) fn wake_all(&mut self, woken: &mut Woken) {
        woken.extend(std::mem::take(&mut self.readers).into_values());
        woken.extend(std::mem::take(&mut self.writers).into_values());
        for list in &mut self.others {
            woken.extend(list.drain(..));
        }
    }

    /// Forgets the reader of a stream: its handle is gone.
    pub(crate) fn forget_reader(&mut self, stream: StreamId) {
        self.readers.remove(&stream);
    }

    /// Forgets the writer of a stream: its handle is gone.
    pub(crate) fn forget_writer(&mut self, stream: StreamId) {
        self.writers.remove(&stream);
    }
}

/// The tasks that wait for the end of the handshake or of the session. Those that give up leave nothing behind, however
/// long the session lives.
#[derive(Debug, Default)]
pub(crate) struct Changes(Notify);

impl Changes {
    /// Wakes all tasks.
    pub(crate) fn tell(&self) {
        self.0.notify_waiters();
    }

    /// Waits until `look` returns a value.
    pub(crate) async fn until<T>(&self, look: impl Fn() -> Option<T>) -> T {
        loop {
            // Begins before the look, so that no change is missed.
            let changed = self.0.notified();
            if let Some(value) = look() {
                return value;
            }
            changed.await;
        }
    }
}

fn insert(map: &mut BTreeMap<StreamId, Waker>, stream: StreamId, waker: &Waker) {
    map.entry(stream).and_modify(|known| known.clone_from(waker)).or_insert_with(|| waker.clone());
}
