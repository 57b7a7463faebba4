//! The calendar: one pending call for each party, the earliest first.
//!
//! It is a hierarchy of timer wheels. The lowest has slots of 2^[`WIDTH_BITS`] ns; each slot of a higher wheel is as
//! wide as the whole wheel below. A party is in the slot of its time, on the lowest wheel on which that slot is not the
//! current one. When a slot is due, its parties move to a lower wheel, or from the lowest wheel into `open`, sorted by
//! time and number. So the cost of a call does not depend on the number of parties, and the data fits into a near
//! cache.
//!
//! Each party (a link, a session, a source) has at most one pending call. An earlier time moves the party to another
//! slot. A later time does not: the party is called early and then names the later time. So a retransmission timer that
//! every acknowledgement postpones costs nothing.

use anabranch_wire::Time;

use super::slots::{Occupied, SLOT_BITS, SLOTS};

/// Width of a slot of the lowest wheel, as a power of two in nanoseconds: 4 µs.
const WIDTH_BITS: u32 = 12;
/// Enough for 64 bits.
const WHEELS: usize = 5;
/// The end of a list of parties.
const NOBODY: u32 = u32::MAX;

/// Time and party in one number, which sorts by time, then by party.
type Key = u128;

/// The calendar of a run.
#[derive(Debug)]
pub(crate) struct Agenda {
    parties: Vec<Party>,
    wheels: Vec<Wheel>,
    /// The wheels are empty up to the end of this time's slot.
    position: u64,
    /// Entries taken from the wheels, the next one last. An entry whose party has moved is skipped.
    open: Vec<Key>,
}

/// The time of a party, and its neighbours in the slot.
#[derive(Clone, Copy, Debug)]
struct Party {
    due: Time,
    next: u32,
    previous: u32,
}

/// A party without a pending call.
const IDLE: Party = Party { due: Time::NEVER, next: NOBODY, previous: NOBODY };

#[derive(Debug)]
struct Wheel {
    /// The first party of each slot.
    slots: Vec<u32>,
    occupied: Occupied,
}

impl Wheel {
    fn new() -> Self {
        Self { slots: vec![NOBODY; SLOTS], occupied: Occupied::new() }
    }

    fn fill(&mut self, slot: usize, first: u32) {
        self.slots[slot] = first;
        self.occupied.set(slot);
    }

    fn clear(&mut self, slot: usize) {
        self.slots[slot] = NOBODY;
        self.occupied.clear(slot);
    }
}

/// The lowest bit of the slot number in a time, for this wheel.
fn shift(wheel: usize) -> u32 {
    WIDTH_BITS + SLOT_BITS * wheel as u32
}

impl Agenda {
    pub(crate) fn new(parties: usize) -> Self {
        let mut agenda = Self {
            parties: Vec::with_capacity(parties),
            wheels: (0..WHEELS).map(|_| Wheel::new()).collect(),
            position: 0,
            open: Vec::new(),
        };
        agenda.parties.resize(parties, IDLE);
        agenda
    }

    /// Adds a party and returns its number.
    pub(crate) fn add_party(&mut self) -> usize {
        self.parties.push(IDLE);
        self.parties.len() - 1
    }

    /// Schedules a call of the party at `at`; an earlier call stays.
    pub(crate) fn call(&mut self, party: usize, at: Time) {
        let known = self.parties[party].due;
        if at >= known {
            return;
        }
        if known != Time::NEVER && !self.is_open(known) {
            self.unlink(party);
        }
        self.parties[party].due = at;
        if self.is_open(at) {
            let key = key(at, party);
            let place = self.open.partition_point(|other| *other > key);
            self.open.insert(place, key);
        } else {
            self.link(party);
        }
    }

    /// Removes and returns the first party due by `until`.
    pub(crate) fn next(&mut self, until: Time) -> Option<(Time, usize)> {
        let (at, party) = self.first().filter(|(at, _)| *at <= until)?;
        self.open.pop();
        self.parties[party].due = Time::NEVER;
        Some((at, party))
    }

    /// When the first party is due; [`Time::NEVER`] without one.
    pub(crate) fn next_at(&mut self) -> Time {
        self.first().map_or(Time::NEVER, |(at, _)| at)
    }

    /// The first party due, which is then the last entry of `open`.
    #[inline]
    fn first(&mut self) -> Option<(Time, usize)> {
        loop {
            let Some(key) = self.open.last() else {
                if !self.turn() {
                    return None;
                }
                continue;
            };
            let (at, party) = (Time::from_nanos((key >> 32) as u64), (key & 0xffff_ffff) as usize);
            if self.parties[party].due == at {
                return Some((at, party));
            }
            self.open.pop();
        }
    }

    fn is_open(&self, at: Time) -> bool {
        at.as_nanos() >> WIDTH_BITS <= self.position >> WIDTH_BITS
    }

    /// The wheel and slot of a time after the current slot.
    fn slot_of(&self, at: Time) -> (usize, usize) {
        let differs = 63 - (at.as_nanos() ^ self.position).leading_zeros();
        let wheel = (differs.saturating_sub(WIDTH_BITS) / SLOT_BITS) as usize;
        (wheel, (at.as_nanos() >> shift(wheel)) as usize % SLOTS)
    }

    fn link(&mut self, party: usize) {
        let (wheel, slot) = self.slot_of(self.parties[party].due);
        let first = self.wheels[wheel].slots[slot];
        (self.parties[party].previous, self.parties[party].next) = (NOBODY, first);
        if let Some(first) = self.parties.get_mut(first as usize) {
            first.previous = party as u32;
        }
        self.wheels[wheel].fill(slot, party as u32);
    }

    fn unlink(&mut self, party: usize) {
        let Party { due, next, previous } = self.parties[party];
        if let Some(next) = self.parties.get_mut(next as usize) {
            next.previous = previous;
        }
        if let Some(previous) = self.parties.get_mut(previous as usize) {
            previous.next = next;
        } else {
            let (wheel, slot) = self.slot_of(due);
            match next {
                NOBODY => self.wheels[wheel].clear(slot),
                next => self.wheels[wheel].fill(slot, next),
            }
        }
    }

    /// Moves to the next occupied slot, on the lowest wheel that has one; false if all are empty.
    fn turn(&mut self) -> bool {
        let ahead = |(index, wheel): (usize, &Wheel)| {
            let slot = wheel.occupied.after((self.position >> shift(index)) as usize % SLOTS)?;
            Some((index, slot))
        };
        let Some((wheel, slot)) = self.wheels.iter().enumerate().find_map(ahead) else { return false };
        let above = self.position.checked_shr(shift(wheel + 1)).unwrap_or(0);
        self.position = above.checked_shl(shift(wheel + 1)).unwrap_or(0) | (slot as u64) << shift(wheel);
        let mut party = self.wheels[wheel].slots[slot];
        self.wheels[wheel].clear(slot);
        while party != NOBODY {
            let Party { due, next, .. } = self.parties[party as usize];
            if self.is_open(due) {
                self.open.push(key(due, party as usize));
            } else {
                self.link(party as usize);
            }
            party = next;
        }
        if self.open.len() > 1 {
            self.open.sort_unstable_by(|a, b| b.cmp(a));
        }
        true
    }
}

fn key(at: Time, party: usize) -> Key {
    (u128::from(at.as_nanos()) << 32) | party as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn parties_are_called_in_order_of_time_and_then_of_number() {
        let mut agenda = Agenda::new(40);
        for party in 0..40_usize {
            agenda.call(party, at((party as u64 * 7919) % 13));
        }
        let called: Vec<_> = std::iter::from_fn(|| agenda.next(at(100))).collect();
        let mut sorted = called.clone();
        sorted.sort_unstable();
        assert_eq!((called.len(), &called), (40, &sorted));
    }

    #[test]
    fn a_moment_brought_forward_replaces_the_old_one_and_a_later_wish_changes_nothing() {
        let mut agenda = Agenda::new(2);
        agenda.call(0, at(50));
        agenda.call(0, at(20));
        agenda.call(0, at(70));
        agenda.call(1, at(30));
        assert_eq!(agenda.next(at(100)), Some((at(20), 0)));
        assert_eq!(agenda.next(at(100)), Some((at(30), 1)));
        assert_eq!(agenda.next(at(100)), None);
    }

    #[test]
    fn a_long_run_of_calls_comes_in_order_whoever_calls_again() {
        let mut agenda = Agenda::new(300);
        let mut state = 1_u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        (0..300).for_each(|party| agenda.call(party, at(draw(1000))));
        let (mut last, mut count) = (at(0), 0);
        while let Some((now, party)) = agenda.next(at(20_000)) {
            assert!(now >= last, "{now:?} after {last:?}");
            (last, count) = (now, count + 1);
            // Schedule a party again, perhaps earlier than before.
            for _ in 0..=draw(3) {
                agenda.call(
                    (party + draw(7) as usize) % 300,
                    now + anabranch_wire::Span::from_nanos(draw(500)),
                );
            }
        }
        assert!(count > 1000, "{count}");
    }

    #[test]
    fn moments_far_apart_come_in_order_too() {
        let mut agenda = Agenda::new(64);
        // Occupies every wheel, on both sides of the borders between slots.
        let moments: Vec<_> = (0..63).map(|bits| (1_u64 << bits) - u64::from(bits % 2 == 0)).collect();
        for (party, moment) in moments.iter().enumerate().rev() {
            agenda.call(party, at(*moment));
        }
        agenda.call(63, Time::from_nanos(u64::MAX - 1));
        let called: Vec<_> =
            std::iter::from_fn(|| agenda.next(Time::NEVER)).map(|(_, party)| party).collect();
        assert_eq!(called, (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn a_call_between_the_limit_and_what_comes_next_is_not_missed() {
        let mut agenda = Agenda::new(3);
        agenda.call(0, at(9_000_000));
        assert_eq!(agenda.next(at(1_000)), None);
        agenda.call(1, at(2_000));
        agenda.call(2, at(8_000_000));
        assert_eq!(agenda.next(at(10_000_000)), Some((at(2_000), 1)));
        assert_eq!(agenda.next(at(10_000_000)), Some((at(8_000_000), 2)));
        assert_eq!(agenda.next(at(10_000_000)), Some((at(9_000_000), 0)));
    }

    #[test]
    fn nothing_beyond_the_limit_is_called() {
        let mut agenda = Agenda::new(1);
        agenda.call(0, at(50));
        assert_eq!(agenda.next(at(49)), None);
        assert_eq!(agenda.next(at(50)), Some((at(50), 0)));
    }
}
