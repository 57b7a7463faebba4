//! Streams whose data leaves on every path at once: which they are, and what still is on its way when a path lost some.
//!
//! What one path lost is missing only if no other carries it: a path that dies takes nothing away that would have to be
//! sent again ahead of new data.

use std::collections::BTreeMap;

use anabranch_wire::{Payload, RangeSet, StreamId};

use super::{SentRun, StreamError, Streams};

/// Runs of streams and ends of them: what some paths carry, or what never left.
#[derive(Debug, Default)]
pub(crate) struct Carried(BTreeMap<StreamId, (RangeSet, bool)>);

impl Carried {
    /// Notes that a path carries this.
    pub(crate) fn add(&mut self, run: &SentRun) {
        let (ranges, end) = self.0.entry(run.stream).or_default();
        ranges.insert(run.range());
        *end |= run.fin;
    }

    /// Forgets a run; answers how many bytes of it were here.
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
        self.redundant = self.redundant + usize::from(wanted) - usize::from(was);
        Ok(())
    }

    /// True when some stream is redundant: only then is anything else here worth asking.
    pub(crate) fn has_redundant(&self) -> bool {
        self.redundant > 0
    }

    pub(crate) fn is_redundant(&self, id: StreamId) -> bool {
        self.has_redundant() && self.table.get(id).is_some_and(|stream| stream.redundant)
    }

    /// True when the next stream to send is redundant.
    pub(crate) fn next_is_redundant(&self) -> bool {
        self.has_redundant() && self.ready.front().is_some_and(|id| self.is_redundant(*id))
    }

    /// Notes that a copy left: what it carries is missing no more.
    pub(crate) fn on_copied(&mut self, run: &SentRun) {
        if let Some(stream) = self.table.get_mut(run.stream) {
            stream.send.on_copied(run.range(), run.fin);
        }
    }

    /// Notes that a run was lost; what others carry is not missing.
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
