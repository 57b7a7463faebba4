//! BBR's record of the path: bandwidth, round-trip time, aggregation of acks, and the bytes outstanding over time.

use std::collections::VecDeque;

use anabranch_wire::{Span, Time};

/// The log has an entry for each 32nd of a smoothed round trip, and at most this many entries.
const LOG_FRACTION: u64 = 32;
const LOG_LENGTH: usize = 128;
const EXTRA_ROUNDS: usize = 10;
const MIN_RTT_WINDOW: Span = Span::from_secs(10);
const PROBE_RTT_INTERVAL: Span = Span::from_secs(5);

/// The path as measured.
#[derive(Clone, Debug)]
pub(super) struct PathModel {
    pub(super) log: SendLog,
    pub(super) max_bw: MaxBandwidth,
    pub(super) aggregation: Aggregation,
    pub(super) min_rtt: MinRtt,
    pub(super) held_back: HeldBack,
}

impl PathModel {
    pub(super) fn new(now: Time) -> Self {
        Self {
            log: SendLog::default(),
            max_bw: MaxBandwidth::default(),
            aggregation: Aggregation::new(now),
            min_rtt: MinRtt::new(now),
            held_back: HeldBack::default(),
        }
    }
}

/// A path's counts when a packet was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    at: Time,
    /// Bytes outstanding, including the packet.
    pub(super) in_flight: f64,
    /// Bytes acknowledged and bytes lost before.
    pub(super) delivered: f64,
    pub(super) lost: f64,
}

/// A path's counts, and a bounded log of them by time of sending, exact to a 32nd of a round trip.
#[derive(Clone, Debug, Default)]
pub(super) struct SendLog {
    pub(super) delivered: f64,
    pub(super) lost: f64,
    log: VecDeque<Sent>,
}

impl SendLog {
    pub(super) fn on_sent(&mut self, now: Time, in_flight: f64, srtt: Span) {
        let last = self.log.back().map(|sent| sent.at);
        if last.is_some_and(|last| now.since(last) < srtt / LOG_FRACTION) {
            return;
        }
        if self.log.len() == LOG_LENGTH {
            self.log.pop_front();
        }
        self.log.push_back(Sent { at: now, in_flight, delivered: self.delivered, lost: self.lost });
    }

    /// The counts when a packet was sent at `sent_at`, or the oldest in the log.
    pub(super) fn at(&self, sent_at: Time) -> Sent {
        let after = self.log.partition_point(|sent| sent.at <= sent_at);
        self.log.get(after.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// The highest bandwidth of this probing cycle and the one before, in bytes a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaxBandwidth([f64; 2]);

impl MaxBandwidth {
    pub(super) fn get(self) -> f64 {
        self.0[0].max(self.0[1])
    }

    pub(super) fn update(&mut self, bandwidth: f64) {
        self.0[1] = self.0[1].max(bandwidth);
    }

    pub(super) fn advance(&mut self) {
        if self.0[1] > 0.0 {
            self.0 = [self.0[1], 0.0];
        }
    }
}

/// Bytes acknowledged at once beyond what the bandwidth explains: the most of this round until the pipe was full for
/// the first time, later of the last ten rounds (draft §4.5.9).
#[derive(Clone, Copy, Debug)]
pub(super) struct Aggregation {
    start: Time,
    delivered: f64,
    rounds: [f64; EXTRA_ROUNDS],
}

impl Aggregation {
    pub(super) fn new(now: Time) -> Self {
        Self { start: now, delivered: 0.0, rounds: [0.0; EXTRA_ROUNDS] }
    }

    pub(super) fn restart(&mut self, now: Time) {
        (self.start, self.delivered) = (now, 0.0);
    }

    /// Starts a round, which replaces the one ten rounds ago; before the pipe was full, it replaces all.
    pub(super) fn begin_round(&mut self, round: u64, full_reached: bool) {
        if full_reached {
            self.rounds[round as usize % EXTRA_ROUNDS] = 0.0;
        } else {
            self.rounds = [0.0; EXTRA_ROUNDS];
        }
    }

    pub(super) fn update(&mut self, now: Time, round: u64, bandwidth: f64, acked: f64, cwnd: f64) {
        let mut expected = bandwidth * now.since(self.start).as_secs_f64();
        if self.delivered <= expected {
            self.restart(now);
            expected = 0.0;
        }
        self.delivered += acked;
        let slot = &mut self.rounds[round as usize % EXTRA_ROUNDS];
        *slot = slot.max((self.delivered - expected).min(cwnd));
    }

    pub(super) fn most(&self) -> f64 {
        self.rounds.iter().copied().fold(0.0, f64::max)
    }
}

/// The least round-trip time of the last 10 s. After 5 s without a sample that low, the queue must be emptied to
/// measure it.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinRtt {
    value: Option<Span>,
    at: Time,
    recent: Span,
    recent_at: Time,
}

impl MinRtt {
    pub(super) fn new(now: Time) -> Self {
        Self { value: None, at: now, recent: Span::MAX, recent_at: now }
    }

    pub(super) fn get(&self) -> Option<Span> {
        self.value
    }

    /// Adds a sample; true when it is time to measure the minimum.
    pub(super) fn update(&mut self, now: Time, rtt: Span) -> bool {
        let expired = now.since(self.recent_at) > PROBE_RTT_INTERVAL;
        if rtt <= self.recent || expired {
            (self.recent, self.recent_at) = (rtt, now);
        }
        let old = now.since(self.at) > MIN_RTT_WINDOW;
        if old || self.value.is_none_or(|value| self.recent <= value) {
            (self.value, self.at) = (Some(self.recent), self.recent_at);
        }
        expired
    }

    /// Records that the queue was emptied: measure again in 5 s.
    pub(super) fn probed(&mut self, now: Time) {
        self.recent_at = now;
    }
}

/// Packets whose delivery rate reflects the small window of ProbeRTT, as if the application had limited it: those sent
/// from its start until a packet sent after its end is acknowledged (draft §4.3.4.4).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldBack {
    from: Option<Time>,
    probed: Option<Time>,
    until: Option<Time>,
}

impl HeldBack {
    pub(super) fn begin(&mut self, now: Time) {
        *self = Self { from: Some(now), ..Self::default() };
    }

    pub(super) fn end(&mut self, now: Time) {
        self.probed = Some(now);
    }

    /// Handles the ack of a packet sent at `sent_at`; true when the packet was held back.
    pub(super) fn on_ack(&mut self, now: Time, sent_at: Time) -> bool {
        if self.until.is_none() && self.probed.is_some_and(|probed| sent_at >= probed) {
            self.until = Some(now);
        }
        self.from.is_some_and(|from| sent_at >= from) && self.until.is_none_or(|until| sent_at < until)
    }
}
