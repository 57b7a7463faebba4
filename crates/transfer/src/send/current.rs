//! A file being sent: an open file, and the position in it.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};

use blake3::hazmat::ChainingValue;

use super::ahead::AHEAD;
use super::chunk::Chunk;
use super::holes::{Holes, read_full};
use super::listing::{ChangeTime, Opened};
use super::source::A_TURN;
use super::trouble::Trouble;
use crate::codec::{FRAME_HEADER, finish_frame};
use crate::hash::{BLOCK, BlockHasher, FileHasher, block_len, is_zero};
use crate::manifest::FileMeta;
use crate::message::{REPLY_BLOCK, REPLY_PIECE, Reply};
use crate::progress::Progress;

/// Bytes before the data in a block's frame: header and hash.
const PREFIX: usize = FRAME_HEADER + 32;
const SHORTEST_PIECE: usize = 4 << 10;

/// Blocks of the current file to be sent.
pub(super) struct Blocks {
    pub left: u64,
    pub last: bool,
    pub held: VecDeque<ChainingValue>,
}

/// An open file, and the position in it.
pub(super) struct Current {
    pub index: usize,
    pub meta: FileMeta,
    pub file: Opened,
    /// Time of its last change when it was opened.
    pub changed: Option<ChangeTime>,
    pub hasher: FileHasher,
    /// The current block.
    pub block: BlockHasher,
    pub sent: u64,
    pub holes: Holes,
    /// A file of unknown length, or one shorter than listed, has ended; only `End` is still to be sent.
    pub has_ended: bool,
    /// The receiver takes files shorter than listed.
    pub may_be_short: bool,
}

/// The outcome of one step.
pub(super) enum Step {
    /// This many bytes were read.
    Read(usize),
    /// The stream has no data yet.
    Waits,
}

impl Current {
    /// True if length and time match the list now. The times of empty files do not count: in `/proc` each look may find
    /// others.
    pub fn is_as_listed(&self, now: Option<FileMeta>) -> bool {
        let is_empty = self.meta.size == Some(0);
        let is_listed =
            |now: FileMeta| now.size == self.meta.size && (is_empty || now.modified == self.meta.modified);
        self.meta.size.is_none() || now.is_none_or(is_listed)
    }

    /// Checks that the whole file was read and did not change meanwhile.
    pub fn check_end(&mut self) -> Result<(), Trouble> {
        let Some(size) = self.meta.size else { return Ok(()) };
        // Programs can set the time of modification, but not of the last change.
        let found = self.file.look()?;
        if self.has_ended {
            // The system reported a wrong length.
            return if self.is_unchanged(found) { Ok(()) } else { Err(Trouble::Changed) };
        }
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
    pub fn send_some(&mut self, blocks: &Blocks, out: &mut Chunk) -> Result<Step, Trouble> {
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
            && self.holds(held, (want, blocks.last))?
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
        let read = self.read_into(&mut out.buffer.bytes, (want_now, blocks.last))?;
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
        if is_whole
            && (held == Some(&hash.value) || (self.meta.size.is_some() && read == want && is_zero(data)))
        {
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

    /// Appends a frame's prefix and at most `most` further bytes of the file. `None` if no data has arrived yet. A file may
    /// end early only where its end can be sent, in its last request.
    fn read_into(
        &mut self,
        bytes: &mut Vec<u8>,
        (most, may_end): (usize, bool),
    ) -> Result<Option<usize>, Trouble> {
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
        if read < most
            && self.meta.size.is_some()
            && let Err(trouble) = self.end_early(may_end)
        {
            bytes.truncate(start);
            return Err(trouble);
        }
        bytes.truncate(start + PREFIX + read);
        self.has_ended = read < most;
        Ok(Some(read))
    }

    /// Reads the beginning of the first block.
    pub fn read_ahead(&mut self, most: usize) -> Result<Vec<u8>, Trouble> {
        let mut data = vec![0; most.min(AHEAD).min(block_len(self.meta.size.unwrap_or(0), 0))];
        self.read_full(&mut data)?;
        self.block.update(&data);
        self.sent = data.len() as u64;
        Ok(data)
    }

    /// Counts what was sent ahead, now that it is needed.
    pub fn counted(self, progress: &Progress) -> Self {
        progress.add_bytes(self.sent);
        progress.add_moved(self.sent);
        self
    }

    /// Fills `block` from the file.
    pub fn read_full(&mut self, block: &mut [u8]) -> Result<(), Trouble> {
        match read_full(&mut self.file, block)? {
            read if read == block.len() => Ok(()),
            _ => Err(self.too_short()),
        }
    }

    /// Reads the next block of a file that is hashed; fewer bytes than asked for are its end.
    pub fn read_block(&mut self, block: &mut [u8]) -> Result<usize, Trouble> {
        let read = read_full(&mut self.file, block)?;
        if read < block.len() {
            if self.meta.size.is_some() {
                self.end_early(true)?;
            }
            self.has_ended = true;
        }
        self.sent += read as u64;
        Ok(read)
    }

    /// The error for a file shorter than its listed length. The system may have corrected the length by now (FUSE).
    pub fn too_short(&self) -> Trouble {
        match (self.file.look(), self.meta.size) {
            (Ok(now), Some(size)) if self.is_unchanged(now) => {
                format!("the sender's system reports {size} bytes for it, but fewer can be read").into()
            }
            _ => Trouble::Changed,
        }
    }

    /// True if the file has not changed since it was opened. Its reported length may have: the kernel corrects that of FUSE
    /// when it meets the end.
    fn is_unchanged(&self, now: Option<(FileMeta, ChangeTime)>) -> bool {
        now.map(|(_, changed)| changed) == self.changed
    }

    /// Whether a file shorter than listed may end here: it has not changed, and its system may report a wrong length. Other
    /// systems report the right one, and a shorter file was cut within a tick of their clocks.
    fn end_early(&self, may_end: bool) -> Result<(), Trouble> {
        match self.too_short() {
            Trouble::System(_) | Trouble::Other(_)
                if may_end && self.may_be_short && self.file.is_in_fuse() =>
            {
                Ok(())
            }
            trouble => Err(trouble),
        }
    }

    /// Whether the next block matches the receiver's; otherwise seeks back.
    fn holds(&mut self, held: &ChainingValue, (len, may_end): (usize, bool)) -> Result<bool, Trouble> {
        let mut block = vec![0; len];
        let read = read_full(&mut self.file, &mut block)?;
        if read < len {
            self.end_early(may_end)?;
        } else {
            self.block.update(&block);
            if self.block.finish().value == *held {
                return Ok(true);
            }
        }
        self.block = BlockHasher::new(self.hasher.blocks());
        if let Opened::File(file) = &mut self.file {
            file.seek(SeekFrom::Current(-(read as i64)))?;
        }
        Ok(false)
    }
}
