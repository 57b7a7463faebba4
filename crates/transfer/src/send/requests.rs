//! Reads a receiver's requests, with a small buffer.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::codec::{FRAME_HEADER, parse_header};
use crate::error::TransferError;
use crate::message::{LONGEST_REQUEST, Request};

/// Size of the buffer; more than the longest request.
const AHEAD: usize = 8 << 10;

pub(crate) struct Requests<R> {
    reader: R,
    /// Bytes read; those before `taken` are decoded.
    buffer: Vec<u8>,
    taken: usize,
    has_ended: bool,
}

impl<R: AsyncRead + Unpin> Requests<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, buffer: Vec::new(), taken: 0, has_ended: false }
    }

    /// Waits for the next request; `None` when the stream has ended.
    pub async fn recv(&mut self) -> Result<Option<Request>, TransferError> {
        loop {
            if let Some(request) = self.decode()? {
                return Ok(Some(request));
            }
            if self.has_ended {
                return self.check_end().map(|()| None);
            }
            self.make_room();
            let read = self.reader.read_buf(&mut self.buffer).await.map_err(TransferError::Connection)?;
            self.has_ended = read == 0;
        }
    }

    /// The next request, if it has already arrived.
    pub async fn try_recv(&mut self) -> Result<Option<Request>, TransferError> {
        if let Some(request) = self.decode()? {
            return Ok(Some(request));
        }
        if self.has_ended {
            return Ok(None);
        }
        self.make_room();
        let mut piece = [0; 4 << 10];
        let mut piece = ReadBuf::new(&mut piece);
        let reader = &mut self.reader;
        let polled = poll_fn(|cx| match Pin::new(&mut *reader).poll_read(cx, &mut piece) {
            Poll::Ready(read) => Poll::Ready(Some(read)),
            Poll::Pending => Poll::Ready(None),
        });
        let Some(read) = polled.await else { return Ok(None) };
        read.map_err(TransferError::Connection)?;
        self.has_ended = piece.filled().is_empty();
        self.buffer.extend_from_slice(piece.filled());
        self.decode()
    }

    fn make_room(&mut self) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.reserve(AHEAD.saturating_sub(self.buffer.len()));
    }

    fn decode(&mut self) -> Result<Option<Request>, TransferError> {
        let Some((header, rest)) = self.buffer[self.taken..].split_first_chunk::<FRAME_HEADER>() else {
            return Ok(None);
        };
        let (kind, len) = parse_header(*header, LONGEST_REQUEST)?;
        let Some(body) = rest.get(..len) else { return Ok(None) };
        self.taken += FRAME_HEADER + len;
        Request::decode(kind, body).map(Some)
    }

    fn check_end(&self) -> Result<(), TransferError> {
        if self.taken == self.buffer.len() {
            return Ok(());
        }
        Err(TransferError::Connection(io::ErrorKind::UnexpectedEof.into()))
    }
}
