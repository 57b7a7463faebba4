//! Early binding (MPMTP-AR §3.6 [R5]): data goes to a path before the path may send, into a buffer of its own.
//!
//! The scheduler is asked while some path's buffer has room, whatever the windows say, and sees what is bound as in
//! flight. Buffers have a bound ([`Config::early_binding`](crate::Config::early_binding)), so that what waits behind a path that slows down is no
//! more than that. A path that may carry data no more gives back what is bound to it.

use anabranch_wire::{PathId, Payload, Time};
use smallvec::SmallVec;

use super::{OVERHEAD, Session};
use crate::path::Path;
use crate::route::Transmit;
use crate::schedule::{Decision, PathView};
use crate::stream::{Pick, SentRun};

impl<P: Payload> Session<P> {
    /// What is bound to no path goes first.
    pub(super) fn transmit_early(&mut self, now: Time, most: u64) -> Option<Transmit<P>> {
        if self.paths.have_copies() || self.has_datagrams() {
            let ahead = self.transmit_ahead(now);
            if ahead.is_some() {
                return ahead;
            }
            self.place(now, false);
        }
        self.transmit_bound(now, most)
    }

    /// Binds what there is, then sends from the buffers.
    fn transmit_bound(&mut self, now: Time, most: u64) -> Option<Transmit<P>> {
        for index in 0..self.paths.len() {
            if self.paths[index].bound.bytes() > 0 && !self.paths.is_usable(index) {
                self.give_back(index);
            }
        }
        let mut views = std::mem::take(&mut self.scratch.views);
        while self.bind(now, most, &mut views) {}
        // They are no views of windows.
        views.clear();
        self.scratch.views = views;
        let mut idle = true;
        for index in 0..self.paths.len() {
            if self.paths[index].bound.bytes() == 0 {
                continue;
            }
            idle = false;
            if self.may_send(now, index) {
                let sent = self.build_bound(now, index);
                if sent.is_some() {
                    return sent;
                }
            } else if self.paths.has_room(index) {
                let path = self.paths.aside(index);
                let ready = path.pacer.ready_at(path.size() as u64);
                self.wake_at = self.wake_at.min(ready.max(now));
            }
        }
        if idle {
            self.note_app_limited();
            return self.transmit_relief(now);
        }
        None
    }

    /// Binds a run to the path that the scheduler names; false when nothing was bound.
    fn bind(&mut self, now: Time, most: u64, views: &mut Vec<PathView>) -> bool {
        if !self.streams.has_work() {
            self.given_back.clear();
            return false;
        }
        self.view_buffers(now, most, views);
        if views.iter().all(|view| view.budget == 0) {
            return false;
        }
        self.streams.rotate();
        let turn = self.streams.turn();
        let open = views.iter().filter(|view| view.budget > 0);
        let decision = match self.streams.next_is_redundant() {
            true => open.min_by_key(|view| (view.rtt, view.id)).map(|view| (view.id, 1, SmallVec::new())),
            false => match self.scheduler.pick(&self.view_session(now, &turn), views, &turn.item()) {
                Decision::Send { path, run } => Some((path, run, SmallVec::new())),
                Decision::Duplicate(paths) => paths.first().map(|path| (*path, 1, paths[1..].into())),
                Decision::Wait(until) => {
                    self.wake_at = self.wake_at.min(until);
                    None
                }
            },
        };
        let Some((path, run, others)) = decision else { return false };
        self.bind_run(path, run.min(most), &others)
    }

    /// Binds about so many bytes to a path, packet by packet, and has the others copy them.
    fn bind_run(&mut self, path: PathId, run: u64, others: &SmallVec<[PathId; 4]>) -> bool {
        let Some(index) = self.path_index(path) else { return false };
        let room = self.paths[index].size() - OVERHEAD;
        let mut bound = 0;
        while bound < run.max(1)
            && let Some((frame, resend)) = self.streams.next_frame(room, Pick::MissingFirst, &mut self.events)
        {
            let length = frame.data.len() as u64;
            let range = frame.offset..frame.offset + length;
            let run = SentRun::new(frame.stream, range, frame.fin);
            if resend {
                self.stats.bytes_resent += length - self.given_back.take(&run);
            }
            self.copy_elsewhere(index, &run, resend);
            if !others.is_empty() {
                self.copy_on(others, &run, resend);
            }
            self.paths[index].bound.push(run);
            bound += length.max(1);
        }
        bound > 0
    }

    fn build_bound(&mut self, now: Time, index: usize) -> Option<Transmit<P>> {
        while let Some(run) = self.paths[index].bound.pop() {
            let mut draft = self.draft(index);
            self.add_acks(now, index, &mut draft);
            let Some(frame) = self.streams.copy_of(&run, draft.room()) else {
                // Some of it arrived otherwise: what did not is cut anew.
                self.put_in_line(&run);
                continue;
            };
            let sent = frame.offset + frame.data.len() as u64;
            if sent < run.end() {
                self.paths[index].bound.put_back(run.from(sent));
            }
            self.paths[index].stats.data_sent += frame.data.len() as u64;
            draft.add_stream(frame, &mut self.paths.aside(index).board);
            return self.finish_draft(now, index, draft);
        }
        None
    }

    /// Puts what is bound to a path back in line.
    fn give_back(&mut self, index: usize) {
        while let Some(run) = self.paths[index].bound.pop() {
            self.put_in_line(&run);
        }
    }

    /// What never left goes with what is missing, and is no repetition for that.
    fn put_in_line(&mut self, run: &SentRun) {
        self.given_back.add(run);
        self.streams.on_lost(run);
    }

    /// Shows the scheduler buffers instead of windows.
    fn view_buffers(&mut self, now: Time, most: u64, views: &mut Vec<PathView>) {
        self.view_paths(now, views);
        for view in views.iter_mut() {
            let bound = self.path(view.id).map_or(0, |path: &Path| path.bound.bytes());
            view.in_flight += bound;
            view.budget = most.saturating_sub(bound);
            view.ready_at = Time::ZERO;
        }
        self.paths.forget_views();
    }
}
