//! The file of which the receiver takes no more: it failed there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No file has this number.
const NONE: u64 = u64::MAX;

/// The last file that the receiver skipped; clones share it. A receiver takes one file after the other, and none twice.
#[derive(Clone, Debug)]
pub(super) struct Skipped(Arc<AtomicU64>);

impl Default for Skipped {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(NONE)))
    }
}

impl Skipped {
    pub fn set(&self, file: u32) {
        self.0.store(file.into(), Ordering::Relaxed);
    }

    pub fn is(&self, file: usize) -> bool {
        self.0.load(Ordering::Relaxed) == file as u64
    }
}
