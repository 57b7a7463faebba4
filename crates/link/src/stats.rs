//! The counts of a link.

use std::ops::{Add, Sub};

use anabranch_wire::Span;

/// Counts since the link was made. Bytes are as given at enqueue, without the overhead.
///
/// The fields that every packet changes come first and fill a cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LinkStats {
    /// Packets offered, accepted or not.
    pub offered: Tally,
    /// Packets that came out at the far end, including duplicates.
    pub delivered: Tally,
    /// The longest queue in packets.
    pub max_queue_packets: usize,
    /// The longest queue in bytes, overhead included.
    pub max_queue_bytes: u64,
    /// Total time that `waits` packets waited for the wire.
    pub wait_total: Span,
    /// Packets that reached the wire, and those whose departure is planned.
    pub waits: u64,
    /// Packets dropped, by reason.
    pub dropped: DropCounts,
    /// Packets marked by this link for congestion.
    pub marked: u64,
    /// Packets delivered twice.
    pub duplicated: u64,
    /// Packets delivered damaged, counting each copy.
    pub corrupted: u64,
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many packets.
    pub packets: u64,
    /// How many bytes in all.
    pub bytes: u64,
}

impl Tally {
    /// Counts a packet of this many bytes.
    pub fn count(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }
}

impl Add for Tally {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

impl Sub for Tally {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self { packets: self.packets - other.packets, bytes: self.bytes - other.bytes }
    }
}

/// Why a packet did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    QueueFull,
    /// It would have taken one of the queue's last places and was dropped at random.
    RandomDrop,
    /// CoDel dropped it at the head.
    Codel,
    /// It was lost on the wire.
    Loss,
    /// The link was down.
    Outage,
    /// It was larger than the link carries.
    TooLarge,
}

/// Packets dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// [`DropReason::QueueFull`]
    pub queue_full: u64,
    /// [`DropReason::RandomDrop`]
    pub random_drop: u64,
    /// [`DropReason::Codel`]
    pub codel: u64,
    /// [`DropReason::Loss`]
    pub loss: u64,
    /// [`DropReason::Outage`]
    pub outage: u64,
    /// [`DropReason::TooLarge`]
    pub too_large: u64,
}

impl DropCounts {
    /// All drops together.
    pub fn total(&self) -> u64 {
        self.queue_full + self.random_drop + self.codel + self.loss + self.outage + self.too_large
    }

    pub(crate) fn count(&mut self, why: DropReason) {
        match why {
            DropReason::QueueFull => self.queue_full += 1,
            DropReason::RandomDrop => self.random_drop += 1,
            DropReason::Codel => self.codel += 1,
            DropReason::Loss => self.loss += 1,
            DropReason::Outage => self.outage += 1,
            DropReason::TooLarge => self.too_large += 1,
        }
    }
}
