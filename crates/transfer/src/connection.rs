//! The part of a session that a transfer uses: streams, opened by one end and accepted by the other.

use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// A session between two machines, as far as a transfer is concerned.
///
/// Streams are reliable, ordered, bidirectional, and each direction closes by itself
/// (`AsyncWriteExt::shutdown`). A stream need not reach `accept` before its first byte is written.
pub trait Connection: Send + Sync {
    /// A stream of bytes in both directions.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Opens a stream towards the other end.
    fn open(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Waits for the next stream that the other end opens.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Bytes that were written to streams and are still held for the other end.
    fn unacknowledged(&self) -> usize {
        0
    }
}
