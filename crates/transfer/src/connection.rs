//! The part of a session that a transfer uses: both ends open and accept streams.

use std::future::Future;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// A session between two machines.
///
/// Streams are reliable, ordered and bidirectional. Each direction closes separately (`AsyncWriteExt::shutdown`).
/// `accept` may not return a stream before its first byte was written.
pub trait Connection: Send + Sync {
    /// A stream of bytes in both directions.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Opens a stream towards the other end.
    fn open(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Waits for the next stream that the other end opens.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Bytes written to streams and not yet acknowledged by the other end.
    fn unacknowledged(&self) -> usize {
        0
    }
}
