//! Lets overflow paths join while the primary paths are full.

use anabranch_wire::{PathUse, Payload, Time};

use crate::event::{Event, PathChange};
use crate::path::{Path, Seen};
use crate::session::datagrams::Datagrams;
use crate::session::flight::Flight;

/// Uses overflow paths like primary ones, or keeps them, after a look at the primary ones.
pub(super) fn review<P: Payload>(now: Time, flight: &mut Flight<P>, datagrams: &Datagrams<P>) {
    let overflows = |path: &Path| path.effective_use() == PathUse::Overflow;
    let has_some = flight.paths.iter().any(overflows);
    let seen = if has_some { look(now, flight, datagrams) } else { Seen::Drained };
    let is_full = flight.paths.note_overflow(now, seen);
    for index in 0..flight.paths.len() {
        let path = &flight.paths[index];
        let joins = is_full && overflows(path);
        if path.usage().joins() == joins {
            continue;
        }
        flight.paths.edit(index).usage_mut().set_joins(joins);
        flight.choice = None;
        let path = &flight.paths[index];
        let (id, standing) = (path.id(), path.standing(flight.paths.may_carry(path)));
        if flight.paths.set_standing(index, standing) {
            flight.out.tell_if_read(Event::Path { path: id, change: PathChange::Standing(standing) });
        }
    }
    flight.refresh_paths();
}

fn look<P: Payload>(now: Time, flight: &mut Flight<P>, datagrams: &Datagrams<P>) -> Seen {
    if !flight.streams.has_work() && !datagrams.have_work() {
        return Seen::Drained;
    }
    let mut seen = Seen::Room;
    for index in 0..flight.paths.len() {
        let path = &flight.paths[index];
        if path.effective_use() != PathUse::Normal || path.grade() != Path::BEST {
            continue;
        }
        let grows = flight.cc.in_slow_start(path.id()) && path.wishes().rate_limit().is_none();
        let in_flight = path.board().pipe() + path.size() as u64;
        let is_held = flight.calm_window(now, index).is_some_and(|window| window < in_flight);
        if grows || (!is_held && flight.may_send(now, index)) {
            return Seen::Room;
        }
        seen = Seen::Full;
    }
    seen
}
