//! Control frames that must arrive.
//!
//! A lost control frame is not stored for retransmission. Its key becomes pending again, and its owner writes the frame
//! with the values that are current when it leaves.

use std::collections::BTreeSet;

use anabranch_wire::{PathId, StreamId};

/// The key of a control frame. Keys are in the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Control {
    AckPath,
    NewPid(PathId),
    PathAbandon(PathId),
    PathStatus(PathId),
    MaxPathData(PathId),
    MaxPathRate(PathId),
    ResetStream(StreamId),
    StopSending(StreamId),
    MaxData,
    MaxStreamData(StreamId),
    MaxStreams,
    KeyExchange,
    AddAddress(u64),
    RemoveAddress(u64),
    ObservedAddress(PathId),
    Shutdown,
    ShutdownAck,
}

/// The control frames that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct ControlQueue {
    pending: BTreeSet<Control>,
}

impl ControlQueue {
    pub(crate) fn push(&mut self, control: Control) {
        self.pending.insert(control);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn first(&self) -> Option<Control> {
        self.pending.first().copied()
    }

    /// The first pending frame after `last`.
    pub(crate) fn after(&self, last: Option<Control>) -> Option<Control> {
        match last {
            None => self.first(),
            Some(last) => {
                let beyond = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
                self.pending.range(beyond).next().copied()
            }
        }
    }

    pub(crate) fn remove(&mut self, control: Control) {
        self.pending.remove(&control);
    }
}
