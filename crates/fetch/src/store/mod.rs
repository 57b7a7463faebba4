//! The file on the disk: an unfinished file and a journal next to the final name.
//!
//! Bytes are written by a thread of their own at their places. The journal lists ranges only after they are synced, so it is
//! right after a crash. The final name comes last, when everything is synced, and never replaces a file unasked.

mod journal;
mod origins;
mod part;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::ranges::RangeSet;

pub use journal::Journal;
pub use origins::{Origins, mirror_and_route, origin};
use part::Names;
pub use part::read_at;

/// Pieces that wait to be written.
const WAITING: usize = 64;

/// An open, unfinished file.
#[derive(Debug)]
pub struct Store {
    names: Names,
    file: Arc<File>,
    pieces: Option<mpsc::Sender<Piece>>,
    state: Arc<Mutex<State>>,
    writer: Option<JoinHandle<()>>,
    replace: bool,
    /// The unfinished file is gone.
    is_finished: bool,
}

/// Bytes to write.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The source that sent them.
    pub origin: Arc<str>,
    /// Their place in the file.
    pub at: u64,
    pub bytes: Bytes,
}

/// The part of a file that is written.
#[derive(Clone, Debug)]
pub struct WrittenPart {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

impl WrittenPart {
    /// The last written bytes and their place, at most so many.
    pub fn last(&self, most: u64) -> Option<(u64, Vec<u8>)> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let range = state.written.iter().last()?;
        drop(state);
        let start = range.start.max(range.end.saturating_sub(most));
        Some((start, part::read_at(&self.path, start..range.end).ok()?))
    }
}

#[derive(Debug, Default)]
struct State {
    written: RangeSet,
    origins: Origins,
    failed: Option<io::Error>,
    /// A sync failed. The system reports that once and forgets the bytes, so no later sync proves them.
    is_doubtful: bool,
}

/// The outcome of opening a file.
#[derive(Debug)]
pub enum Opened {
    /// The file can be fetched; the journal of an earlier attempt, if there is one.
    Store(Box<Store>, Option<Journal>),
    /// An earlier attempt was cut off between its last two steps: the file is complete.
    Complete(u64),
}

/// Bytes of an unfinished `target` that a later attempt can use.
pub fn kept(target: &Path) -> u64 {
    let names = Names::new(target).ok().filter(|names| names.part.exists());
    let journal = names.and_then(|names| Journal::read(&names.journal)).filter(Journal::is_sound);
    journal.map_or(0, |journal| journal.ranges().total())
}

impl Store {
    /// Opens the unfinished file for `target`, or creates it.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::AlreadyExists`] if `target` exists and must not be replaced,
    /// [`io::ErrorKind::ResourceBusy`] if another program fetches it, [`io::ErrorKind::InvalidInput`] if `target` is a
    /// directory or a device.
    pub fn open(target: &Path, replace: bool) -> io::Result<Opened> {
        let names = Names::new(target)?;
        let journal = Journal::read(&names.journal);
        if let Some(meta) = part::metadata(target)?
            && !replace
        {
            let is_ours =
                journal.as_ref().is_some_and(|journal| journal.is_complete() && journal.size == meta.len());
            if is_ours && meta.is_file() && !names.part.exists() {
                std::fs::remove_file(&names.journal)?;
                return Ok(Opened::Complete(meta.len()));
            }
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = part::open_locked(&names.part)?;
        let len = file.metadata()?.len();
        let journal = journal.filter(|journal| journal.size == len && journal.is_sound());
        if journal.is_none() {
            // It is of another unfinished file, and must not be taken for this one's after a crash.
            part::remove_if_there(&names.journal)?;
            file.set_len(0)?;
        }
        let written = journal.as_ref().map(Journal::ranges).unwrap_or_default();
        let origins = journal.as_ref().map(Journal::origins).unwrap_or_default();
        let state = Arc::new(Mutex::new(State { written, origins, ..State::default() }));
        let (sender, pieces) = mpsc::channel(WAITING);
        let file = Arc::new(file);
        let writer = std::thread::Builder::new().name("fetch-write".to_owned()).spawn({
            let (file, state) = (file.clone(), state.clone());
            move || write(&file, pieces, &state)
        })?;
        let store = Self {
            names,
            file,
            pieces: Some(sender),
            state,
            writer: Some(writer),
            replace,
            is_finished: false,
        };
        Ok(Opened::Store(Box::new(store), journal))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ranges that are written.
    pub fn written(&self) -> RangeSet {
        self.state().written.clone()
    }

    /// The sources that sent what is written.
    pub fn origins(&self) -> Origins {
        self.state().origins.clone()
    }

    /// Forgets the bytes of an origin.
    pub fn forget(&self, origin: &str) {
        let mut state = self.state();
        state.origins.forget(origin);
        state.written = state.origins.all();
    }

    /// Forgets everything that was written.
    pub fn reset(&self) -> io::Result<()> {
        {
            let mut state = self.state();
            (state.written, state.origins) = (RangeSet::default(), Origins::default());
        }
        part::remove_if_there(&self.names.journal)?;
        self.file.set_len(0)
    }

    /// Reserves room for the whole file.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] when there is too little.
    pub fn reserve(&self, size: u64) -> io::Result<()> {
        part::reserve(&self.file, size)
    }

    /// Hands bytes to the writer.
    ///
    /// # Errors
    /// Why earlier bytes could not be written.
    pub async fn write(&self, piece: Piece) -> io::Result<()> {
        let sent = match &self.pieces {
            Some(pieces) => pieces.send(piece).await.is_ok(),
            None => false,
        };
        if sent { Ok(()) } else { Err(self.failure()) }
    }

    fn failure(&self) -> io::Error {
        self.state().failed.take().unwrap_or_else(|| io::Error::other("the writer has ended"))
    }

    /// Reads bytes that were written.
    pub fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        part::read_at(&self.names.part, range)
    }

    /// A handle to look at what was written.
    pub fn written_part(&self) -> WrittenPart {
        WrittenPart { path: self.names.part.clone(), state: self.state.clone() }
    }

    /// Syncs what was written and notes it in the journal. Blocks.
    pub fn checkpoint(&self, like: &Journal) -> io::Result<()> {
        checkpoint(&self.file, &self.state, (&self.names, like))
    }

    /// As [`Store::checkpoint`], for a thread of its own.
    pub fn checkpointer(&self) -> impl FnOnce(&Journal) -> io::Result<()> + Send + 'static {
        let (file, state, names) = (self.file.clone(), self.state.clone(), self.names.clone());
        move |like| checkpoint(&file, &state, (&names, like))
    }

    /// Waits until everything is written. Blocks.
    pub fn flush(&mut self) -> io::Result<()> {
        self.pieces = None;
        if self.writer.take().is_some_and(|writer| writer.join().is_err()) {
            return Err(io::Error::other("the writer failed"));
        }
        let failed = self.state().failed.take();
        failed.map_or(Ok(()), Err)
    }

    /// The path of the unfinished file, to check its content.
    pub fn part(&self) -> &Path {
        &self.names.part
    }

    /// Gives the complete file its name. Blocks.
    pub fn finish(mut self, like: &Journal) -> io::Result<PathBuf> {
        self.flush()?;
        self.checkpoint(like)?;
        self.file.sync_all()?;
        // File systems without syncs (some by FUSE, such as `rclone mount`) report only now that data could not be stored.
        nix::unistd::close(self.file.try_clone()?)?;
        part::rename(&self.names, self.replace)?;
        self.is_finished = true;
        part::sync_folder(&self.names.target);
        part::remove_if_there(&self.names.journal)?;
        Ok(self.names.target.clone())
    }

    /// Removes the unfinished file. Blocks.
    pub fn discard(mut self) -> io::Result<()> {
        // It does not matter whether the last bytes were written.
        let _ = self.flush();
        part::remove_if_there(&self.names.journal)?;
        self.is_finished = true;
        part::remove_if_there(&self.names.part)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // The lock ends with the writer.
        let _ = self.flush();
        if !self.is_finished && self.state().written.total() == 0 {
            // An empty file is of no use to a later attempt. If it cannot be removed, it does no harm.
            let _ = part::remove_if_there(&self.names.part);
        }
    }
}

fn checkpoint(file: &File, state: &Mutex<State>, (names, like): (&Names, &Journal)) -> io::Result<()> {
    let origins = {
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_doubtful {
            return Err(io::Error::other("bytes were lost by an earlier failure of the disk"));
        }
        state.origins.clone()
    };
    if let Err(error) = file.sync_data() {
        state.lock().unwrap_or_else(PoisonError::into_inner).is_doubtful = true;
        return Err(error);
    }
    like.with(&origins).write(&names.journal)
}

/// Writes pieces until there are no more or one fails.
fn write(file: &File, mut pieces: mpsc::Receiver<Piece>, state: &Mutex<State>) {
    while let Some(Piece { origin, at, bytes }) = pieces.blocking_recv() {
        let written = part::write_at(file, at, &bytes);
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        match written {
            Ok(()) => {
                let range = at..at + bytes.len() as u64;
                state.written.insert(range.clone());
                state.origins.insert(&origin, range);
            }
            Err(error) => {
                state.failed = Some(error);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(size: u64) -> Journal {
        Journal::new(size, Vec::new())
    }

    fn origins(end: u64) -> Origins {
        let mut origins = Origins::default();
        origins.insert(&"mirror".into(), 0..end);
        origins
    }

    fn piece(at: u64, bytes: &'static [u8]) -> Piece {
        Piece { origin: "mirror".into(), at, bytes: Bytes::from_static(bytes) }
    }

    fn open(target: &Path) -> (Store, Option<Journal>) {
        match Store::open(target, false).unwrap() {
            Opened::Store(store, journal) => (*store, journal),
            Opened::Complete(_) => panic!("it is not complete"),
        }
    }

    #[test]
    fn a_file_may_have_the_longest_name() {
        for len in [121, 122, 255] {
            let folder = tempfile::tempdir().unwrap();
            let (store, _) = open(&folder.path().join("n".repeat(len)));
            store.reserve(1).unwrap();
            store.checkpoint(&journal(1)).unwrap();
            let names =
                std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().len());
            assert!(names.max().is_some_and(|longest| longest <= 143), "length {len}");
        }
    }

    #[tokio::test]
    async fn a_file_is_written_in_any_order_resumed_and_named_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let (mut store, found) = open(&target);
        assert!(found.is_none());
        store.reserve(10).unwrap();
        store.write(piece(5, b"56789")).await.unwrap();
        store.flush().unwrap();
        store.checkpoint(&journal(10)).unwrap();
        assert_eq!(store.read(5..7).unwrap(), b"56");
        drop(store);
        let (store, found) = open(&target);
        assert_eq!(found.unwrap().ranges().iter().collect::<Vec<_>>(), [5..10]);
        store.write(piece(0, b"01234")).await.unwrap();
        assert!(!target.exists());
        store.finish(&journal(10)).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"0123456789");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        assert_eq!(Store::open(&target, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_device_a_directory_and_a_name_that_is_too_long_are_refused_at_the_start() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap();
        assert!(made.success());
        std::fs::create_dir(at("folder")).unwrap();
        symlink("/dev/null", at("link")).unwrap();
        for name in ["fifo", "folder", "link"] {
            for replace in [false, true] {
                let error = Store::open(&at(name), replace).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}: {error}");
            }
        }
        let error = Store::open(&at(&"n".repeat(256)), false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidFilename);
        std::fs::write(at("file"), b"old").unwrap();
        symlink("file", at("to-file")).unwrap();
        let Opened::Store(store, _) = Store::open(&at("to-file"), true).unwrap() else {
            panic!("not complete")
        };
        store.discard().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5, "nothing else is left");
    }

    #[tokio::test]
    async fn two_programs_do_not_write_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let (_store, _) = open(&target);
        assert_eq!(Store::open(&target, false).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    }

    #[tokio::test]
    async fn an_attempt_cut_off_after_the_rename_counts_as_complete() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let (store, _) = open(&target);
        store.reserve(3).unwrap();
        store.write(piece(0, b"abc")).await.unwrap();
        let kept = store.names.journal.clone();
        store.finish(&journal(3)).unwrap();
        journal(3).with(&origins(3)).write(&kept).unwrap();
        assert!(matches!(Store::open(&target, false).unwrap(), Opened::Complete(3)));
        assert!(!kept.exists());
    }

    #[tokio::test]
    async fn a_journal_that_does_not_fit_its_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let (store, _) = open(&target);
        store.reserve(10).unwrap();
        for (size, end) in [(11, 10), (10, 12)] {
            journal(size).with(&origins(end)).write(&store.names.journal).unwrap();
            assert!(
                Journal::read(&store.names.journal).is_none_or(|read| read.size != 10 || !read.is_sound())
            );
        }
        std::fs::write(&store.names.journal, b"{\"size\":10,\"origins\":[[\"\",[[9,2]]]]}").unwrap();
        drop(store);
        assert!(open(&target).1.is_none());
    }
}
