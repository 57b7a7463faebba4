//! The file that the disk thread receives: its place in the data, and its unfinished file.

use std::io;
use std::sync::Arc;

use super::job::FileJob;
use super::part::PartFile;
use crate::error::TransferError;
use crate::hash::{BLOCK, BlockHash, BlockHasher, FileHasher, block_len};

/// Most bytes of a file that may arrive after `Skip`: more than any sender has under way.
const MOST_SKIPPED: u64 = if cfg!(test) { 64 << 20 } else { 1 << 30 };

/// The file being received.
pub(super) struct Current {
    pub job: Arc<FileJob>,
    pub sink: Sink,
    pub hasher: FileHasher,
    /// The block that arrives in pieces.
    pub block: BlockHasher,
    pub received: u64,
    /// Bytes that arrived after `Skip`.
    pub skipped: Option<u64>,
}

pub(super) enum Sink {
    /// Nothing was received yet, and there is no unfinished file.
    Unopened,
    Part(PartFile),
    /// The file failed here; the rest is dropped. It is verified until the sender is asked to skip it.
    Discard,
}

impl Current {
    /// A file before its first byte.
    pub fn new(job: Arc<FileJob>, part: Option<PartFile>) -> Self {
        let sink = part.map_or(Sink::Unopened, Sink::Part);
        let (hasher, block) = (FileHasher::default(), BlockHasher::new(0));
        Self { job, sink, hasher, block, received: 0, skipped: None }
    }

    /// True if much of the file may be still to come.
    pub fn is_far_from_its_end(&self) -> bool {
        self.job.meta.size.is_none_or(|size| size.saturating_sub(self.received) > BLOCK as u64)
    }

    /// Blocks that have arrived.
    pub fn blocks(&self) -> u64 {
        if self.skipped.is_some() { self.received / BLOCK as u64 } else { self.hasher.blocks() }
    }

    /// Drops the next `len` bytes, which arrive after `Skip` and lie in `blocks` blocks. They are not hashed: any number of
    /// zeros may be under way.
    pub fn drop_next(&mut self, len: u64, blocks: u64) -> Result<(), TransferError> {
        let end = self.blocks().saturating_add(blocks).saturating_mul(BLOCK as u64);
        let most = end.min(self.job.meta.size.unwrap_or(u64::MAX)).saturating_sub(self.received);
        if len == 0 || len > most {
            return Err(unasked());
        }
        self.received += len;
        Ok(())
    }

    /// Counts bytes that arrive after `Skip`. Zeros take none, so any number may be under way.
    pub fn count_skipped(&mut self, bytes: u64) -> Result<(), TransferError> {
        let Some(skipped) = &mut self.skipped else { return Ok(()) };
        *skipped = skipped.saturating_add(bytes);
        if *skipped <= MOST_SKIPPED {
            return Ok(());
        }
        Err(TransferError::protocol(format!("it does not skip {}", self.job.path.shown())))
    }

    /// Checks that the next `len` bytes fit into the current block, and that they fill it if they complete it.
    pub fn check_len(&self, len: usize, completes: bool) -> Result<(), TransferError> {
        let index = self.hasher.blocks();
        let got = self.block.len() + len;
        let fits = match (self.job.meta.size, completes) {
            // If it is shorter, the file ends with it.
            (Some(size), true) => got <= block_len(size, index),
            (Some(size), false) => got < block_len(size, index),
            (None, true) => got <= BLOCK,
            (None, false) => got < BLOCK,
        };
        if fits && self.is_in_place() && got > 0 {
            return Ok(());
        }
        Err(TransferError::protocol(format!("block {index} of {} has a wrong length", self.job.path.shown())))
    }

    /// False after a short block: the file has ended.
    pub fn is_in_place(&self) -> bool {
        self.received == self.hasher.blocks() * BLOCK as u64 + self.block.len() as u64
    }

    pub fn mismatch(&self) -> TransferError {
        let (index, path) = (self.hasher.blocks(), self.job.path.shown());
        TransferError::protocol(format!("block {index} of {path} does not match its hash"))
    }

    /// Moves to the next block if this one is complete.
    pub fn end_block(&mut self, hash: BlockHash) {
        self.hasher.push(hash);
        self.block = BlockHasher::new(self.hasher.blocks());
    }
}

/// Removes what was received of a stream: it cannot be continued.
pub(super) fn discard_stream(current: Current) {
    if current.job.meta.size.is_none() {
        discard(current.sink, &current.job);
    }
}

pub(super) fn discard(sink: Sink, job: &FileJob) {
    if let Sink::Part(part) = sink {
        let directory = part.directory();
        drop(part);
        // If this fails as well, the file stays, under a name that identifies it.
        let _ = PartFile::discard(&directory, &job.name);
    }
}

/// Why the file system does not take this file, if others may still be written.
pub(super) fn refusal(error: &io::Error) -> Option<String> {
    use io::ErrorKind::{FileTooLarge, InvalidInput, PermissionDenied, Unsupported};
    match error.kind() {
        FileTooLarge => {
            Some("it is larger than files may be here; choose another file system, or a larger limit".into())
        }
        InvalidInput | PermissionDenied | Unsupported => {
            Some(format!("this file system does not take its content: {error}"))
        }
        _ => None,
    }
}

pub(super) fn never_offered() -> TransferError {
    TransferError::protocol("a block was never offered")
}

pub(super) fn unasked() -> TransferError {
    TransferError::protocol("a reply that was not asked for")
}

pub(super) fn stream_error(error: io::Error) -> TransferError {
    TransferError::Lost { path: "the output".into(), source: error }
}
