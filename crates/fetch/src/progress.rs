//! The state of a running download, for displays.

use std::sync::{Arc, Mutex, PoisonError};

/// A source, as a display shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceStatus {
    /// Its name for people.
    pub label: String,
    /// Bytes of the file that came over it.
    pub bytes: u64,
    /// Whether it sends bytes or may do so at once.
    pub is_ready: bool,
    /// Why it does not.
    pub why: Option<String>,
}

/// A download at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Bytes that came, those of earlier attempts included.
    pub bytes: u64,
    /// Bytes of earlier attempts.
    pub resumed: u64,
    /// The size of the file; `None` while unknown.
    pub size: Option<u64>,
    pub sources: Vec<SourceStatus>,
    /// News for people that were not shown yet.
    pub notes: Vec<String>,
}

/// A handle to the state of a download.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Snapshot>>);

impl Progress {
    /// The current state; takes the notes.
    pub fn take(&self) -> Snapshot {
        let mut snapshot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let notes = std::mem::take(&mut snapshot.notes);
        Snapshot { notes, ..snapshot.clone() }
    }

    /// The state of each source.
    pub(crate) fn sources(&self) -> Vec<SourceStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sources.clone()
    }

    /// Changes the state.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn note(&self, note: impl Into<String>) {
        let note = note.into();
        self.update(|snapshot| snapshot.notes.push(note));
    }
}
