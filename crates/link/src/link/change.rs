//! Changes while the link runs: rate, delay, loss, size, and outages.
//!
//! A change applies to all packets that have not left yet; packets on the wire arrive as planned.

use anabranch_wire::{Span, Time};

use super::Link;
use crate::loss::Loss;
use crate::{LossModel, RateModel};

impl<T: Clone> Link<T> {
    /// Changes the rate, also for waiting packets and the rest of the packet being sent.
    pub fn set_rate(&mut self, now: Time, rate: RateModel) {
        self.change(now, |link| {
            let (busy, was_traced) = (link.busy(now), link.transmitter.is_traced());
            if link.flags.sends {
                link.departs = link.transmitter.change_mid_packet(now, rate);
            } else {
                link.transmitter.change(rate);
            }
            link.last_time = (0, Span::ZERO);
            link.per_byte = link.transmitter.per_byte();
            if was_traced || link.transmitter.is_traced() {
                link.continue_busy(now, busy);
            }
        });
    }

    /// Counts busy time from `busy` on.
    fn continue_busy(&mut self, now: Time, busy: Span) {
        self.idle = now.since(Time::ZERO + busy);
        self.rare.slots_until = now;
        if !self.flags.sends {
            self.last_departure = self.last_departure.max(now);
        }
    }

    /// Changes the delay of all packets that have not left yet.
    pub fn set_delay(&mut self, now: Time, delay: Span) {
        self.change(now, |link| link.delay = delay);
    }

    /// Changes random loss, from the next departure on.
    pub fn set_loss(&mut self, now: Time, loss: LossModel) {
        self.change(now, |link| {
            link.rare.impairments.loss = Loss::new(loss);
            // Impairments, once on, stay on: the fate of the packet being sent has been drawn.
            link.flags.is_impaired |= link.rare.impairments.is_needed();
        });
    }

    /// Changes the largest size carried, for packets offered from now on.
    pub fn set_mtu(&mut self, mtu: Option<u32>) {
        self.mtu = mtu.unwrap_or(u32::MAX);
    }

    /// Cuts or restores the link; scheduled outages stay. Packets on the wire still arrive.
    pub fn set_down(&mut self, now: Time, down: bool) {
        self.change(now, |link| {
            link.rare.outages.is_cut = down;
            link.flags.has_outages = !link.rare.outages.is_over();
        });
    }

    /// Applies a change that affects packets that have not left.
    fn change(&mut self, now: Time, change: impl FnOnce(&mut Self)) {
        self.catch_up(now);
        self.abandon_plan(now);
        change(self);
        self.flags.is_plain = self.can_be_planned();
    }
}
