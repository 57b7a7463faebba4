//! The plain link: a packet's whole journey is known when it comes.
//!
//! Where nothing but its turn decides about a packet (a fixed rate, nothing left to chance on the wire, no CoDel, no
//! marks), it leaves a packet's time after the one before it and arrives a delay later. So its arrival is noted once, on entry,
//! and nothing is done when it leaves. Who has left is looked at when somebody asks for the queue, or when a packet
//! comes that may find it full or longer than ever: those that have not been looked at since count as waiting, so a
//! queue is never longer than it seems.
//!
//! When the link is changed, the plan of what has not left is given up, and the packets go on one by one. A link that runs
//! empty plans anew.

use anabranch_wire::Time;

use super::{Arrival, Held, Link};
use crate::{DropReason, Ecn};

impl<T: Clone> Link<T> {
    /// True when nothing but its turn decides about a packet that comes.
    pub(super) fn can_be_planned(&self) -> bool {
        let steps = self.rare.queue.codel.is_some() || self.rare.queue.mark_above.is_some();
        !(steps || self.has_luck || self.has_outages || self.overtakes) && self.transmitter.is_regular()
    }

    /// Offers a packet.
    #[inline]
    pub(super) fn plan(&mut self, now: Time, size: u32, item: T, ecn: Ecn) -> Result<(), DropReason> {
        self.is_planned = true;
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

    /// True when a packet is sure to find room, and no more waiting than there was once.
    fn has_ample_room(&self, size: u32, bytes: u64) -> bool {
        !self.is_managed
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

    /// Looks who has left by `now`.
    pub(super) fn settle(&mut self, now: Time) {
        let (delay, waiting) = (self.delay, self.held.range(self.flying..));
        let left = waiting.take_while(|packet| packet.time - delay <= now);
        let (count, bytes) =
            left.fold((0, 0), |(count, sum), packet| (count + 1, sum + u64::from(packet.size)));
        self.flying += count;
        self.flying_bytes += bytes;
        self.queued_bytes -= bytes + count as u64 * u64::from(self.overhead);
    }

    /// From here on packets leave one by one. Everything that has left by `now` is known to have.
    pub(super) fn abandon_plan(&mut self, now: Time) {
        if !std::mem::take(&mut self.is_planned) {
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
        (self.last_departure, self.sends) = (start, true);
        for packet in self.held.iter_mut().skip(self.flying + 1) {
            // Its wait was counted up to the planned moment, and will be from now on.
            self.stats.waits -= 1;
            self.stats.wait_total = self.stats.wait_total.saturating_sub(departs.since(now));
            departs = packet.time - self.delay;
            packet.time = now;
        }
    }
}
