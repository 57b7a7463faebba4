//! When a path is doubted, probed and given up (mTCP §3.5 [M12], two steps of doubt).
//!
//! Three alarms, all counted from the silence of a path that owes acknowledgements:
//!
//! - **probe**: the oldest packet is overdue by the probe timeout. The path is probed, and with other
//!   paths at hand it is suspected. Repeats with doubled patience.
//! - **timeout**: nothing for a retransmission timeout. Only where suspicion is switched off: everything
//!   in flight is lost and the window is 1 (mTCP [M2, M3]).
//! - **failure**: nothing for χ retransmission timeouts [M12].
//!
//! The probe timer runs from the sending of the oldest packet still out, the other two from the last
//! acknowledgement, or from the first packet sent after everything was acknowledged; sending more puts
//! neither off.

use anabranch_cc::RttEstimator;
use anabranch_wire::{Span, Time};

use crate::config::Config;

/// Longest factor by which repeated timeouts stretch patience, as a power of two.
const MAX_BACKOFF: u32 = 6;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    /// Since when acknowledgements are owed without one having come.
    owed_since: Option<Time>,
    /// Probe timeouts since then.
    pub timeouts: u32,
    /// Retransmission timeouts since then.
    pub rtos: u32,
    /// Probes that may leave whatever the window says.
    pub probes_due: u32,
    /// When the next probe of a failed path leaves.
    pub next_probe: Option<Time>,
    probe_pause: Span,
    last_probe_timeout: Time,
    last_rto: Time,
    failed_at: Option<Time>,
}

/// What the clock says about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    Probe,
    Timeout,
    Failure,
}

impl Health {
    /// A packet that asks for an acknowledgement has left.
    pub(crate) fn on_sent(&mut self, now: Time) {
        self.owed_since.get_or_insert(now);
    }

    /// Something sent on the path was acknowledged; `more_out` when other packets still wait for that.
    pub(crate) fn on_ack(&mut self, now: Time, more_out: bool) {
        // The times of the last alarms stay: a packet that is overdue and neither acknowledged nor lost must
        // not raise one with every acknowledgement of others.
        let Self { last_probe_timeout, last_rto, .. } = *self;
        let owed_since = more_out.then_some(now);
        *self = Self { owed_since, last_probe_timeout, last_rto, ..Self::default() };
    }

    /// Nothing waits for an acknowledgement any more: what did was found lost.
    pub(crate) fn on_nothing_out(&mut self) {
        self.owed_since = None;
    }

    /// When a path next raises an alarm, and which: `out` when packets wait for an acknowledgement, of
    /// which the oldest left at `oldest`.
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
            let pto = rtt.pto(config.max_ack_delay) * (1 << self.timeouts.min(MAX_BACKOFF));
            let from = oldest.max(self.last_probe_timeout);
            (from + pto, Alarm::Probe)
        } else if out {
            // Every acknowledgement starts it anew (RFC 6298 §5.3): while they keep coming, a queue that
            // fills is no timeout.
            let from = silent_since.max(self.last_rto);
            // Where the variation is nil an acknowledgement held back as agreed would be late.
            (from + (rto + config.max_ack_delay) * (1 << self.rtos.min(MAX_BACKOFF)), Alarm::Timeout)
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

    /// The path has failed: probe it soon, then ever more rarely.
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

    /// A probe of a failed path has left.
    pub(crate) fn on_probe_sent(&mut self, now: Time, longest: Span) {
        self.probe_pause = (self.probe_pause * 2).min(longest);
        self.next_probe = Some(now + self.probe_pause);
    }
}
