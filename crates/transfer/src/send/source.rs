//! Reads and hashes the data that one receiver requested, one turn at a time.
//!
//! A turn runs on a blocking thread. It answers requests until the chunk is full, no request is left, or [`A_TURN`]
//! bytes were read; it may stop within a file. Frames are built in place: a block is copied only once, from the file
//! into the chunk, and many small files share one write. If the chunk has no room for a block, the block is sent in
//! pieces.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ahead::Ahead;
use super::bits::Bits;
use super::chunk::Chunk;
use super::current::{Blocks, Current, Step};
use super::holes::Holes;
use super::listing::{Listing, Opened, unreadable};
use super::memory::Buffer;
use super::skipped::Skipped;
use super::trouble::Trouble;
use crate::attributes;
use crate::error::CHANGED;
use crate::hash::{BLOCK, BlockHasher, FileHasher, MOST_COMPARED, block_len, hash_block};
use crate::manifest::{EntryKind, FileMeta};
use crate::message::{Reply, Request};
use crate::progress::Progress;
use crate::report::Report;

/// Most bytes read in one turn.
pub(crate) const A_TURN: usize = 8 << 20;

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
    skipped: Skipped,
    takes_short: bool,
}

/// A request in progress.
enum Task {
    Begin { most: usize },
    Blocks(Blocks),
    Hash(Box<Current>),
}

impl Source {
    pub fn new(listing: Arc<Listing>, progress: Progress, report: Report) -> Self {
        let (task, asked, current, hashed, begun, ahead, skipped) = <_>::default();
        let takes_short = true;
        Self { listing, progress, report, task, asked, current, hashed, begun, ahead, skipped, takes_short }
    }

    /// A source that sends no more of files that are skipped, for a receiver that may take files shorter than listed.
    pub fn skipping(self, skipped: Skipped, takes_short: bool) -> Self {
        Self { skipped, takes_short, ..self }
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
                (Some(Task::Blocks(_)), _) if self.skips_current() => Err(Trouble::Skipped),
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
            Trouble::Skipped => "the receiver takes no more of it".into(),
            Trouble::System(error) => unreadable(error),
            Trouble::Other(why) => why.clone(),
        };
        if matches!(trouble, Trouble::Skipped) {
            // The receiver reports why.
        } else if is_stream || matches!(trouble, Trouble::Changed) {
            // The sender must report this as a failure, unlike a file that cannot be read.
            self.report.note_changed();
        } else if let Some(entry) = self.listing.entries.get(self.asked) {
            let here = match trouble {
                Trouble::System(error) => error.to_string(),
                _ => why.clone(),
            };
            self.report.miss(entry.path.shown(), Some(here));
        }
        out.reply(&Reply::Failed(why.into()));
    }

    fn skips_current(&self) -> bool {
        self.current.as_ref().is_some_and(|current| self.skipped.is(current.index))
    }

    fn begin(&mut self, request: Request) -> Result<Step, Trouble> {
        match request {
            Request::Wait => {}
            Request::Begin { most } => self.task = Some(Task::Begin { most: most as usize }),
            Request::Hash { file } => {
                let index = file as usize;
                self.asked = index;
                if self.listing.is_stream() {
                    return Err("a stream cannot be compared".into());
                }
                let current = self.open(index)?;
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
                if self.skipped.is(index) {
                    return Err(Trouble::Skipped);
                }
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
            && let Some(EntryKind::File(FileMeta { size, .. })) =
                self.listing.entries.get(index).map(|entry| &entry.kind)
        {
            self.progress.take_back(size.unwrap_or(0));
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
        let want = file.meta.size.map_or(BLOCK, |size| block_len(size, file.hasher.blocks()));
        let is_too_long = file.meta.size.is_none() && file.sent > MOST_COMPARED;
        if want > 0 && !file.has_ended && !is_too_long {
            let mut block = vec![0; want];
            let read = file.read_block(&mut block)?;
            if read > 0 {
                file.hasher.push(hash_block(file.hasher.blocks(), &block[..read]));
            }
            self.task = Some(Task::Hash(file));
            return Ok(Step::Read(read));
        }
        // No file has this hash: the receiver's counts as another one.
        let mut hash = [0; 32];
        if !is_too_long {
            file.check_end()?;
            hash = file.hasher.finish().into();
        }
        out.reply(&Reply::End { len: file.sent, hash });
        // Usually the receiver has the file. If not, it fetches it, and `take_back` corrects this.
        out.held += file.meta.size.unwrap_or(0);
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
            // Otherwise it was noted when it was compared.
            && !self.hashed.has(index)
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
            may_be_short: self.takes_short,
        };
        if current.is_as_listed(found.map(|(now, _)| now)) { Ok(current) } else { Err(Trouble::Changed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Share;
    use crate::codec::FRAME_HEADER;

    #[test]
    fn a_file_with_more_bytes_than_its_system_reports_is_named() {
        // The system reports nothing.
        let odd = [("/proc/version", 0, "it has more")];
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
    fn a_file_of_unknown_length_is_not_compared_without_end() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::File::create(&path).unwrap().set_len(2 * MOST_COMPARED).unwrap();
        let share = Share::from_paths(&[&path]).unwrap();
        let mut listing = Arc::into_inner(share.list().unwrap()).unwrap();
        let EntryKind::File(meta) = &mut listing.entries[0].kind else { panic!("not a file") };
        meta.size = None;
        let mut source = Source::new(Arc::new(listing), Progress::new(), Report::default());
        let mut queue = VecDeque::from([Request::Hash { file: 0 }]);
        let replies = loop {
            let chunk = source.turn(&mut queue, share.memory().consumer().buffer());
            if !chunk.buffer.bytes.is_empty() {
                break chunk.buffer.bytes.clone();
            }
        };
        let reply = Reply::decode(replies[0], replies[FRAME_HEADER..].to_vec()).unwrap();
        assert!(
            matches!(reply, Reply::End { hash, .. } if hash == [0; 32]),
            "it counts as another one: {reply:?}"
        );
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
    fn only_a_file_in_fuse_may_end_before_its_listed_length() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        std::fs::write(&path, "short").unwrap();
        let reads = || {
            let share = Share::from_paths(&[&path]).unwrap();
            let source = Source::new(share.list().unwrap(), Progress::new(), Report::default());
            let mut current = source.open(0).ok().unwrap();
            current.meta.size = Some(10);
            current.read_block(&mut [0; 10]).ok()
        };
        assert_eq!(reads(), None);
        let doubled = std::time::UNIX_EPOCH + std::time::Duration::from_secs(crate::tests::DOUBLED);
        std::fs::File::open(&path).unwrap().set_modified(doubled).unwrap();
        assert_eq!(reads(), Some(5));
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
