//! The plain link: computes a packet's whole journey when it is offered.
//!
//! With a fixed rate, no randomness on the wire, no CoDel and no marks, the packets before a packet decide when it
//! leaves, and it arrives one delay later. So its arrival is stored on entry, and departures need no work. The queue's
//! length is corrected for packets that have left only when a driver asks for it, or when a packet may find the queue
//! full or longer than ever before. Until then the stored length may be too large, never too small.
//!
//! A change of the link discards the plan for packets that have not left; these continue one by one. Once the link is
//! empty, it plans again.

use anabranch_wire::Time;

use super::{Arrival, Held, Link};
use crate::{DropReason, Ecn};

impl<T: Clone> Link<T> {
    /// True when a packet's journey depends only on the packets before it.
    pub(super) fn can_be_planned(&self) -> bool {
        let steps = self.rare.queue.codel.is_some() || self.rare.queue.mark_above.is_some();
        !(steps || self.flags.is_impaired || self.flags.has_outages || self.flags.overtakes)
            && self.transmitter.is_regular()
    }

    /// Offers a packet.
    #[inline]
    pub(super) fn plan(&mut self, now: Time, size: u32, item: T, ecn: Ecn) -> Result<(), DropReason> {
        self.flags.is_planned = true;
        self.stats.offered.count(size);
        let bytes = self.on_wire(size);
        if !self.has_ample_room(size, bytes) {
            self.settle(now);
            if let Err(why) = self.admit(now, size) {
                self.stats.dropped.count(why);
                return Err(why);
            }
            let waiting = self.held.len() - self.flying + 1;
            self.stats.max_queue_packets = self.stats.max_queue_packets.max(waiting);
            self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(self.queued_bytes + bytes);
        }
        let start = now.max(self.last_departure);
        self.stats.waits += 1;
        self.stats.wait_total += start.since(now);
        self.idle += start.since(self.last_departure);
        self.last_departure = start + self.time_for(bytes);
        self.queued_bytes += bytes;
        let time = self.last_departure + self.delay;
        self.held.push_back(Held { time, item, size, ecn, corrupt: false });
        Ok(())
    }

    /// True when a packet certainly finds room and the queue stays within its longest so far.
    fn has_ample_room(&self, size: u32, bytes: u64) -> bool {
        !self.flags.is_managed
            && self.held.len() - self.flying < self.stats.max_queue_packets
            && self.queued_bytes + bytes <= self.stats.max_queue_bytes
            && size <= self.mtu
    }

    /// Takes out the first packet that has arrived by `now`.
    #[inline]
    pub(super) fn pop_planned(&mut self, now: Time) -> Option<Arrival<T>> {
        if self.held.front()?.time > now {
            return None;
        }
        let Held { time: at, item, size, ecn, corrupt } = self.held.pop_front()?;
        self.tidy();
        if self.flying > 0 {
            self.flying -= 1;
            self.flying_bytes -= u64::from(size);
        } else {
            self.queued_bytes -= self.on_wire(size);
        }
        self.stats.delivered.count(size);
        Some(Arrival { at, item, size, ce: ecn == Ecn::Marked, corrupt })
    }

    /// Moves packets that have left by `now` to the wire.
    pub(super) fn settle(&mut self, now: Time) {
        let (delay, waiting) = (self.delay, self.held.range(self.flying..));
        let left = waiting.take_while(|packet| packet.time - delay <= now);
        let (count, bytes) =
            left.fold((0, 0), |(count, sum), packet| (count + 1, sum + u64::from(packet.size)));
        self.flying += count;
        self.flying_bytes += bytes;
        self.queued_bytes -= bytes + count as u64 * u64::from(self.overhead);
    }

    /// From now on packets leave one by one. Those that have left by `now` must have been settled.
    pub(super) fn abandon_plan(&mut self, now: Time) {
        if !std::mem::take(&mut self.flags.is_planned) {
            return;
        }
        if let Some(last) = self.flying.checked_sub(1).and_then(|last| self.held.get(last)) {
            self.last_arrival = self.last_arrival.max(last.time);
        }
        let Some(head) = self.held.get(self.flying) else { return };
        let mut departs = head.time - self.delay;
        let bytes = self.on_wire(head.size);
        let start = departs - self.time_for(bytes);
        self.departs = self.transmitter.start(start, bytes);
        (self.last_departure, self.flags.sends) = (start, true);
        for packet in self.held.iter_mut().skip(self.flying + 1) {
            // Its wait was counted up to the planned time, and will be counted again from now on.
            self.stats.waits -= 1;
            self.stats.wait_total = self.stats.wait_total.saturating_sub(departs.since(now));
            departs = packet.time - self.delay;
            packet.time = now;
        }
    }
}
