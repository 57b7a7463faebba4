//! The link model: what happens to a packet between the two ends of a wire, in one direction.
//!
//! A packet offered to a [`Link`] passes these stages, each of them optional:
//!
//! ```text
//! enqueue -> down? -> queue: limit, random drop, mark -> CoDel -> transmitter: rate or trace
//!         -> down? lost? -> delay, jitter, held back, doubled, damaged -> pop
//! ```
//!
//! A link has no clock: time is an argument, so the same link works in a simulator's virtual time and between real
//! sockets. It computes lazily what happened between two calls, in the order in which it happened, so the calls a driver
//! makes do not change the result. A driver needs one timer a link, at [`Link::next_arrival`]. A [`PlainLink`] needs none.

mod codel;
mod config;
mod impairments;
mod link;
mod loss;
mod outages;
mod plain;
mod random;
mod sizes;
mod stats;
mod trace;
mod transmitter;

pub use codel::CodelConfig;
pub use config::{Ecn, Jitter, JitterShape, Limit, LinkConfig, QueueModel, RandomDrop, RateModel, Reorder};
pub use link::{Arrival, Link};
pub use loss::LossModel;
pub use plain::PlainLink;
pub use stats::{DropCounts, DropReason, LinkStats, Tally};
pub use trace::{MAX_TRACE_LINES, OPPORTUNITY_BYTES, Trace, TraceError};

use anabranch_wire::{Rate, Span};

/// The bandwidth–delay product: bytes in flight that keep a link busy over a round trip.
pub fn bdp_bytes(rate: Rate, rtt: Span) -> u64 {
    rate.bytes_in(rtt)
}
