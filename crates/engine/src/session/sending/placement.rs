//! Chooses the path for data: shows the paths to the scheduler and carries out its decision (mTCP's "where", §3.1.4
//! [M5]).

use anabranch_wire::{PathId, Payload, Rate, Time};
use smallvec::SmallVec;

use super::copies;
use crate::path::Paths;
use crate::schedule::{Decision, PathView, Scheduler, SessionView};
use crate::session::flight::{Choice, Flight};
use crate::stream::{Pick, Turn};

/// The streams' next data and its path. The packet is built afterwards, since packets are large.
pub(super) enum Next {
    At(Spot),
    /// On the first of these paths, with copies on the others.
    Everywhere(SmallVec<[PathId; 4]>),
    Nothing,
}

/// The path for the next packet of stream data, and the data to take.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub index: usize,
    pub pick: Pick,
    /// The scheduler's choice, if it holds for further packets.
    pub choice: Option<Choice>,
}

/// The scheduler, and its views of the paths.
pub(super) struct Placement {
    pub scheduler: Box<dyn Scheduler>,
    views: Vec<PathView>,
}

impl Placement {
    pub(super) fn new(scheduler: Box<dyn Scheduler>) -> Self {
        Self { scheduler, views: Vec::new() }
    }

    /// Views of the paths that may carry data. [`Self::return_views`] returns the list, so that unchanged views are
    /// kept.
    pub(super) fn take_views<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>) -> Vec<PathView> {
        let mut views = std::mem::take(&mut self.views);
        view_paths(now, flight, &mut views);
        views
    }

    pub(super) fn return_views(&mut self, views: Vec<PathView>) {
        self.views = views;
    }

    /// Chooses where streams may send, even if there is nothing to send.
    pub(super) fn place<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        streams: bool,
        datagrams_wait: bool,
    ) -> Next {
        if flight.is_full() {
            return Next::Nothing;
        }
        let views = self.take_views(now, flight);
        let passes = || self.scheduler.lets_messages_pass();
        let sparse = streams && !datagrams_wait && flight.streams.next_is_sparse() && passes();
        let next = if sparse && let Some(next) = place_sparse(now, flight, &views) {
            next
        } else if views.iter().all(|view| view.budget == 0) {
            let ready = views.iter().map(|view| view.ready_at).filter(|at| *at > now).min();
            flight.clock.wake_at = flight.clock.wake_at.min(ready.unwrap_or(Time::NEVER));
            Next::Nothing
        } else if !streams || datagrams_wait {
            Next::Nothing
        } else {
            self.place_data(now, flight, &views)
        };
        if flight.paths.have_copies() && matches!(next, Next::Nothing) {
            copies::await_copies(now, flight, &views);
        }
        self.return_views(views);
        next
    }

    fn place_data<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, views: &[PathView]) -> Next {
        flight.streams.rotate();
        if flight.streams.next_is_redundant() {
            return place_redundant(flight, views, Pick::MissingFirst);
        }
        let turn = flight.streams.turn();
        match self.scheduler.pick(&view_session(now, flight, &turn), views, &turn.item()) {
            Decision::Send { path, run } => {
                let choice = Choice { path, left: run, resend: turn.resend };
                place_on(flight, path, Pick::MissingFirst, Some(choice))
            }
            Decision::Duplicate(mut paths) => {
                paths.retain(|path| flight.paths.place_of(*path).is_some());
                if paths.is_empty() { Next::Nothing } else { Next::Everywhere(paths) }
            }
            Decision::Wait(until) => {
                // Datagrams may wait for another time.
                flight.clock.wake_at = flight.clock.wake_at.min(until);
                if turn.resend { self.place_new(now, flight, views) } else { Next::Nothing }
            }
        }
    }

    /// Places new data while missing data waits for a blocked path, so that the other paths are not idle.
    fn place_new<P: Payload>(&mut self, now: Time, flight: &mut Flight<P>, views: &[PathView]) -> Next {
        if !flight.streams.bring_new() {
            return Next::Nothing;
        }
        if flight.streams.next_is_redundant() {
            return place_redundant(flight, views, Pick::New);
        }
        let turn = Turn { bytes: flight.streams.unsent(), resend: false, ..flight.streams.turn() };
        match self.scheduler.pick(&view_session(now, flight, &turn), views, &turn.item()) {
            Decision::Send { path, .. } => place_on(flight, path, Pick::New, None),
            Decision::Duplicate(_) => Next::Nothing,
            Decision::Wait(until) => {
                flight.clock.wake_at = flight.clock.wake_at.min(until);
                Next::Nothing
            }
        }
    }

    /// Frees unused memory.
    pub(super) fn shrink(&mut self) {
        self.views = Vec::new();
    }
}

/// The path with the least delay for a small message; `None` if it has no room.
fn place_sparse<P: Payload>(now: Time, flight: &mut Flight<P>, views: &[PathView]) -> Option<Next> {
    let calmest = views.iter().min_by_key(|view| (view.calm_rtt, view.id))?;
    flight.paths.on_urgent(now, calmest.id);
    (calmest.room > 0).then(|| place_on(flight, calmest.id, Pick::MissingFirst, None))
}

/// The fastest path with room, for a redundant stream, without asking the scheduler. [`super::Packets::fill`] queues
/// the copies.
fn place_redundant<P: Payload>(flight: &Flight<P>, views: &[PathView], pick: Pick) -> Next {
    fastest(views).map_or(Next::Nothing, |fastest| place_on(flight, fastest, pick, None))
}

/// The path with the least round-trip time among those with room.
pub(in crate::session) fn fastest(views: &[PathView]) -> Option<PathId> {
    let open = views.iter().filter(|view| view.budget > 0);
    open.min_by_key(|view| (view.rtt, view.id)).map(|view| view.id)
}

fn place_on<P: Payload>(flight: &Flight<P>, path: PathId, pick: Pick, choice: Option<Choice>) -> Next {
    let spot = |index| Next::At(Spot { index, pick, choice });
    flight.paths.place_of(path).map_or(Next::Nothing, spot)
}

pub(super) fn view_session<P: Payload>(now: Time, flight: &Flight<P>, turn: &Turn) -> SessionView {
    SessionView { now, more_expected: flight.streams.more_expected(), window: turn.window }
}

/// Updates the views of the paths that may carry data. While all may and nothing paces them, it checks only those
/// that have changed.
pub(super) fn view_paths<P: Payload>(now: Time, flight: &mut Flight<P>, views: &mut Vec<PathView>) {
    let paths = &mut flight.paths;
    let all =
        flight.cc.is_paced() || paths.are_limited() || paths.is_one_calm(now) || !paths.are_all_usable();
    if all || views.len() != paths.len() {
        views.clear();
        views.reserve_exact(paths.len());
        paths.forget_views();
    }
    if all {
        for index in 0..flight.paths.len() {
            if flight.paths.may_carry(&flight.paths[index]) {
                views.push(view(now, flight, index));
            }
        }
        return;
    }
    let mut next = 0;
    while let Some((index, whole)) = flight.paths.next_old_view(next) {
        next = index + 1;
        match views.get_mut(index) {
            Some(known) if whole => *known = view(now, flight, index),
            Some(known) => update(now, &mut flight.paths, index, (known, None)),
            None => views.push(view(now, flight, index)),
        }
    }
}

/// The scheduler's view of a path. In slow start its rate is still unknown.
fn view<P: Payload>(now: Time, flight: &mut Flight<P>, index: usize) -> PathView {
    let window = flight.paths.window(index);
    let path = &flight.paths[index];
    let (rtt, rate) = (path.rtt(), path.delivery().rate());
    let possible = match rate == Rate::ZERO || flight.cc.in_slow_start(path.id()) {
        true => Rate::from_bytes_in(window, rtt.smoothed()),
        false => Rate::ZERO,
    };
    let limit = path.wishes().rate_limit();
    let mut view = PathView {
        id: path.id(),
        budget: 0,
        room: 0,
        calm_rtt: flight.paths.calm_rtt(now, index),
        ready_at: Time::ZERO,
        window: limit.map_or(window, |limit| window.min(limit.bytes_in(rtt.smoothed()))),
        in_flight: 0,
        rtt: if path.board().pipe() == 0 { rtt.drained(now) } else { rtt.recent() },
        min_rtt: rtt.min(),
        rtt_variance: rtt.variance(),
        rate: limit.into_iter().fold(rate.max(possible), Rate::min),
        mtu: path.size() as u64,
        bytes_sent: 0,
        weight: path.feedback().weight(),
    };
    let calm_window = flight.calm_window(now, index);
    update(now, &mut flight.paths, index, (&mut view, calm_window));
    view
}

/// Updates a view after a packet left.
fn update(now: Time, paths: &mut Paths, index: usize, (view, calm_window): (&mut PathView, Option<u64>)) {
    let paced = paths.pacing_budget(index, now);
    let path = &paths[index];
    let (size, pipe) = (view.mtu, path.board().pipe());
    let room = paths.window(index).saturating_sub(pipe);
    let open = room >= size && paced >= size && path.allowance().left_for_data() >= size;
    view.room = if open { room.min(paced) } else { 0 };
    view.budget = match calm_window {
        Some(window) if window < pipe + size => 0,
        Some(window) => view.room.min(window - pipe),
        None => view.room,
    };
    view.ready_at = if room >= size && paced < size { path.pacer().ready_at(size) } else { Time::ZERO };
    view.in_flight = pipe;
    view.bytes_sent = path.stats().bytes_sent;
    if view.budget < view.room {
        // The network does not limit the rate here.
        paths.on_app_limited(index);
    }
}
