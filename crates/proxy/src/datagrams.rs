//! Datagrams of associations over a session.
//!
//! An association is a stream that carries frames. Datagrams of the session are faster, so a datagram that fits one travels that way: the
//! stream's number (8), destination or source, payload. Only one that is too large for the paths becomes a frame on the stream.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_net::{Datagram, Session, SessionError, Stream, StreamId};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::message::{FRAME_HEAD, write_frame};
use crate::target::Target;

/// The class of these datagrams: the receiver puts those of one flow in order.
pub(crate) const CLASS: u8 = 2;
/// Datagrams of one association that wait to be written to its socket; later ones are dropped.
const MOST_WAITING: usize = 256;
/// Bytes of datagrams that wait in all associations of a session; later ones are dropped.
const MOST_BYTES: usize = 8 << 20;
/// Datagrams taken from the session at once.
const BATCH: usize = 64;
/// Bytes before destination or source.
const NUMBER: usize = 8;

/// The associations of one session.
#[derive(Debug)]
pub(crate) struct Associations {
    session: Session,
    inboxes: Mutex<BTreeMap<u64, mpsc::Sender<Waiting>>>,
    /// Bytes of all datagrams that wait.
    waiting: Arc<AtomicUsize>,
}

/// A datagram that waits, counted until it is taken or dropped.
#[derive(Debug)]
struct Waiting {
    bytes: Bytes,
    all: Arc<AtomicUsize>,
}

impl Waiting {
    /// `None` if too many bytes wait.
    fn new(bytes: Bytes, all: &Arc<AtomicUsize>) -> Option<Self> {
        let before = all.fetch_add(bytes.len(), Ordering::Relaxed);
        let waiting = Self { bytes, all: all.clone() };
        (before < MOST_BYTES).then_some(waiting)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl Associations {
    pub(crate) fn new(session: &Session) -> Arc<Self> {
        Arc::new(Self { session: session.clone(), inboxes: Mutex::default(), waiting: Arc::default() })
    }

    /// Hands arriving datagrams to their associations until the session ends.
    pub(crate) async fn run(&self) {
        let mut arrived = Vec::new();
        while self.session.recv_datagrams(&mut arrived, BATCH).await.is_ok() {
            let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
            for datagram in arrived.drain(..) {
                let Some((number, _)) = datagram.data.split_first_chunk::<NUMBER>() else { continue };
                if let Some(inbox) = inboxes.get(&u64::from_be_bytes(*number))
                    && let Some(waiting) = Waiting::new(datagram.data.slice(NUMBER..), &self.waiting)
                {
                    // One that does not keep up loses datagrams, as a socket does.
                    let _ = inbox.try_send(waiting);
                }
            }
        }
    }

    /// Begins an association over this stream.
    pub(crate) fn join(self: &Arc<Self>, stream: Stream) -> (Inbox, Outbox) {
        let (sender, waiting) = mpsc::channel(MOST_WAITING);
        let id = stream.id();
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).insert(id.0, sender);
        let (reading, writing) = stream.into_halves();
        let joined = Joined { associations: self.clone(), id };
        let session = self.session.clone();
        (
            Inbox { waiting, stream: reading, _joined: joined },
            Outbox { session, id, stream: writing, bytes: Vec::new() },
        )
    }
}

/// Takes the association out when it is dropped.
#[derive(Debug)]
struct Joined {
    associations: Arc<Associations>,
    id: StreamId,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.associations.inboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id.0);
    }
}

/// Datagrams that arrive for an association.
#[derive(Debug)]
pub(crate) struct Inbox {
    waiting: mpsc::Receiver<Waiting>,
    stream: Stream,
    _joined: Joined,
}

impl Inbox {
    /// Gives each datagram with its destination or source to `take`, until the other end ends the association.
    pub(crate) async fn for_each<F: Future<Output = bool>>(
        self,
        take: impl Fn(Target, Bytes) -> F,
    ) -> io::Result<()> {
        let Self { mut waiting, mut stream, _joined } = self;
        let datagrams = async {
            while let Some(taken) = waiting.recv().await {
                let bytes = taken.bytes.clone();
                drop(taken);
                if let Some((peer, payload)) = read(&bytes)
                    && !take(peer, payload).await
                {
                    break;
                }
            }
        };
        let frames = async {
            loop {
                let mut length = [0; FRAME_HEAD];
                stream.read_exact(&mut length).await?;
                let mut bytes = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut bytes).await?;
                let invalid = || io::Error::from(io::ErrorKind::InvalidData);
                let (peer, payload) = read(&Bytes::from(bytes)).ok_or_else(invalid)?;
                if !take(peer, payload).await {
                    return Ok(());
                }
            }
        };
        tokio::select! {
            () = datagrams => Ok(()),
            ended = frames => ended,
        }
    }
}

fn read(bytes: &Bytes) -> Option<(Target, Bytes)> {
    let (peer, payload) = Target::read(bytes).ok()?;
    Some((peer, bytes.slice_ref(payload)))
}

/// Sends datagrams of an association.
#[derive(Debug)]
pub(crate) struct Outbox {
    session: Session,
    id: StreamId,
    stream: Stream,
    bytes: Vec<u8>,
}

impl Outbox {
    /// Sends a datagram to or from `peer`. When the session is full, it is dropped as in any network.
    pub(crate) async fn send(&mut self, peer: &Target, payload: &[u8]) -> io::Result<()> {
        self.bytes.clear();
        self.bytes.extend(self.id.0.to_be_bytes());
        peer.write(&mut self.bytes);
        self.bytes.extend_from_slice(payload);
        let data = Bytes::copy_from_slice(&self.bytes);
        match self.session.send_datagram(Datagram { class: CLASS, flow: flow(self.id, peer), data }) {
            Ok(()) => Ok(()),
            Err(SessionError::Datagram(_)) => {
                self.bytes.clear();
                match write_frame(peer, payload, &mut self.bytes) {
                    true => self.stream.write_all(&self.bytes).await,
                    // Larger than any datagram that the peer could send on.
                    false => Ok(()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The flow of an association's datagrams with one peer; never 0, which means none.
fn flow(id: StreamId, peer: &Target) -> u32 {
    let mut hasher = DefaultHasher::new();
    (id.0, peer).hash(&mut hasher);
    (hasher.finish() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_wait_have_a_bound_over_all_associations() {
        let all = Arc::default();
        let one = || Waiting::new(Bytes::from(vec![0; 1000]), &all);
        let mut held: Vec<Waiting> = std::iter::from_fn(one).collect();
        assert!((MOST_BYTES..MOST_BYTES + 1000).contains(&(held.len() * 1000)), "{}", held.len());
        held.pop();
        assert!(one().is_some());
        drop(held);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
