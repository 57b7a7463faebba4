//! Copies: data that is sent on every path, because its stream is redundant or the scheduler wants it.
//!
//! The fastest path with room sends the original. Each other path queues a copy, which it sends before new data as soon
//! as its window and pacing allow. A slow path does not delay the others: copies of acknowledged data are dropped, and
//! so are the oldest if very many wait.

use anabranch_wire::{PathId, Payload, Time};

use super::packets::{Packets, finish};
use crate::route::Transmit;
use crate::schedule::PathView;
use crate::session::flight::Flight;
use crate::stream::{Pick, SentRun};

/// Queues copies on every other path that may carry data, if the stream is redundant. For data sent `again`, copies
/// may be queued already.
#[inline]
pub(super) fn copy_to_others<P: Payload>(flight: &mut Flight<P>, index: usize, run: &SentRun, again: bool) {
    if !flight.streams.is_redundant(run.stream) {
        return;
    }
    for other in 0..flight.paths.len() {
        if other != index && flight.paths.is_usable(other) {
            push(flight, other, run, again);
        }
    }
}

/// Queues copies on these paths, because the scheduler wants it.
pub(super) fn copy_to<P: Payload>(flight: &mut Flight<P>, others: &[PathId], run: &SentRun, again: bool) {
    flight.duplicates = true;
    // Copies of a redundant stream are queued already.
    if flight.streams.is_redundant(run.stream) {
        return;
    }
    for other in others {
        if let Some(other) = flight.paths.place_of(*other) {
            push(flight, other, run, again);
        }
    }
}

fn push<P: Payload>(flight: &mut Flight<P>, path: usize, run: &SentRun, again: bool) {
    if !(again && flight.paths[path].queued().will_copy(run)) {
        flight.paths.edit(path).queued_mut().push_copy(run.clone());
    }
}

/// Sends data on the first of these paths, and queues copies on the others.
pub(super) fn send_everywhere<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    packets: &mut Packets<P>,
    paths: &[PathId],
) -> Option<Transmit<P>> {
    let (first, others) = paths.split_first()?;
    let index = flight.paths.place_of(*first)?;
    let again = flight.streams.next_is_resend();
    let transmit = packets.build_data(now, flight, index, Pick::MissingFirst)?;
    for run in flight.paths[index].board().latest_runs() {
        copy_to(flight, others, &run, again);
    }
    Some(transmit)
}

/// Sends the next copy on a path that has room.
pub(super) fn transmit_copy<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    packets: &mut Packets<P>,
    views: &[PathView],
) -> Option<Transmit<P>> {
    let mut open = views.iter().filter(|view| view.budget > 0);
    open.find_map(|view| {
        let index = flight.paths.place_of(view.id)?;
        build_copy(now, flight, packets, index)
    })
}

fn build_copy<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    packets: &mut Packets<P>,
    index: usize,
) -> Option<Transmit<P>> {
    while let Some(run) = flight.paths.edit(index).queued_mut().pop_copy() {
        let mut draft = Packets::draft(flight, index);
        let Some(frame) = flight.streams.copy_of(&run, draft.room()) else { continue };
        let sent = frame.offset + frame.data.len() as u64;
        if sent < run.end() {
            flight.paths.edit(index).queued_mut().return_copy(run.from(sent));
        }
        let length = frame.data.len() as u64;
        flight.stats.bytes_resent += length;
        let sent = draft.add_stream(frame, &mut flight.paths, index);
        flight.streams.on_copied(&sent);
        packets.add_acks(now, flight, index, &mut draft);
        flight.paths.edit(index).stats_mut().data_sent += length;
        return finish(now, flight, index, draft);
    }
    None
}

/// Sets a wake-up for copies that wait for pacing.
pub(super) fn await_copies<P: Payload>(now: Time, flight: &mut Flight<P>, views: &[PathView]) {
    let waits = |view: &&PathView| {
        let path = flight.paths.place_of(view.id).map(|index| &flight.paths[index]);
        view.ready_at > now && path.is_some_and(|path| path.queued().has_copies())
    };
    let ready = views.iter().filter(waits).map(|view| view.ready_at).min();
    flight.clock.wake_at = flight.clock.wake_at.min(ready.unwrap_or(Time::NEVER));
}
