//! Runs of streams that wait to leave on one path.
//!
//! *Copies* are in flight on another path and leave here as well. *Bound* runs leave here and nowhere else: a
//! path's own send buffer, used with early binding (MPMTP-AR §3.6 [R5]). The bytes of both stay with their
//! streams.

use std::collections::VecDeque;

use crate::stream::SentRun;

/// Most copies that wait on a path.
const MAX_COPIES: usize = 1024;

/// Runs that wait on one path, in the order in which they leave.
#[derive(Debug, Default)]
pub(crate) struct Queued {
    copies: VecDeque<SentRun>,
    bound: VecDeque<SentRun>,
    bound_bytes: u64,
}

/// Bytes that count for a bound run. An end of stream without bytes counts too.
fn size(run: &SentRun) -> u64 {
    u64::from(run.length).max(1)
}

impl Queued {
    #[inline]
    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Queues a copy; the oldest copy makes room.
    pub(crate) fn push_copy(&mut self, run: SentRun) {
        if self.copies.len() >= MAX_COPIES {
            self.copies.pop_front();
        }
        self.copies.push_back(run);
    }

    /// Puts back the rest of the copy taken last.
    pub(crate) fn return_copy(&mut self, run: SentRun) {
        self.copies.push_front(run);
    }

    pub(crate) fn pop_copy(&mut self) -> Option<SentRun> {
        self.copies.pop_front()
    }

    pub(crate) fn clear_copies(&mut self) {
        self.copies.clear();
    }

    /// True when all of a run waits here as copies, which are in the order of their bytes.
    pub(crate) fn will_copy(&self, run: &SentRun) -> bool {
        let mut next = run.offset;
        for copy in self.copies.iter().filter(|copy| copy.stream == run.stream) {
            if copy.range().contains(&next) {
                next = copy.end();
            }
        }
        next >= run.end() && run.length > 0
    }

    pub(crate) fn bound_bytes(&self) -> u64 {
        self.bound_bytes
    }

    pub(crate) fn bind(&mut self, run: SentRun) {
        self.bound_bytes += size(&run);
        self.bound.push_back(run);
    }

    /// Puts back the rest of the bound run taken last.
    pub(crate) fn return_bound(&mut self, run: SentRun) {
        self.bound_bytes += size(&run);
        self.bound.push_front(run);
    }

    pub(crate) fn pop_bound(&mut self) -> Option<SentRun> {
        let run = self.bound.pop_front()?;
        self.bound_bytes -= size(&run);
        Some(run)
    }

    pub(crate) fn shrink(&mut self) {
        self.copies.shrink_to_fit();
    }
}
