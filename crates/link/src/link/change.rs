//! Changes while the link runs: rate, delay, loss, size, and whether it is cut.
//!
//! Whatever the journey of those depends on that have not left yet, changes for them too; what is on the wire arrives as it would have.

use anabranch_wire::{Span, Time};

use super::Link;
use crate::loss::Loss;
use crate::{LossModel, RateModel};

impl<T: Clone> Link<T> {
    /// Changes the rate, also for what is waiting and what is left of the packet on its way out.
    pub fn set_rate(&mut self, now: Time, rate: RateModel) {
        self.change(now, |link| {
            if link.sends {
                link.departs = link.transmitter.change_mid_packet(now, rate);
            } else {
                link.transmitter.change(rate);
            }
            link.known = (0, Span::ZERO);
            link.per_byte = link.transmitter.per_byte();
        });
    }

    /// Changes the delay of all that has not left yet.
    pub fn set_delay(&mut self, now: Time, delay: Span) {
        self.change(now, |link| link.delay = delay);
    }

    /// Changes random loss, from the next packet to leave on.
    pub fn set_loss(&mut self, now: Time, loss: LossModel) {
        self.change(now, |link| {
            link.rare.luck.loss = Loss::new(loss);
            // Once there is luck it stays: that of the packet on its way out was drawn already.
            link.has_luck |= link.rare.luck.is_needed();
        });
    }

    /// Changes the largest size that is carried, of packets offered from now on.
    pub fn set_mtu(&mut self, mtu: Option<u32>) {
        self.mtu = mtu.unwrap_or(u32::MAX);
    }

    /// Cuts the link, or mends it; scheduled outages stay. What is on the wire still arrives.
    pub fn set_down(&mut self, now: Time, down: bool) {
        self.change(now, |link| {
            link.rare.outages.ordered = down;
            link.has_outages = !link.rare.outages.is_over();
        });
    }

    /// Changes something on which the journey of those depends that have not left.
    fn change(&mut self, now: Time, change: impl FnOnce(&mut Self)) {
        self.catch_up(now);
        self.abandon_plan(now);
        change(self);
        self.is_plain = self.can_be_planned();
    }
}
