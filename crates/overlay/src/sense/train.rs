//! Packet trains: what a link carries, and how much of that is left [S3].
//!
//! Packets that leave at once come out of the narrowest place of a link at its rate `C`. A shaper lets a bucketful through first, so only
//! the last packets of a long train count; where its queue is short most of the others are lost, and those that came last still came at `C`. When
//! the last ones leave at `C` instead, they share it with what others send, `X`: sent at `r` they come at `r·C/(r + X)`, which tells `X` and so what is left, `C − X`
//! (probe gap model; Strauss et al. 2003, *A measurement study of available bandwidth estimation tools*).
//!
//! ```text
//!   measurer ── car 0 … car n-1 ──▶ neighbour: keeps when the last ones left and came
//!            ── end ─────────────▶
//!            ◀──────── seen ──────
//! ```

use std::collections::{BTreeMap, VecDeque};

use anabranch_secure::PublicKey;
use anabranch_wire::{Rate, Span, Time};

use super::message::{Car, Seen, micros};

/// A car as a packet, headers of IPv6 included.
pub const CAR: u64 = 1_208;
/// Packets of a train: 193 kB. A shaper's bucket of up to 150 kB is seen through.
const PACKETS: u16 = 160;
/// Of these so many leave at once in any case: what a bucket holds is used up by them.
const HEAD: u16 = 128;
/// The packets at the end that tell the rate: so many when none was lost; of a train that did not fit into a queue fewer, those that
/// came last.
const TAIL: [usize; 2] = [32, 16];
/// Packets of a tail below which it tells nothing.
const FEWEST: u16 = 8;
/// Arrivals closer together are told as one by who takes in packets in batches. A link so fast counts as no faster.
const RESOLUTION: u32 = 100;
/// A train is not measured again before this.
const AGAIN: Span = Span::from_secs(600);
/// What was left of a link is of no interest after this.
const LEFT_FOR: Span = Span::from_secs(1_800);
/// What a link carries is remembered for so long after it was measured last, and of so many links.
const KEPT_FOR: Span = Span::from_secs(7_200);
const MOST_KEPT: usize = 128;
/// A train that takes a quarter and so much longer than it should was held up by what this node sends for others.
const HELD_UP: Span = Span::from_millis(10);
/// A train that comes as fast as this part of how it left found nothing narrower on its way.
const UNHINDERED: f64 = 0.9;
/// Trains that are counted at the same time.
const MOST_COUNTED: usize = 64;

/// A train to send: so many packets, as fast as this node's own rate allows, the last ones perhaps at another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// To which node.
    pub to: PublicKey,
    /// Tells the sensor's trains apart.
    pub number: u32,
    /// How many packets.
    pub packets: u16,
    /// At which rate the last of them leave; as fast as the others without one.
    pub rate: Option<Rate>,
    /// The rate to which all that this node sends keeps, if there is one.
    pub limit: Option<Rate>,
}

impl Train {
    /// The packet with this index, that leaves now.
    #[must_use]
    pub fn car(&self, index: u16, now: Time) -> Car {
        Car { number: self.number, index, of: self.packets, at: micros(now) }
    }

    /// How long after the first the packet with this index leaves.
    #[must_use]
    pub fn offset(&self, index: u16) -> Span {
        let behind = u64::from(index.saturating_sub(HEAD));
        let time = |rate: Option<Rate>, packets| rate.map_or(Span::ZERO, |rate| rate.time_for(packets * CAR));
        let ahead = u64::from(index) - behind;
        time(self.limit, ahead) + time(self.rate.or(self.limit), behind)
    }

    /// Whether this packet leaves at a time of its own, and not as soon as it may.
    #[must_use]
    pub fn has_a_time(&self, index: u16) -> bool {
        self.rate.is_some() && index >= HEAD
    }

    /// Whether a train whose last packet left so long after the first was held up by this node's other traffic: it tells nothing of the
    /// link then.
    #[must_use]
    pub fn is_held_up(&self, took: Span) -> bool {
        let wanted = self.offset(self.packets.saturating_sub(1));
        self.limit.is_some() && took > wanted + wanted / 4 + HELD_UP
    }
}

/// What a link carries, as far as trains told.
#[derive(Clone, Debug, Default)]
pub(super) struct Capacity {
    /// How often the link's rate was asked for, and when the last train left.
    rounds: u32,
    last: Option<Time>,
    /// The rate was just told, what is left of it not yet.
    is_half_known: bool,
    capacity: Option<Rate>,
    left: Option<(Time, Rate)>,
}

impl Capacity {
    /// The next train: its packets leave at once, or in the end at the link's rate.
    pub fn next(&self) -> (u16, Option<Rate>) {
        (PACKETS, self.capacity.filter(|_| self.is_half_known))
    }

    /// When that may be, and its turn: links whose rate was asked for least come first, of these one of which only the rate is known.
    pub fn due(&self) -> (Time, (u32, bool)) {
        let again = if self.is_half_known { Span::ZERO } else { AGAIN };
        let asked = self.rounds.saturating_sub(u32::from(self.is_half_known));
        (self.last.map_or(Time::ZERO, |last| last + again), (asked, !self.is_half_known))
    }

    /// A train has left.
    pub fn on_train(&mut self, now: Time, is_paced: bool) {
        self.rounds += u32::from(!is_paced);
        self.last = Some(now);
        self.is_half_known = false;
    }

    /// What the neighbour saw of a train, that left as fast as this node's own rate allows (if there is one), or in the end at another.
    pub fn on_seen(&mut self, now: Time, seen: &Seen, (is_paced, limit): (bool, Option<Rate>)) {
        let Some(out) = seen.rate().filter(|_| seen.is_possible()) else { return };
        if !is_paced {
            let came_as_it_left = |sent: Rate| out.as_bits() as f64 >= UNHINDERED * sent.as_bits() as f64;
            self.capacity = limit.map_or(Some(out), |limit| {
                // Then this node's own rate is the narrowest place there is.
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

    /// The link's rate.
    pub fn capacity(&self) -> Option<Rate> {
        self.capacity
    }

    /// What was left of it.
    pub fn left(&self, now: Time) -> Option<Rate> {
        self.left.filter(|(at, _)| now.since(*at) < LEFT_FOR).map(|(_, rate)| rate)
    }
}

impl Seen {
    /// Whether a train can have come so.
    fn is_possible(&self) -> bool {
        usize::from(self.packets) <= TAIL[0] && (self.packets..=PACKETS).contains(&self.sent)
    }

    /// The rate at which packets came, as far as their times can be told apart.
    fn rate(&self) -> Option<Rate> {
        self.over(self.packets, self.came.max(RESOLUTION))
    }

    /// The rate at which they left, with those that were lost between them.
    fn rate_sent(&self) -> Option<Rate> {
        self.over(self.sent, self.left)
    }

    fn over(&self, packets: u16, micros: u32) -> Option<Rate> {
        let bytes = u64::from(packets.saturating_sub(1)) * CAR;
        let is_telling = self.packets >= FEWEST && micros > 0;
        is_telling.then(|| Rate::from_bytes_in(bytes, Span::from_micros(u64::from(micros))))
    }
}

/// What trains told of links that are not measured any more: who asks for one again need not wait for another train.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept(BTreeMap<PublicKey, (Time, Capacity)>);

impl Kept {
    /// Remembers it; of too many the oldest is forgotten.
    pub fn put(&mut self, node: PublicKey, capacity: Capacity) {
        let Some(at) = capacity.last else { return };
        self.0.insert(node, (at, capacity));
        if self.0.len() > MOST_KEPT {
            let oldest = self.0.iter().min_by_key(|(_, (at, _))| *at).map(|(node, _)| *node);
            oldest.and_then(|node| self.0.remove(&node));
        }
    }

    /// Of how many links.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes it out again, for a link that is measured again.
    pub fn take(&mut self, now: Time, node: &PublicKey) -> Capacity {
        self.0.retain(|_, (at, _)| now.since(*at) < KEPT_FOR);
        self.0.remove(node).map(|(_, capacity)| capacity).unwrap_or_default()
    }

    /// What is remembered of a link whose train is on its way.
    pub fn get_mut(&mut self, node: &PublicKey) -> Option<&mut Capacity> {
        self.0.get_mut(node).map(|(_, capacity)| capacity)
    }
}

/// The neighbour's side: counts the trains that come.
#[derive(Clone, Debug, Default)]
pub(super) struct Counting {
    trains: VecDeque<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    from: PublicKey,
    number: u32,
    packets: u16,
    /// Those that came last, each with the time when it came, in microseconds.
    tail: VecDeque<(Car, u64)>,
}

impl Counting {
    /// A packet of a train came.
    pub fn on_car(&mut self, now: Time, from: &PublicKey, car: &Car) {
        // One of each node: a new one takes the place of the old one.
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

    /// A train is over; says what came of it, again if it is asked again.
    pub fn seen(&self, from: &PublicKey, number: u32) -> Seen {
        let train = self.trains.iter().find(|train| train.from == *from && train.number == number);
        train.map_or(Seen { number, ..Seen::default() }, Counted::seen)
    }

    /// Nothing of a node's trains is of interest any more.
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
