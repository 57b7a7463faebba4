//! Control frames that must arrive: what is pending, made from the state of the moment when it is sent.
//!
//! A lost control frame is not stored and sent again; its key is pending again, and the frame is built
//! anew from what is true by then.

use std::collections::BTreeSet;

use anabranch_wire::{PathId, StreamId};

/// Names one control frame; the order is the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Control {
    AckPath,
    NewPid(PathId),
    PathAbandon(PathId),
    PathStatus(PathId),
    MaxPathData(PathId),
    ResetStream(StreamId),
    StopSending(StreamId),
    MaxData,
    MaxStreamData(StreamId),
    MaxStreams,
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
