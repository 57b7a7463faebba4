//! Reads and hashes the data that one receiver requested, one turn at a time.
//!
//! A turn runs on a blocking thread. It answers requests until the chunk is full, no request is left, or [`A_TURN`]
//! bytes were read; it may stop within a file. Frames are built in place: a block is copied only once, from the file
//! into the chunk, and many small files share one write. If the chunk has no room for a block, the block is sent in
//! pieces.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use blake3::hazmat::ChainingValue;

use super::ahead::{AHEAD, Ahead};
use super::bits::Bits;
use super::chunk::Chunk;
use super::holes::{Holes, read_full};
use super::listing::{ChangeTime, Listing, Opened};
use super::memory::Buffer;
use super::trouble::Trouble;
use crate::attributes;
use crate::codec::{FRAME_HEADER, finish_frame};
use crate::hash::{BLOCK, BlockHasher, FileHasher, block_len, hash_block, is_zero};
use crate::manifest::{EntryKind, FileMeta};
use crate::message::{REPLY_BLOCK, REPLY_PIECE, Reply, Request};
use crate::progress::Progress;
use crate::report::Report;

/// Most bytes read in one turn.
pub(crate) const A_TURN: usize = 8 << 20;
/// Bytes before the data in a block's frame: header and hash.
const PREFIX: usize = FRAME_HEADER + 32;
const SHORTEST_PIECE: usize = 4 << 10;
const CHANGED: &str = "it changed on the sender while it was being sent; run the same command again";

/// Serves one receiver's requests.
pub(crate) struct Source {
    listing: Arc<Listing>,
    progress: Progress,
    report: Report,
    task: Option<Task>,
    /// The entry of the last request for a file.
    asked: usize,
    /// The file being sent.
    current: Option<Current>,
    /// Entries whose hash the receiver requested, and entries that it began to fetch.
    hashed: Bits,
    begun: Bits,
    ahead: Ahead<Current>,
}

/// A request in progress.
enum Task {
    Begin { most: usize },
    Blocks(Blocks),
    Hash(Box<Current>),
}

/// Blocks of the current file to be sent.
struct Blocks {
    left: u64,
    last: bool,
    held: VecDeque<ChainingValue>,
}

/// An open file, and the position in it.
struct Current {
    index: usize,
    meta: FileMeta,
    file: Opened,
    /// Time of its last change when it was opened.
    changed: Option<ChangeTime>,
    hasher: FileHasher,
    /// The current block.
    block: BlockHasher,
    sent: u64,
    holes: Holes,
    /// A file of unknown length has ended; only `End` is still to be sent.
    has_ended: bool,
}

/// The outcome of one step.
enum Step {
    /// This many bytes were read.
    Read(usize),
    /// The stream has no data yet.
    Waits,
}

impl Source {
    pub fn new(listing: Arc<Listing>, progress: Progress, report: Report) -> Self {
        let (task, asked, current, hashed, begun, ahead) = <_>::default();
        Self { listing, progress, report, task, asked, current, hashed, begun, ahead }
    }

    /// True when all requests are answered.
    pub fn is_idle(&self) -> bool {
        self.task.is_none()
    }

    /// True when the next turn mainly compares, rather than sends data.
    pub fn is_checking(&self, queue: &VecDeque<Request>) -> bool {
        match &self.task {
            Some(Task::Hash(_)) => true,
            Some(Task::Blocks(blocks)) => !blocks.held.is_empty(),
            Some(Task::Begin { .. }) => false,
            None => queue.front().is_some_and(Request::is_check),
        }
    }

    /// Waits until the current stream has data.
    pub async fn wait_for_input(&mut self) {
        if let (Some(Task::Blocks(_)), Some(Current { file: Opened::Stream(input), block, .. })) =
            (&self.task, &mut self.current)
        {
            input.gather(BLOCK - block.len()).await;
        }
    }

    /// Answers requests with a chunk in `buffer`; blocks.
    pub fn turn(&mut self, queue: &mut VecDeque<Request>, buffer: Buffer) -> Chunk {
        let mut out = Chunk { buffer, carried: 0, held: 0 };
        let (mut read, is_check) = (0, self.is_checking(queue));
        while out.len() < out.buffer.size && read < A_TURN {
            let step = match (self.task.take(), queue.is_empty()) {
                (Some(Task::Blocks(blocks)), _) => self.send(blocks, &mut out),
                (Some(Task::Hash(file)), _) => self.hash(file, &mut out),
                (Some(Task::Begin { most }), _) => Ok(self.send_ahead(most, &mut out)),
                (None, true) => break,
                // It needs the place of comparisons.
                (None, false) if !is_check && queue.front().is_some_and(Request::is_check) => break,
                (None, false) => queue.pop_front().map_or(Ok(Step::Waits), |request| self.begin(request)),
            };
            match step {
                Ok(Step::Read(bytes)) => read += bytes,
                Ok(Step::Waits) => break,
                Err(trouble) => self.fail(&trouble, &mut out),
            }
        }
        out.buffer.count();
        out
    }

    /// Replies why the current file cannot be sent.
    fn fail(&mut self, trouble: &Trouble, out: &mut Chunk) {
        self.task = None;
        let is_stream = self.current.take().is_some_and(|current| matches!(current.file, Opened::Stream(_)));
        let why = match trouble {
            Trouble::Changed => CHANGED.into(),
            Trouble::Other(why) => why.clone(),
        };
        if is_stream || matches!(trouble, Trouble::Changed) {
            // The sender must report this as a failure, unlike a file that cannot be read.
            self.report.note_changed();
        } else if let Some(entry) = self.listing.entries.get(self.asked) {
            self.report.miss(entry.path.shown());
        }
        out.reply(&Reply::Failed(why.into()));
    }

    fn begin(&mut self, request: Request) -> Result<Step, Trouble> {
        match request {
            Request::Wait => {}
            Request::Begin { most } => self.task = Some(Task::Begin { most: most as usize }),
            Request::Hash { file } => {
                let index = file as usize;
                self.asked = index;
                let current = self.open(index)?;
                if current.meta.size.is_none() {
                    return Err("a file of unknown length cannot be compared".into());
                }
                if !self.hashed.set(index) {
                    return Err("its hash was asked for before".into());
                }
                self.task = Some(Task::Hash(Box::new(current)));
            }
            Request::Fetch { file, first, count, last, held } => {
                let index = file as usize;
                self.asked = index;
                if first == 0 {
                    self.current = None;
                    // A receiver with blocks of its own needs the first bytes again.
                    self.current = Some(match self.ahead.take(index).filter(|_| held.is_empty()) {
                        Some(current) => current.counted(&self.progress),
                        None => self.open(index)?,
                    });
                    if !self.begun.set(index) {
                        return Err("it was asked for before".into());
                    }
                    self.take_back(index);
                }
                let is_next = |current: &Current| {
                    let is_between = current.block.len() == 0 || first == 0;
                    current.index == index && current.hasher.blocks() == first && is_between
                };
                if !self.current.as_ref().is_some_and(is_next) {
                    return Err("it was asked for out of order".into());
                }
                self.task = Some(Task::Blocks(Blocks { left: count, last, held: held.into() }));
            }
        }
        Ok(Step::Read(0))
    }

    /// Sends the first bytes of the first file. Trouble with it is reported when it is fetched.
    fn send_ahead(&mut self, most: usize, out: &mut Chunk) -> Step {
        let first = self.ahead.first_of(&self.listing.entries).filter(|_| most > 0);
        let begun = first.and_then(|index| {
            let mut current = self.open(index).ok()?;
            let data = current.read_ahead(most).ok()?;
            self.ahead.keep(index, current);
            Some((index as u32, [&blake3::hash(&data).as_bytes()[..], &data].concat()))
        });
        let len = begun.as_ref().map_or(0, |(_, data)| data.len());
        out.reply(&Reply::Begun(begun));
        Step::Read(len)
    }

    /// Corrects the counters when a file is fetched after its hash was requested: the receiver's file differs.
    fn take_back(&self, index: usize) {
        if self.hashed.has(index)
            && let Some(EntryKind::File(FileMeta { size: Some(size), .. })) =
                self.listing.entries.get(index).map(|entry| &entry.kind)
        {
            self.progress.take_back(*size);
            self.report.add(|summary| summary.skipped = summary.skipped.saturating_sub(1));
        }
    }

    /// Sends a block of the current file or a piece of it.
    fn send(&mut self, mut blocks: Blocks, out: &mut Chunk) -> Result<Step, Trouble> {
        let Some(current) = &mut self.current else { return Ok(Step::Read(0)) };
        if blocks.left == 0 || current.has_ended {
            if blocks.last {
                self.end(out)?;
            }
            return Ok(Step::Read(0));
        }
        let before = current.hasher.blocks();
        let step = current.send_some(&blocks, out)?;
        let done = current.hasher.blocks() - before;
        blocks.left -= done;
        if done > 0 {
            blocks.held.pop_front();
        }
        self.task = Some(Task::Blocks(blocks));
        Ok(step)
    }

    /// Ends the current file with its hash, unless it has changed.
    fn end(&mut self, out: &mut Chunk) -> Result<(), Trouble> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        current.check_end()?;
        out.reply(&Reply::End { len: current.sent, hash: current.hasher.finish().into() });
        self.progress.add_file();
        self.report.add(|summary| summary.files += 1);
        Ok(())
    }

    /// Hashes one more block of a file for a comparison.
    fn hash(&mut self, mut file: Box<Current>, out: &mut Chunk) -> Result<Step, Trouble> {
        let size = file.meta.size.unwrap_or(0);
        let mut block = vec![0; block_len(size, file.hasher.blocks())];
        file.read_full(&mut block)?;
        if !block.is_empty() {
            file.hasher.push(hash_block(file.hasher.blocks(), &block));
            file.sent += block.len() as u64;
            self.task = Some(Task::Hash(file));
            return Ok(Step::Read(block.len()));
        }
        file.check_end()?;
        out.reply(&Reply::End { len: size, hash: file.hasher.finish().into() });
        // Usually the receiver has the file. If not, it fetches it, and `take_back` corrects this.
        out.held += size;
        self.report.add(|summary| summary.skipped += 1);
        Ok(Step::Read(0))
    }

    /// Opens entry `index` and checks that it matches the list.
    fn open(&self, index: usize) -> Result<Current, Trouble> {
        let entry = self.listing.entries.get(index);
        let Some((EntryKind::File(meta), path)) = entry.map(|entry| (&entry.kind, &entry.path)) else {
            return Err("it is not a file of this share".into());
        };
        self.progress.set_current(path.shown());
        let (file, found) = self.listing.open(index)?;
        self.progress.set_stream(matches!(file, Opened::Stream(_)));
        if let Opened::File(file) = &file
            && !self.listing.has_attributes()
            && attributes::exist(file)
        {
            self.report.drop_attributes(path);
        }
        let current = Current {
            index,
            meta: *meta,
            file,
            changed: found.map(|(_, changed)| changed),
            hasher: FileHasher::default(),
            block: BlockHasher::new(0),
            sent: 0,
            holes: Holes::of(meta),
            has_ended: false,
        };
        if current.is_as_listed(found.map(|(now, _)| now)) { Ok(current) } else { Err(Trouble::Changed) }
    }
}

impl Current {
    /// True if length and time match the list now. The times of empty files do not count: in `/proc` each look may find
    /// others.
    fn is_as_listed(&self, now: Option<FileMeta>) -> bool {
        let is_empty = self.meta.size == Some(0);
        let is_listed =
            |now: FileMeta| now.size == self.meta.size && (is_empty || now.modified == self.meta.modified);
        self.meta.size.is_none() || now.is_none_or(is_listed)
    }

    /// Checks that the whole file was read and did not change meanwhile.
    fn check_end(&mut self) -> Result<(), Trouble> {
        let Some(size) = self.meta.size else { return Ok(()) };
        // Programs can set the time of modification, but not of the last change.
        let found = self.file.look()?;
        let is_as_opened = size == 0 || found.map(|(_, changed)| changed) == self.changed;
        if !(is_as_opened && self.is_as_listed(found.map(|(now, _)| now)) && size == self.sent) {
            return Err(Trouble::Changed);
        }
        if let Opened::File(file) = &mut self.file
            && file.read(&mut [0])? > 0
        {
            return Err(format!("the sender's system reports {size} bytes for it, but it has more").into());
        }
        Ok(())
    }

    /// Sends the next block or a piece of it, or confirms that `held` matches.
    fn send_some(&mut self, blocks: &Blocks, out: &mut Chunk) -> Result<Step, Trouble> {
        let held = blocks.held.front();
        let index = self.hasher.blocks();
        let want = self.meta.size.map_or(BLOCK, |size| block_len(size, index)) - self.block.len();
        if want == 0 && self.block.len() == 0 {
            return Err("it was asked for past its end".into());
        }
        let mut run = u64::MAX;
        if let (None, Some(size), Opened::File(file)) = (held, self.meta.size, &mut self.file) {
            let hole = self.holes.at(self.sent, (file, size))?;
            if hole > 0 {
                let most = blocks.left.saturating_mul(BLOCK as u64) - self.block.len() as u64;
                return self.skip_hole(hole.min(most), out).map(Step::Read);
            }
            run = self.holes.run(self.sent);
        }
        let room = out.buffer.size.saturating_sub(out.len());
        let is_whole =
            self.block.len() == 0 && run >= want as u64 && (want <= room || out.buffer.size >= BLOCK);
        if let (Some(held), false, 0) = (held, is_whole, self.block.len())
            && self.holds(held, want)?
        {
            self.hasher.push(self.block.finish());
            self.begin_block(want);
            out.held += want as u64;
            out.reply(&Reply::Same);
            return Ok(Step::Read(want));
        }
        let start = out.len();
        let want_now = if is_whole { want } else { want.min(room.max(SHORTEST_PIECE)) };
        let want_now = want_now.min(usize::try_from(run).unwrap_or(want_now));
        let read = self.read_into(&mut out.buffer.bytes, want_now)?;
        let Some(read) = read else { return Ok(Step::Waits) };
        let is_complete = read == want || self.has_ended;
        if read == 0 && self.block.len() == 0 {
            out.buffer.bytes.truncate(start);
            return Ok(Step::Read(0));
        }
        let data = &out.buffer.bytes[start + PREFIX..];
        self.block.update(data);
        if !is_complete {
            let hash = *blake3::hash(data).as_bytes();
            self.put(out, (start, REPLY_PIECE), &hash);
            return Ok(Step::Read(read));
        }
        let hash = self.block.finish();
        self.hasher.push(hash);
        if is_whole && (held == Some(&hash.value) || (self.meta.size.is_some() && is_zero(data))) {
            out.buffer.bytes.truncate(start);
            let is_held = held == Some(&hash.value);
            *(if is_held { &mut out.held } else { &mut out.carried }) += read as u64;
            out.reply(&if is_held { Reply::Same } else { Reply::Zeros { len: read as u32 } });
        } else {
            self.put(out, (start, REPLY_BLOCK), &hash.value);
        }
        self.begin_block(read);
        Ok(Step::Read(read))
    }

    /// Sends zeros in place of a hole of `len` bytes or a part of it; returns how many.
    fn skip_hole(&mut self, len: u64, out: &mut Chunk) -> Result<usize, Trouble> {
        let len = usize::try_from(len).unwrap_or(A_TURN).min(A_TURN);
        self.hasher.add_zeros(&mut self.block, len, self.meta.size.unwrap_or(0));
        self.sent += len as u64;
        if let Opened::File(file) = &mut self.file {
            file.seek(SeekFrom::Start(self.sent))?;
        }
        out.carried += len as u64;
        out.reply(&Reply::Zeros { len: len as u32 });
        Ok(len)
    }

    /// Completes a frame of this kind; its data starts [`PREFIX`] bytes after `start`.
    fn put(&mut self, out: &mut Chunk, (start, kind): (usize, u8), hash: &[u8; 32]) {
        let bytes = &mut out.buffer.bytes;
        out.carried += (bytes.len() - start - PREFIX) as u64;
        bytes[start] = kind;
        bytes[start + FRAME_HEADER..start + PREFIX].copy_from_slice(hash);
        finish_frame(bytes, start);
        if kind == REPLY_PIECE {
            self.sent += (bytes.len() - start - PREFIX) as u64;
        }
    }

    fn begin_block(&mut self, read: usize) {
        self.sent += read as u64;
        self.block = BlockHasher::new(self.hasher.blocks());
    }

    /// Appends a frame's prefix and at most `most` further bytes of the file. `None` if no data has arrived yet.
    fn read_into(&mut self, bytes: &mut Vec<u8>, most: usize) -> Result<Option<usize>, Trouble> {
        let start = bytes.len();
        if let Opened::Stream(input) = &mut self.file {
            if !input.is_ready() {
                return Ok(None);
            }
            bytes.resize(start + PREFIX, 0);
            let read = input.take(bytes, most).inspect_err(|_| bytes.truncate(start));
            let read = read?;
            self.has_ended = input.has_ended();
            return Ok(Some(read));
        }
        bytes.resize(start + PREFIX + most, 0);
        let filled = read_full(&mut self.file, &mut bytes[start + PREFIX..]);
        let read = filled.inspect_err(|_| bytes.truncate(start))?;
        if read < most && self.meta.size.is_some() {
            bytes.truncate(start);
            return Err(self.too_short());
        }
        bytes.truncate(start + PREFIX + read);
        self.has_ended = read < most;
        Ok(Some(read))
    }

    /// Reads the beginning of the first block.
    fn read_ahead(&mut self, most: usize) -> Result<Vec<u8>, Trouble> {
        let mut data = vec![0; most.min(AHEAD).min(block_len(self.meta.size.unwrap_or(0), 0))];
        self.read_full(&mut data)?;
        self.block.update(&data);
        self.sent = data.len() as u64;
        Ok(data)
    }

    /// Counts what was sent ahead, now that it is needed.
    fn counted(self, progress: &Progress) -> Self {
        progress.add_bytes(self.sent);
        progress.add_moved(self.sent);
        self
    }

    /// Fills `block` from the file.
    fn read_full(&mut self, block: &mut [u8]) -> Result<(), Trouble> {
        match read_full(&mut self.file, block)? {
            read if read == block.len() => Ok(()),
            _ => Err(self.too_short()),
        }
    }

    /// The error for a file shorter than its listed length. The system may have corrected the length by now (FUSE).
    fn too_short(&self) -> Trouble {
        match (self.file.look(), self.meta.size) {
            (Ok(now), Some(size)) if now.map(|(_, changed)| changed) == self.changed => {
                format!("the sender's system reports {size} bytes for it, but fewer can be read").into()
            }
            _ => Trouble::Changed,
        }
    }

    /// Whether the next block matches the receiver's; otherwise seeks back.
    fn holds(&mut self, held: &ChainingValue, len: usize) -> Result<bool, Trouble> {
        let mut block = vec![0; len];
        self.read_full(&mut block)?;
        self.block.update(&block);
        if self.block.finish().value == *held {
            return Ok(true);
        }
        self.block = BlockHasher::new(self.hasher.blocks());
        if let Opened::File(file) = &mut self.file {
            file.seek(SeekFrom::Current(-(len as i64)))?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Share;

    #[test]
    fn a_file_with_fewer_or_more_bytes_than_its_system_reports_is_named() {
        // The system reports a page, and nothing.
        let odd =
            [("/sys/kernel/uevent_seqnum", 1, "fewer can be read"), ("/proc/version", 0, "it has more")];
        for (odd, count, expected) in odd {
            let Ok(reported) = std::fs::metadata(odd) else {
                eprintln!("skipped: there is no {odd}");
                continue;
            };
            // While it is open, the system keeps its times. Otherwise they may begin anew, as if the file had changed.
            let _open = std::fs::File::open(odd).unwrap();
            let share = Share::from_paths(&[odd]).unwrap();
            let mut listing = Arc::into_inner(share.list().unwrap()).unwrap();
            let EntryKind::File(meta) = &mut listing.entries[0].kind else { panic!("not a file") };
            assert_eq!(meta.size, None, "its length was found out");
            meta.size = Some(reported.len());
            let mut source = Source::new(Arc::new(listing), Progress::new(), Report::default());
            let fetch = Request::Fetch { file: 0, first: 0, count, last: true, held: Vec::new() };
            let chunk = source.turn(&mut VecDeque::from([fetch]), share.memory().consumer().buffer());
            let replies = &chunk.buffer.bytes;
            let Ok(Reply::Failed(why)) = Reply::decode(replies[0], replies[FRAME_HEADER..].to_vec()) else {
                panic!("{odd}: {replies:?}")
            };
            assert!(why.raw().contains(expected), "{odd}: {why}");
        }
    }

    #[test]
    fn a_file_whose_length_its_system_corrects_while_it_is_read_has_not_changed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "short").unwrap();
        let share = Share::from_paths(&[&path]).unwrap();
        let source = Source::new(share.list().unwrap(), Progress::new(), Report::default());
        let mut current = source.open(0).ok().unwrap();
        // As it was listed, before a read corrected it.
        current.meta.size = Some(10);
        let Trouble::Other(why) = current.too_short() else { panic!("it counts as changed") };
        assert!(why.contains("fewer can be read"), "{why}");
        // Times of some systems have steps of a few milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(50));
        std::fs::write(&path, "new").unwrap();
        assert!(matches!(current.too_short(), Trouble::Changed));
    }

    #[test]
    fn an_empty_file_is_right_whatever_its_times_and_one_that_has_grown_is_not() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "").unwrap();
        let share = Share::from_paths(&[&path]).unwrap();
        let source = Source::new(share.list().unwrap(), Progress::new(), Report::default());
        let look = |seconds| {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::open(&path).unwrap().set_modified(time).unwrap();
        };
        look(1);
        let mut current = source.open(0).ok().unwrap();
        current.changed = Some((1, 1));
        look(2);
        assert!(current.check_end().is_ok());
        std::fs::write(&path, "more").unwrap();
        assert!(matches!(current.check_end(), Err(Trouble::Changed)));
    }
}
