//! Where data goes: what the scheduler is shown, and what follows from what it says ("where" of mTCP §3.1.4 [M5]).

use anabranch_wire::{PathId, Payload, Rate, Time};
use smallvec::SmallVec;

use super::{Run, Session};
use crate::path::Path;
use crate::schedule::{Decision, PathView, SessionView};
use crate::stream::{Pick, Turn};

/// Which data of streams leaves next, and where.
///
/// It says so, and the packet is built after that: packets are large, and moved as little as can be.
pub(super) enum Next {
    At(Place),
    /// On the first of these paths, which is there, and copies of it on the others.
    Everywhere(SmallVec<[PathId; 4]>),
    Nothing,
}

#[derive(Clone, Copy)]
pub(super) struct Place {
    pub index: usize,
    pub pick: Pick,
    /// What the scheduler chose, if it is to be asked again only after that.
    pub run: Option<Run>,
}

impl<P: Payload> Session<P> {
    /// Where streams may send, with something to send or without.
    pub(super) fn place(&mut self, now: Time, streams: bool) -> Next {
        if self.are_full() {
            return Next::Nothing;
        }
        let mut views = std::mem::take(&mut self.scratch.views);
        self.view_paths(now, &mut views);
        let next = self.place_data(now, &views, streams);
        if self.paths.have_copies() && matches!(next, Next::Nothing) {
            self.await_copies(now, &views);
        }
        self.scratch.views = views;
        next
    }

    /// True when no window has room: then the scheduler need not be asked.
    pub(super) fn are_full(&self) -> bool {
        !self.paths.have_room() && !self.cc.is_paced() && self.config.early_binding.is_none()
    }

    fn place_data(&mut self, now: Time, views: &[PathView], streams: bool) -> Next {
        if views.iter().all(|view| view.budget == 0) {
            let ready = views.iter().map(|view| view.ready_at).filter(|at| *at > now).min();
            self.wake_at = ready.unwrap_or(Time::NEVER);
            return Next::Nothing;
        }
        if !streams || self.datagrams_wait() {
            return Next::Nothing;
        }
        self.streams.rotate();
        if self.streams.next_is_redundant() {
            return self.place_redundant(views, Pick::MissingFirst);
        }
        let turn = self.streams.turn();
        match self.scheduler.pick(&self.view_session(now, &turn), views, &turn.item()) {
            Decision::Send { path, run } => {
                self.place_on(path, Pick::MissingFirst, Some(Run { path, left: run, resend: turn.resend }))
            }
            Decision::Duplicate(mut paths) => {
                paths.retain(|path| self.path_index(*path).is_some());
                if paths.is_empty() { Next::Nothing } else { Next::Everywhere(paths) }
            }
            Decision::Wait(until) => {
                self.wake_at = until;
                if turn.resend { self.place_new(now, views) } else { Next::Nothing }
            }
        }
    }

    /// New data, while what is missing waits for a path that is not open now: the others are not to stand idle for it.
    fn place_new(&mut self, now: Time, views: &[PathView]) -> Next {
        if !self.streams.bring_new() {
            return Next::Nothing;
        }
        if self.streams.next_is_redundant() {
            return self.place_redundant(views, Pick::New);
        }
        let turn = Turn { bytes: self.streams.unsent(), resend: false, ..self.streams.turn() };
        match self.scheduler.pick(&self.view_session(now, &turn), views, &turn.item()) {
            Decision::Send { path, .. } => self.place_on(path, Pick::New, None),
            Decision::Duplicate(_) => Next::Nothing,
            Decision::Wait(until) => {
                self.wake_at = self.wake_at.min(until);
                Next::Nothing
            }
        }
    }

    pub(super) fn place_on(&self, path: PathId, pick: Pick, run: Option<Run>) -> Next {
        let place = |index| Next::At(Place { index, pick, run });
        self.path_index(path).map_or(Next::Nothing, place)
    }

    pub(super) fn view_session(&self, now: Time, turn: &Turn) -> SessionView {
        SessionView { now, more_expected: self.streams.more_expected(), window: turn.window }
    }

    /// Shows the scheduler the paths that may carry data. While all may, and nothing paces them, only what has
    /// changed is looked at again.
    pub(super) fn view_paths(&mut self, now: Time, views: &mut Vec<PathView>) {
        let anew = self.cc.is_paced() || !self.paths.are_all_usable();
        if anew || views.len() != self.paths.len() {
            views.clear();
            views.reserve_exact(self.paths.len());
            self.paths.forget_views();
        }
        if anew {
            for index in 0..self.paths.len() {
                if self.usable(&self.paths[index]) {
                    views.push(self.view(now, index));
                }
            }
            return;
        }
        let mut next = 0;
        while let Some((index, whole)) = self.paths.next_old_view(next) {
            next = index + 1;
            match views.get_mut(index) {
                Some(known) if whole => *known = self.view(now, index),
                Some(known) => update(now, self.paths.aside(index), known),
                None => views.push(self.view(now, index)),
            }
        }
    }

    /// How a scheduler sees a path. In slow start its rate is not found yet.
    fn view(&mut self, now: Time, index: usize) -> PathView {
        let window = self.paths.window(index);
        let path = self.paths.aside(index);
        let (rtt, rate) = (path.rtt(), path.delivery_rate);
        let possible = match rate == Rate::ZERO || self.cc.in_slow_start(path.id) {
            true => Rate::from_bytes_in(window, rtt.smoothed()),
            false => Rate::ZERO,
        };
        let mut view = PathView {
            id: path.id,
            budget: 0,
            ready_at: Time::ZERO,
            window,
            in_flight: 0,
            rtt: rtt.smoothed(),
            min_rtt: rtt.min(),
            rtt_variance: rtt.variance(),
            rate: rate.max(possible),
            mtu: path.size() as u64,
            bytes_sent: 0,
            weight: path.weight,
        };
        update(now, path, &mut view);
        view
    }
}

/// Brings a view up to date with what was sent.
fn update(now: Time, path: &mut Path, view: &mut PathView) {
    let (size, pipe) = (view.mtu, path.board.pipe());
    let paced = path.pacer.budget(now);
    let room = view.window.saturating_sub(pipe);
    let open = room >= size && paced >= size && path.allowance.left() >= size;
    view.budget = if open { room.min(paced) } else { 0 };
    view.ready_at = if room >= size && paced < size { path.pacer.ready_at(size) } else { Time::ZERO };
    view.in_flight = pipe;
    view.bytes_sent = path.stats.bytes_sent;
}
