//! Answers one receiver's requests: takes turns at the disk and writes to the data stream.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::chunk::Chunk;
use super::listing::Listing;
use super::memory::{Consumer, PATIENCE, SILENCE};
use super::requests::Requests;
use super::share::Share;
use super::skipped::Skipped;
use super::source::Source;
use crate::error::TransferError;
use crate::progress::Progress;
use crate::report::Report;

/// Most requests that one chunk answers.
const REQUESTS: usize = 256;
/// Chunks that may wait while one is written.
const CHUNKS: usize = 1;
/// Most bytes of a write.
const PIECE: usize = 256 << 10;
/// How often a full session is checked.
const LOOK: Duration = Duration::from_millis(5);

/// The share as served to one receiver.
pub(crate) struct Service {
    pub listing: Arc<Listing>,
    pub share: Share,
    pub progress: Progress,
    pub report: Report,
    pub skipped: Skipped,
    /// Whether the receiver takes files shorter than listed.
    pub takes_short: bool,
}

/// Serves requests from `stream` until the receiver closes it. `in_session` returns the bytes that the session holds
/// for the receiver.
pub(crate) async fn answer<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    service: Service,
    in_session: impl Fn() -> usize,
) -> Result<(), TransferError> {
    let (reader, writer) = tokio::io::split(stream);
    let (chunk_sender, chunks) = mpsc::channel::<Chunk>(CHUNKS);
    let consumer = service.share.memory().consumer();
    let Service { listing, share, progress, report, skipped, takes_short } = service;
    // Boxed, because each chunk moves it to a thread and back.
    let source = Box::new(Source::new(listing, progress.clone(), report).skipping(skipped, takes_short));
    let read = read_chunks(source, Requests::new(reader), (&share, &consumer), chunk_sender);
    let outlet =
        Outlet { writer, share: &share, consumer: &consumer, progress: &progress, in_session: &in_session };
    let written = write_chunks(outlet, chunks);
    tokio::select! {
        done = async { tokio::try_join!(read, written) } => done.map(|_| ()),
        () = consumer.yields(&in_session) => Err(TransferError::Yielded),
    }
}

/// Turns requests into chunks until the stream ends.
async fn read_chunks<R: AsyncRead + Unpin>(
    mut source: Box<Source>,
    mut requests: Requests<R>,
    (share, consumer): (&Share, &Consumer),
    chunks: mpsc::Sender<Chunk>,
) -> Result<(), TransferError> {
    let mut queue = VecDeque::new();
    loop {
        if source.is_idle() && queue.is_empty() {
            // Idle receivers wait here, without a thread.
            let request = timeout(SILENCE, requests.recv()).await;
            match request.map_err(|_| TransferError::Stalled { after: SILENCE })?? {
                Some(request) => queue.push_back(request),
                None => return Ok(()),
            }
        }
        while queue.len() < REQUESTS
            && let Some(request) = requests.try_recv().await?
        {
            queue.push_back(request);
        }
        source.wait_for_input().await;
        let is_check = source.is_checking(&queue);
        let turn = share.turns().next(is_check).await;
        let buffer = consumer.buffer();
        let worked = spawn_blocking(move || {
            let chunk = source.turn(&mut queue, buffer);
            drop(turn);
            (source, queue, chunk)
        });
        let chunk;
        (source, queue, chunk) = worked.await.map_err(|error| TransferError::Connection(error.into()))?;
        if !chunk.buffer.bytes.is_empty() && chunks.send(chunk).await.is_err() {
            return Ok(());
        }
    }
}

/// The stream to the receiver.
struct Outlet<'a, W, F> {
    writer: W,
    share: &'a Share,
    consumer: &'a Consumer,
    progress: &'a Progress,
    in_session: F,
}

async fn write_chunks<W: AsyncWrite + Unpin, F: Fn() -> usize>(
    mut outlet: Outlet<'_, W, F>,
    mut chunks: mpsc::Receiver<Chunk>,
) -> Result<(), TransferError> {
    while let Some(chunk) = chunks.recv().await {
        outlet.write(&chunk).await?;
        if chunks.is_empty() {
            outlet.writer.flush().await.map_err(TransferError::Connection)?;
        }
        outlet.progress.add_bytes(chunk.carried);
        outlet.progress.add_resumed(chunk.held);
    }
    outlet.writer.shutdown().await.map_err(TransferError::Connection)
}

impl<W: AsyncWrite + Unpin, F: Fn() -> usize> Outlet<'_, W, F> {
    /// Writes a chunk within the share's limits of rate and memory.
    ///
    /// # Errors
    /// [`TransferError::Stalled`] when the receiver reads nothing for [`PATIENCE`].
    async fn write(&mut self, chunk: &Chunk) -> Result<(), TransferError> {
        let limit = self.share.rate();
        let mut left = chunk.carried;
        for piece in chunk.buffer.bytes.chunks(limit.map_or(PIECE, |limit| limit.piece())) {
            if let Some(limit) = limit {
                limit.admit(piece.len()).await;
            }
            self.write_piece(piece).await?;
            let moved = left.min(piece.len() as u64);
            self.progress.add_moved(moved);
            left -= moved;
        }
        Ok(())
    }

    async fn write_piece(&mut self, mut piece: &[u8]) -> Result<(), TransferError> {
        while !piece.is_empty() {
            let taken = timeout(PATIENCE, async {
                while self.consumer.should_wait((self.in_session)()) {
                    sleep(LOOK).await;
                }
                self.writer.write(piece).await
            });
            match taken.await {
                Ok(Ok(0)) => return Err(TransferError::Connection(io::ErrorKind::WriteZero.into())),
                Ok(taken) => piece = &piece[taken.map_err(TransferError::Connection)?..],
                Err(_) => return Err(TransferError::Stalled { after: PATIENCE }),
            }
            self.consumer.note_taken((self.in_session)());
        }
        Ok(())
    }
}
