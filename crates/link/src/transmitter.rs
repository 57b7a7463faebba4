//! Puts one packet after the other on the wire: from a start and a size to a departure.
//!
//! Under a fixed rate the rate may change while a packet is half out. What is left of it is then
//! kept as bits times nanoseconds, so that no change is rounded more than a nanosecond.

use anabranch_wire::{Rate, Time};

use crate::RateModel;
use crate::trace::Playback;

/// The rate model and the packet that is on its way out.
#[derive(Clone, Debug)]
pub(crate) struct Transmitter {
    rate: RateModel,
    playback: Playback,
    /// Bytes of the packet on its way out.
    bytes: u64,
    /// Since when it went out at the present rate, and what was left then, in bits × 10⁹.
    since: Time,
    left: u128,
}

const NANOS: u128 = 1_000_000_000;

impl Transmitter {
    pub(crate) fn new(rate: RateModel) -> Self {
        Self { rate, playback: Playback::new(), bytes: 0, since: Time::ZERO, left: 0 }
    }

    /// Begins a packet at `start` and tells when its last bit leaves; [`Time::NEVER`] at rate zero.
    pub(crate) fn start(&mut self, start: Time, bytes: u64) -> Time {
        self.bytes = bytes;
        self.since = start;
        self.left = u128::from(bytes) * 8 * NANOS;
        match &self.rate {
            RateModel::Unlimited => start,
            RateModel::Fixed(rate) => start + rate.time_for(bytes),
            RateModel::Trace(trace) => self.playback.send(trace, start, bytes),
        }
    }

    /// Changes the rate while a packet is on its way out; returns its new departure. A fixed rate
    /// takes over what is left of it; any other change begins the packet anew.
    pub(crate) fn change_mid_packet(&mut self, now: Time, rate: RateModel) -> Time {
        let (RateModel::Fixed(old), RateModel::Fixed(new)) = (&self.rate, &rate) else {
            self.change(rate);
            return self.start(now, self.bytes);
        };
        let done = u128::from(now.since(self.since).as_nanos()) * u128::from(old.as_bits());
        self.left = self.left.saturating_sub(done);
        self.since = now;
        let departs = departure(now, self.left, *new);
        self.rate = rate;
        departs
    }

    /// Changes the rate between packets.
    pub(crate) fn change(&mut self, rate: RateModel) {
        self.rate = rate;
        self.playback = Playback::new();
    }
}

fn departure(now: Time, left: u128, rate: Rate) -> Time {
    if rate == Rate::ZERO {
        return Time::NEVER;
    }
    let nanos = left.div_ceil(u128::from(rate.as_bits())).min(u128::from(u64::MAX)) as u64;
    now + anabranch_wire::Span::from_nanos(nanos)
}
