//! When each path must be checked next, and the earliest of these times.
//!
//! A session computes its next timeout after every packet. Few packets change the timeouts of several paths, and fewer
//! change the earliest one.

use std::cell::Cell;

use anabranch_wire::Time;
use smallvec::SmallVec;

use super::place_set::PlaceSet;

/// The timeouts of all paths, in the order of the paths.
#[derive(Debug)]
pub(super) struct Timeouts {
    list: SmallVec<[Cell<Time>; 8]>,
    /// These may have changed since they were worked out.
    unknown: Cell<PlaceSet>,
    /// Of `list`.
    earliest: Cell<Time>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { list: SmallVec::new(), unknown: Cell::default(), earliest: Cell::new(Time::NEVER) }
    }
}

impl Timeouts {
    /// The earliest timeout; `timeout_of` computes that of a path whose timeout may have changed.
    pub(super) fn earliest(&self, timeout_of: impl Fn(usize) -> Time) -> Time {
        let unknown = self.unknown.take();
        let mut next = 0;
        while let Some(place) = unknown.next(next, self.list.len()) {
            let timeout = timeout_of(place);
            let before = self.list[place].replace(timeout);
            self.earliest.set(still_earliest(self.earliest.get(), (before, timeout), || self.of_list()));
            next = place + 1;
        }
        self.earliest.get()
    }

    fn of_list(&self) -> Time {
        earliest(self.list.iter().map(Cell::get))
    }

    /// The timeout of a path may have changed.
    #[inline]
    pub(super) fn forget(&mut self, place: usize) {
        *self.unknown.get_mut() |= PlaceSet::of(place);
    }

    /// The timeout of any path may have changed.
    pub(super) fn forget_all(&mut self) {
        *self.unknown.get_mut() = PlaceSet::ALL;
    }

    /// Makes room for a path; the paths after it move down.
    pub(super) fn insert(&mut self, place: usize) {
        self.list.insert(place, Cell::new(Time::NEVER));
        self.forget_all();
    }

    pub(super) fn remove(&mut self, place: usize) {
        self.list.remove(place);
        self.earliest.set(self.of_list());
        self.forget_all();
    }
}

/// The earliest of `all` times after one of them changed from `before` to `at`. Compares all only if the earliest
/// became later.
pub(super) fn still_earliest(earliest: Time, (before, at): (Time, Time), all: impl Fn() -> Time) -> Time {
    let earliest = match before <= earliest && at > before {
        true => all(),
        false => earliest.min(at),
    };
    debug_assert_eq!(earliest, all());
    earliest
}

/// The earliest of some times.
pub(super) fn earliest(times: impl Iterator<Item = Time>) -> Time {
    let mut earliest = Time::NEVER;
    for time in times {
        if time < earliest {
            earliest = time;
        }
    }
    earliest
}
