//! A path's own send buffer (MPMTP-AR §3.6 [R5]): which runs of streams are bound to it and have not left.

use std::collections::VecDeque;

use crate::stream::SentRun;

/// Runs in the order in which they were bound; their bytes stay with the streams.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    runs: VecDeque<SentRun>,
    bytes: u64,
}

/// An end without bytes takes room, too.
fn size(run: &SentRun) -> u64 {
    u64::from(run.length).max(1)
}

impl Bound {
    /// How much is bound.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn push(&mut self, run: SentRun) {
        self.bytes += size(&run);
        self.runs.push_back(run);
    }

    /// Puts back what is left of the run taken last.
    pub(crate) fn put_back(&mut self, run: SentRun) {
        self.bytes += size(&run);
        self.runs.push_front(run);
    }

    pub(crate) fn pop(&mut self) -> Option<SentRun> {
        let run = self.runs.pop_front()?;
        self.bytes -= size(&run);
        Some(run)
    }
}
