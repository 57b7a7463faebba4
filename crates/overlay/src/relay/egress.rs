//! Sends forwarded packets at the relay's rate, fairly between keys; drops the lowest type of service first [R11].
//!
//! Two shapers limit each packet: its key's and the relay's. While both have room, the packet is sent at once, without
//! a copy. Otherwise it waits in its key's queue. Keys take turns by deficit round robin (Shreedhar and Varghese); a
//! key with a busy shaper leaves the round until it is free. A queue holds at most [`DEPTH`] at its key's rate, and all
//! queues together [`DEPTH`] at the relay's rate. Excess is dropped from the longest queue, there from the lowest type
//! of service, the newest packet first. A key's packets keep their order for all types of service, because reordering
//! would look like loss to the session [M4].

use std::collections::{BTreeSet, VecDeque};

use anabranch_wire::{Rate, Span, Time};

use super::flow::Tally;
use super::types::Hop;

/// Longest that packets wait at the configured rate.
pub const DEPTH: Span = Span::from_millis(20);
/// How far ahead of the rate packets may leave: timers are no finer.
const BURST: Span = Span::from_millis(2);
/// How long a key may wait for its turn without losing any of its own rate.
const LATE: Span = Span::from_millis(10);
/// Bytes that a key may send in a turn; at least the largest packet of common networks.
const QUANTUM: u64 = 3_000;
/// Least size of a queue, for low rates.
const LEAST_DEPTH: u64 = 6_000;
const CLASSES: usize = 16;

/// A datagram ready to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The destination.
    pub to: Hop,
    /// The ECN bits of the packet on arrival.
    pub ecn: u8,
    /// The UDP payload.
    pub datagram: Box<[u8]>,
}

/// Limits bytes to a rate.
#[derive(Clone, Copy, Debug)]
struct Shaper {
    rate: Option<Rate>,
    /// When all admitted bytes have been sent at this rate.
    next_free: Time,
}

impl Shaper {
    fn new(rate: Option<Rate>) -> Self {
        Self { rate, next_free: Time::ZERO }
    }

    /// Whether this many bytes may pass at once.
    #[inline]
    fn has_room(&self, now: Time, bytes: u64) -> bool {
        self.rate.is_none_or(|rate| self.next_free.max(now) + rate.time_for(bytes) <= now + BURST)
    }

    /// Whether the next packet may be sent.
    fn is_due(&self, now: Time) -> bool {
        self.rate.is_none_or(|rate| rate != Rate::ZERO && self.next_free <= now + BURST)
    }

    #[inline]
    fn charge(&mut self, now: Time, bytes: u64) {
        if let Some(rate) = self.rate {
            self.next_free = self.next_free.max(now) + rate.time_for(bytes);
        }
    }

    /// Charges a packet that waited for its turn.
    fn charge_late(&mut self, now: Time, bytes: u64) {
        if let Some(rate) = self.rate {
            self.next_free = self.next_free.max(now - LATE) + rate.time_for(bytes);
        }
    }

    fn depth(&self) -> u64 {
        self.rate.map_or(u64::MAX, |rate| rate.bytes_in(DEPTH).max(LEAST_DEPTH))
    }
}

struct Key {
    shaper: Shaper,
    queue: Option<Box<Queue>>,
}

/// Packets of one key. `slots` is in order of arrival. A dropped packet leaves an empty slot until it is at the front.
struct Queue {
    slots: VecDeque<Option<Outgoing>>,
    /// Number of the first slot; numbers are never reused.
    first: u64,
    /// Of each class, the numbers of its packets.
    classes: [VecDeque<u64>; CLASSES],
    class_of: VecDeque<u8>,
    bytes: u64,
    deficit: u64,
}

/// All queues and shapers.
pub(super) struct Egress {
    link: Shaper,
    keys: Vec<Key>,
    bytes: u64,
    /// Keys that take turns.
    ring: VecDeque<u32>,
    /// Keys that have left the round, and until when.
    aside: BTreeSet<(Time, u32)>,
    longest: BTreeSet<(u64, u32)>,
}

impl Egress {
    pub(super) fn new(rate: Option<Rate>) -> Self {
        Self {
            link: Shaper::new(rate),
            keys: Vec::new(),
            bytes: 0,
            ring: VecDeque::new(),
            aside: BTreeSet::new(),
            longest: BTreeSet::new(),
        }
    }

    pub(super) fn set_link_rate(&mut self, rate: Option<Rate>) {
        if self.link.rate != rate {
            self.link = Shaper::new(rate);
        }
    }

    /// Sets a key's rate; `None` for no limit.
    pub(super) fn set_rate(&mut self, key: u32, rate: Option<Rate>) {
        while self.keys.len() <= key as usize {
            self.keys.push(Key { shaper: Shaper::new(None), queue: None });
        }
        let shaper = &mut self.keys[key as usize].shaper;
        if shaper.rate == rate {
            return;
        }
        *shaper = Shaper::new(rate);
        // A key that waits for its old rate returns to the round.
        if let Some(&aside) = self.aside.iter().find(|(_, other)| *other == key) {
            self.aside.remove(&aside);
            self.ring.push_back(key);
        }
    }

    /// Whether this many bytes of a key may be sent at once; if so, counts them.
    #[inline]
    pub(super) fn pass(&mut self, now: Time, key: u32, bytes: u64) -> bool {
        let Some(Key { shaper, queue: None }) = self.keys.get_mut(key as usize) else { return false };
        // Packets that wait for the relay's rate go first.
        let others_wait = self.link.rate.is_some() && !self.ring.is_empty();
        if others_wait || !shaper.has_room(now, bytes) || !self.link.has_room(now, bytes) {
            return false;
        }
        shaper.charge(now, bytes);
        self.link.charge(now, bytes);
        true
    }

    /// Charges bytes that the relay sends for itself, or returns when to ask again. Packets of keys that wait go first, so the
    /// relay's own bytes delay others by no more than one burst.
    pub(super) fn pass_own(&mut self, now: Time, bytes: u64) -> Result<(), Time> {
        if self.link.rate.is_some() && !self.ring.is_empty() {
            return Err(now + BURST);
        }
        if !self.link.is_due(now) {
            return Err(self.link.next_free - BURST);
        }
        self.link.charge_late(now, bytes);
        Ok(())
    }

    /// Queues a packet. Returns what was dropped for it, possibly the packet itself.
    pub(super) fn enqueue(&mut self, key: u32, class: u8, packet: Outgoing) -> Tally {
        let len = packet.datagram.len() as u64;
        let Some(entry) = self.keys.get_mut(key as usize) else { return Tally { packets: 1, bytes: len } };
        let fresh = entry.queue.is_none();
        let queue = entry.queue.get_or_insert_with(|| Box::new(Queue::new()));
        self.longest.remove(&(queue.bytes, key));
        queue.push(class, packet);
        let most = entry.shaper.depth();
        let mut dropped = Tally::default();
        while queue.bytes > most {
            dropped.bytes += queue.drop_lowest();
            dropped.packets += 1;
        }
        self.bytes = self.bytes + len - dropped.bytes;
        self.longest.insert((queue.bytes, key));
        if fresh {
            self.ring.push_back(key);
        }
        while self.bytes > self.link.depth() {
            let Some((_, key)) = self.longest.pop_last() else { break };
            let Some(queue) = self.keys[key as usize].queue.as_mut() else { continue };
            let freed = queue.drop_lowest();
            self.bytes -= freed;
            dropped.bytes += freed;
            dropped.packets += 1;
            self.longest.insert((queue.bytes, key));
        }
        dropped
    }

    /// The next packet that may be sent.
    pub(super) fn take(&mut self, now: Time) -> Option<Outgoing> {
        while let Some(&(since, key)) = self.aside.first() {
            if since > now + BURST {
                break;
            }
            self.aside.pop_first();
            self.ring.push_back(key);
        }
        if !self.link.is_due(now) {
            return None;
        }
        while let Some(&number) = self.ring.front() {
            let key = &mut self.keys[number as usize];
            let Some(queue) = key.queue.as_mut() else {
                self.ring.pop_front();
                continue;
            };
            let Some(head) = queue.head_len() else {
                self.longest.remove(&(queue.bytes, number));
                key.queue = None;
                self.ring.pop_front();
                continue;
            };
            if !key.shaper.is_due(now) {
                self.ring.pop_front();
                let zero = key.shaper.rate == Some(Rate::ZERO);
                self.aside.insert((if zero { Time::NEVER } else { key.shaper.next_free }, number));
                continue;
            }
            if queue.deficit < head {
                queue.deficit += QUANTUM;
                self.ring.rotate_left(1);
                continue;
            }
            self.longest.remove(&(queue.bytes, number));
            queue.deficit -= head;
            let packet = queue.pop();
            self.longest.insert((queue.bytes, number));
            self.bytes -= head;
            key.shaper.charge_late(now, head);
            self.link.charge(now, head);
            return packet;
        }
        None
    }

    /// When [`Egress::take`] will have something.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let ready = (!self.ring.is_empty()).then_some(Time::ZERO);
        let aside = self.aside.first().map(|(since, _)| *since - BURST).filter(|_| ready.is_none());
        let key = ready.or(aside)?;
        Some(key.max(self.link.next_free - BURST)).filter(|time| *time < Time::NEVER - BURST)
    }

    /// Drops the queue of a removed key.
    pub(super) fn forget(&mut self, key: u32) {
        let Some(queue) = self.keys.get_mut(key as usize).and_then(|entry| entry.queue.take()) else {
            return;
        };
        self.bytes -= queue.bytes;
        self.longest.remove(&(queue.bytes, key));
        self.ring.retain(|other| *other != key);
        self.aside.retain(|(_, other)| *other != key);
    }

    /// Places in the queues, empty ones included.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.keys.iter().filter_map(|key| key.queue.as_ref()).map(|queue| queue.slots.len()).sum()
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> u64 {
        self.bytes
    }
}

impl Queue {
    fn new() -> Self {
        Self {
            slots: VecDeque::new(),
            first: 0,
            classes: std::array::from_fn(|_| VecDeque::new()),
            class_of: VecDeque::new(),
            bytes: 0,
            deficit: 0,
        }
    }

    fn push(&mut self, class: u8, packet: Outgoing) {
        let class = class.min(CLASSES as u8 - 1);
        self.bytes += packet.datagram.len() as u64;
        self.classes[usize::from(class)].push_back(self.first + self.slots.len() as u64);
        self.slots.push_back(Some(packet));
        self.class_of.push_back(class);
    }

    /// Drops the newest packet of the lowest class; returns its bytes.
    fn drop_lowest(&mut self) -> u64 {
        let number = self.classes.iter_mut().find_map(VecDeque::pop_back);
        let slot = number.and_then(|number| self.slots.get_mut((number - self.first) as usize));
        let len = slot.and_then(Option::take).map_or(0, |packet| packet.datagram.len() as u64);
        // Otherwise a key that keeps sending while its first packet waits would fill the memory with empty slots.
        while let Some(None) = self.slots.back() {
            self.slots.pop_back();
            self.class_of.pop_back();
        }
        self.bytes -= len;
        len
    }

    /// Length of the packet to leave next.
    fn head_len(&mut self) -> Option<u64> {
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.class_of.pop_front();
            self.first += 1;
        }
        self.slots.front().and_then(Option::as_ref).map(|packet| packet.datagram.len() as u64)
    }

    /// Removes the packet that [`Queue::head_len`] found.
    fn pop(&mut self) -> Option<Outgoing> {
        let packet = self.slots.pop_front()??;
        let class = self.class_of.pop_front()?;
        self.classes[usize::from(class)].pop_front();
        self.first += 1;
        self.bytes -= packet.datagram.len() as u64;
        Some(packet)
    }
}
