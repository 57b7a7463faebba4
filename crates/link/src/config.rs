//! What a link is like: everything that can be said of it before it carries a packet.

use std::sync::Arc;

use anabranch_wire::{Rate, Span, Time};

use crate::random::Random;
use crate::{CodelConfig, DropReason, LossModel, Trace};

/// One direction of a link. The default is a perfect one: no delay, no limit of rate, no loss.
///
/// Probabilities below zero (and NaN) count as zero, above one as one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// How fast packets are put on the wire.
    pub rate: RateModel,
    /// From the last bit's departure to its arrival.
    pub delay: Span,
    /// How the delay varies.
    pub jitter: Jitter,
    /// Random loss. A lost packet has used its share of the rate.
    pub loss: LossModel,
    /// Where packets wait for the wire.
    pub queue: QueueModel,
    /// Bytes each packet takes beyond its own size, in the queue and on the wire: 28 for the IPv4 and UDP
    /// headers makes `rate` an IP rate, 66 an Ethernet line rate with preamble, checksum and gap.
    pub overhead: u32,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet arrives damaged.
    pub corrupt: f64,
    /// Packets that fall behind those sent after them.
    pub reorder: Reorder,
    /// Packets of more bytes than this, overhead not counted, vanish without a sign; `None` for any size.
    pub mtu: Option<u32>,
    /// When the link is down, each from its first moment up to, and without, its second. What is offered
    /// or departs meanwhile vanishes without a sign.
    pub outages: Vec<(Time, Time)>,
    /// Decides all that is left to chance.
    pub seed: u64,
}

impl LinkConfig {
    /// A link of fixed rate and delay with a drop-tail queue of so many bytes, perfect otherwise.
    #[must_use]
    pub fn fixed(rate: Rate, delay: Span, queue_bytes: u64) -> Self {
        let queue = QueueModel { limit: Limit::Bytes(queue_bytes), ..QueueModel::default() };
        Self { rate: RateModel::Fixed(rate), delay, queue, ..Self::default() }
    }
}

/// How fast packets are put on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RateModel {
    /// At once.
    #[default]
    Unlimited,
    /// One after the other at this rate. At rate zero they wait until it changes.
    Fixed(Rate),
    /// When the trace has an opportunity.
    Trace(Arc<Trace>),
}

/// How the delay of one packet differs from the next one's. It never falls below zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    /// How the difference is distributed.
    pub shape: JitterShape,
    /// True when packets may overtake each other; otherwise one waits for those sent before it.
    pub overtakes: bool,
}

/// The distribution of the difference from a link's delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JitterShape {
    /// Every packet takes the same time.
    #[default]
    None,
    /// Anything up to this much more or less.
    Uniform(Span),
    /// Normal, with this standard deviation.
    Normal(Span),
}

/// Holds single packets back, so that those sent after them overtake.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reorder {
    /// The share of packets held back.
    pub probability: f64,
    /// How much later than the others they arrive.
    pub extra: Span,
}

/// Where packets wait, and what becomes of them when it is full. The packet being put on the wire counts
/// as waiting until its last bit has left.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueModel {
    /// A packet that would go beyond this is dropped.
    pub limit: Limit,
    /// Drops at random shortly before the limit, against phase effects between regular senders.
    pub random_drop: Option<RandomDrop>,
    /// Drops or marks by CoDel at the head.
    pub codel: Option<CodelConfig>,
    /// A packet capable of ECN that meets more than this is marked (as DCTCP asks of a switch, RFC 8257 §3.1).
    pub mark_above: Option<Limit>,
}

/// A length of queue, in one of two units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// In packets, whatever their size.
    Packets(u32),
    /// In bytes, overhead included.
    Bytes(u64),
}

impl Limit {
    /// Whether a packet finds room that makes the queue so many packets and bytes long.
    pub(crate) fn admit(
        self,
        (packets, bytes): (u64, u64),
        random_drop: Option<RandomDrop>,
        random: &mut Random,
    ) -> Result<(), DropReason> {
        let (filled, limit) = match self {
            Self::Packets(limit) => (packets, u64::from(limit)),
            Self::Bytes(limit) => (bytes, limit),
        };
        if filled > limit {
            return Err(DropReason::QueueFull);
        }
        let Some(last) = random_drop else { return Ok(()) };
        let in_last_places = filled > limit.saturating_sub(last.places);
        if in_last_places && random.chance(last.probability) {
            return Err(DropReason::RandomDrop);
        }
        Ok(())
    }
}

impl Default for Limit {
    /// A thousand packets, as a network interface has them.
    fn default() -> Self {
        Self::Packets(1000)
    }
}

/// Random drop in a queue's last places, as htsim's `RandomQueue` does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomDrop {
    /// How many of the last places, in the unit of the queue's limit.
    pub places: u64,
    /// With what probability a packet that would take one of them is dropped; 0.1 in htsim.
    pub probability: f64,
}

/// What a packet says of explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Can only be dropped.
    #[default]
    NotCapable,
    /// Can be marked instead.
    Capable,
    /// Was marked before it came here.
    Marked,
}
