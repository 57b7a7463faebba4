//! Arrival times of packets on plain links, where they are known when the packet is sent.
//!
//! ```text
//! far -> a ring of wide slots -> narrow slots of the current wide slot -> sorted by time and link
//! ```
//! A narrow slot covers the time by which links may run ahead. A wide slot holds its packets in order of sending. When
//! it is due, they move into narrow slots, and each narrow slot is sorted when it is due. So memory accesses stay in a
//! near cache for any number of packets in flight.

use std::collections::BTreeMap;

use anabranch_wire::{Span, Time};

use super::chunked::{ChunkedList, ChunkedLists};
use super::slots::{Occupied, SLOTS};

/// Widest narrow slot, in bits of nanoseconds.
const MOST_BITS: u32 = 16;
/// Narrowest useful slot, in bits of nanoseconds.
const LEAST_BITS: u32 = 10;
/// Bits of the number of narrow slots in a wide one.
const WIDE_BITS: u32 = 6;
/// Bits of a link's number, and of an index in a slot.
const LINK_BITS: u32 = 24;
/// Bits of a size: plain links carry no packet larger than an IP packet.
const SIZE_BITS: u32 = 16;

/// A packet on a link. The packet itself is not accessed between its first and last link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flight {
    /// The packet's slot.
    pub place: u32,
    /// Index in the route table of the packet's next link.
    pub next: u32,
    /// UDP payload in bytes.
    pub size: u32,
}

/// A flight with its end and its link. Each queued or travelling packet has one. It is written and read once per hop
/// and rarely in the cache, so it is small.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// From the highest bit: its end in nanoseconds after the start of the wide slot, the link, and the size.
    key: u64,
    place: u32,
    next: u32,
}

impl Entry {
    #[inline]
    fn new(within: u64, link: u32, flight: Flight) -> Self {
        debug_assert!(flight.size >> SIZE_BITS == 0 && link >> LINK_BITS == 0, "{flight:?} on {link}");
        let Flight { place, next, size } = flight;
        let key = (within << LINK_BITS | u64::from(link)) << SIZE_BITS | u64::from(size);
        Self { key, place, next }
    }

    fn link(&self) -> u32 {
        (self.key >> SIZE_BITS) as u32 & ((1 << LINK_BITS) - 1)
    }

    fn flight(&self) -> Flight {
        Flight { place: self.place, next: self.next, size: self.key as u32 & ((1 << SIZE_BITS) - 1) }
    }

    /// The number of its narrow slot of this width, within the wide one.
    fn narrow_slot(&self, bits: u32) -> usize {
        (self.key >> (SIZE_BITS + LINK_BITS + bits)) as usize
    }

    /// Its end within a narrow slot of this width, and its link: the sort key.
    fn order(&self, bits: u32) -> u64 {
        self.key >> SIZE_BITS & ((1 << (LINK_BITS + bits)) - 1)
    }
}

#[derive(Debug)]
pub(crate) struct Flights {
    /// Bits of nanoseconds in a narrow slot.
    bits: u32,
    /// The narrow slots of the current wide slot; `filled` has a bit for each occupied one.
    narrow: [Vec<Entry>; 1 << WIDE_BITS],
    filled: u64,
    wide: Vec<ChunkedList>,
    occupied: Occupied,
    /// Wide slots beyond the ring, by number.
    far: BTreeMap<u64, ChunkedList>,
    piles: ChunkedLists<Entry>,
    /// The number of the open narrow slot.
    position: u64,
    open: Vec<Entry>,
    /// The flights of the open slot, sorted by time, link and index; the first `taken` are gone.
    order: Vec<u64>,
    taken: usize,
}

impl Flights {
    /// No flights. `None` if the shortest flight takes less than a useful slot, or there are too many links.
    pub(crate) fn new(least: Span, links: usize) -> Option<Self> {
        let bits = least.as_nanos().checked_ilog2()?.min(MOST_BITS);
        if bits < LEAST_BITS || links >> LINK_BITS != 0 {
            return None;
        }
        Some(Self {
            bits,
            narrow: std::array::from_fn(|_| Vec::new()),
            filled: 0,
            wide: vec![ChunkedList::EMPTY; SLOTS],
            occupied: Occupied::new(),
            far: BTreeMap::new(),
            piles: ChunkedLists::new(),
            position: 0,
            open: Vec::new(),
            order: Vec::new(),
            taken: 0,
        })
    }

    /// Adds a flight that ends at `at`, after the slot in which it began.
    #[inline]
    pub(crate) fn add(&mut self, at: Time, link: u32, flight: Flight) {
        debug_assert!(
            at > self.end_of_slot(self.moment(0)),
            "nothing arrives in the slot in which it is sent"
        );
        let wide_bits = self.bits + WIDE_BITS;
        let number = at.as_nanos() >> wide_bits;
        let entry = Entry::new(at.as_nanos() & ((1 << wide_bits) - 1), link, flight);
        match number - (self.position >> WIDE_BITS) {
            0 => self.add_narrow(entry),
            ahead if ahead < SLOTS as u64 => {
                let index = number as usize % SLOTS;
                let pile = &mut self.wide[index];
                if pile.is_empty() {
                    self.occupied.set(index);
                }
                self.piles.push(pile, entry);
            }
            _ => self.piles.push(self.far.entry(number).or_insert(ChunkedList::EMPTY), entry),
        }
    }

    #[inline]
    fn add_narrow(&mut self, entry: Entry) {
        let index = entry.narrow_slot(self.bits);
        self.filled |= 1 << index;
        self.narrow[index].push(entry);
    }

    /// No flight ends before this time; [`Time::NEVER`] without flights.
    pub(crate) fn next_at(&self) -> Time {
        if let Some(first) = self.order.get(self.taken) {
            return self.moment(*first);
        }
        if self.filled != 0 {
            let number = self.position >> WIDE_BITS << WIDE_BITS | u64::from(self.filled.trailing_zeros());
            return Time::from_nanos(number << self.bits);
        }
        let here = self.position >> WIDE_BITS;
        let near = self.occupied.next(here as usize % SLOTS).map(|ahead| here + ahead as u64);
        let next = near.or_else(|| self.far.keys().next().copied());
        next.map_or(Time::NEVER, |number| Time::from_nanos(number << WIDE_BITS << self.bits))
    }

    /// The last moment of the slot of `at`.
    pub(crate) fn end_of_slot(&self, at: Time) -> Time {
        Time::from_nanos(at.as_nanos() | ((1 << self.bits) - 1))
    }

    /// Removes the flights that end by `until`, in order of time and link. All earlier slots must have been taken.
    pub(crate) fn take(&mut self, until: Time) -> impl Iterator<Item = (Time, Flight)> {
        let number = until.as_nanos() >> self.bits;
        if number != self.position {
            self.turn_to(number);
        }
        let first = self.taken;
        self.taken = if until == self.end_of_slot(until) {
            self.order.len()
        } else {
            self.order.partition_point(|key| self.moment(*key) <= until)
        };
        self.order[first..self.taken]
            .iter()
            .map(|key| (self.moment(*key), self.open[place_of(*key)].flight()))
    }

    /// Calls `look` for all flights with their links, in no particular order.
    pub(crate) fn for_each(&self, mut look: impl FnMut(u32, Flight)) {
        let rest = self.order[self.taken..].iter().map(|key| &self.open[place_of(*key)]);
        let mut look = |entry: &Entry| look(entry.link(), entry.flight());
        rest.chain(self.narrow.iter().flatten()).for_each(&mut look);
        let piles = self.wide.iter().chain(self.far.values());
        piles.for_each(|pile| self.piles.iter(pile).for_each(&mut look));
    }

    /// The end of a flight in the open slot.
    fn moment(&self, key: u64) -> Time {
        Time::from_nanos(self.position << self.bits | key >> (2 * LINK_BITS))
    }

    /// Opens a narrow slot.
    fn turn_to(&mut self, number: u64) {
        debug_assert_eq!(self.taken, self.order.len(), "nothing is passed over");
        self.open.clear();
        self.order.clear();
        self.taken = 0;
        let is_narrow = number >> WIDE_BITS == self.position >> WIDE_BITS;
        self.position = number;
        if !is_narrow {
            self.open_wide(number >> WIDE_BITS);
        }
        let index = number as usize % self.narrow.len();
        if self.filled & 1 << index == 0 {
            return;
        }
        self.filled &= !(1 << index);
        std::mem::swap(&mut self.open, &mut self.narrow[index]);
        let key = |(place, entry): (usize, &Entry)| entry.order(self.bits) << LINK_BITS | place as u64;
        self.order.extend(self.open.iter().enumerate().map(key));
        debug_assert!(self.order.len() >> LINK_BITS == 0, "a place has its bits");
        self.order.sort_unstable();
    }

    /// Moves the flights of a wide slot into its narrow slots.
    fn open_wide(&mut self, number: u64) {
        debug_assert_eq!(self.filled, 0, "nothing is passed over");
        while let Some(entry) = self.far.first_entry().filter(|far| *far.key() < number + SLOTS as u64) {
            let index = *entry.key() as usize % SLOTS;
            self.wide[index] = entry.remove();
            self.occupied.set(index);
        }
        let index = number as usize % SLOTS;
        if self.occupied.has(index) {
            self.occupied.clear(index);
            let pile = std::mem::replace(&mut self.wide[index], ChunkedList::EMPTY);
            let Self { piles, narrow, filled, bits, .. } = self;
            piles.empty(pile, |entry| {
                let index = entry.narrow_slot(*bits);
                *filled |= 1 << index;
                narrow[index].push(entry);
            });
        }
    }
}

/// The index of a flight in the open slot, from its key in `order`.
fn place_of(key: u64) -> usize {
    (key & ((1 << LINK_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn flight(place: u32) -> Flight {
        Flight { place, next: 0, size: 1 }
    }

    #[test]
    fn flights_end_in_order_of_time_and_link_and_then_as_they_began() {
        let mut flights = Flights::new(Span::from_nanos(1_500), 100).unwrap();
        let moments = [(5_000, 3), (1_025, 2), (1_025, 1), (1_030, 1), (1_024, 9), (1_025, 2)];
        for (place, (moment, link)) in moments.iter().enumerate() {
            flights.add(at(*moment), *link, flight(place as u32));
        }
        assert_eq!(flights.next_at(), at(1_024));
        let mut taken: Vec<_> = flights.take(at(1_029)).collect();
        let places: Vec<_> = taken.iter().map(|(at, flight)| (at.as_nanos(), flight.place)).collect();
        assert_eq!(places, [(1_024, 4), (1_025, 2), (1_025, 1), (1_025, 5)]);
        assert_eq!(flights.next_at(), at(1_030));
        taken.extend(flights.take(flights.end_of_slot(at(1_030))));
        assert_eq!((taken.len(), flights.next_at()), (5, at(5_000 & !1023)));
        taken.extend(flights.take(at(5_000)));
        assert_eq!((taken.len(), flights.next_at()), (6, Time::NEVER));
    }

    #[test]
    fn a_long_run_comes_in_order_however_far_ahead_flights_end() {
        let mut flights = Flights::new(Span::from_nanos(1_500), 100).unwrap();
        let mut state = 1_u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let (mut begun, mut ended, mut last, mut links) = (0_u32, Vec::new(), Time::ZERO, Vec::new());
        while begun < 20_000 {
            for _ in 0..draw(4) {
                // Some end beyond the ring of wide slots, which covers 268 ms here, and some just at its end.
                let longest = [30_000, 30_000, 50_000_000, 700_000_000][draw(4) as usize];
                let wide = 1 << (flights.bits + WIDE_BITS);
                let turned = last.as_nanos() / wide * wide + SLOTS as u64 * wide;
                let end = [last.as_nanos() + 1_024 + draw(longest), turned + draw(wide)];
                let (end, link) = (end[usize::from(draw(30) == 0)], draw(100) as u32);
                flights.add(at(end), link, flight(begun));
                links.push(link);
                begun += 1;
            }
            let next = flights.next_at();
            let until = if next == Time::NEVER { last + Span::from_nanos(draw(3_000)) } else { next };
            let before = ended.len();
            last = at(until.as_nanos() + draw(300)).min(flights.end_of_slot(until));
            ended.extend(flights.take(last));
            assert!(ended[before..].iter().all(|(at, _)| *at <= last));
        }
        while flights.next_at() != Time::NEVER {
            ended.extend(flights.take(flights.end_of_slot(flights.next_at())));
        }
        assert!(ended.is_sorted_by_key(|(at, flight)| (*at, links[flight.place as usize], flight.place)));
        assert!(flights.far.is_empty() && flights.piles.all_free());
        let mut places: Vec<_> = ended.iter().map(|(_, flight)| flight.place).collect();
        places.sort_unstable();
        assert_eq!(places, (0..begun).collect::<Vec<_>>());
    }

    #[test]
    fn an_entry_holds_the_most_there_can_be_in_sixteen_bytes() {
        let (bits, link) = (MOST_BITS, (1 << LINK_BITS) - 1);
        let flight = Flight { place: u32::MAX, next: u32::MAX - 1, size: u32::from(u16::MAX) };
        let entry = Entry::new((1 << (bits + WIDE_BITS)) - 1, link, flight);
        assert_eq!((size_of::<Entry>(), entry.flight(), entry.link()), (16, flight, link));
        assert_eq!(entry.narrow_slot(bits), (1 << WIDE_BITS) - 1);
        assert_eq!(entry.order(bits), (1 << (bits + LINK_BITS)) - 1);
    }

    #[test]
    fn what_takes_no_time_is_not_for_it() {
        assert!(Flights::new(Span::ZERO, 1).is_none());
        assert!(Flights::new(Span::from_nanos(1023), 1).is_none());
        assert!(Flights::new(Span::from_secs(1), 1).is_some_and(|flights| flights.bits == MOST_BITS));
    }
}
