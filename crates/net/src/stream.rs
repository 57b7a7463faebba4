//! A stream of a session, as `AsyncRead + AsyncWrite` or in pieces without a copy.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anabranch_engine::{Read, StreamError};
use anabranch_wire::StreamId;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::session::core::Core;
use crate::session::inner::Handle;

/// Most bytes copied at once from the application's buffer.
const LARGEST_COPY: usize = 64 << 10;

/// A reliable, ordered stream of bytes in both directions.
///
/// It is read and written like a TCP connection. `shutdown` ends the writing half and leaves the reading half open.
/// Dropping the stream ends the writing half after the data written, and stops the reading half. [`tokio::io::split`]
/// makes a half for each of two tasks.
///
/// ```no_run
/// use anabranch_net::Stream;
/// use bytes::Bytes;
///
/// /// Sends back all data, without copying it.
/// async fn echo(mut stream: Stream) -> std::io::Result<()> {
///     while let Some(piece) = stream.read_chunk(64 * 1024).await? {
///         stream.write_chunk(piece).await?;
///     }
///     stream.finish()
/// }
/// ```
pub struct Stream {
    handle: Arc<Handle>,
    id: StreamId,
    half: Half,
    read_ended: bool,
    write_ended: bool,
}

/// Which halves of the stream a handle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Both,
    Reading,
    Writing,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Stream {
    pub(crate) fn new(handle: Arc<Handle>, id: StreamId) -> Self {
        Self { handle, id, half: Half::Both, read_ended: false, write_ended: false }
    }

    /// A handle to the reading half and one to the writing half, for two tasks that use [`Stream::read_chunk`] and [`Stream::write_chunk`].
    pub fn into_halves(mut self) -> (Self, Self) {
        let (handle, id) = (self.handle.clone(), self.id);
        let (read_ended, write_ended) = (self.read_ended, self.write_ended);
        // The halves end the stream; this handle ends nothing.
        (self.read_ended, self.write_ended) = (true, true);
        let reading = Self { handle: handle.clone(), id, half: Half::Reading, read_ended, write_ended: true };
        let writing = Self { handle, id, half: Half::Writing, read_ended: true, write_ended };
        (reading, writing)
    }

    /// Its number in the session.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The next bytes, at most `most`, without a copy; `None` at the stream's end.
    ///
    /// # Errors
    /// `ConnectionReset` if the peer reset the stream, `ConnectionAborted` if the session is over.
    pub async fn read_chunk(&mut self, most: usize) -> io::Result<Option<Bytes>> {
        if self.read_ended {
            return Ok(None);
        }
        let piece = poll_fn(|cx| {
            let mut core = self.handle.inner.core();
            let piece = read(&mut core, self.id, most, cx);
            let tell = core.credit_to_tell();
            drop(core);
            if tell {
                self.handle.inner.wake_driver();
            }
            piece
        })
        .await?;
        self.read_ended |= piece.is_none();
        Ok(piece)
    }

    /// Waits for bytes and adds those that have arrived to `pieces`, without a copy: at most `most` bytes, in no more
    /// pieces than the vector has room for. False at the stream's end.
    pub async fn read_chunks(&mut self, most: usize, pieces: &mut Vec<Bytes>) -> io::Result<bool> {
        if self.read_ended {
            return Ok(false);
        }
        let (mut left, before) = (most, pieces.len());
        poll_fn(|cx| {
            let mut core = self.handle.inner.core();
            let result = loop {
                let has_some = pieces.len() > before;
                if has_some && (left == 0 || pieces.len() == pieces.capacity()) {
                    break Poll::Ready(Ok(true));
                }
                match read(&mut core, self.id, left, cx) {
                    Poll::Ready(Ok(Some(piece))) => {
                        left -= piece.len();
                        pieces.push(piece);
                    }
                    Poll::Ready(Ok(None)) => {
                        self.read_ended = true;
                        break Poll::Ready(Ok(has_some));
                    }
                    // The next call meets the error again.
                    _ if has_some => break Poll::Ready(Ok(true)),
                    Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                    Poll::Pending => break Poll::Pending,
                }
            };
            let tell = core.credit_to_tell();
            drop(core);
            if tell {
                self.handle.inner.wake_driver();
            }
            result
        })
        .await
    }

    /// Waits, without reading, until the peer has reset the stream or the session is over.
    pub async fn given_up(&mut self) {
        poll_fn(|cx| {
            let mut core = self.handle.inner.core();
            if core.closed.is_some() || core.engine.is_reset(self.id) {
                return Poll::Ready(());
            }
            core.wakers.wait_to_read(self.id, cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Ready when the peer has stopped reading or the session is over. Nothing may be written meanwhile.
    pub fn poll_stopped(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut core = self.handle.inner.core();
        if core.closed.is_some() || !core.engine.is_writable(self.id) {
            return Poll::Ready(());
        }
        core.wakers.wait_to_write(self.id, cx.waker());
        Poll::Pending
    }

    /// Writes all of `data` without copying it.
    ///
    /// # Errors
    /// `BrokenPipe` if the peer stopped reading, `ConnectionAborted` if the session is over.
    pub async fn write_chunk(&mut self, mut data: Bytes) -> io::Result<()> {
        while !data.is_empty() {
            poll_fn(|cx| self.poll_put(cx, &mut data)).await?;
        }
        Ok(())
    }

    /// Ends the writing half after the data written. The peer reads the end, and may go on writing.
    ///
    /// # Errors
    /// `BrokenPipe` if it was reset or stopped before, `ConnectionAborted` if the session is over.
    pub fn finish(&mut self) -> io::Result<()> {
        if self.write_ended {
            return Ok(());
        }
        self.write_ended = true;
        let mut core = self.handle.inner.core();
        let result = core.engine.finish(self.id);
        let result = result.map_err(|error| explain(&core, error, io::ErrorKind::BrokenPipe));
        drop(core);
        self.handle.inner.wake_driver();
        result
    }

    /// Sends data written from now on over every path at once, or over one path again. This gives the lowest latency,
    /// and no pause when a path dies, and costs bytes on every path. Each path must be able to carry the whole stream.
    /// The peer chooses for its own half.
    ///
    /// # Errors
    /// `BrokenPipe` if everything was delivered or reset, `ConnectionAborted` if the session is over.
    pub fn set_redundant(&mut self, redundant: bool) -> io::Result<()> {
        let mut core = self.handle.inner.core();
        let result = core.engine.set_redundant(self.id, redundant);
        result.map_err(|error| explain(&core, error, io::ErrorKind::BrokenPipe))
    }

    /// Resets the writing half: undelivered data is lost, and `code` is sent to the peer.
    pub fn reset(&mut self, code: u64) {
        self.write_ended = true;
        // A stream that has ended needs no reset.
        let _ = self.handle.inner.core().engine.reset(self.id, code);
        self.handle.inner.wake_driver();
    }

    /// Stops the reading half; `code` is sent to the peer.
    pub fn stop(&mut self, code: u64) {
        self.read_ended = true;
        // A stream that has ended needs no stop.
        let _ = self.handle.inner.core().engine.stop(self.id, code);
        self.handle.inner.wake_driver();
    }

    fn poll_put(&mut self, cx: &Context<'_>, data: &mut Bytes) -> Poll<io::Result<usize>> {
        let mut core = self.handle.inner.core();
        let result =
            if core.closed.is_some() { Err(StreamError::Ended) } else { core.engine.write(self.id, data) };
        if matches!(result, Ok(0)) {
            core.wakers.wait_to_write(self.id, cx.waker());
            return Poll::Pending;
        }
        let result = result.map_err(|error| explain(&core, error, io::ErrorKind::BrokenPipe));
        drop(core);
        self.handle.inner.wake_driver();
        Poll::Ready(result)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut core = self.handle.inner.core();
        if self.half != Half::Writing {
            core.wakers.forget_reader(self.id);
        }
        if self.half != Half::Reading {
            core.wakers.forget_writer(self.id);
        }
        // A half that has ended already needs neither.
        if !self.write_ended {
            let _ = core.engine.finish(self.id);
        }
        if !self.read_ended {
            let _ = core.engine.stop(self.id, 0);
        }
        drop(core);
        self.handle.inner.wake_driver();
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let handle = self.handle.clone();
        let mut core = handle.inner.core();
        let mut taken = 0;
        let result = loop {
            if buffer.remaining() == 0 || self.read_ended {
                break Poll::Ready(Ok(()));
            }
            let piece = match read(&mut core, self.id, buffer.remaining(), cx) {
                Poll::Ready(Ok(Some(piece))) => piece,
                Poll::Ready(Ok(None)) => {
                    self.read_ended = true;
                    break Poll::Ready(Ok(()));
                }
                // Return the data read so far; the next call meets the error again.
                _ if taken > 0 => break Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            };
            buffer.put_slice(&piece);
            taken += piece.len();
        };
        let tell = core.credit_to_tell();
        drop(core);
        if tell {
            handle.inner.wake_driver();
        }
        result
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut piece = Bytes::copy_from_slice(&data[..data.len().min(LARGEST_COPY)]);
        self.poll_put(cx, &mut piece)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Written data is sent without a flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.finish())
    }
}

/// The next piece; `None` at the end.
fn read(core: &mut Core, id: StreamId, most: usize, cx: &Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
    match core.engine.read(id, most) {
        Ok(Read::Data(piece)) => {
            core.note_read(piece.len());
            Poll::Ready(Ok(Some(piece)))
        }
        Ok(Read::Finished) => Poll::Ready(Ok(None)),
        Ok(Read::Reset(code)) => Poll::Ready(Err(io::Error::new(
            io::ErrorKind::ConnectionReset,
            format!("the peer gave the stream up (code {code})"),
        ))),
        Ok(Read::Blocked) if core.closed.is_some() => {
            Poll::Ready(Err(explain(core, StreamError::Ended, io::ErrorKind::ConnectionAborted)))
        }
        Ok(Read::Blocked) => {
            core.note_dry();
            core.wakers.wait_to_read(id, cx.waker());
            Poll::Pending
        }
        Err(error) => Poll::Ready(Err(explain(core, error, io::ErrorKind::NotConnected))),
    }
}

/// The reason of a session that is over explains more than the state of its stream.
fn explain(core: &Core, error: StreamError, kind: io::ErrorKind) -> io::Error {
    match &core.closed {
        Some(reason) => {
            io::Error::new(io::ErrorKind::ConnectionAborted, format!("the session is over: {reason}"))
        }
        None => io::Error::new(kind, error),
    }
}
