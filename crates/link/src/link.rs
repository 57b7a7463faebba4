//! One direction of a link as a value that is asked, never one that acts.
//!
//! Two rings hold the packets: those waiting for the wire, of which the first is on its way out once
//! `leaving` is set, and those on the wire in order of arrival. Everything up to a moment is caught up on
//! when the link is next asked: a departure moves a packet from one ring to the other and begins
//! the next one *at the time of that departure*, so lateness of the caller never costs rate. A packet's luck
//! (loss, jitter, ...) is drawn when it begins to leave: in sending order, whoever asks when.

use std::collections::VecDeque;

use anabranch_wire::{Span, Time};

use crate::codel::{Codel, Head};
use crate::loss::Loss;
use crate::outages::Outages;
use crate::random::Random;
use crate::transmitter::Transmitter;
use crate::{DropReason, Ecn, JitterShape, Limit, LinkConfig, LinkStats, LossModel, QueueModel, RateModel};

/// A link in one direction, carrying packets of type `T`.
///
/// After each call that changes it, ask [`next_arrival`](Self::next_arrival) again. Times given to it
/// are not to go back (a little does no harm: a late packet queues behind what has left).
#[derive(Clone, Debug)]
pub struct Link<T> {
    /// `rate`, `loss` and `outages` of it live on in the fields below.
    config: LinkConfig,
    transmitter: Transmitter,
    loss: Loss,
    codel: Option<Codel>,
    outages: Outages,
    random: Random,
    queue: VecDeque<Waiting<T>>,
    queued_bytes: u64,
    largest: u64,
    leaving: Option<Leaving>,
    last_departure: Time,
    flight: VecDeque<Arrival<T>>,
    flight_bytes: u64,
    last_arrival: Time,
    /// What was lost after it was taken, for a driver that asked to have it back.
    lost: Option<Vec<T>>,
    stats: LinkStats,
}

/// A packet at the far end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival<T> {
    /// When it arrives, which may be earlier than when it was asked for.
    pub at: Time,
    /// The packet.
    pub item: T,
    /// Its size as given at enqueue.
    pub size: u32,
    /// True when it carries a congestion mark, from here or from before.
    pub ce: bool,
    /// True when it was damaged on the way.
    pub corrupt: bool,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    since: Time,
    size: u32,
    ecn: Ecn,
    item: T,
}

/// The packet that is on its way out, and its luck on the wire.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    departs: Time,
    lost: bool,
    corrupt: bool,
    duplicate: bool,
    held: bool,
    /// Nanoseconds of jitter.
    offset: i64,
}

impl<T: Clone> Link<T> {
    /// A link with nothing on it.
    #[must_use]
    pub fn new(mut config: LinkConfig) -> Self {
        Self {
            transmitter: Transmitter::new(std::mem::take(&mut config.rate)),
            loss: Loss::new(config.loss),
            codel: config.queue.codel.map(Codel::new),
            outages: Outages::new(std::mem::take(&mut config.outages)),
            random: Random::new(config.seed),
            queue: VecDeque::new(),
            queued_bytes: 0,
            largest: 0,
            leaving: None,
            last_departure: Time::ZERO,
            flight: VecDeque::new(),
            flight_bytes: 0,
            last_arrival: Time::ZERO,
            lost: None,
            stats: LinkStats::default(),
            config,
        }
    }

    /// Keeps what is lost after it was taken, until [`take_lost`](Self::take_lost) asks for it: for items
    /// that stand for something held elsewhere.
    #[must_use]
    pub fn keeping_lost(mut self) -> Self {
        self.lost = Some(Vec::new());
        self
    }

    /// Gives back a packet that was taken and then lost; nothing unless made by
    /// [`keeping_lost`](Self::keeping_lost).
    pub fn take_lost(&mut self) -> Option<T> {
        self.lost.as_mut()?.pop()
    }

    /// Offers a packet of `size` bytes at `now`.
    ///
    /// # Errors
    /// Why it was not taken. A packet that was taken may still be lost later.
    pub fn enqueue(&mut self, now: Time, size: u32, item: T, ecn: Ecn) -> Result<(), DropReason> {
        self.catch_up(now);
        self.stats.offered.add(size);
        if let Err(why) = self.admit(now, size) {
            self.stats.dropped.count(why);
            return Err(why);
        }
        let ecn = if ecn == Ecn::Capable && self.is_above_mark() { self.mark() } else { ecn };
        let bytes = self.on_wire(size);
        self.largest = self.largest.max(bytes);
        self.queued_bytes += bytes;
        self.queue.push_back(Waiting { since: now, size, ecn, item });
        self.stats.max_queue_packets = self.stats.max_queue_packets.max(self.queue.len());
        self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(self.queued_bytes);
        if self.leaving.is_none() {
            self.begin_next(now.max(self.last_departure));
        }
        Ok(())
    }

    /// When to ask [`pop`](Self::pop) next; `None` when nothing will come out unless something changes.
    ///
    /// Nothing comes out before that. It may be that nothing does then either (the packet
    /// was lost, or, where packets may overtake each other, has only left): ask again.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Time> {
        let flying = self.flight.front().map(|packet| packet.at);
        let Some(leaving) = &self.leaving else { return flying };
        let overtakes = self.overtakes();
        if flying.is_some() && !overtakes {
            return flying;
        }
        let next = if overtakes { leaving.departs } else { self.arrival_of(leaving) };
        Some(flying.map_or(next, |at| at.min(next))).filter(|at| *at != Time::NEVER)
    }

    /// Takes out the first packet that has arrived by `now`.
    pub fn pop(&mut self, now: Time) -> Option<Arrival<T>> {
        self.catch_up(now);
        if self.flight.front()?.at > now {
            return None;
        }
        let packet = self.flight.pop_front()?;
        self.flight_bytes -= u64::from(packet.size);
        self.stats.delivered.add(packet.size);
        self.stats.corrupted += u64::from(packet.corrupt);
        Some(packet)
    }

    /// Changes the rate, also for what is waiting and what is left of the packet on its way out.
    pub fn set_rate(&mut self, now: Time, rate: RateModel) {
        self.catch_up(now);
        match &mut self.leaving {
            Some(leaving) => leaving.departs = self.transmitter.change_mid_packet(now, rate),
            None => self.transmitter.change(rate),
        }
    }

    /// Changes the delay of all that has not left yet.
    pub fn set_delay(&mut self, now: Time, delay: Span) {
        self.catch_up(now);
        self.config.delay = delay;
    }

    /// Changes random loss, from the next packet to leave on.
    pub fn set_loss(&mut self, now: Time, loss: LossModel) {
        self.catch_up(now);
        self.loss = Loss::new(loss);
    }

    /// Changes the largest size that is carried, of packets offered from now on.
    pub fn set_mtu(&mut self, mtu: Option<u32>) {
        self.config.mtu = mtu;
    }

    /// Cuts the link, or mends it; scheduled outages stay. What is on the wire still arrives.
    pub fn set_down(&mut self, now: Time, down: bool) {
        self.catch_up(now);
        self.outages.ordered = down;
    }

    /// Packets waiting at `now`, the one on its way out included, and their bytes with overhead.
    pub fn backlog(&mut self, now: Time) -> (usize, u64) {
        self.catch_up(now);
        (self.queue.len(), self.queued_bytes)
    }

    /// Bytes held, waiting or on the wire, when the link was last asked.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.queued_bytes + self.flight_bytes
    }

    /// What the link has done by the time it was last asked.
    #[must_use]
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    fn on_wire(&self, size: u32) -> u64 {
        u64::from(size) + u64::from(self.config.overhead)
    }

    fn overtakes(&self) -> bool {
        self.config.jitter.overtakes || self.config.reorder.probability > 0.0
    }

    fn admit(&mut self, now: Time, size: u32) -> Result<(), DropReason> {
        if self.outages.is_down(now) {
            return Err(DropReason::Outage);
        }
        if self.config.mtu.is_some_and(|mtu| size > mtu) {
            return Err(DropReason::TooLarge);
        }
        let QueueModel { limit, random_drop, .. } = self.config.queue;
        let (filled, limit) = match limit {
            Limit::Packets(limit) => (self.queue.len() as u64 + 1, u64::from(limit)),
            Limit::Bytes(limit) => (self.queued_bytes + self.on_wire(size), limit),
        };
        if filled > limit {
            return Err(DropReason::QueueFull);
        }
        let Some(last) = random_drop else { return Ok(()) };
        if filled > limit.saturating_sub(last.places) && self.random.chance(last.probability) {
            return Err(DropReason::RandomDrop);
        }
        Ok(())
    }

    fn is_above_mark(&self) -> bool {
        match self.config.queue.mark_above {
            Some(Limit::Packets(limit)) => self.queue.len() as u64 > u64::from(limit),
            Some(Limit::Bytes(limit)) => self.queued_bytes > limit,
            None => false,
        }
    }

    fn mark(&mut self) -> Ecn {
        self.stats.marked += 1;
        Ecn::Marked
    }

    /// Lets happen all that was to happen up to `now`.
    fn catch_up(&mut self, now: Time) {
        while let Some(leaving) = self.leaving.take_if(|leaving| leaving.departs <= now) {
            self.depart(leaving);
            self.begin_next(leaving.departs);
        }
    }

    /// Begins to send the first packet that CoDel lets pass.
    fn begin_next(&mut self, start: Time) {
        while let Some(head) = self.queue.front() {
            let waited = start.since(head.since);
            if self.codel_condemns(start, waited) {
                self.drop_head();
                continue;
            }
            self.stats.waits += 1;
            self.stats.wait_total += waited;
            self.stats.wait_max = self.stats.wait_max.max(waited);
            let bytes = self.queue.front().map_or(0, |head| self.on_wire(head.size));
            let departs = self.transmitter.start(start, bytes);
            self.leaving = Some(self.draw_luck(departs));
            return;
        }
        if let Some(codel) = &mut self.codel {
            codel.on_empty();
        }
    }

    /// True when CoDel wants the head dropped; marks it instead where it can.
    fn codel_condemns(&mut self, start: Time, waited: Span) -> bool {
        let (Some(codel), Some(head)) = (&mut self.codel, self.queue.front_mut()) else { return false };
        let bytes = u64::from(head.size) + u64::from(self.config.overhead);
        let view = Head { waited, behind: self.queued_bytes - bytes, largest: self.largest };
        if !codel.condemns(start, view) {
            return false;
        }
        if head.ecn == Ecn::NotCapable {
            return true;
        }
        if head.ecn == Ecn::Capable {
            head.ecn = Ecn::Marked;
            self.stats.marked += 1;
        }
        false
    }

    fn drop_head(&mut self) {
        if let Some(head) = self.queue.pop_front() {
            self.queued_bytes -= self.on_wire(head.size);
            self.lose(head.item, DropReason::Codel);
        }
    }

    fn lose(&mut self, item: T, why: DropReason) {
        self.stats.dropped.count(why);
        if let Some(lost) = &mut self.lost {
            lost.push(item);
        }
    }

    fn draw_luck(&mut self, departs: Time) -> Leaving {
        let random = &mut self.random;
        let offset = match self.config.jitter.shape {
            JitterShape::None => 0.0,
            JitterShape::Uniform(spread) => random.signed_unit() * spread.as_nanos() as f64,
            JitterShape::Normal(deviation) => random.normal() * deviation.as_nanos() as f64,
        };
        Leaving {
            departs,
            offset: offset as i64,
            lost: self.loss.next_is_lost(random),
            corrupt: random.chance(self.config.corrupt),
            duplicate: random.chance(self.config.duplicate),
            held: random.chance(self.config.reorder.probability),
        }
    }

    /// The last bit of the first packet leaves.
    fn depart(&mut self, leaving: Leaving) {
        let at = self.arrival_of(&leaving);
        self.last_departure = leaving.departs;
        // A packet that is lost keeps its place in the order, so that the ones behind it cannot come before `at`.
        self.last_arrival = self.last_arrival.max(at);
        let Some(packet) = self.queue.pop_front() else { return };
        self.queued_bytes -= self.on_wire(packet.size);
        if self.outages.is_down(leaving.departs) {
            return self.lose(packet.item, DropReason::Outage);
        }
        if leaving.lost {
            return self.lose(packet.item, DropReason::Loss);
        }
        let Waiting { size, ecn, item, .. } = packet;
        let arrival = Arrival { at, item, size, ce: ecn == Ecn::Marked, corrupt: leaving.corrupt };
        if leaving.duplicate {
            self.stats.duplicated += 1;
            self.fly(arrival.clone());
        }
        self.fly(arrival);
    }

    /// When a packet that is on its way out arrives, if it does.
    fn arrival_of(&self, leaving: &Leaving) -> Time {
        let delay = self.config.delay.as_nanos().saturating_add_signed(leaving.offset);
        let extra = if leaving.held { self.config.reorder.extra } else { Span::ZERO };
        let at = leaving.departs + Span::from_nanos(delay) + extra;
        if self.overtakes() { at } else { at.max(self.last_arrival) }
    }

    /// Puts a packet among those on the wire. Packets that arrive together stay in order of departure.
    fn fly(&mut self, packet: Arrival<T>) {
        self.flight_bytes += u64::from(packet.size);
        if self.flight.back().is_none_or(|last| last.at <= packet.at) {
            self.flight.push_back(packet);
        } else {
            let place = self.flight.partition_point(|other| other.at <= packet.at);
            self.flight.insert(place, packet);
        }
    }
}
