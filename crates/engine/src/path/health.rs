//! When a path is suspected, probed and given up (mTCP §3.5 [M12]).
//!
//! Three alarms watch a path that owes acknowledgements:
//!
//! - **probe**: the oldest packet is overdue by the probe timeout. The path is probed, and suspected if
//!   another path is available. It repeats with doubled patience.
//! - **timeout**: no acknowledgement for a retransmission timeout. Only with suspicion switched off:
//!   everything in flight is lost and the window is 1 (mTCP [M2, M3]).
//! - **failure**: no acknowledgement for χ retransmission timeouts [M12].
//!
//! The probe timer starts when the oldest packet in flight left. The other two start at the last
//! acknowledgement, or at the first packet sent after everything was acknowledged. Sending more delays
//! neither.

use anabranch_cc::RttEstimator;
use anabranch_wire::{Span, Time};

use crate::config::Config;

/// Longest factor by which repeated timeouts stretch patience, as a power of two.
const MAX_BACKOFF: u32 = 6;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    /// Since when acknowledgements are owed and none has come.
    owed_since: Option<Time>,
    /// Probe timeouts since then.
    timeouts: u32,
    /// Retransmission timeouts since then.
    rtos: u32,
    /// Probes that may leave whatever the window says.
    probes_due: u32,
    /// When the next probe of a failed path leaves.
    next_probe: Option<Time>,
    probe_pause: Span,
    last_probe_timeout: Time,
    last_rto: Time,
    failed_at: Option<Time>,
    /// When a closing path is forgotten.
    forget_at: Time,
}

/// The consequence of a path's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    Probe,
    Timeout,
    Failure,
}

impl Health {
    /// Probe timeouts since an acknowledgement came last.
    pub(crate) fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// True while probes may leave whatever the window says.
    #[inline]
    pub(crate) fn wants_probe(&self) -> bool {
        self.probes_due > 0
    }

    /// When the next probe of a failed path leaves.
    pub(crate) fn next_probe(&self) -> Option<Time> {
        self.next_probe
    }

    /// Asks for one probe at least.
    pub(crate) fn want_probe(&mut self) {
        self.probes_due = self.probes_due.max(1);
    }

    /// Asks for exactly one probe.
    pub(crate) fn want_one_probe(&mut self) {
        self.probes_due = 1;
    }

    /// Takes one of the probes that are due.
    pub(crate) fn take_probe(&mut self) {
        self.probes_due -= 1;
    }

    /// A packet that asks for an acknowledgement has left.
    pub(crate) fn on_sent(&mut self, now: Time) {
        self.owed_since.get_or_insert(now);
    }

    /// Something sent on the path was acknowledged; `more_out` when other packets still wait for that.
    pub(crate) fn on_ack(&mut self, now: Time, more_out: bool) {
        // The times of the last alarms stay: an overdue packet that is neither acknowledged nor lost must not
        // raise an alarm with every acknowledgement of others.
        let Self { last_probe_timeout, last_rto, forget_at, .. } = *self;
        let owed_since = more_out.then_some(now);
        *self = Self { owed_since, last_probe_timeout, last_rto, forget_at, ..Self::default() };
    }

    /// Nothing waits for an acknowledgement any more: all of it was found lost.
    pub(crate) fn on_nothing_out(&mut self) {
        self.owed_since = None;
    }

    /// When the path raises its next alarm, and which. `out` when packets wait for an acknowledgement, the
    /// oldest of which left at `oldest`.
    pub(crate) fn next_alarm(
        &self,
        out: bool,
        oldest: impl FnOnce() -> Option<Time>,
        rtt: &RttEstimator,
        config: &Config,
    ) -> Option<(Time, Alarm)> {
        let silent_since = self.owed_since?;
        let rto = rtt.rto(config.failure.rto);
        let failure = (silent_since + rto.mul_f64(config.failure.chi), Alarm::Failure);
        let early = if config.failure.suspect {
            let Some(oldest) = oldest() else { return Some(failure) };
            let pto = rtt.pto(config.acks.max_delay) * (1 << self.timeouts.min(MAX_BACKOFF));
            let from = oldest.max(self.last_probe_timeout);
            (from + pto, Alarm::Probe)
        } else if out {
            // Every acknowledgement restarts it (RFC 6298 §5.3): a queue that fills while they keep coming is
            // no timeout.
            let from = silent_since.max(self.last_rto);
            // Without variation, an acknowledgement delayed as agreed would be late.
            (from + (rto + config.acks.max_delay) * (1 << self.rtos.min(MAX_BACKOFF)), Alarm::Timeout)
        } else {
            return Some(failure);
        };
        Some(if early.0 <= failure.0 { early } else { failure })
    }

    pub(crate) fn on_probe_timeout(&mut self, now: Time) {
        self.timeouts += 1;
        self.probes_due = if self.timeouts == 1 { 2 } else { 1 };
        self.last_probe_timeout = now;
    }

    pub(crate) fn on_timeout(&mut self, now: Time) {
        self.rtos += 1;
        self.timeouts += 1;
        self.last_rto = now;
    }

    /// The path has failed: probe it soon, then at growing intervals.
    pub(crate) fn on_failure(&mut self, now: Time, rtt: Span) {
        self.failed_at = Some(now);
        self.probe_pause = rtt.max(Span::from_millis(50));
        self.next_probe = Some(now + self.probe_pause);
        self.probes_due = 1;
    }

    /// When the path failed, unless it answered since.
    pub(crate) fn failed_at(&self) -> Option<Time> {
        self.failed_at
    }

    /// Late packets of a closing path count until `at`.
    pub(super) fn forget_path_at(&mut self, at: Time) {
        self.forget_at = at;
    }

    /// When a closing path is forgotten.
    pub(crate) fn forget_at(&self) -> Time {
        self.forget_at
    }

    /// A probe of a failed path has left.
    pub(crate) fn on_probe_sent(&mut self, now: Time, longest: Span) {
        self.probe_pause = (self.probe_pause * 2).min(longest);
        self.next_probe = Some(now + self.probe_pause);
    }
}
