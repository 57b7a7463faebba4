//! A part of a file as the body of an answer, read piece by piece as the client takes it.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::task::spawn_blocking;

use super::Files;

/// Most bytes of a piece: what a connection holds in memory.
const PIECE: u64 = 128 << 10;

/// A piece that is being read.
type Reading<F> = Pin<Box<dyn Future<Output = io::Result<(Part<F>, Bytes)>> + Send>>;

/// The body.
pub(super) struct FileBody<F> {
    next: Option<Reading<F>>,
    left: u64,
}

impl<F: Files> FileBody<F> {
    pub fn new(files: F, (file, meta): (File, Metadata), range: Range<u64>) -> Self {
        let left = range.end - range.start;
        let part = Part { files, file, meta, range };
        Self { next: (left > 0).then(|| part.read()), left }
    }
}

impl<F: Files> Body for FileBody<F> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let read = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(Some(read.map(|(part, bytes)| {
            self.left -= bytes.len() as u64;
            self.next = (self.left > 0).then(|| part.read());
            Frame::data(bytes)
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The part of a file that is still to be read.
struct Part<F> {
    files: F,
    file: File,
    /// As they were when the answer began.
    meta: Metadata,
    range: Range<u64>,
}

impl<F: Files> Part<F> {
    /// Reads the next piece, when it may be sent.
    fn read(self) -> Reading<F> {
        Box::pin(async move {
            let most = (self.range.end - self.range.start).min(PIECE) as usize;
            let len = self.files.admit(most).await;
            spawn_blocking(move || self.read_now(len)).await.map_err(io::Error::other)?
        })
    }

    /// Fails before the last piece if the file has changed, so that the client does not take a mix of two versions for a
    /// whole file.
    fn read_now(mut self, len: usize) -> io::Result<(Self, Bytes)> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, self.range.start)?;
        self.range.start += len as u64;
        if self.range.is_empty() {
            let now = self.file.metadata()?;
            // A file that grows, such as a log, is assumed to keep what it had.
            if now.len() <= self.meta.len() && now.modified().ok() != self.meta.modified().ok() {
                return Err(io::Error::other("the file was changed while it was sent"));
            }
        }
        Ok((self, bytes.into()))
    }
}
