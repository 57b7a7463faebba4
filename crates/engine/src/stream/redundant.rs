//! Redundant streams, whose data is sent on every path, and their data still in flight when a path loses some.
//!
//! Data that one path lost is missing only if no other path carries it. So a dying path causes no resends ahead of new
//! data.

use std::collections::BTreeMap;

use anabranch_wire::{Payload, RangeSet, StreamId};

use super::{SentRun, StreamError, Streams};

/// Runs and ends of streams: those in flight on some paths, or never sent.
#[derive(Debug, Default)]
pub(crate) struct Carried(BTreeMap<StreamId, (RangeSet, bool)>);

impl Carried {
    /// Adds a run that a path carries.
    pub(crate) fn add(&mut self, run: &SentRun) {
        let (ranges, end) = self.0.entry(run.stream).or_default();
        ranges.insert(run.range());
        *end |= run.fin;
    }

    /// Removes a run; returns how many of its bytes were included.
    pub(crate) fn take(&mut self, run: &SentRun) -> u64 {
        let Some((ranges, _)) = self.0.get_mut(&run.stream) else { return 0 };
        let before = ranges.total();
        ranges.remove(run.range());
        before - ranges.total()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl<P: Payload> Streams<P> {
    pub(crate) fn set_redundant(&mut self, id: StreamId, wanted: bool) -> Result<(), StreamError> {
        let stream = self.table.get_mut(id).ok_or(StreamError::Unknown)?;
        if stream.send.is_over() {
            return Err(StreamError::Ended);
        }
        let was = std::mem::replace(&mut stream.redundant, wanted);
        self.redundant = self.redundant + u32::from(wanted) - u32::from(was);
        Ok(())
    }

    /// True when some stream is redundant: otherwise the other functions need not be called.
    pub(crate) fn has_redundant(&self) -> bool {
        self.redundant > 0
    }

    pub(crate) fn is_redundant(&self, id: StreamId) -> bool {
        self.has_redundant() && self.table.get(id).is_some_and(|stream| stream.redundant)
    }

    /// True when the next stream to send is redundant.
    pub(crate) fn next_is_redundant(&self) -> bool {
        self.has_redundant() && self.ready.line.front().is_some_and(|id| self.is_redundant(*id))
    }

    /// Records that a copy was sent: its bytes are no longer missing.
    pub(crate) fn on_copied(&mut self, run: &SentRun) {
        if let Some(stream) = self.table.get_mut(run.stream) {
            stream.send.on_copied(run.range(), run.fin);
        }
    }

    /// Records the loss of a run; bytes that `others` carry are not missing.
    pub(crate) fn on_lost_beyond(&mut self, run: &SentRun, others: &Carried) {
        let Some((ranges, end)) = others.0.get(&run.stream) else { return self.on_lost(run) };
        for range in ranges.gaps_in(run.range()) {
            self.on_lost(&SentRun::new(run.stream, range, false));
        }
        if run.fin && !end {
            self.on_lost(&SentRun::new(run.stream, run.end()..run.end(), true));
        }
    }
}
