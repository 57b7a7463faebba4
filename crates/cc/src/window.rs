//! One congestion window: its size, the end of its slow start, its last reduction and how to undo it.

use anabranch_wire::{PathId, Time};

use crate::rules::Memory;
use crate::slow_start::HyStart;

/// Slow start overshot when at least one in this many outstanding bytes was lost.
const OVERSHOOT: f64 = 8.0;

/// A window and its state. Under most rules each path has one; under `combined` the session has one.
///
/// The fields that every acknowledgement needs come first.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Window {
    /// Bytes that may be outstanding: always finite and within the bounds.
    pub(crate) bytes: f64,
    /// Below this many bytes the window is in slow start; infinite before the first loss.
    pub(crate) ssthresh: f64,
    /// The current increase.
    pub(crate) gain: Gain,
    /// Time of the last reduction: losses of packets sent before belong to the same episode.
    pub(crate) reduced_at: Option<Time>,
    /// True from a timeout until a packet sent after it is acknowledged: a second timeout in a row keeps the `ssthresh`
    /// (RFC 5681 §3.1).
    pub(crate) timed_out: bool,
    /// The rule's state for this window.
    pub(crate) memory: Memory,
    /// Watches the first slow start; `None` after it.
    pub(crate) hystart: Option<HyStart>,
    undo: Option<Box<Undo>>,
}

/// A rule's increase, cached until the window has grown by a packet [P2], a round trip passes or a window was reduced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gain {
    /// Packets by which the window grows for each window of packets acknowledged.
    pub(crate) share: f64,
    /// The window in packets for which it was computed.
    pub(crate) at: f64,
    /// When the round trip ends.
    pub(crate) until: Time,
    /// The controller's epoch when it was computed.
    pub(crate) epoch: u64,
}

impl Gain {
    /// One that must be computed.
    const STALE: Self = Self { share: 0.0, at: 0.0, until: Time::ZERO, epoch: 0 };

    /// True while it is valid for a window of this many packets.
    pub(crate) fn is_fresh(&self, now: Time, epoch: u64, packets: f64) -> bool {
        self.epoch == epoch && now < self.until && (packets - self.at).abs() < 1.0
    }
}

/// A window before its last reduction.
#[derive(Clone, Debug)]
struct Undo {
    bytes: f64,
    ssthresh: f64,
    hystart: Option<HyStart>,
    memory: Memory,
    reduced_at: Option<Time>,
    given: f64,
    /// The path whose loss caused the reduction, if it is another one.
    by: Option<PathId>,
    /// Whether it was in slow start.
    slow_start: bool,
    /// Whether the reduction was a cut for the path's own queue, under `auto`.
    is_cut: bool,
    /// A packet from before the cut was lost, and no reduction has answered that.
    earlier_loss: bool,
    /// The share of the window that the loss left.
    left: f64,
    /// Bytes found lost since then, of those outstanding at the loss.
    lost: f64,
}

impl Window {
    pub(crate) fn new(bytes: f64, hystart: bool, memory: Memory) -> Self {
        Self {
            bytes,
            ssthresh: f64::INFINITY,
            hystart: hystart.then(HyStart::new),
            memory,
            reduced_at: None,
            timed_out: false,
            gain: Gain::STALE,
            undo: None,
        }
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.bytes < self.ssthresh
    }

    /// True when a packet sent at `sent_at` was sent before the last reduction (RFC 9002 §7.3.2).
    pub(crate) fn reduced_since(&self, sent_at: Time) -> bool {
        self.reduced_at.is_some_and(|reduced| sent_at <= reduced)
    }

    /// Saves the state before a reduction.
    pub(crate) fn remember(&mut self) {
        let undo = Undo {
            bytes: self.bytes,
            ssthresh: self.ssthresh,
            hystart: self.hystart,
            memory: self.memory,
            reduced_at: self.reduced_at,
            given: 0.0,
            by: None,
            slow_start: self.in_slow_start(),
            is_cut: false,
            earlier_loss: false,
            left: 1.0,
            lost: 0.0,
        };
        match &mut self.undo {
            Some(known) => **known = undo,
            None => self.undo = Some(Box::new(undo)),
        }
    }

    /// Records that the reduction was a cut for the path's own queue.
    pub(crate) fn note_cut(&mut self) {
        if let Some(undo) = &mut self.undo {
            undo.is_cut = true;
        }
    }

    /// True if the last reduction was a cut for the path's own queue.
    pub(crate) fn was_cut(&self) -> bool {
        self.undo.as_ref().is_some_and(|undo| undo.is_cut)
    }

    /// Records the loss of a packet that was sent at `sent_at`, before the last reduction. If that was a cut, the loss
    /// is another reason, unless it belongs to the episode before.
    pub(crate) fn note_earlier_loss(&mut self, sent_at: Time) {
        if let Some(undo) = self.undo.as_mut().filter(|undo| undo.is_cut) {
            undo.earlier_loss |= undo.reduced_at.is_none_or(|reduced| sent_at > reduced);
        }
    }

    /// True if a packet from before the last reduction, a cut, was lost.
    pub(crate) fn has_earlier_loss(&self) -> bool {
        self.undo.as_ref().is_some_and(|undo| undo.earlier_loss)
    }

    /// Forgets that loss: the packet has arrived.
    pub(crate) fn forget_earlier_loss(&mut self) {
        if let Some(undo) = &mut self.undo {
            undo.earlier_loss = false;
        }
    }

    /// Saves the share of the window that the reduction left.
    pub(crate) fn left(&mut self) {
        if let Some(undo) = &mut self.undo {
            undo.left = self.bytes / undo.bytes;
        }
    }

    /// Counts further lost bytes of those outstanding at the reduction. After slow start, which may reach twice the
    /// path's capacity, returns the window for the bytes delivered, or half the window if that is more.
    pub(crate) fn overshot(&mut self, lost_bytes: f64, mss: f64) -> Option<f64> {
        let undo = self.undo.as_mut().filter(|undo| undo.slow_start)?;
        undo.lost += lost_bytes;
        if undo.lost * OVERSHOOT < undo.bytes {
            return None;
        }
        let held = (undo.bytes - undo.lost).max(undo.bytes / 2.0);
        let mut memory = undo.memory;
        let left = memory.on_loss(held / mss).map_or(held * undo.left, |packets| packets * mss);
        self.memory = memory;
        Some(left)
    }

    /// Saves the bytes that the reduction set_given to other paths.
    pub(crate) fn set_given(&mut self, bytes: f64) {
        if let Some(undo) = &mut self.undo {
            undo.given = bytes;
        }
    }

    /// Records that the reduction was for a loss on another path.
    pub(crate) fn reduced_by(&mut self, other: PathId) {
        if let Some(undo) = &mut self.undo {
            undo.by = Some(other);
        }
    }

    /// Undoes the last reduction if it was for a loss on `other`.
    pub(crate) fn take_back_from(&mut self, other: PathId) -> bool {
        self.undo.as_ref().is_some_and(|undo| undo.by == Some(other)) && self.undo().is_some()
    }

    /// Undoes the last reduction, keeping the growth since (RFC 4015 §3.2). Returns the bytes it had given to other
    /// paths, or `None` without a reduction to undo.
    pub(crate) fn undo(&mut self) -> Option<f64> {
        let undo = self.undo.take()?;
        self.bytes = self.bytes.max(undo.bytes);
        self.ssthresh = self.ssthresh.max(undo.ssthresh);
        self.hystart = undo.hystart;
        self.memory = undo.memory;
        self.reduced_at = undo.reduced_at;
        self.timed_out = false;
        self.gain = Gain::STALE;
        Some(undo.given)
    }

    /// Ends slow start here.
    pub(crate) fn leave_slow_start(&mut self) {
        self.ssthresh = self.bytes;
        self.hystart = None;
    }
}
