//! When paths have to be looked at next, and which of these times is the earliest.
//!
//! A session is asked for its next timeout after every packet. Few packets change that of more than one path, and fewer
//! still that of the path whose turn it is first.

use std::cell::Cell;

use anabranch_wire::Time;
use smallvec::SmallVec;

use super::places::Places;

/// The timeouts of all paths, in the order of the paths.
#[derive(Debug)]
pub(super) struct Timeouts {
    list: SmallVec<[Cell<Time>; 8]>,
    /// Nobody asked for these since they may have changed.
    unasked: Cell<Places>,
    /// Of `list`.
    earliest: Cell<Time>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { list: SmallVec::new(), unasked: Cell::default(), earliest: Cell::new(Time::NEVER) }
    }
}

impl Timeouts {
    /// The earliest of all, where `timeout_of` finds it for a path of which it is not known.
    pub(super) fn earliest(&self, timeout_of: impl Fn(usize) -> Time) -> Time {
        let unasked = self.unasked.take();
        let mut index = 0;
        while let Some(place) = unasked.next(index, self.list.len()) {
            let timeout = timeout_of(place);
            let before = self.list[place].replace(timeout);
            self.earliest.set(still_earliest(self.earliest.get(), (before, timeout), || self.of_list()));
            index = place + 1;
        }
        self.earliest.get()
    }

    fn of_list(&self) -> Time {
        earliest(self.list.iter().map(Cell::get))
    }

    /// The timeout of a path may have changed.
    pub(super) fn forget(&mut self, index: usize) {
        *self.unasked.get_mut() |= Places::of(index);
    }

    /// All of them may have.
    pub(super) fn forget_all(&mut self) {
        *self.unasked.get_mut() = Places::ALL;
    }

    /// Makes room for a path; all those after it have another place from then on.
    pub(super) fn insert(&mut self, index: usize) {
        self.list.insert(index, Cell::new(Time::NEVER));
        self.forget_all();
    }

    pub(super) fn remove(&mut self, index: usize) {
        self.list.remove(index);
        self.earliest.set(self.of_list());
        self.forget_all();
    }
}

/// The earliest of some times, as `before` became `at`: only where that was the earliest are all gone through.
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
