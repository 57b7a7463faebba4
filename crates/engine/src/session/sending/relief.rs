//! Head-of-line relief: copies data in flight on a slow path to a faster path that is idle.
//!
//! A path is idle for one of two reasons. In both, a copy that arrives before the original shortens the wait.
//! Nothing is copied while there is new data to send.
//!
//! - **The gap.** The peer's receive window is full of data that waits for the slow path's packets. The *oldest* of
//!   these packets are sent again, because each one that arrives opens the window. Their expected arrival follows from
//!   the time since they were sent and from recent packet delays.
//! - **The tail.** All data was sent, and the transfer ends when the last path is done. That path's *newest* packets
//!   are sent again, if the copies would arrive first, so that all paths end at about the same time. Their expected
//!   arrival follows from the bytes in flight and the delivery rate, because round-trip samples do not include the
//!   latest queue yet. They are judged again at each acknowledgement of the path.
//!
//! A packet is copied once, and only if the copy should arrive first by more than the variation of both paths. From
//! then on the copy's path is responsible: if the original is lost, nothing more happens. All copies together stay
//! within [`SHARE`] of the data sent.

use anabranch_wire::{Payload, Span, Time};
use smallvec::SmallVec;

use super::packets::Packets;
use crate::path::Path;
use crate::route::Transmit;
use crate::session::flight::Flight;

/// One byte may be copied for this many new bytes sent.
const SHARE: u64 = 50;
/// This many bytes may be copied in addition: a short transfer has a tail as well.
const ALLOWANCE: u64 = 48 << 10;
/// Most packets of one path looked at in one search.
const LOOKED_AT: usize = 64;

/// True when there may be something to copy, and a path with room for it.
pub(super) fn may_relieve<P: Payload>(flight: &Flight<P>) -> bool {
    let paths = &flight.paths;
    let some = if flight.streams.unsent() > 0 { paths.have_news() } else { paths.have_tails() };
    some && paths.len() > 1
        && paths.have_room()
        && flight.stats.bytes_copied < ALLOWANCE + flight.streams.sent() / SHARE
}

/// The next copy, if some path has room for it.
pub(super) fn transmit_relief<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    packets: &mut Packets<P>,
) -> Option<Transmit<P>> {
    if !may_relieve(flight) {
        return None;
    }
    if flight.streams.unsent() > 0 {
        relieve_gap(now, flight, packets)
    } else {
        relieve_tail(now, flight, packets)
    }
}

/// After all data was sent: copies the newest packet of the path that ends last to the path that ends first.
fn relieve_tail<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    packets: &mut Packets<P>,
) -> Option<Transmit<P>> {
    let fast = least_to_send_on(now, flight, arrival_delay)?;
    let mut slow: SmallVec<[(Span, usize); 8]> = SmallVec::new();
    for index in (0..flight.paths.len()).filter(|index| *index != fast && flight.paths.has_tail(*index)) {
        slow.push((arrival_delay(flight, index), index));
    }
    slow.sort_by_key(|(delay, _)| std::cmp::Reverse(*delay));
    slow.into_iter().find_map(|(_, slow)| copy_newest(now, flight, packets, slow, fast))
}

/// Time until a packet sent now on a path arrives, behind everything in flight there.
fn arrival_delay<P>(flight: &Flight<P>, index: usize) -> Span {
    let path = &flight.paths[index];
    path.drained_in(path.board().pipe() + path.size() as u64).max(flight.paths.one_way(index))
}

/// Copies the newest packet of a slow path, if the copy arrives before it.
fn copy_newest<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    packets: &mut Packets<P>,
    slow: usize,
    fast: usize,
) -> Option<Transmit<P>> {
    let arrives = now + arrival_delay(flight, fast) + margin(&flight.paths[fast]);
    for _ in 0..LOOKED_AT {
        let Some(newest) = flight.paths.newest_to_copy(slow, LOOKED_AT) else { break };
        let path = &flight.paths[slow];
        let original = (now + path.drained_in(newest.ahead)).max(newest.sent_at + path.one_way());
        if original <= arrives + margin(path) {
            break;
        }
        let copied = newest.runs.iter().any(|run| flight.is_copied(run.stream));
        let built = if copied { None } else { packets.build_relief(now, flight, fast, &newest.runs) };
        if built.is_some() {
            flight.paths.on_copied(slow, newest.number);
            return built;
        }
        flight.paths.pass_newest(slow);
    }
    flight.paths.on_tail_looked_at(slow);
    None
}

/// The path with the least delay among those that may send.
fn least_to_send_on<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    delay: impl Fn(&Flight<P>, usize) -> Span,
) -> Option<usize> {
    let mut least = None;
    for index in 0..flight.paths.len() {
        let its = delay(flight, index);
        if least.is_none_or(|(_, best)| its < best) && flight.may_send(now, index) {
            least = Some((index, its));
        }
    }
    least.map(|(index, _)| index)
}

/// The peer's window is full: copies the oldest packet of the slowest path.
fn relieve_gap<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    packets: &mut Packets<P>,
) -> Option<Transmit<P>> {
    let fast = least_to_send_on(now, flight, |flight, index| flight.paths.one_way(index))?;
    let mut slow: SmallVec<[usize; 8]> = SmallVec::new();
    let mut next = 0;
    while let Some(index) = flight.paths.next_with_news(next) {
        next = index + 1;
        if flight.paths.one_way(index) > flight.paths.one_way(fast) {
            slow.push(index);
        }
    }
    slow.sort_by_key(|index| std::cmp::Reverse(flight.paths.one_way(*index)));
    slow.into_iter().find_map(|slow| copy_oldest(now, flight, packets, slow, fast))
}

/// Copies the oldest packet of a slow path that would arrive after its copy.
fn copy_oldest<P: Payload>(
    now: Time,
    flight: &mut Flight<P>,
    packets: &mut Packets<P>,
    slow: usize,
    fast: usize,
) -> Option<Transmit<P>> {
    let (from, to) = (&flight.paths[slow], &flight.paths[fast]);
    let arrives = now + to.one_way() + margin(from) + margin(to);
    // Packets that left the slow path before this arrive before a copy would.
    let since = Time::ZERO + arrives.since(Time::ZERO).saturating_sub(from.one_way());
    for _ in 0..LOOKED_AT {
        let Some((number, runs)) = flight.paths.next_to_copy(slow, since) else {
            flight.paths.on_looked_at(slow);
            return None;
        };
        // Data that is sent on all paths was already sent on the fast one.
        if runs.iter().any(|run| flight.is_copied(run.stream)) {
            continue;
        }
        let built = packets.build_relief(now, flight, fast, &runs);
        if built.is_some() {
            flight.paths.on_copied(slow, number);
            return built;
        }
    }
    None
}

fn margin(path: &Path) -> Span {
    path.rtt().variance()
}
