//! One congestion window: its size, where slow start ends, the episode it recovers from, and how to undo.

use anabranch_wire::{PathId, Time};

use crate::rules::Memory;
use crate::slow_start::HyStart;

/// One in so many bytes lost of what was out tells that slow start went too far.
const OVERSHOOT: f64 = 8.0;

/// A window and what belongs to it. Under most rules each path has one; under `combined` the session has one.
///
/// What every acknowledgement needs lies in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Window {
    /// Bytes that may be outstanding. Always finite and within its bounds.
    pub(crate) bytes: f64,
    /// Below this many bytes the window is in slow start; infinite before the first loss.
    pub(crate) ssthresh: f64,
    /// The increase in force.
    pub(crate) gain: Gain,
    /// When the last reduction was made: losses of packets sent before are of the same episode.
    pub(crate) reduced_at: Option<Time>,
    /// True from a timeout until something sent after it is acknowledged: a second timeout in a row keeps the
    /// `ssthresh` (RFC 5681 §3.1).
    pub(crate) timed_out: bool,
    /// What the rule remembers of this window.
    pub(crate) memory: Memory,
    /// Watches the first slow start; gone once it was left.
    pub(crate) hystart: Option<HyStart>,
    undo: Option<Box<Undo>>,
}

/// What a rule gave, kept until the window has grown by a packet [P2], a round trip is over or others were reduced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gain {
    /// Packets that the window grows by for each window of packets acknowledged.
    pub(crate) share: f64,
    /// The window, in packets, that it was computed at.
    pub(crate) at: f64,
    /// When the round trip is over.
    pub(crate) until: Time,
    /// The controller's count of reductions that it was computed at.
    pub(crate) epoch: u64,
}

impl Gain {
    /// One that has to be computed.
    const STALE: Self = Self { share: 0.0, at: 0.0, until: Time::ZERO, epoch: 0 };

    /// True while it may be used for a window of so many packets.
    pub(crate) fn is_fresh(&self, now: Time, epoch: u64, packets: f64) -> bool {
        self.epoch == epoch && now < self.until && (packets - self.at).abs() < 1.0
    }
}

/// What a window was before its last reduction.
#[derive(Clone, Debug)]
struct Undo {
    bytes: f64,
    ssthresh: f64,
    hystart: Option<HyStart>,
    memory: Memory,
    reduced_at: Option<Time>,
    gifts: f64,
    /// The path whose loss it was for, if that is another.
    by: Option<PathId>,
    /// It was in slow start.
    slow_start: bool,
    /// The share of it that the loss left.
    left: f64,
    /// Bytes found lost since, of those that were out.
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

    /// True when a packet sent at `sent_at` left before the last reduction (RFC 9002 §7.3.2).
    pub(crate) fn reduced_since(&self, sent_at: Time) -> bool {
        self.reduced_at.is_some_and(|reduced| sent_at <= reduced)
    }

    /// Keeps what is needed to take back the reduction that follows.
    pub(crate) fn remember(&mut self) {
        let undo = Undo {
            bytes: self.bytes,
            ssthresh: self.ssthresh,
            hystart: self.hystart,
            memory: self.memory,
            reduced_at: self.reduced_at,
            gifts: 0.0,
            by: None,
            slow_start: self.in_slow_start(),
            left: 1.0,
            lost: 0.0,
        };
        match &mut self.undo {
            Some(known) => **known = undo,
            None => self.undo = Some(Box::new(undo)),
        }
    }

    /// Notes the share of the window that the reduction left.
    pub(crate) fn left(&mut self) {
        if let Some(undo) = &mut self.undo {
            undo.left = self.bytes / undo.bytes;
        }
    }

    /// More of what was out is found lost. After slow start, which may have gone to twice what the path holds, the window is what
    /// the loss leaves of what did get through, half of it at least: answers it, in bytes.
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

    /// Notes that the reduction gave `bytes` to other paths.
    pub(crate) fn gave(&mut self, bytes: f64) {
        if let Some(undo) = &mut self.undo {
            undo.gifts = bytes;
        }
    }

    /// Notes that the reduction was for a loss on another path.
    pub(crate) fn reduced_by(&mut self, other: PathId) {
        if let Some(undo) = &mut self.undo {
            undo.by = Some(other);
        }
    }

    /// Takes the last reduction back if it was for a loss on that path.
    pub(crate) fn take_back_from(&mut self, other: PathId) -> bool {
        self.undo.as_ref().is_some_and(|undo| undo.by == Some(other)) && self.undo().is_some()
    }

    /// Takes the last reduction back, keeping what was gained since (RFC 4015 §3.2); answers what it had given
    /// to other paths, or `None` when there is nothing to take back.
    pub(crate) fn undo(&mut self) -> Option<f64> {
        let undo = self.undo.take()?;
        self.bytes = self.bytes.max(undo.bytes);
        self.ssthresh = self.ssthresh.max(undo.ssthresh);
        self.hystart = undo.hystart;
        self.memory = undo.memory;
        self.reduced_at = undo.reduced_at;
        self.timed_out = false;
        self.gain = Gain::STALE;
        Some(undo.gifts)
    }

    /// Ends slow start here.
    pub(crate) fn leave_slow_start(&mut self) {
        self.ssthresh = self.bytes;
        self.hystart = None;
    }
}
