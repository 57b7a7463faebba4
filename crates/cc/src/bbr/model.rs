//! BBR's memory of the path: its bandwidth, round-trip time, aggregation of acks, and what was outstanding when.

use std::collections::VecDeque;

use anabranch_wire::{Span, Time};

/// Sends are logged this many times a smoothed round trip, and so many of them are kept.
const LOG_FRACTION: u64 = 32;
const LOG_LENGTH: usize = 128;
const EXTRA_ROUNDS: usize = 10;
const MIN_RTT_WINDOW: Span = Span::from_secs(10);
const PROBE_RTT_INTERVAL: Span = Span::from_secs(5);

/// What a path counted when a packet was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    at: Time,
    /// Bytes outstanding with the packet.
    pub(super) in_flight: f64,
    /// Bytes acknowledged and bytes lost until then.
    pub(super) delivered: f64,
    pub(super) lost: f64,
}

/// The counts of a path, and a bounded log of them by time of sending, exact to a 32nd of a round trip.
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

    /// The counts when a packet was sent at `sent_at`; the oldest known when that was long ago.
    pub(super) fn at(&self, sent_at: Time) -> Sent {
        let after = self.log.partition_point(|sent| sent.at <= sent_at);
        self.log.get(after.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// The most bandwidth of this probing cycle and the one before, in bytes a second.
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

/// How much more than the bandwidth explains was acknowledged at once: the most of this round until the pipe was full
/// once, and of the last ten rounds from then on (draft §4.5.9).
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

    /// A new round begins and takes the slot of the one ten rounds ago, or all of them before the pipe was full.
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

/// The least round-trip time of 10 s, and when it has to be looked for by emptying the queue: after 5 s without
/// a sample as low as the lowest.
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

    /// Takes in a sample; true when it is time to look for the minimum.
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

    /// The queue was emptied: look again in 5 s.
    pub(super) fn probed(&mut self, now: Time) {
        self.recent_at = now;
    }
}

/// Packets whose rate tells of the small window of a probe for the round-trip time, as if the application had limited
/// it: those sent from its begin until one sent after its end is acknowledged (draft §4.3.4.4).
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

    /// Takes in an ack of a packet sent at `sent_at`; true when that was held back.
    pub(super) fn on_ack(&mut self, now: Time, sent_at: Time) -> bool {
        if self.until.is_none() && self.probed.is_some_and(|probed| sent_at >= probed) {
            self.until = Some(now);
        }
        self.from.is_some_and(|from| sent_at >= from) && self.until.is_none_or(|until| sent_at < until)
    }
}
