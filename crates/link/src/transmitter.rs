//! Sends packets one after the other: from a start and a size to a departure.
//!
//! A fixed rate may change in the middle of a packet. The rest of it is then counted in bits times nanoseconds, so that
//! a change is never rounded by more than a nanosecond.

use std::num::NonZeroU64;
use std::sync::Arc;

use anabranch_wire::{Rate, Span, Time};

use crate::trace::Playback;
use crate::{RateModel, Trace};

/// The rate model and the packet being sent.
#[derive(Clone, Debug)]
pub(crate) struct Transmitter {
    pace: Pace,
    /// Bytes of the packet being sent.
    bytes: u64,
    /// Start of the current rate, and the work left then, in bits × 10⁹.
    since: Time,
    left: u64,
}

#[derive(Clone, Debug)]
enum Pace {
    Unlimited,
    Fixed(Rate),
    Trace(Box<(Arc<Trace>, Playback)>),
}

impl From<RateModel> for Pace {
    fn from(rate: RateModel) -> Self {
        match rate {
            RateModel::Unlimited => Self::Unlimited,
            RateModel::Fixed(rate) => Self::Fixed(rate),
            RateModel::Trace(trace) => Self::Trace(Box::new((trace, Playback::new()))),
        }
    }
}

const NANOS: u64 = 1_000_000_000;

impl Transmitter {
    pub(crate) fn new(rate: RateModel) -> Self {
        Self { pace: rate.into(), bytes: 0, since: Time::ZERO, left: 0 }
    }

    /// Starts a packet at `start`; returns when its last bit leaves, [`Time::NEVER`] at rate zero.
    pub(crate) fn start(&mut self, start: Time, bytes: u64) -> Time {
        self.bytes = bytes;
        self.since = start;
        self.left = bytes.saturating_mul(8 * NANOS);
        match &mut self.pace {
            Pace::Unlimited => start,
            Pace::Fixed(rate) => start + rate.time_for(bytes),
            Pace::Trace(traced) => {
                let (trace, playback) = &mut **traced;
                playback.send(trace, start, bytes)
            }
        }
    }

    /// True when the time of a packet depends only on its size.
    pub(crate) fn is_regular(&self) -> bool {
        match self.pace {
            Pace::Unlimited => true,
            Pace::Fixed(rate) => rate != Rate::ZERO,
            Pace::Trace(_) => false,
        }
    }

    /// The time of a byte, if the rate is fixed and that is a whole number of nanoseconds.
    pub(crate) fn per_byte(&self) -> Option<NonZeroU64> {
        let Pace::Fixed(rate) = self.pace else { return None };
        (rate != Rate::ZERO && (8 * NANOS).is_multiple_of(rate.as_bits()))
            .then(|| NonZeroU64::new(8 * NANOS / rate.as_bits()))
            .flatten()
    }

    /// True on a trace.
    pub(crate) fn is_traced(&self) -> bool {
        matches!(self.pace, Pace::Trace(_))
    }

    /// On a trace, how much of it the packet being sent takes.
    pub(crate) fn used(&self) -> Option<Span> {
        if let Pace::Trace(traced) = &self.pace { Some(traced.1.used) } else { None }
    }

    /// How long these bytes take, if [`Self::is_regular`].
    pub(crate) fn time_for(&self, bytes: u64) -> Span {
        if let Pace::Fixed(rate) = self.pace { rate.time_for(bytes) } else { Span::ZERO }
    }

    /// Changes the rate while a packet is being sent; returns its new departure. From one fixed rate to another only the rest
    /// of it is sent; any other change starts the packet again.
    pub(crate) fn change_mid_packet(&mut self, now: Time, rate: RateModel) -> Time {
        let (Pace::Fixed(old), RateModel::Fixed(new)) = (&self.pace, &rate) else {
            self.change(rate);
            return self.start(now, self.bytes);
        };
        let done = now.since(self.since).as_nanos().saturating_mul(old.as_bits());
        self.left = self.left.saturating_sub(done);
        self.since = now;
        let departs = departure(now, self.left, *new);
        self.change(rate);
        departs
    }

    /// Changes the rate between packets.
    pub(crate) fn change(&mut self, rate: RateModel) {
        self.pace = rate.into();
    }
}

fn departure(now: Time, left: u64, rate: Rate) -> Time {
    if rate == Rate::ZERO {
        return Time::NEVER;
    }
    now + Span::from_nanos(left.div_ceil(rate.as_bits()))
}
