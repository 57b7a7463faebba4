//! The receiver's disk thread: verifies what arrives and writes it.
//!
//! Replies come in the order of the requests, so the request at the front of the queue says what a reply
//! is about. A block is hashed before it is written; the file's hash is checked before it is handed on to
//! be synced and renamed.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use tokio::sync::mpsc;

use crate::commit::{Committer, Complete};
use crate::error::{TransferError, is_disk_full};
use crate::hash::{BLOCK, FileHasher, block_len, hash_block};
use crate::message::Reply;
use crate::part::PartFile;
use crate::plan::{Compared, Fetch, FileJob, InFlight};
use crate::progress::Progress;
use crate::receive::POOLED;
use crate::report::Report;
use crate::target::TargetTree;

/// The writer's channels.
pub(crate) struct WritePorts {
    pub in_flight: Receiver<InFlight>,
    pub replies: mpsc::Receiver<Reply>,
    pub compared: Sender<Compared>,
    /// Buffers of blocks that were written.
    pub spare: Sender<Vec<u8>>,
}

/// Where blocks go.
pub(crate) enum Output {
    Tree(TargetTree, Committer),
    Stream(Box<dyn Write + Send>),
}

pub(crate) struct Writer {
    output: Output,
    ports: WritePorts,
    report: Report,
    progress: Progress,
    current: Option<Current>,
}

/// The file being received.
struct Current {
    job: Arc<FileJob>,
    sink: Sink,
    hasher: FileHasher,
    received: u64,
}

enum Sink {
    /// Nothing has come yet, and nothing was there before.
    Unopened,
    Part(PartFile),
    /// The file failed here; what still comes of it is checked and dropped.
    Discard,
}

impl Writer {
    pub fn new(output: Output, ports: WritePorts, report: Report, progress: Progress) -> Self {
        Self { output, ports, report, progress, current: None }
    }

    /// Takes replies until all requests have theirs; blocks. Returns the directories that got new names.
    pub fn run(mut self) -> Result<BTreeSet<String>, TransferError> {
        let taken = self.take_all();
        if taken.is_err()
            && let Some(current) = self.current.take()
        {
            discard_stream(current);
        }
        taken?;
        match self.output {
            Output::Tree(_, committer) => committer.finish(),
            Output::Stream(mut stream) => {
                stream.flush().map_err(stream_error)?;
                Ok(BTreeSet::new())
            }
        }
    }

    fn take_all(&mut self) -> Result<(), TransferError> {
        while let Ok(work) = self.ports.in_flight.recv() {
            match work {
                InFlight::Fetch(fetch) => self.take_blocks(fetch)?,
                InFlight::Compare(job) => self.take_comparison(job)?,
                InFlight::Stop(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take_comparison(&mut self, job: Arc<FileJob>) -> Result<(), TransferError> {
        let equal = match self.next_reply()? {
            Reply::Equal => Some(true),
            Reply::Different => Some(false),
            Reply::Failed(reason) => {
                self.report.fail(job.path.shown(), reason);
                None
            }
            _ => return Err(TransferError::protocol("a comparison was answered with something else")),
        };
        // The planner waits for every comparison unless it has stopped, with an error that comes next.
        let _ = self.ports.compared.send(Compared { job, equal });
        Ok(())
    }

    fn take_blocks(&mut self, fetch: Fetch) -> Result<(), TransferError> {
        let Fetch { job, part, held, first, count, last } = fetch;
        if first == 0 {
            self.progress.set_current(job.path.shown());
            let sink = part.map_or(Sink::Unopened, Sink::Part);
            self.current = Some(Current { job, sink, hasher: FileHasher::default(), received: 0 });
        }
        let mut taken = 0;
        while taken < count || last {
            match self.next_reply()? {
                Reply::Block(body) if taken < count => self.take_block(body)?,
                Reply::Same => {
                    let index = usize::try_from(taken).unwrap_or(usize::MAX);
                    let block = held
                        .get(index)
                        .ok_or_else(|| TransferError::protocol("a block was never offered"))?;
                    let current = self.current.as_mut().ok_or_else(unasked)?;
                    let len = block_len(current.job.meta.size.unwrap_or(0), current.hasher.blocks()) as u64;
                    current.hasher.push(*block);
                    current.received += len;
                    self.progress.add_resumed(len);
                }
                Reply::End { len, hash } if last => return self.end_file(len, &hash),
                Reply::Failed(reason) => {
                    if let Some(current) = self.current.take()
                        && !matches!(current.sink, Sink::Discard)
                    {
                        self.report.fail(current.job.path.shown(), reason);
                        discard_stream(current);
                    }
                    return Ok(());
                }
                _ => return Err(unasked()),
            }
            taken += 1;
        }
        Ok(())
    }

    /// Opens the current file's unfinished file, once there is something to put into it.
    fn open_sink(&mut self) -> Result<(), TransferError> {
        let (Some(current), Output::Tree(tree, _)) = (&mut self.current, &mut self.output) else {
            return Ok(());
        };
        if !matches!(current.sink, Sink::Unopened) {
            return Ok(());
        }
        let job = &current.job;
        let opened = tree.directory(&job.parent);
        current.sink = match opened.and_then(|directory| PartFile::open(directory, &job.name, job.meta.size))
        {
            Ok(part) => Sink::Part(part),
            Err(error) if is_disk_full(&error) => {
                return Err(job.write_error(error));
            }
            Err(error) => {
                self.report.fail(job.path.shown(), error.to_string());
                Sink::Discard
            }
        };
        Ok(())
    }

    fn take_block(&mut self, body: Vec<u8>) -> Result<(), TransferError> {
        self.open_sink()?;
        let current = self.current.as_mut().ok_or_else(unasked)?;
        let index = current.hasher.blocks();
        let Some((stated, data)) = body.split_first_chunk::<32>() else { return Err(unasked()) };
        let is_in_place = current.received == index * BLOCK as u64;
        let fits = current.job.meta.size.is_none_or(|size| data.len() == block_len(size, index));
        if !is_in_place || !fits || data.len() > BLOCK {
            return Err(TransferError::protocol(format!(
                "block {index} of {} has a wrong length",
                current.job.path.shown()
            )));
        }
        let hash = hash_block(index, data);
        if hash.value != *stated {
            let path = current.job.path.shown();
            return Err(TransferError::protocol(format!("block {index} of {path} does not match its hash")));
        }
        match (&mut current.sink, &mut self.output) {
            (Sink::Part(part), _) => {
                let written = part.write_block(index, data);
                written.map_err(|error| current.job.write_error(error))?;
            }
            (_, Output::Stream(stream)) => stream.write_all(data).map_err(stream_error)?,
            _ => {}
        }
        current.hasher.push(hash);
        current.received += data.len() as u64;
        if !matches!(current.sink, Sink::Discard) {
            self.progress.add_bytes(data.len() as u64);
        }
        if body.capacity() >= POOLED {
            // The reader makes new buffers where none comes back.
            let _ = self.ports.spare.send(body);
        }
        Ok(())
    }

    fn end_file(&mut self, len: u64, hash: &[u8; 32]) -> Result<(), TransferError> {
        self.open_sink()?;
        let current = self.current.take().ok_or_else(unasked)?;
        let path = &current.job.path;
        let is_whole = current.received == len && current.job.meta.size.is_none_or(|size| size == len);
        if !is_whole || current.hasher.finish() != *hash {
            return Err(TransferError::protocol(format!("{} does not match its hash", path.shown())));
        }
        match (current.sink, &self.output) {
            (Sink::Part(part), Output::Tree(_, committer)) => {
                committer.commit(Complete { part, job: current.job, hash: *hash })
            }
            (_, Output::Stream(_)) => {
                self.progress.add_file();
                self.report.add(|summary| summary.files += 1);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn next_reply(&mut self) -> Result<Reply, TransferError> {
        let lost = || TransferError::Connection(io::ErrorKind::UnexpectedEof.into());
        self.ports.replies.blocking_recv().ok_or_else(lost)
    }
}

/// A stream cannot be received a second time, so what came of it is of no use.
fn discard_stream(current: Current) {
    if let Current { job, sink: Sink::Part(part), .. } = current
        && job.meta.size.is_none()
    {
        let directory = part.directory();
        drop(part);
        // If that fails too, the file stays, under a name that tells what it is.
        let _ = PartFile::discard(&directory, &job.name);
    }
}

fn unasked() -> TransferError {
    TransferError::protocol("a reply that was not asked for")
}

fn stream_error(error: io::Error) -> TransferError {
    TransferError::Lost { path: "the output".into(), source: error }
}
