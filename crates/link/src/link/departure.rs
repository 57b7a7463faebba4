//! Packets that leave one by one: CoDel's judgement, luck, outages, and where they then are on the wire.

use anabranch_wire::{Span, Time};

use super::{Held, Link, Rare};
use crate::codel::Head;
use crate::luck::Drawn;
use crate::{DropReason, Ecn};

impl<T: Clone> Link<T> {
    /// Lets happen all that was to happen up to `now`.
    #[inline]
    pub(super) fn catch_up(&mut self, now: Time) {
        if self.is_planned {
            self.settle(now);
        } else if self.departs <= now {
            self.let_depart(now);
        }
    }

    fn let_depart(&mut self, now: Time) {
        while self.departs <= now {
            let departed = self.departs;
            if self.has_luck || self.has_outages {
                self.depart_by_luck();
            } else {
                self.depart();
            }
            self.last_departure = departed;
            self.begin_next(departed);
        }
    }

    /// Begins to send the first packet that CoDel lets pass.
    pub(super) fn begin_next(&mut self, start: Time) {
        while let Some(head) = self.held.get(self.flying) {
            let waited = start.since(head.time);
            let bytes = self.on_wire(head.size);
            if self.is_managed && self.codel_condemns(start, waited) {
                self.drop_head();
                continue;
            }
            self.stats.waits += 1;
            self.stats.wait_total += waited;
            self.departs = self.transmitter.start(start, bytes);
            self.sends = true;
            if self.has_luck {
                self.rare.drawn = self.rare.luck.draw();
            }
            return;
        }
        (self.departs, self.sends) = (Time::NEVER, false);
        if self.is_managed
            && let Some(codel) = &mut self.rare.codel
        {
            codel.on_empty();
        }
    }

    /// True when CoDel wants the head dropped; marks it instead where it can.
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
            self.has_lost = true;
        }
    }

    /// The last bit of the first packet leaves.
    fn depart(&mut self) {
        let at = self.next_landing();
        self.last_arrival = self.last_arrival.max(at);
        let Some(packet) = self.held.get_mut(self.flying) else { return };
        packet.time = at;
        let size = packet.size;
        self.queued_bytes -= self.on_wire(size);
        self.fly(at, size);
    }

    /// The same where more may happen to it.
    fn depart_by_luck(&mut self) {
        let luck = if self.has_luck { self.rare.drawn } else { Drawn::default() };
        let is_cut = self.is_down(self.departs);
        if is_cut || luck.lost {
            // It keeps its place in the order, so that the ones behind it cannot come before it would have.
            self.last_arrival = self.last_arrival.max(self.next_landing());
            let Some(packet) = self.held.remove(self.flying) else { return };
            self.queued_bytes -= self.on_wire(packet.size);
            return self.lose(packet.item, if is_cut { DropReason::Outage } else { DropReason::Loss });
        }
        let Some(packet) = self.held.get_mut(self.flying) else { return };
        packet.corrupt = luck.corrupt;
        let twin = luck.duplicate.then(|| packet.clone());
        self.depart();
        if let Some(twin) = twin {
            self.stats.duplicated += 1;
            let (at, size) = (self.next_landing(), twin.size);
            self.held.insert(self.flying, Held { time: at, ..twin });
            self.fly(at, size);
        }
    }

    /// When the packet that is on its way out arrives, if it does.
    pub(super) fn next_landing(&self) -> Time {
        let at = self.departs + self.delay;
        if !self.has_luck {
            return if self.overtakes { at } else { at.max(self.last_arrival) };
        }
        let Drawn { offset, held_back, .. } = self.rare.drawn;
        let delay = Span::from_nanos(self.delay.as_nanos().saturating_add_signed(offset));
        let at = self.departs + delay + held_back;
        if self.overtakes { at } else { at.max(self.last_arrival) }
    }

    /// Puts the first that waits among those on the wire. Packets that arrive together stay in order of departure.
    fn fly(&mut self, at: Time, size: u32) {
        if self.overtakes && self.flying > 0 {
            let place = self.place_on_wire(at);
            if place < self.flying
                && let Some(packet) = self.held.remove(self.flying)
            {
                self.held.insert(place, packet);
            }
        }
        self.flying += 1;
        self.flying_bytes += u64::from(size);
    }

    /// Where a packet that arrives then belongs among those on the wire.
    fn place_on_wire(&self, at: Time) -> usize {
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
