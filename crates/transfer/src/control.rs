//! The control stream: greeting, the list, and how a transfer ends.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::timeout;

use crate::codec::{FRAME_HEADER, parse_header};
use crate::error::TransferError;
use crate::message::{Control, LONGEST_CONTROL, VERSION};

/// How long an end that has said its last word waits for the other to have heard it.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long to wait for the other end's reason once a stream broke.
const REASON: Duration = Duration::from_millis(500);

/// One end of the control stream.
pub(crate) struct ControlLink<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    /// Bytes that were read; those from `taken` on are not decoded yet. Kept when a `recv` is dropped half-way.
    buffer: Vec<u8>,
    taken: usize,
}

/// How much is read at a time: little at first, since most links are idle, and more while much comes.
const FIRST_READ: usize = 512;
const LARGEST_READ: usize = 64 << 10;

impl<S: AsyncRead + AsyncWrite + Unpin> ControlLink<S> {
    pub fn new(stream: S) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader, writer, buffer: Vec::new(), taken: 0 }
    }

    /// Says which version this end speaks.
    pub async fn greet(&mut self) -> Result<(), TransferError> {
        self.send(&Control::Hello { version: VERSION }).await
    }

    /// Reads the other end's greeting.
    pub async fn expect_greeting(&mut self) -> Result<(), TransferError> {
        match self.recv().await? {
            Control::Hello { version: VERSION } => Ok(()),
            Control::Hello { version } => Err(TransferError::Version { ours: VERSION, theirs: version }),
            Control::Abort(reason) => Err(TransferError::Peer(reason)),
            _ => Err(TransferError::protocol("it did not greet first")),
        }
    }

    pub async fn send(&mut self, message: &Control) -> Result<(), TransferError> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_bytes(&bytes).await
    }

    /// Writes messages that are encoded already.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.writer.write_all(bytes).await.map_err(TransferError::Connection)?;
        self.writer.flush().await.map_err(TransferError::Connection)
    }

    /// The next message; the end of the stream is an error here. Dropped half-way, it loses nothing.
    pub async fn recv(&mut self) -> Result<Control, TransferError> {
        loop {
            let rest = &self.buffer[self.taken..];
            if let Some((header, rest)) = rest.split_first_chunk::<FRAME_HEADER>() {
                let (kind, len) = parse_header(*header, LONGEST_CONTROL)?;
                if let Some(body) = rest.get(..len) {
                    self.taken += FRAME_HEADER + len;
                    return Control::decode(kind, body);
                }
            }
            let capacity = self.buffer.capacity();
            let was_filled = self.buffer.len() == capacity;
            self.buffer.drain(..self.taken);
            self.taken = 0;
            if was_filled && (capacity < LARGEST_READ || self.buffer.len() == capacity) {
                self.buffer.reserve(capacity.clamp(FIRST_READ, LARGEST_READ));
            }
            if self.reader.read_buf(&mut self.buffer).await.map_err(TransferError::Connection)? == 0 {
                return Err(TransferError::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Why the other end stopped, where it said so; otherwise `error`.
    pub async fn explain(&mut self, error: TransferError) -> TransferError {
        if !matches!(error, TransferError::Connection(_)) {
            return error;
        }
        match timeout(REASON, self.recv()).await {
            Ok(Ok(Control::Abort(reason))) => TransferError::Peer(reason),
            _ => error,
        }
    }

    /// Tells the other end how it went, and waits a little until it has heard.
    pub async fn part<T>(&mut self, outcome: &Result<T, TransferError>) {
        let last_word = match outcome {
            Ok(_) => Control::Done,
            Err(error @ TransferError::Incomplete { count, here, .. }) => {
                Control::Incomplete { count: *count, failed_here: *here, files: error.to_line().into() }
            }
            Err(
                TransferError::Peer(_) | TransferError::PeerIncomplete { .. } | TransferError::Connection(_),
            ) => {
                // The other end has stopped: nothing is left to say, and failing to say it changes nothing.
                let _ = timeout(FAREWELL, self.writer.shutdown()).await;
                return;
            }
            Err(error) => Control::Abort(error.to_line().into()),
        };
        let _ = timeout(FAREWELL, async {
            self.send(&last_word).await?;
            self.writer.shutdown().await.map_err(TransferError::Connection)?;
            while self.recv().await.is_ok() {}
            Ok::<(), TransferError>(())
        })
        .await;
    }
}
