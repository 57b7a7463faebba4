//! Streams whose data leaves on every path at once: which they are, and what still is on its way when a path lost some.
//!
//! What one path lost is missing only if no other carries it: a path that dies takes nothing away that would have to be
//! sent again ahead of new data.

use std::collections::BTreeMap;

use anabranch_wire::{Payload, RangeSet, StreamId};

use super::{SentRun, StreamError, Streams};

/// What some paths carry of redundant streams.
#[derive(Debug, Default)]
pub(crate) struct Carried(BTreeMap<StreamId, (RangeSet, bool)>);

impl Carried {
    /// Notes that a path carries this.
    pub(crate) fn add(&mut self, run: &SentRun) {
        let (ranges, end) = self.0.entry(run.stream).or_default();
        ranges.insert(run.range.clone());
        *end |= run.fin;
    }
}

impl<P: Payload> Streams<P> {
    pub(crate) fn set_redundant(&mut self, id: StreamId, wanted: bool) -> Result<(), StreamError> {
        let stream = self.map.get_mut(&id).ok_or(StreamError::Unknown)?;
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
        self.has_redundant() && self.map.get(&id).is_some_and(|stream| stream.redundant)
    }

    /// True when the next stream to send is redundant.
    pub(crate) fn next_is_redundant(&self) -> bool {
        self.has_redundant() && self.ready.front().is_some_and(|id| self.is_redundant(*id))
    }

    /// Notes that a run was lost; what others carry is not missing.
    pub(crate) fn on_lost_beyond(&mut self, run: &SentRun, others: &Carried) {
        let Some((ranges, end)) = others.0.get(&run.stream) else { return self.on_lost(run) };
        for range in ranges.gaps_in(run.range.clone()) {
            self.on_lost(&SentRun { stream: run.stream, range, fin: false });
        }
        if run.fin && !end {
            let range = run.range.end..run.range.end;
            self.on_lost(&SentRun { stream: run.stream, range, fin: true });
        }
    }
}
