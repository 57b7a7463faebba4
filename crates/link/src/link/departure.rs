//! Packets that leave one by one: CoDel, fates, outages, and their place on the wire.

use anabranch_wire::{Span, Time};

use super::{Held, Link, Rare};
use crate::codel::Head;
use crate::impairments::Fate;
use crate::{DropReason, Ecn};

impl<T: Clone> Link<T> {
    /// Processes everything that happens up to `now`.
    #[inline]
    pub(super) fn catch_up(&mut self, now: Time) {
        if self.flags.is_planned {
            self.settle(now);
        } else if self.departs <= now {
            self.let_depart(now);
        }
    }

    fn let_depart(&mut self, now: Time) {
        while self.departs <= now {
            let departed = self.departs;
            if self.flags.is_impaired || self.flags.has_outages {
                self.depart_impaired();
            } else {
                self.depart();
            }
            self.last_departure = departed;
            if let Some(used) = self.transmitter.used() {
                self.idle += departed.since(self.rare.slots_until);
                self.rare.slots_until = self.rare.slots_until.max(departed) + used;
            }
            self.begin_next(departed);
        }
    }

    /// Starts sending the first packet that CoDel accepts.
    pub(super) fn begin_next(&mut self, start: Time) {
        while let Some(head) = self.held.get(self.flying) {
            let waited = start.since(head.time);
            let bytes = self.on_wire(head.size);
            if self.flags.is_managed && self.codel_condemns(start, waited) {
                self.drop_head();
                continue;
            }
            self.stats.waits += 1;
            self.stats.wait_total += waited;
            self.departs = self.transmitter.start(start, bytes);
            self.flags.sends = true;
            if self.flags.is_impaired {
                self.rare.fate = self.rare.impairments.draw();
            }
            return;
        }
        (self.departs, self.flags.sends) = (Time::NEVER, false);
        if self.flags.is_managed
            && let Some(codel) = &mut self.rare.codel
        {
            codel.on_empty();
        }
    }

    /// True when CoDel drops the head; a packet that can be marked is marked instead.
    fn codel_condemns(&mut self, start: Time, waited: Span) -> bool {
        let Rare { codel, largest, .. } = &mut *self.rare;
        let (Some(codel), Some(head)) = (codel, self.held.get_mut(self.flying)) else { return false };
        let bytes = u64::from(head.size) + u64::from(self.overhead);
        let view = Head { waited, behind: self.queued_bytes - bytes, largest: *largest };
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
        if let Some(head) = self.held.remove(self.flying) {
            self.queued_bytes -= self.on_wire(head.size);
            self.lose(head.item, DropReason::Codel);
        }
    }

    fn lose(&mut self, item: T, why: DropReason) {
        self.stats.dropped.count(why);
        if let Some(lost) = &mut self.rare.lost {
            lost.push(item);
            self.flags.has_lost = true;
        }
    }

    /// The last bit of the first waiting packet leaves.
    fn depart(&mut self) {
        let at = self.next_landing();
        self.last_arrival = self.last_arrival.max(at);
        let Some(packet) = self.held.get_mut(self.flying) else { return };
        packet.time = at;
        let size = packet.size;
        self.queued_bytes -= self.on_wire(size);
        self.fly(at, size);
    }

    /// As [`depart`](Self::depart), for a packet that may be lost, damaged or duplicated.
    fn depart_impaired(&mut self) {
        let fate = if self.flags.is_impaired { self.rare.fate } else { Fate::default() };
        let is_cut = self.is_down(self.departs);
        if is_cut || fate.lost {
            // It keeps its place in the order, so that packets behind it arrive no earlier than otherwise.
            self.last_arrival = self.last_arrival.max(self.next_landing());
            let Some(packet) = self.held.remove(self.flying) else { return };
            self.queued_bytes -= self.on_wire(packet.size);
            return self.lose(packet.item, if is_cut { DropReason::Outage } else { DropReason::Loss });
        }
        let Some(packet) = self.held.get_mut(self.flying) else { return };
        packet.corrupt = fate.corrupt;
        let twin = fate.duplicate.then(|| packet.clone());
        self.depart();
        if let Some(twin) = twin {
            self.stats.duplicated += 1;
            let (at, size) = (self.next_landing(), twin.size);
            self.held.insert(self.flying, Held { time: at, ..twin });
            self.fly(at, size);
        }
    }

    /// When the packet being sent arrives, unless it is lost.
    pub(super) fn next_landing(&self) -> Time {
        let at = self.departs + self.delay;
        if !self.flags.is_impaired {
            return if self.flags.overtakes { at } else { at.max(self.last_arrival) };
        }
        let Fate { offset, held_back, .. } = self.rare.fate;
        let delay = Span::from_nanos(self.delay.as_nanos().saturating_add_signed(offset));
        let at = self.departs + delay + held_back;
        if self.flags.overtakes { at } else { at.max(self.last_arrival) }
    }

    /// Moves the first waiting packet to the wire. Packets that arrive together stay in order of departure.
    fn fly(&mut self, at: Time, size: u32) {
        if self.flags.overtakes && self.flying > 0 {
            let index = self.index_on_wire(at);
            if index < self.flying
                && let Some(packet) = self.held.remove(self.flying)
            {
                self.held.insert(index, packet);
            }
        }
        self.flying += 1;
        self.flying_bytes += u64::from(size);
    }

    /// The index on the wire of a packet that arrives at `at`.
    fn index_on_wire(&self, at: Time) -> usize {
        let (mut least, mut most) = (0, self.flying);
        while least < most {
            let middle = usize::midpoint(least, most);
            if self.held[middle].time <= at {
                least = middle + 1;
            } else {
                most = middle;
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use anabranch_wire::Rate;

    use super::*;
    use crate::{LinkConfig, RateModel, Trace};

    fn us(micros: u64) -> Time {
        Time::from_nanos(micros * 1_000)
    }

    #[test]
    fn a_link_with_a_trace_is_busy_for_the_opportunities_that_it_uses() {
        let rate = RateModel::Trace(Arc::new(Trace::parse("1\n2\n3\n4\n").unwrap()));
        let mut link = Link::new(LinkConfig { rate, ..LinkConfig::default() });
        for number in 0..40 {
            // Just before each opportunity, a packet that needs half of it.
            link.enqueue(us(number * 1_000 + 900), 750, number, Ecn::NotCapable).unwrap();
        }
        assert_eq!(link.busy(us(50_000)), Span::from_millis(20));
        for number in 0..10 {
            link.enqueue(us(50_000), 1500, number, Ecn::NotCapable).unwrap();
        }
        for (at, busy) in [(51_000, 21_000), (55_500, 25_500), (61_000, 30_000), (70_000, 30_000)] {
            assert_eq!(link.busy(us(at)), Span::from_micros(busy), "{at}");
        }
        link.set_rate(us(70_000), RateModel::Fixed(Rate::from_mbit(12.0)));
        link.enqueue(us(80_000), 1500, 0, Ecn::NotCapable).unwrap();
        assert_eq!(link.busy(us(80_500)), Span::from_micros(30_500));
    }
}
