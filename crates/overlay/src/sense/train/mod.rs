//! Packet trains: measure a link's capacity and its unused part [S3].
//!
//! Packets sent at once leave the narrowest link at its capacity `C`. A shaper first passes a bucketful at once, so
//! only the last packets of a long train count. If its queue is short, most of the others are lost, and those that
//! arrive last still arrive at `C`. A second train sends its last packets at the rate `r = C`. They share the link with
//! others' traffic `X` and arrive at `r·C/(r + X)`, which gives `X` and the unused part `C − X` (probe gap model;
//! Strauss et al. 2003, *A measurement study of available bandwidth estimation tools*).
//!
//! ```text
//!   measurer ── car 0 … car n-1 ──▶ neighbour: notes when the last ones left and came
//!            ── end ─────────────▶
//!            ◀──────── seen ──────
//! ```

use std::collections::{BTreeMap, VecDeque};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};

use super::message::{CAR, Car, Seen, micros};

#[cfg(test)]
mod tests;

/// Packets of a train: 193 kB, enough for a shaper's bucket of up to 150 kB.
const PACKETS: u16 = 160;
/// Number of packets that always leave at once, to empty a bucket.
const HEAD: u16 = 128;
/// Number of packets at the end that give the rate without losses. If the train did not fit into a queue there are
/// fewer: those that arrived last.
const TAIL: [usize; 2] = [32, 16];
/// Fewest packets of a tail that give a rate.
const FEWEST: u16 = 8;
/// A receiver that reads in batches sees closer arrivals as one; a faster link counts as this fast.
const RESOLUTION: u32 = 100;
/// Shortest time between two trains of a link.
const AGAIN: Span = Span::from_secs(600);
/// How long a measurement of the unused part counts.
const LEFT_FOR: Span = Span::from_secs(1_800);
/// How long a capacity is remembered after the last measurement, and for how many links.
const KEPT_FOR: Span = Span::from_secs(7_200);
const MOST_KEPT: usize = 128;
/// A train that takes more than a quarter longer than it should was delayed by this node's other traffic.
const HELD_UP: Span = Span::from_millis(10);
/// A train that arrives at more than this part of its own rate found no narrower link.
const UNHINDERED: f64 = 0.9;
/// Most trains that are received at a time.
const MOST_COUNTED: usize = 64;

/// A train to send: packets as fast as this node's rate allows, the last ones perhaps at another rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// The node to send it to.
    pub to: PublicKey,
    /// Distinguishes the sensor's trains.
    pub number: u32,
    /// Number of packets.
    pub packets: u16,
    /// Rate of the last packets; `None` for the rate of the others.
    pub rate: Option<Rate>,
    /// This node's rate limit, if it has one.
    pub limit: Option<Rate>,
}

impl Train {
    /// The packet with this index, leaving now.
    pub fn car(&self, index: u16, now: Time) -> Car {
        Car { number: self.number, index, of: self.packets, at: micros(now) }
    }

    /// Time after the first packet at which the packet with this index leaves.
    pub fn offset(&self, index: u16) -> Span {
        let behind = u64::from(index.saturating_sub(HEAD));
        let time = |rate: Option<Rate>, packets| rate.map_or(Span::ZERO, |rate| rate.time_for(packets * CAR));
        let ahead = u64::from(index) - behind;
        time(self.limit, ahead) + time(self.rate.or(self.limit), behind)
    }

    /// Whether this packet has its own departure time, instead of being sent as soon as possible.
    pub fn has_a_time(&self, index: u16) -> bool {
        self.rate.is_some() && index >= HEAD
    }

    /// Whether a train that took this long was delayed by this node's other traffic. Then it says nothing about the
    /// link.
    pub fn is_held_up(&self, took: Span) -> bool {
        let wanted = self.offset(self.packets.saturating_sub(1));
        self.limit.is_some() && took > wanted + wanted / 4 + HELD_UP
    }
}

/// A link's capacity, as measured by trains.
#[derive(Clone, Debug, Default)]
pub(super) struct Capacity {
    /// Number of measurements of the rate, and when the last train left.
    rounds: u32,
    last: Option<Time>,
    /// The rate was just measured, the unused part not yet.
    is_half_known: bool,
    capacity: Option<Rate>,
    left: Option<(Time, Rate)>,
}

impl Capacity {
    /// The next train: its packets leave at once, or the last ones at the link's rate.
    pub fn next(&self) -> (u16, Option<Rate>) {
        (PACKETS, self.capacity.filter(|_| self.is_half_known))
    }

    /// When it may be sent, and its priority: links with fewest measurements first, among them those of which only
    /// the rate is known.
    pub fn due(&self) -> (Time, (u32, bool)) {
        let again = if self.is_half_known { Span::ZERO } else { AGAIN };
        let asked = self.rounds.saturating_sub(u32::from(self.is_half_known));
        (self.last.map_or(Time::ZERO, |last| last + again), (asked, !self.is_half_known))
    }

    /// Records that a train was sent.
    pub fn on_train(&mut self, now: Time, is_paced: bool) {
        self.rounds += u32::from(!is_paced);
        self.last = Some(now);
        self.is_half_known = false;
    }

    /// Handles the neighbour's report on a train. It was sent as fast as this node's limit allows (if it has one), or
    /// its last packets had another rate.
    pub fn on_seen(&mut self, now: Time, seen: &Seen, (is_paced, limit): (bool, Option<Rate>)) {
        let Some(out) = seen.rate().filter(|_| seen.is_possible()) else { return };
        if !is_paced {
            let came_as_it_left = |sent: Rate| out.as_bits() as f64 >= UNHINDERED * sent.as_bits() as f64;
            self.capacity = limit.map_or(Some(out), |limit| {
                // This node's own rate is the narrowest then.
                let is_narrowest = seen.rate_sent().is_some_and(came_as_it_left);
                Some(if is_narrowest { limit } else { out.min(limit) })
            });
            self.is_half_known = true;
        } else if let (Some(capacity), Some(sent)) = (self.capacity, seen.rate_sent()) {
            let (capacity, sent, out) =
                (capacity.as_bits() as f64, sent.as_bits() as f64, out.as_bits() as f64);
            let others = (sent * capacity / out - sent).clamp(0.0, capacity);
            self.left = Some((now, Rate::from_bits((capacity - others) as u64)));
        }
    }

    /// The link's capacity.
    pub fn capacity(&self) -> Option<Rate> {
        self.capacity
    }

    /// The unused part of the capacity. It was measured after an earlier train, and the capacity may have fallen since.
    pub fn left(&self, now: Time) -> Option<Rate> {
        let (_, left) = self.left.filter(|(at, _)| now.since(*at) < LEFT_FOR)?;
        self.capacity.map(|capacity| left.min(capacity))
    }
}

impl Seen {
    /// Whether a report is possible for the train.
    fn is_possible(&self) -> bool {
        usize::from(self.packets) <= TAIL[0] && (self.packets..=PACKETS).contains(&self.sent)
    }

    /// The rate at which packets arrived, as far as their times can be distinguished.
    fn rate(&self) -> Option<Rate> {
        self.over(self.packets, self.came.max(RESOLUTION))
    }

    /// The rate at which they left, lost ones between them included.
    fn rate_sent(&self) -> Option<Rate> {
        self.over(self.sent, self.left)
    }

    fn over(&self, packets: u16, micros: u32) -> Option<Rate> {
        let bytes = u64::from(packets.saturating_sub(1)) * CAR;
        let is_telling = self.packets >= FEWEST && micros > 0;
        is_telling.then(|| Rate::from_bytes_in(bytes, Span::from_micros(u64::from(micros))))
    }
}

/// Measurements of links that are not measured any more, so that a link requested again needs no new train.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered(BTreeMap<PublicKey, (Time, Capacity)>);

impl Remembered {
    /// Stores one; if there are too many, drops the oldest.
    pub fn put(&mut self, node: PublicKey, capacity: Capacity) {
        let Some(at) = capacity.last else { return };
        self.0.insert(node, (at, capacity));
        if self.0.len() > MOST_KEPT {
            let oldest = self.0.iter().min_by_key(|(_, (at, _))| *at).map(|(node, _)| *node);
            oldest.and_then(|node| self.0.remove(&node));
        }
    }

    /// Number of links.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes and returns one, for a link that is measured again.
    pub fn take(&mut self, now: Time, node: &PublicKey) -> Capacity {
        self.0.retain(|_, (at, _)| now.since(*at) < KEPT_FOR);
        self.0.remove(node).map(|(_, capacity)| capacity).unwrap_or_default()
    }

    /// The stored measurement of a link whose train is in progress.
    pub fn get_mut(&mut self, node: &PublicKey) -> Option<&mut Capacity> {
        self.0.get_mut(node).map(|(_, capacity)| capacity)
    }
}

/// The receiving side: records the packets of trains.
#[derive(Clone, Debug, Default)]
pub(super) struct Counting {
    trains: VecDeque<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    from: PublicKey,
    number: u32,
    packets: u16,
    /// The packets that arrived last, each with its time in microseconds.
    tail: VecDeque<(Car, u64)>,
}

impl Counting {
    /// Handles a packet of a train.
    pub fn on_car(&mut self, now: Time, from: &PublicKey, car: &Car) {
        // One train for each node: a new one replaces the old one.
        self.trains.retain(|train| train.from != *from || train.number == car.number);
        let at = self.trains.iter().position(|train| train.from == *from).unwrap_or_else(|| {
            if self.trains.len() == MOST_COUNTED {
                self.trains.pop_front();
            }
            let (from, number, tail) = (*from, car.number, VecDeque::with_capacity(TAIL[0]));
            self.trains.push_back(Counted { from, number, packets: 0, tail });
            self.trains.len() - 1
        });
        let train = &mut self.trains[at];
        train.packets = train.packets.saturating_add(1);
        if train.tail.len() == TAIL[0] {
            train.tail.pop_front();
        }
        train.tail.push_back((*car, micros(now)));
    }

    /// Handles the end of a train; returns the report, also to repeated ends.
    pub fn seen(&self, from: &PublicKey, number: u32) -> Seen {
        let train = self.trains.iter().find(|train| train.from == *from && train.number == number);
        train.map_or(Seen { number, ..Seen::default() }, Counted::seen)
    }

    /// Forgets a node's trains.
    pub fn forget(&mut self, from: &PublicKey) {
        self.trains.retain(|train| train.from != *from);
    }
}

impl Counted {
    fn seen(&self) -> Seen {
        let of = self.tail.back().map_or(0, |(car, _)| car.of);
        let tail = TAIL[usize::from(self.packets < of)].min(self.tail.len());
        let mut tail = self.tail.range(self.tail.len() - tail..);
        let packets = tail.len() as u16;
        let Some((first, last)) = tail.next().zip(tail.next_back()) else {
            return Seen { number: self.number, ..Seen::default() };
        };
        let span = |first: u64, last: u64| last.saturating_sub(first).min(u64::from(u32::MAX)) as u32;
        let sent = last.0.index.saturating_sub(first.0.index).saturating_add(1);
        let (left, came) = (span(first.0.at, last.0.at), span(first.1, last.1));
        Seen { number: self.number, packets, sent, left, came }
    }
}
