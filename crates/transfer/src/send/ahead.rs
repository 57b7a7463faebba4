//! The first file of a list, whose beginning an eager receiver gets before it has the list.

use crate::manifest::{Entry, EntryKind, FileMeta};

/// Most bytes that are sent before the receiver has the list: about what a new session sends without acknowledgements.
pub(super) const AHEAD: usize = 16 << 10;

/// The file whose beginning was sent, open as an `F`.
pub(super) struct Ahead<F> {
    /// The receiver has asked for the beginning.
    is_asked: bool,
    file: Option<(usize, Box<F>)>,
}

impl<F> Default for Ahead<F> {
    fn default() -> Self {
        Self { is_asked: false, file: None }
    }
}

impl<F> Ahead<F> {
    /// The first entry that has bytes and no holes, when the receiver asks for the first time.
    pub fn first_of(&mut self, entries: &[Entry]) -> Option<usize> {
        let is_plain = |meta: &FileMeta| meta.size.is_some_and(|size| size > 0) && meta.data.is_none();
        let is_first = |entry: &Entry| matches!(&entry.kind, EntryKind::File(meta) if is_plain(meta));
        let was_asked = std::mem::replace(&mut self.is_asked, true);
        if was_asked { None } else { entries.iter().position(is_first) }
    }

    /// Keeps the file until the receiver fetches it.
    pub fn keep(&mut self, index: usize, file: F) {
        self.file = Some((index, Box::new(file)));
    }

    /// The file, if it is entry `index`.
    pub fn take(&mut self, index: usize) -> Option<F> {
        self.file.take_if(|(of, _)| *of == index).map(|(_, file)| *file)
    }
}
