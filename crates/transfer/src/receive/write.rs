//! The receiver's disk thread: verifies and writes the received data.
//!
//! Replies have the order of the requests, so each belongs to the first request in the queue. A block, or a piece of
//! one, is verified before it is written. The file's hash is verified before the file is synced and renamed.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::vec::IntoIter;

use tokio::sync::mpsc;

use super::ahead::{Fetch, InFlight};
use super::begun::Begun;
use super::commit::{Committer, Complete};
use super::incoming::{
    Current, Sink, discard, discard_stream, never_offered, refusal, stream_error, unasked,
};
use super::job::FileJob;
use super::part::{PartFile, cannot_make};
use super::plan::Compared;
use super::queue;
use super::target::{OutputStream, TargetTree};
use crate::error::{TransferError, is_disk_full};
use crate::hash::{BLOCK, BlockHash, ZERO_BLOCK, block_len};
use crate::message::{MOST_ZEROS, Reply};
use crate::progress::Progress;
use crate::report::{Report, Watch};

/// Smallest reply with a buffer from the pool. All pooled buffers were used before, so there are no more of them than
/// replies in flight.
pub(crate) const POOLED: usize = 64 << 10;
/// A block or a piece of one follows its hash.
const HASH: usize = 32;
/// Free space that a stream must leave on the disk; at most a tenth of the free space at its start.
const RESERVE: u64 = 256 << 20;

pub(crate) struct WritePorts {
    pub in_flight: queue::Output<InFlight>,
    pub replies: mpsc::Receiver<Vec<Reply>>,
    pub compared: Sender<Compared>,
    /// Buffers of written blocks, to be used again.
    pub spare: Sender<Vec<u8>>,
    pub begun: Begun,
    /// The files that the sender is to skip, if it can.
    pub skips: Option<mpsc::UnboundedSender<u32>>,
}

impl WritePorts {
    /// True if the others may still arrive after this file has failed: a file of unknown length may have no end.
    fn may_fail_alone(&self, job: &FileJob) -> bool {
        job.meta.size.is_some() || (!job.is_stream() && self.skips.is_some())
    }
}

/// The destination of blocks.
pub(crate) enum Output {
    Tree(TargetTree, Committer),
    Stream(Box<dyn OutputStream>),
}

pub(crate) struct Writer {
    output: Output,
    ports: WritePorts,
    /// The rest of the current group of replies.
    replies: IntoIter<Reply>,
    report: Report,
    progress: Progress,
    current: Option<Current>,
    /// Most bytes of all files.
    most: u64,
    /// Bytes of the files with a known length, and those received of the others.
    listed: u64,
    endless: u64,
    /// Free space that a file of unknown length must leave.
    reserve: u64,
}

impl Writer {
    /// A writer that accepts at most `most` bytes of all files; those of known length have `listed` bytes.
    pub fn new(output: Output, ports: WritePorts, watch: Watch, (most, listed): (u64, u64)) -> Self {
        let Watch { report, progress } = watch;
        let free = match &output {
            Output::Tree(tree, _) => tree.free_bytes(),
            Output::Stream(_) => None,
        };
        let reserve = free.map_or(0, |free| RESERVE.min(free / 10));
        let (replies, current, endless) = (Vec::new().into_iter(), None, 0);
        Self { output, ports, replies, report, progress, current, most, listed, endless, reserve }
    }

    /// Handles replies until all requests have theirs; blocks. Returns the directories in which files were renamed.
    pub fn run(mut self) -> Result<BTreeSet<String>, TransferError> {
        let taken = self.take_all();
        if taken.is_err() {
            self.current.take().into_iter().for_each(discard_stream);
            self.pass_on();
        }
        taken?;
        match self.output {
            Output::Tree(_, committer) => committer.finish(),
            Output::Stream(mut stream) => {
                stream.finish().map_err(stream_error)?;
                Ok(BTreeSet::new())
            }
        }
    }

    fn take_all(&mut self) -> Result<(), TransferError> {
        while let Some(work) = self.ports.in_flight.take() {
            if matches!((&self.ports.begun, &work), (Begun::Due, InFlight::Fetch(_) | InFlight::Compare(_))) {
                self.ports.begun = Begun::of(self.next_reply()?)?;
            }
            match work {
                InFlight::Fetch(fetch) => self.take_blocks(fetch)?,
                InFlight::Compare(job) => self.take_comparison(job)?,
                InFlight::Stop(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take_comparison(&mut self, job: Arc<FileJob>) -> Result<(), TransferError> {
        let theirs = match self.next_reply()? {
            // Its system may report more bytes than can be read.
            Reply::End { len, hash } if job.meta.size.is_none_or(|size| len <= size) => Some(hash),
            Reply::Failed(reason) => {
                self.report.fail_there(job.path.to_foreign(), reason);
                None
            }
            _ => return Err(TransferError::protocol("a comparison was answered with something else")),
        };
        // The planner waits for every comparison. If it has stopped, its error comes next.
        let _ = self.ports.compared.send(Compared { job, theirs });
        Ok(())
    }

    fn take_blocks(&mut self, fetch: Fetch) -> Result<(), TransferError> {
        let Fetch { job, part, held, first, count, last } = fetch;
        if first == 0 {
            self.progress.set_current(job.path.shown());
            self.current = Some(Current::new(job, part));
            if held.is_empty() {
                self.take_beginning()?;
            }
        }
        loop {
            let taken = self.current.as_ref().map_or(0, |current| current.blocks().saturating_sub(first));
            if taken >= count && !last {
                return Ok(());
            }
            let reply = self.next_reply()?;
            if let Some(current) = self.current.as_mut().filter(|current| current.skipped.is_some())
                && drop_skipped(current, &reply, count.saturating_sub(taken))?
            {
                if let Reply::Piece(body) | Reply::Block(body) = reply {
                    self.recycle(body);
                }
                continue;
            }
            match reply {
                Reply::Piece(body) if taken < count => self.take_piece(body)?,
                Reply::Block(body) if taken < count => self.take_block(body)?,
                Reply::Zeros { len } if taken < count => self.take_zeros(len, count - taken)?,
                Reply::Same => {
                    let index = usize::try_from(taken).unwrap_or(usize::MAX);
                    let block = held.get(index).ok_or_else(never_offered)?;
                    self.take_held(*block)?;
                }
                Reply::End { len, hash } if last => return self.end_file(len, &hash),
                Reply::Failed(reason) => {
                    if let Some(current) = self.current.take()
                        && !matches!(current.sink, Sink::Discard)
                    {
                        self.report.fail_there(current.job.path.to_foreign(), reason);
                        discard_stream(current);
                    }
                    return Ok(());
                }
                _ => return Err(unasked()),
            }
        }
    }

    /// Begins the current file with the bytes that came before it was asked for, if they are its own.
    fn take_beginning(&mut self) -> Result<(), TransferError> {
        let current = self.current.as_mut().ok_or_else(unasked)?;
        let Some(data) = self.ports.begun.take(current.job.index, current.job.meta)? else { return Ok(()) };
        current.block.update(&data);
        self.write(&data)
    }

    /// Accepts a block on the disk that matches the sender's.
    fn take_held(&mut self, block: BlockHash) -> Result<(), TransferError> {
        let current = self.current.as_mut().ok_or_else(unasked)?;
        if current.block.len() > 0 || !current.is_in_place() {
            return Err(unasked());
        }
        let len = block_len(current.job.meta.size.unwrap_or(0), current.hasher.blocks()) as u64;
        current.end_block(block);
        current.received += len;
        self.progress.add_resumed(len);
        Ok(())
    }

    /// Opens the unfinished file when there is data for it.
    fn open_sink(&mut self) -> Result<(), TransferError> {
        let (Some(current), Output::Tree(tree, _)) = (&mut self.current, &mut self.output) else {
            return Ok(());
        };
        if !matches!(current.sink, Sink::Unopened) {
            return Ok(());
        }
        let job = &current.job;
        let leftovers = tree.leftovers().clone();
        let opened = tree.directory(&job.parent).and_then(|directory| {
            let open = || PartFile::open(Arc::clone(&directory), &job.name, job.meta.size);
            leftovers.make_room(tree, 1, open)
        });
        current.sink = match opened {
            Ok(part) => Sink::Part(part),
            Err(error) if is_disk_full(&error) && job.is_stream() => return Err(job.write_error(error)),
            Err(error) => {
                let shut = tree.why_shut(&job.parent, &error);
                self.report.fail_io(&job.path, &error, |error| shut.unwrap_or_else(|| cannot_make(error)));
                Sink::Discard
            }
        };
        self.skip();
        Ok(())
    }

    /// Handles a piece of a block, which has its own hash.
    fn take_piece(&mut self, body: Vec<u8>) -> Result<(), TransferError> {
        let (stated, data) = body.split_first_chunk::<HASH>().ok_or_else(unasked)?;
        let current = self.current.as_mut().ok_or_else(unasked)?;
        current.check_len(data.len(), false)?;
        if blake3::hash(data) != *stated {
            return Err(current.mismatch());
        }
        current.block.update(data);
        self.write(data)?;
        self.recycle(body);
        Ok(())
    }

    /// Handles the rest of a block, with the hash of the whole.
    fn take_block(&mut self, body: Vec<u8>) -> Result<(), TransferError> {
        let (stated, data) = body.split_first_chunk::<HASH>().ok_or_else(unasked)?;
        let current = self.current.as_mut().ok_or_else(unasked)?;
        current.check_len(data.len(), true)?;
        current.block.update(data);
        let hash = current.block.finish();
        if hash.value != *stated {
            return Err(current.mismatch());
        }
        self.write(data)?;
        self.current.as_mut().ok_or_else(unasked)?.end_block(hash);
        self.recycle(body);
        Ok(())
    }

    /// Handles zeros in the next `blocks` blocks.
    fn take_zeros(&mut self, len: u32, blocks: u64) -> Result<(), TransferError> {
        let current = self.current.as_ref().ok_or_else(unasked)?;
        let size = current.job.meta.size.ok_or_else(unasked)?;
        let most = blocks.saturating_mul(BLOCK as u64) - current.block.len() as u64;
        let mut left = u64::from(len);
        if len == 0 || len > MOST_ZEROS || !current.is_in_place() || left > most.min(size - current.received)
        {
            return Err(unasked());
        }
        while left > 0 {
            let current = self.current.as_mut().ok_or_else(unasked)?;
            if current.skipped.is_some() {
                return current.drop_next(left, blocks);
            }
            let want = block_len(size, current.hasher.blocks()) - current.block.len();
            let data = &ZERO_BLOCK[..usize::try_from(left).unwrap_or(want).min(want)];
            current.block.update(data);
            self.write(data)?;
            left -= data.len() as u64;
            let current = self.current.as_mut().ok_or_else(unasked)?;
            if data.len() == want {
                let hash = current.block.finish();
                current.end_block(hash);
            }
        }
        Ok(())
    }

    /// Writes verified bytes to the file or the stream.
    fn write(&mut self, data: &[u8]) -> Result<(), TransferError> {
        self.open_sink()?;
        let room = self.check_stream(data.len() as u64)?;
        let current = self.current.as_mut().ok_or_else(unasked)?;
        let written = match (&mut current.sink, &mut self.output) {
            (Sink::Part(part), Output::Tree(tree, _)) => {
                let (at, leftovers) = (current.received, tree.leftovers().clone());
                let need = current.job.meta.size.map_or(data.len() as u64, |size| size - at);
                room.and_then(|()| leftovers.make_room(tree, need, || part.write(at, data)))
            }
            (_, Output::Stream(stream)) => {
                // Forward the data of a slow stream at once.
                let written = stream.write_all(data).and_then(|()| stream.flush());
                written.map_err(stream_error)?;
                Ok(())
            }
            _ => Ok(()),
        };
        current.received += data.len() as u64;
        if current.job.meta.size.is_none() && current.skipped.is_none() {
            self.endless = self.endless.saturating_add(data.len() as u64);
        }
        match written {
            Ok(()) if matches!(current.sink, Sink::Discard) => {}
            Ok(()) => {
                self.progress.add_bytes(data.len() as u64);
                // Those of larger messages were counted as they came.
                if HASH + data.len() < POOLED {
                    self.progress.add_moved(data.len() as u64);
                }
            }
            Err(error) if is_disk_full(&error) && self.ports.may_fail_alone(&current.job) => {
                self.fail_full(&error);
            }
            Err(error) => {
                let why = refusal(&error).ok_or_else(|| current.job.write_error(error))?;
                self.report.fail_for_good(&current.job.path, why);
                discard(std::mem::replace(&mut current.sink, Sink::Discard), &current.job);
            }
        }
        self.skip();
        Ok(())
    }

    /// Asks the sender to skip the rest of the current file, if it failed here.
    fn skip(&mut self) {
        if let (Some(skips), Some(current)) = (&self.ports.skips, &mut self.current)
            && matches!(current.sink, Sink::Discard)
            && current.skipped.is_none()
            && current.is_far_from_its_end()
        {
            current.skipped = Some(0);
            // When the transfer ends, there is nothing to skip.
            let _ = skips.send(current.job.index);
        }
    }

    /// Fails the current file, for which there is no room. Its unfinished file stays for the next attempt.
    fn fail_full(&mut self, error: &io::Error) {
        let (Some(current), Output::Tree(tree, _)) = (&mut self.current, &self.output) else { return };
        self.report.fail_io(&current.job.path, error, cannot_make);
        match std::mem::replace(&mut current.sink, Sink::Discard) {
            Sink::Part(part) if part.len() > 0 && current.job.meta.size.is_some() => {
                let left = (part.id(), part.len());
                drop(part);
                tree.leftovers().add(&current.job, left);
            }
            sink => discard(sink, &current.job),
        }
    }

    /// Checks that the files of unknown length stay within the user's limit, all files together. The inner error is for one
    /// that would leave too little free space.
    fn check_stream(&self, more: u64) -> Result<io::Result<()>, TransferError> {
        let Some(Current { job, skipped, .. }) = &self.current else { return Ok(Ok(())) };
        if job.meta.size.is_some() || skipped.is_some() {
            return Ok(Ok(()));
        }
        if self.listed.saturating_add(self.endless).saturating_add(more) > self.most {
            return Err(TransferError::TooLarge { most: self.most });
        }
        if let Output::Tree(tree, _) = &self.output
            && let Some(free) = tree.free_bytes()
            && free < self.reserve + more
        {
            let what = if job.is_stream() { "stream" } else { "file of unknown length" };
            let why = format!("{free} bytes are free, and no {what} may fill the disk");
            return Ok(Err(io::Error::new(io::ErrorKind::StorageFull, why)));
        }
        Ok(Ok(()))
    }

    /// Returns the buffer of a large reply to the pool; the reader allocates when the pool is empty.
    fn recycle(&self, body: Vec<u8>) {
        if body.capacity() >= POOLED {
            let _ = self.ports.spare.send(body);
        }
    }

    fn end_file(&mut self, len: u64, hash: &[u8; 32]) -> Result<(), TransferError> {
        self.open_sink()?;
        let current = self.current.take().ok_or_else(unasked)?;
        if current.skipped.is_some() {
            return Ok(());
        }
        let path = &current.job.path;
        // The sender's system may report more bytes than can be read.
        let is_whole = current.received == len
            && current.block.len() == 0
            && current.job.meta.size.is_none_or(|size| len <= size);
        if !is_whole || current.hasher.finish() != *hash {
            return Err(TransferError::protocol(format!("{} does not match its hash", path.shown())));
        }
        match (current.sink, &mut self.output) {
            (Sink::Part(mut part), Output::Tree(_, committer)) => {
                part.end_at(len).map_err(|error| current.job.write_error(error))?;
                committer.commit(Complete { part, job: current.job, hash: *hash });
                Ok(())
            }
            (_, Output::Stream(_)) => {
                self.progress.add_file();
                self.report.add(|summary| summary.files += 1);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Has complete files put in place.
    fn pass_on(&mut self) {
        if let Output::Tree(_, committer) = &mut self.output {
            committer.pass_on();
        }
    }

    /// Waits for the next reply. Files that are complete by then need not wait.
    fn next_reply(&mut self) -> Result<Reply, TransferError> {
        loop {
            if let Some(reply) = self.replies.next() {
                return Ok(reply);
            }
            let group = self.ports.replies.try_recv();
            if group.is_err() {
                self.pass_on();
            }
            let lost = || TransferError::Connection(io::ErrorKind::UnexpectedEof.into());
            let group = group.ok().or_else(|| self.ports.replies.blocking_recv());
            self.replies = group.ok_or_else(lost)?.into_iter();
        }
    }
}

/// Drops a reply with data of a file that the sender was asked to skip. False for its end.
fn drop_skipped(current: &mut Current, reply: &Reply, blocks: u64) -> Result<bool, TransferError> {
    let len = match reply {
        Reply::Piece(body) | Reply::Block(body) => {
            let len = body.len().saturating_sub(HASH) as u64;
            current.count_skipped(len)?;
            len
        }
        Reply::Zeros { len } => u64::from(*len),
        Reply::Same => block_len(current.job.meta.size.unwrap_or(0), current.blocks()) as u64,
        _ => return Ok(false),
    };
    current.drop_next(len, blocks).map(|()| true)
}
