//! The configuration of a link.

use std::sync::Arc;

use anabranch_wire::{Rate, Span, Time};

use crate::random::Random;
use crate::{CodelConfig, DropReason, LossModel, Trace};

/// One direction of a link. The default is perfect: no delay, unlimited rate, no loss.
///
/// Probabilities below zero (and NaN) count as zero, above one as one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// How fast packets are put on the wire.
    pub rate: RateModel,
    /// Time from the departure of the last bit to its arrival.
    pub delay: Span,
    /// How the delay varies.
    pub jitter: Jitter,
    /// Random loss. A lost packet has used its share of the rate.
    pub loss: LossModel,
    /// Where packets wait for the wire.
    pub queue: QueueModel,
    /// Bytes each packet takes in addition to its size, in the queue and on the wire: 28 for the IPv4 and UDP headers makes
    /// `rate` an IP rate, 66 an Ethernet line rate with preamble, checksum and gap.
    pub overhead: u32,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet arrives damaged.
    pub corrupt: f64,
    /// Packets that fall behind those sent after them.
    pub reorder: Reorder,
    /// Larger packets, without overhead, vanish silently; `None` for any size.
    pub mtu: Option<u32>,
    /// When the link is down: from the first time of each pair up to, but excluding, the second. Packets offered or
    /// departing meanwhile vanish silently.
    pub outages: Vec<(Time, Time)>,
    /// Seeds everything random.
    pub seed: u64,
}

impl LinkConfig {
    /// A link of fixed rate and delay with a drop-tail queue of this many bytes, perfect otherwise.
    pub fn fixed(rate: Rate, delay: Span, queue_bytes: u64) -> Self {
        let queue = QueueModel { limit: Limit::Bytes(queue_bytes), ..QueueModel::default() };
        Self { rate: RateModel::Fixed(rate), delay, queue, ..Self::default() }
    }
}

/// How fast packets are put on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RateModel {
    /// Immediately.
    #[default]
    Unlimited,
    /// One after the other at this rate. At rate zero they wait until it changes.
    Fixed(Rate),
    /// When the trace has an opportunity.
    Trace(Arc<Trace>),
}

/// How the delay varies from packet to packet. It never falls below zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    /// How the difference is distributed.
    pub shape: JitterShape,
    /// True when packets may overtake each other; otherwise each waits for those sent before it.
    pub overtakes: bool,
}

/// The distribution of the difference from a link's delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JitterShape {
    /// Every packet takes the same time.
    #[default]
    None,
    /// Up to this much more or less.
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

/// Where packets wait, and what happens to them when it is full. The packet being sent counts as waiting until its last
/// bit has left.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueModel {
    /// A packet that would exceed this is dropped.
    pub limit: Limit,
    /// Drops at random shortly before the limit, against phase effects between regular senders.
    pub random_drop: Option<RandomDrop>,
    /// Drops or marks by CoDel at the head.
    pub codel: Option<CodelConfig>,
    /// A packet capable of ECN that finds more than this is marked (as DCTCP asks of a switch, RFC 8257 §3.1).
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
    /// Whether a packet finds room that makes the queue this long.
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
    /// A thousand packets, as network interfaces have.
    fn default() -> Self {
        Self::Packets(1000)
    }
}

/// Random drop in a queue's last places, as htsim's `RandomQueue` does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomDrop {
    /// How many of the last places, in the unit of the queue's limit.
    pub places: u64,
    /// The probability of dropping a packet that would take one of them; 0.1 in htsim.
    pub probability: f64,
}

/// A packet's explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Can only be dropped.
    #[default]
    NotCapable,
    /// Can be marked instead.
    Capable,
    /// Was marked on an earlier link.
    Marked,
}
