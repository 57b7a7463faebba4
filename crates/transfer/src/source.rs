//! The sender's disk thread: takes requests, reads and hashes blocks, gives chunks ready for the stream.
//!
//! Frames are built in place in chunks of about a block, so that a large block is copied once, from the
//! file into the chunk, and many small files share one write. A chunk leaves when it is full or when no
//! request is waiting.

use std::io::{self, Read};
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use crate::codec::{FRAME_HEADER, finish_frame};
use crate::hash::{BLOCK, FileHasher, block_len, hash_block};
use crate::listing::{ChangeTime, Listing, Opened, unreadable};
use crate::manifest::{EntryKind, FileMeta};
use crate::message::{REPLY_BLOCK, Reply, Request};
use crate::progress::Progress;
use crate::report::Report;

/// Bytes before the data in a block's frame: header and chaining value.
const BLOCK_PREFIX: usize = FRAME_HEADER + 32;

/// Replies ready to be written to the data stream.
pub(crate) struct Chunk {
    pub bytes: Vec<u8>,
    /// File bytes these replies carry, and file bytes they say the receiver has.
    pub carried: u64,
    pub held: u64,
}

/// The ends of the channels that join the disk thread to the stream.
pub(crate) struct SourcePorts {
    pub requests: mpsc::Receiver<Request>,
    pub chunks: mpsc::Sender<Chunk>,
    /// Buffers that were written and can be filled again.
    pub spare: std::sync::mpsc::Receiver<Vec<u8>>,
}

/// Serves the requests of one receiver until they end.
pub(crate) struct Source {
    listing: Arc<Listing>,
    progress: Progress,
    report: Report,
    ports: SourcePorts,
    chunk: Chunk,
    current: Option<Current>,
}

/// The file being sent.
struct Current {
    index: usize,
    meta: FileMeta,
    file: Opened,
    /// When it had last changed as it was opened.
    changed: Option<ChangeTime>,
    hasher: FileHasher,
    sent: u64,
    /// A stream has ended: only `End` is left to say.
    ended: bool,
}

/// The stream to the receiver is gone; there is nobody to work for.
pub(crate) struct Gone;

/// Why one request, or one file, came to nothing.
enum Trouble {
    File(String),
    Gone,
}

impl From<Gone> for Trouble {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl Source {
    pub fn new(listing: Arc<Listing>, progress: Progress, report: Report, ports: SourcePorts) -> Self {
        let chunk = Chunk { bytes: Vec::with_capacity(BLOCK), carried: 0, held: 0 };
        Self { listing, progress, report, ports, chunk, current: None }
    }

    /// Runs until the requests end or the stream is gone; blocks.
    pub fn run(mut self) {
        while let Ok(request) = self.next_request() {
            if self.serve(request).is_err() {
                return;
            }
        }
    }

    fn next_request(&mut self) -> Result<Request, Gone> {
        match self.ports.requests.try_recv() {
            Ok(request) => Ok(request),
            Err(TryRecvError::Empty) => {
                self.flush()?;
                self.ports.requests.blocking_recv().ok_or(Gone)
            }
            Err(TryRecvError::Disconnected) => {
                self.flush()?;
                Err(Gone)
            }
        }
    }

    fn serve(&mut self, request: Request) -> Result<(), Gone> {
        let outcome = match request {
            Request::Fetch { file, first, count, last, held } => self
                .fetch(file as usize, first, count, &held)
                .and_then(|()| if last { self.end() } else { Ok(()) }),
            Request::Compare { file, hash } => self.compare(file as usize, &hash),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(Trouble::Gone) => Err(Gone),
            Err(Trouble::File(reason)) => {
                self.current = None;
                self.reply(&Reply::Failed(reason));
                Ok(())
            }
        }
    }

    fn fetch(&mut self, index: usize, first: u64, count: u64, held: &[[u8; 32]]) -> Result<(), Trouble> {
        if first == 0 {
            self.current = Some(self.open(index)?);
        }
        let is_next = |current: &Current| current.index == index && current.hasher.blocks() == first;
        if !self.current.as_ref().is_some_and(is_next) {
            return Err(Trouble::File("it was asked for out of order".into()));
        }
        for at in 0..count {
            let held = usize::try_from(at).ok().and_then(|at| held.get(at));
            if !self.send_block(held)? {
                break;
            }
        }
        if !held.is_empty() {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends the next block, or says that `held` is right; false at the end of a stream.
    fn send_block(&mut self, held: Option<&[u8; 32]>) -> Result<bool, Trouble> {
        let Some(current) = &mut self.current else { return Ok(false) };
        let index = current.hasher.blocks();
        let want = current.meta.size.map_or(BLOCK, |size| block_len(size, index));
        if want == 0 {
            return Err(Trouble::File("it was asked for past its end".into()));
        }
        if current.ended {
            return Ok(false);
        }
        let bytes = &mut self.chunk.bytes;
        let start = bytes.len();
        bytes.resize(start + BLOCK_PREFIX + want, 0);
        let read = read_full(&mut current.file, &mut bytes[start + BLOCK_PREFIX..]);
        let read = read.inspect_err(|_| bytes.truncate(start)).map_err(|error| trouble(&error))?;
        bytes.truncate(start + BLOCK_PREFIX + read);
        current.ended = read < want;
        if read == 0 || (current.ended && current.meta.size.is_some()) {
            bytes.truncate(start);
            return if current.meta.size.is_some() { Err(changed()) } else { Ok(false) };
        }
        let hash = hash_block(index, &bytes[start + BLOCK_PREFIX..]);
        current.hasher.push(hash);
        current.sent += read as u64;
        if held == Some(&hash.value) {
            bytes.truncate(start);
            self.chunk.held += read as u64;
            self.reply(&Reply::Same);
        } else {
            bytes[start] = REPLY_BLOCK;
            bytes[start + FRAME_HEADER..start + BLOCK_PREFIX].copy_from_slice(&hash.value);
            finish_frame(bytes, start);
            self.chunk.carried += read as u64;
        }
        if self.chunk.bytes.len() >= BLOCK {
            self.flush()?;
        }
        Ok(true)
    }

    /// Ends the current file with its hash, if it is still what was listed.
    fn end(&mut self) -> Result<(), Trouble> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let now = current.file.meta().map_err(|error| trouble(&error))?;
        // Whoever writes into a file can set its time back, but not that of its last change.
        let is_as_opened = current.file.changed().map_err(|error| trouble(&error))? == current.changed;
        let is_listed =
            |now: &FileMeta| now.size == current.meta.size && now.modified == current.meta.modified;
        let is_whole = current.meta.size.is_none_or(|size| size == current.sent);
        if !(now.as_ref().is_none_or(is_listed) && is_as_opened && is_whole) {
            return Err(changed());
        }
        self.reply(&Reply::End { len: current.sent, hash: current.hasher.finish().into() });
        self.progress.add_file();
        self.report.add(|summary| summary.files += 1);
        Ok(())
    }

    fn compare(&mut self, index: usize, hash: &[u8; 32]) -> Result<(), Trouble> {
        let mut file = self.open(index)?;
        let Some(size) = file.meta.size else {
            return Err(Trouble::File("a stream cannot be compared".into()));
        };
        if size > BLOCK as u64 {
            // Hashing a long file takes a while; what was said before should not wait for it.
            self.flush()?;
        }
        let mut buffer = vec![0; block_len(size, 0)];
        loop {
            let read = read_full(&mut file.file, &mut buffer).map_err(|error| trouble(&error))?;
            if read == 0 {
                break;
            }
            file.hasher.push(hash_block(file.hasher.blocks(), &buffer[..read]));
            file.sent += read as u64;
            if file.sent > size || self.ports.chunks.is_closed() {
                break;
            }
        }
        let is_equal = file.sent == size && file.hasher.finish() == *hash;
        if is_equal {
            self.chunk.held += size;
            self.progress.add_file();
            self.report.add(|summary| summary.skipped += 1);
        }
        self.reply(if is_equal { &Reply::Equal } else { &Reply::Different });
        Ok(())
    }

    /// Opens entry `index` and checks that it is what was listed.
    fn open(&self, index: usize) -> Result<Current, Trouble> {
        let entry = self.listing.entries.get(index);
        let Some((EntryKind::File(meta), path)) = entry.map(|entry| (&entry.kind, &entry.path)) else {
            return Err(Trouble::File("it is not a file of this share".into()));
        };
        self.progress.set_current(path.shown());
        let file = self.listing.open(index).map_err(|error| trouble(&error))?;
        let changed_at = file.changed().map_err(|error| trouble(&error))?;
        let now = file.meta().map_err(|error| trouble(&error))?;
        if now.is_some_and(|now| now.size != meta.size || now.modified != meta.modified) {
            return Err(changed());
        }
        let hasher = FileHasher::default();
        Ok(Current { index, meta: *meta, file, changed: changed_at, hasher, sent: 0, ended: false })
    }

    fn reply(&mut self, reply: &Reply) {
        reply.encode(&mut self.chunk.bytes);
    }

    fn flush(&mut self) -> Result<(), Gone> {
        if self.chunk.bytes.is_empty() {
            return Ok(());
        }
        let bytes = self.ports.spare.try_recv().unwrap_or_default();
        let full = std::mem::replace(&mut self.chunk, Chunk { bytes, carried: 0, held: 0 });
        self.ports.chunks.blocking_send(full).map_err(|_| Gone)
    }
}

/// Fills `buffer` as far as the file goes.
pub(crate) fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn trouble(error: &io::Error) -> Trouble {
    Trouble::File(unreadable(error))
}

fn changed() -> Trouble {
    Trouble::File("it changed on the sender while it was being sent; run the same command again".into())
}
