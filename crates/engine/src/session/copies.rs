//! Copies: what leaves on every path at once, because its stream is redundant or the scheduler says so.
//!
//! The fastest path that has room takes the original, and the others note a copy each, which goes ahead of new data
//! as soon as their windows and pacing admit it. A path that is too slow for all of it does not hold the others back:
//! copies of what was acknowledged meanwhile are dropped, and of very many the oldest.

use anabranch_wire::{PathId, Payload, StreamId, Time};

use super::Session;
use super::place::Next;
use crate::path::PathState;
use crate::route::Transmit;
use crate::schedule::PathView;
use crate::stream::{Carried, Pick, SentRun, StreamError};

impl<P: Payload> Session<P> {
    /// Sends what is written to a stream on every path at once from now on, or on one again: the lowest latency and no pause
    /// when a path dies, as long as each path can carry all of it. The peer may do otherwise with its half.
    ///
    /// # Errors
    /// [`StreamError`] when there is no such stream, or all of it was delivered or given up.
    pub fn set_redundant(&mut self, stream: StreamId, redundant: bool) -> Result<(), StreamError> {
        self.run = None;
        self.streams.set_redundant(stream, redundant)
    }

    /// The place for a redundant stream, whatever the scheduler would say; [`Self::fill_draft`] has the others copy it.
    pub(super) fn place_redundant(&self, views: &[PathView], pick: Pick) -> Next {
        let open = views.iter().filter(|view| view.budget > 0);
        let fastest = open.min_by_key(|view| (view.rtt, view.id));
        fastest.map_or(Next::Nothing, |fastest| self.place_on(fastest.id, pick, None))
    }

    /// Has every other path that may carry data send this, too, if its stream is redundant. What is sent `again` waits on
    /// some of them as it is.
    pub(super) fn copy_elsewhere(&mut self, index: usize, run: &SentRun, again: bool) {
        if !self.streams.is_redundant(run.stream) {
            return;
        }
        for other in 0..self.paths.len() {
            if other != index && self.paths.is_usable(other) && !(again && self.paths[other].will_copy(run)) {
                self.paths[other].push_copy(run.clone());
            }
        }
    }

    pub(super) fn send_everywhere(&mut self, now: Time, paths: &[PathId]) -> Option<Transmit<P>> {
        let (first, others) = paths.split_first()?;
        let index = self.path_index(*first)?;
        let again = self.streams.next_is_resend();
        let transmit = self.build_data(now, index, Pick::MissingFirst)?;
        for run in self.paths[index].board.latest_runs() {
            self.copy_on(others, &run, again);
        }
        Some(transmit)
    }

    /// Has these paths send this, too, because the scheduler says so.
    pub(super) fn copy_on(&mut self, others: &[PathId], run: &SentRun, again: bool) {
        self.duplicates = true;
        for other in others.iter().filter(|_| !self.streams.is_redundant(run.stream)) {
            if let Some(other) = self.path_index(*other)
                && !(again && self.paths[other].will_copy(run))
            {
                self.paths[other].push_copy(run.clone());
            }
        }
    }

    /// True for what leaves on several paths at once.
    pub(super) fn is_copied(&self, stream: StreamId) -> bool {
        self.duplicates || self.streams.is_redundant(stream)
    }

    pub(super) fn transmit_copy(&mut self, now: Time, views: &[PathView]) -> Option<Transmit<P>> {
        for view in views.iter().filter(|view| view.budget > 0) {
            let Some(index) = self.path_index(view.id) else { continue };
            if let Some(transmit) = self.build_copy(now, index) {
                return Some(transmit);
            }
        }
        None
    }

    /// Comes back for the copies that wait for a path's pacing.
    pub(super) fn await_copies(&mut self, now: Time, views: &[PathView]) {
        let waits = |view: &&PathView| {
            view.ready_at > now && self.path(view.id).is_some_and(|path| path.has_copies())
        };
        let ready = views.iter().filter(waits).map(|view| view.ready_at).min();
        self.wake_at = self.wake_at.min(ready.unwrap_or(Time::NEVER));
    }

    fn build_copy(&mut self, now: Time, index: usize) -> Option<Transmit<P>> {
        while let Some(run) = self.paths[index].pop_copy() {
            let mut draft = self.draft(index);
            let Some(frame) = self.streams.copy_of(&run, draft.room()) else { continue };
            let sent = frame.offset + frame.data.len() as u64;
            if sent < run.end() {
                self.paths[index].return_copy(run.from(sent));
            }
            let length = frame.data.len() as u64;
            self.stats.bytes_resent += length;
            let sent = draft.add_stream(frame, &mut self.paths.aside(index).board);
            self.streams.on_copied(&sent);
            self.add_acks(now, index, &mut draft);
            self.paths[index].stats.data_sent += length;
            return self.finish_draft(now, index, draft);
        }
        None
    }

    /// What other paths that work carry of what leaves on several at once; nothing when there is no such thing.
    pub(super) fn carried_beside(&self, index: usize) -> Carried {
        let mut carried = Carried::default();
        if !self.duplicates && !self.streams.has_redundant() {
            return carried;
        }
        let others = self.paths.iter().enumerate();
        for (_, path) in others.filter(|(other, path)| *other != index && path.state == PathState::Active) {
            let runs = path.board.runs_on_their_way();
            runs.filter(|run| self.is_copied(run.stream)).for_each(|run| carried.add(run));
        }
        carried
    }
}
