//! Early binding (MPMTP-AR §3.6 [R5]): assigns data to a path before the path may send. It waits in the path's buffer.
//!
//! The scheduler is asked whenever a path's buffer has room, regardless of windows, and bound data counts as in flight.
//! [`Config::early_binding`](crate::Config::early_binding) limits each buffer, so only that much waits behind a path
//! that slows down. A path that may no longer carry data returns its bound data.

use anabranch_wire::{PACKET_OVERHEAD, PathId, Payload, Time};
use smallvec::SmallVec;

use super::copies;
use super::packets::{Packets, finish};
use super::placement::{self, Placement, view_session};
use crate::route::Transmit;
use crate::schedule::{Decision, PathView};
use crate::session::flight::Flight;
use crate::stream::{Carried, Pick, SentRun};

/// The scheduler's decision about the next data to bind.
struct Bind {
    path: PathId,
    bytes: u64,
    /// These paths send copies.
    others: SmallVec<[PathId; 4]>,
}

/// Binds data to paths in advance.
#[derive(Default)]
pub(super) struct Binding {
    /// Runs that were bound to a path but never left, until they are queued again.
    given_back: Carried,
}

impl Binding {
    /// Binds up to `most` bytes to each path, then sends from the paths' buffers. `None` if no buffer can send; the
    /// second value is true if all of them are empty.
    pub(super) fn transmit<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        (packets, placement): (&mut Packets<P>, &mut Placement),
        most: u64,
    ) -> (Option<Transmit<P>>, bool) {
        for index in 0..flight.paths.len() {
            if flight.paths[index].queued().bound_bytes() > 0 && !flight.paths.is_usable(index) {
                self.give_back(flight, index);
            }
        }
        let mut views = placement.take_views(now, flight);
        while self.bind(now, flight, placement, &mut views, most) {}
        // These views show buffers, not windows.
        views.clear();
        placement.return_views(views);
        let mut idle = true;
        for index in 0..flight.paths.len() {
            if flight.paths[index].queued().bound_bytes() == 0 {
                continue;
            }
            idle = false;
            if flight.may_send(now, index) {
                let sent = self.build(now, flight, packets, index);
                if sent.is_some() {
                    return (sent, false);
                }
            } else if flight.paths.has_room(index) {
                let path = &flight.paths[index];
                let ready = path.pacer().ready_at(path.size() as u64);
                flight.clock.wake_at = flight.clock.wake_at.min(ready.max(now));
            }
        }
        (None, idle)
    }

    /// Binds data to the path that the scheduler names; false when nothing was bound.
    fn bind<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        placement: &mut Placement,
        views: &mut Vec<PathView>,
        most: u64,
    ) -> bool {
        if !flight.streams.has_work() {
            self.given_back.clear();
            return false;
        }
        view_buffers(now, flight, most, views);
        if views.iter().all(|view| view.budget == 0) {
            return false;
        }
        flight.streams.rotate();
        let decision = if flight.streams.next_is_redundant() {
            placement::fastest(views).map(|path| Bind { path, bytes: 1, others: SmallVec::new() })
        } else {
            decide(now, flight, placement, views)
        };
        let Some(mut bind) = decision else { return false };
        bind.bytes = bind.bytes.min(most);
        self.bind_run(flight, &bind)
    }

    /// Binds data to a path, packet by packet, and queues copies on the others; false without data.
    fn bind_run<P: Payload>(&mut self, flight: &mut Flight<P>, bind: &Bind) -> bool {
        let Some(index) = flight.paths.place_of(bind.path) else { return false };
        let room = flight.paths[index].size() - PACKET_OVERHEAD;
        let mut bound = 0;
        while bound < bind.bytes.max(1)
            && let Some((frame, resend)) =
                flight.streams.next_frame(room, Pick::MissingFirst, &mut flight.out.events)
        {
            let length = frame.data.len() as u64;
            let range = frame.offset..frame.offset + length;
            let run = SentRun::new(frame.stream, range, frame.fin);
            if resend {
                flight.stats.bytes_resent += length - self.given_back.take(&run);
            }
            copies::copy_to_others(flight, index, &run, resend);
            if !bind.others.is_empty() {
                copies::copy_to(flight, &bind.others, &run, resend);
            }
            flight.paths.edit(index).queued_mut().bind(run);
            bound += length.max(1);
        }
        bound > 0
    }

    /// A packet from a path's buffer, or one with only acknowledgements if nothing there is needed any more.
    fn build<P: Payload>(
        &mut self,
        now: Time,
        flight: &mut Flight<P>,
        packets: &mut Packets<P>,
        index: usize,
    ) -> Option<Transmit<P>> {
        let mut draft = Packets::draft(flight, index);
        packets.add_acks(now, flight, index, &mut draft);
        while let Some(run) = flight.paths.edit(index).queued_mut().pop_bound() {
            let Some(frame) = flight.streams.copy_of(&run, draft.room()) else {
                // Part of it arrived over another path; the rest is divided again.
                self.queue_again(flight, &run);
                continue;
            };
            let length = frame.data.len() as u64;
            let sent = frame.offset + length;
            let path = flight.paths.edit(index);
            if sent < run.end() {
                path.queued_mut().return_bound(run.from(sent));
            }
            path.stats_mut().data_sent += length;
            draft.add_stream(frame, &mut flight.paths, index);
            return finish(now, flight, index, draft);
        }
        // The acknowledgements in it count as sent.
        finish(now, flight, index, draft)
    }

    /// Queues a path's bound data again.
    fn give_back<P: Payload>(&mut self, flight: &mut Flight<P>, index: usize) {
        while let Some(run) = flight.paths.edit(index).queued_mut().pop_bound() {
            self.queue_again(flight, &run);
        }
    }

    /// Queues a run that never left as missing data. It does not count as a retransmission.
    fn queue_again<P: Payload>(&mut self, flight: &mut Flight<P>, run: &SentRun) {
        self.given_back.add(run);
        flight.streams.on_lost(run);
    }
}

/// Asks the scheduler for the next data to bind.
fn decide<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    placement: &mut Placement,
    views: &[PathView],
) -> Option<Bind> {
    let turn = flight.streams.turn();
    match placement.scheduler.pick(&view_session(now, flight, &turn), views, &turn.item()) {
        Decision::Send { path, run } => Some(Bind { path, bytes: run, others: SmallVec::new() }),
        Decision::Duplicate(paths) => {
            paths.first().map(|path| Bind { path: *path, bytes: 1, others: paths[1..].into() })
        }
        Decision::Wait(until) => {
            flight.clock.wake_at = flight.clock.wake_at.min(until);
            None
        }
    }
}

/// Shows the scheduler buffers instead of windows.
fn view_buffers<P: Payload>(now: Time, flight: &mut Flight<P>, most: u64, views: &mut Vec<PathView>) {
    placement::view_paths(now, flight, views);
    for view in views.iter_mut() {
        let place = flight.paths.place_of(view.id);
        let bound = place.map_or(0, |place| flight.paths[place].queued().bound_bytes());
        view.in_flight += bound;
        view.budget = most.saturating_sub(bound);
        view.ready_at = Time::ZERO;
    }
    flight.paths.forget_views();
}
