//! The measured rate and delay of a connection.

use anabranch_wire::{Span, Time};

/// The shortest time of receiving from which a rate is computed.
const SHORTEST_S: f64 = 0.2;
/// The time over which a rate is smoothed.
const SMOOTHING_S: f64 = 2.0;
/// A connection without bytes for longer than this counts as slower.
const SILENT_S: f64 = 1.0;

/// The rate of a connection while it receives, and the delay of its answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rate: Option<f64>,
    delay: Option<f64>,
    /// Bytes and seconds of receiving that are not yet in `rate`.
    bytes: f64,
    seconds: f64,
    /// When the last bytes came.
    last: Time,
    /// When the current request was sent, until its first bytes come.
    asked: Option<Time>,
    /// Whether it is not read from now, because of a limit.
    paused: bool,
    /// When it was last read from again.
    resumed: Time,
}

impl Pace {
    pub(super) fn new(now: Time) -> Self {
        Self {
            rate: None,
            delay: None,
            bytes: 0.0,
            seconds: 0.0,
            last: now,
            asked: None,
            paused: false,
            resumed: now,
        }
    }

    /// Starts with the values of another connection to the same source.
    pub(super) fn like(other: &Self, now: Time) -> Self {
        Self { rate: other.rate, delay: other.delay, ..Self::new(now) }
    }

    pub(super) fn on_request(&mut self, now: Time) {
        (self.asked, self.last) = (Some(now), now);
    }

    /// Notes that the connection goes on with its last answer.
    pub(super) fn go_on(&mut self, now: Time) {
        self.last = now;
    }

    pub(super) fn on_bytes(&mut self, now: Time, bytes: u64) {
        if let Some(asked) = self.asked.take() {
            // The first bytes tell the delay; they took an unknown time to come.
            let delay = now.since(asked).as_secs_f64();
            self.delay = Some(self.delay.map_or(delay, |known| known + 0.25 * (delay - known)));
        } else {
            self.seconds += now.since(self.last).as_secs_f64();
            self.bytes += bytes as f64;
        }
        self.last = now;
        if self.seconds >= SHORTEST_S {
            let rate = self.bytes / self.seconds;
            let weight = 1.0 - (-self.seconds / SMOOTHING_S).exp();
            self.rate = Some(self.rate.map_or(rate, |known| known + weight * (rate - known)));
            (self.bytes, self.seconds) = (0.0, 0.0);
        }
    }

    /// Bytes a second while bytes come.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// One, or less the longer the connection is silent.
    pub(super) fn vigour(&self, now: Time) -> f64 {
        let silent = self.silent_for(now).as_secs_f64();
        if silent > SILENT_S { SILENT_S / silent } else { 1.0 }
    }

    /// Seconds between a request and its first bytes.
    pub(super) fn delay_s(&self) -> f64 {
        self.delay.unwrap_or(0.1)
    }

    /// Notes that the connection is not read from, or is again.
    pub(super) fn pause(&mut self, paused: bool, now: Time) {
        (self.paused, self.resumed) = (paused, now);
    }

    /// Time for which the server could have sent bytes and did not.
    pub(super) fn silent_for(&self, now: Time) -> Span {
        if self.paused { Span::ZERO } else { now.since(self.last.max(self.resumed)) }
    }
}
