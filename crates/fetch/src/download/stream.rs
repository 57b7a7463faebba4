//! An answer that is being received, and perhaps longer than the request of its lane.

use bytes::Bytes;

use crate::source::Answer;

/// An answer and how much of it was taken.
#[derive(Debug)]
pub(super) struct Stream {
    answer: Answer,
    /// The place of its next byte in the file.
    at: u64,
    /// Bytes that came and were not taken.
    left: Bytes,
}

impl Stream {
    /// The rest of an answer: it goes on at this byte with `left`.
    pub(super) fn new(answer: Answer, at: u64, left: Bytes) -> Self {
        Self { answer, at, left }
    }

    /// The place of its next byte in the file.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Whether its server sends parts.
    pub(super) fn is_part(&self) -> bool {
        self.answer.is_part
    }

    /// Notes that so many bytes were not wanted.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.at += bytes;
    }

    /// Notes that so many bytes were taken, and which were left.
    pub(super) fn take(&mut self, bytes: u64, left: Bytes) {
        (self.at, self.left) = (self.at + bytes, left);
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, String> {
        if self.left.is_empty() {
            self.answer.body.next().await
        } else {
            Ok(Some(std::mem::take(&mut self.left)))
        }
    }
}
