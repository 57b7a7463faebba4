//! Decides when a path is suspected, probed and given up (mTCP §3.5 [M12]).
//!
//! Three alarms watch a path with outstanding acknowledgements:
//!
//! - **probe**: the oldest packet is overdue by the probe timeout. The path is probed, and suspected if another path is
//!   available. Each repetition doubles the timeout.
//! - **timeout**: no acknowledgement for a retransmission timeout, if suspicion is disabled. Everything in flight is
//!   lost, and the window is 1 (mTCP [M2, M3]).
//! - **failure**: no acknowledgement for χ retransmission timeouts [M12].
//!
//! The probe timer starts when the oldest packet in flight was sent. The other two start at the last acknowledgement,
//! or at the first packet sent after everything was acknowledged. Sending more packets restarts none of them.
//!
//! A suspicion is expensive: everything in flight leaves on other paths as well. Radio links often pause and lose
//! nothing. So a path that answers soon after a probe timeout gets *patience*: its next probe timeouts are later by the
//! delay of the answer, by one round trip at most, for ten seconds.

use anabranch_cc::RttEstimator;
use anabranch_wire::{Span, Time};

use super::lull::Lull;
use crate::config::Config;

/// Largest factor by which repeated timeouts grow, as a power of two.
const MAX_BACKOFF: u32 = 6;
/// How long a path stays patient after a pause.
const PATIENT: Span = Span::from_secs(10);
/// The longest pause between two probes that ask for a higher limit: few bytes are left for them.
const LONGEST_WAIT: Span = Span::from_secs(60);
/// The next pause may be longer than those before by this factor.
const LONGER: f64 = 1.25;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    /// Since when acknowledgements have been outstanding, without one arriving.
    owed_since: Option<Time>,
    /// Probe timeouts since then.
    timeouts: u32,
    /// Retransmission timeouts since then.
    rtos: u32,
    /// Probes that may be sent beyond the window.
    probes_due: u32,
    /// When to send the next probe of a failed path.
    next_probe: Option<Time>,
    probe_pause: Span,
    last_probe_timeout: Time,
    last_rto: Time,
    failed_at: Option<Time>,
    /// When a closing path is forgotten.
    forget_at: Time,
    /// Added to the probe timeout until [`Self::patient_until`].
    patience: Span,
    patient_until: Time,
    lull: Lull,
    credit: AwaitedCredit,
}

/// The wait for a higher limit of the peer. Packets that were lost last are unknown to the peer until another arrives,
/// so it may not know that its limit is reached.
#[derive(Clone, Copy, Debug)]
struct AwaitedCredit {
    /// When to send the next probe.
    ask_at: Time,
    pause: Span,
}

impl Default for AwaitedCredit {
    fn default() -> Self {
        Self { ask_at: Time::NEVER, pause: Span::ZERO }
    }
}

/// The consequence of a path's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alarm {
    Probe,
    Timeout,
    Failure,
}

impl Health {
    /// Probe timeouts since the last acknowledgement.
    pub(crate) fn timeouts(&self) -> u32 {
        self.timeouts
    }

    /// True while probes may be sent beyond the window.
    #[inline]
    pub(crate) fn wants_probe(&self) -> bool {
        self.probes_due > 0
    }

    /// When to send the next probe of a failed path.
    pub(crate) fn next_probe(&self) -> Option<Time> {
        self.next_probe
    }

    pub(crate) fn lull(&mut self) -> &mut Lull {
        &mut self.lull
    }

    /// Requests at least one probe.
    pub(crate) fn want_probe(&mut self) {
        self.probes_due = self.probes_due.max(1);
    }

    /// Requests exactly one probe.
    pub(crate) fn want_one_probe(&mut self) {
        self.probes_due = 1;
    }

    /// Uses up one of the due probes.
    pub(crate) fn take_probe(&mut self) {
        self.probes_due -= 1;
    }

    /// Records that a packet was sent that asks for an acknowledgement.
    pub(crate) fn on_sent(&mut self, now: Time) {
        self.owed_since.get_or_insert(now);
    }

    /// Records an acknowledgement; `more_out` if other packets still wait for one.
    pub(crate) fn on_ack(&mut self, now: Time, more_out: bool) {
        // Keep the times of the last alarms: an overdue packet that is neither acknowledged nor lost must not raise an
        // alarm at every acknowledgement of others.
        let Self { last_probe_timeout, last_rto, forget_at, patience, patient_until, lull, credit, .. } =
            *self;
        let owed_since = more_out.then_some(now);
        *self = Self {
            owed_since,
            last_probe_timeout,
            last_rto,
            forget_at,
            patience,
            patient_until,
            lull,
            credit,
            ..Self::default()
        };
    }

    /// The peer's limit is reached: a probe follows after `pause`, unless one is due already.
    pub(super) fn await_credit(&mut self, now: Time, pause: Span) {
        if self.credit.ask_at == Time::NEVER {
            self.credit = AwaitedCredit { ask_at: now + pause, pause };
        }
    }

    /// When to ask for a higher limit.
    #[inline]
    pub(crate) fn ask_for_credit_at(&self) -> Time {
        self.credit.ask_at
    }

    /// When it is time to ask for a higher limit: ends the wait unless the path still `waits`. Otherwise sends a probe if
    /// the path `asks` now, and doubles the pause.
    pub(crate) fn ask_for_credit(&mut self, now: Time, waits: bool, asks: bool) {
        if !waits {
            return self.credit = AwaitedCredit::default();
        }
        let pause = (self.credit.pause * 2).min(LONGEST_WAIT);
        self.credit = AwaitedCredit { ask_at: now + pause, pause };
        if asks {
            self.want_probe();
        }
    }

    /// Handles an answer from a path with this smoothed round trip. If it comes within a round trip after a probe timeout
    /// and acknowledges packets from before the probe, the path only paused. `sample` is the answer's own round trip.
    #[inline]
    pub(crate) fn learn_patience(&mut self, now: Time, rtt: Span, sample: Option<Span>) {
        let late = now.since(self.last_probe_timeout);
        if self.timeouts == 1 && late < rtt && sample.is_some_and(|sample| sample > late) {
            self.patience = (self.patience_at(now) + late).mul_f64(LONGER).min(rtt);
            self.patient_until = now + PATIENT;
        }
    }

    fn patience_at(&self, now: Time) -> Span {
        if now < self.patient_until { self.patience } else { Span::ZERO }
    }

    /// No packet waits for an acknowledgement any more: all were lost.
    pub(crate) fn on_nothing_out(&mut self) {
        self.owed_since = None;
    }

    /// The time and kind of the next alarm. `out` if packets wait for an acknowledgement; the oldest was sent at
    /// `oldest`.
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
            (from + pto + self.patience_at(from), Alarm::Probe)
        } else if out {
            // Every acknowledgement restarts it (RFC 6298 §5.3): while acknowledgements arrive, a filling queue causes
            // no timeout.
            let from = silent_since.max(self.last_rto);
            // Where round-trip times do not vary, an acknowledgement with the allowed delay would be late otherwise.
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

    /// The path failed: schedules probes, the first soon, further ones at growing intervals.
    pub(crate) fn on_failure(&mut self, now: Time, rtt: Span) {
        self.failed_at = Some(now);
        self.probe_pause = rtt.max(Span::from_millis(50));
        self.next_probe = Some(now + self.probe_pause);
        self.probes_due = 1;
    }

    /// When the path failed, unless it has answered since.
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

    /// Shortens the pause between probes of a failed path, the current one included.
    pub(crate) fn hasten_probe(&mut self, longest: Span) {
        let less = self.probe_pause.saturating_sub(longest);
        self.next_probe = self.next_probe.map(|at| Time::ZERO + at.since(Time::ZERO).saturating_sub(less));
        self.probe_pause = self.probe_pause.min(longest);
    }

    /// Records that a probe of a failed path was sent.
    pub(crate) fn on_probe_sent(&mut self, now: Time, longest: Span) {
        self.probe_pause = (self.probe_pause * 2).min(longest);
        self.next_probe = Some(now + self.probe_pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Span = Span::from_millis(100);

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn probes_are_hastened_within_a_shorter_pause_and_no_further() {
        let (second, day) = (Span::from_secs(1), Span::from_secs(86_400));
        let mut health = Health::default();
        health.on_failure(at(0), RTT);
        (0..20).for_each(|_| health.on_probe_sent(at(10_000), day));
        assert!(health.next_probe() > Some(at(10_000) + Span::from_secs(3_600)));
        (0..5).for_each(|_| health.hasten_probe(second));
        assert_eq!(health.next_probe(), Some(at(11_000)));
    }

    /// The delay of the probe timeout of a packet sent at `sent`, after a timeout at 200 ms and an answer at `answer` to a
    /// packet sent at `answered`.
    fn timeout_after(answered: u64, answer: u64, sent: u64) -> Span {
        let (mut health, mut rtt) = (Health::default(), RttEstimator::new(RTT));
        (0..50).for_each(|sample| rtt.update(at(sample), RTT, Span::ZERO));
        health.on_sent(at(0));
        health.on_probe_timeout(at(200));
        health.learn_patience(at(answer), RTT, Some(at(answer).since(at(answered))));
        health.on_ack(at(answer), true);
        health.on_ack(at(sent), true);
        let alarm = health.next_alarm(true, || Some(at(sent)), &rtt, &Config::default());
        let (due, kind) = alarm.expect("packets are out");
        assert_eq!(kind, Alarm::Probe);
        due.since(at(sent)).saturating_sub(rtt.pto(Config::default().acks.max_delay))
    }

    #[test]
    fn a_path_that_only_paused_gets_its_pause_on_top_of_the_timeout_for_ten_seconds() {
        assert_eq!(timeout_after(0, 240, 300), Span::from_millis(50), "the pause and a quarter");
        assert_eq!(timeout_after(0, 295, 300), RTT, "a round trip at most");
        assert_eq!(timeout_after(0, 240, 10_300), Span::ZERO, "later");
    }

    /// When the sender pauses, its queue drains, and an answer to the probe takes less than the smoothed round trip.
    #[test]
    fn an_answer_to_the_probe_gives_no_patience() {
        assert_eq!(timeout_after(200, 240, 300), Span::ZERO);
    }

    #[test]
    fn an_answer_a_round_trip_after_the_probe_gives_no_patience() {
        assert_eq!(timeout_after(0, 300, 310), Span::ZERO);
    }
}
