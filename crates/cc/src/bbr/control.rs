//! BBR's control: from the model to volumes in flight, the pacing rate and the window (draft §4.6).

use anabranch_wire::Span;

use super::{Bbr, STARTUP_PACING, State};

const PACING_MARGIN: f64 = 0.99;
const HEADROOM: f64 = 0.15;
const MIN_PIPE_PACKETS: f64 = 4.0;

impl Bbr {
    pub(super) fn bdp(&self, bw: f64, gain: f64) -> f64 {
        self.path.min_rtt.get().map_or(self.initial, |min| gain * bw * min.as_secs_f64())
    }

    /// A volume in flight, raised to allow bursts, delayed acks and a probe.
    pub(super) fn with_quantum(&self, volume: f64) -> f64 {
        let quantum = (self.pacing_rate * 0.001).min(65_536.0).max(2.0 * self.mss);
        let volume = volume.max(3.0 * quantum).max(self.min_pipe());
        if self.mode.state == State::Up { volume + 2.0 * self.mss } else { volume }
    }

    pub(super) fn inflight(&self, bw: f64, gain: f64) -> f64 {
        self.with_quantum(self.bdp(bw, gain))
    }

    pub(super) fn target_inflight(&self) -> f64 {
        self.bdp(self.bw, 1.0).min(self.cwnd)
    }

    pub(super) fn inflight_with_headroom(&self) -> f64 {
        let headroom = self.mss.max(HEADROOM * self.bounds.inflight_hi);
        if self.bounds.inflight_hi.is_finite() {
            (self.bounds.inflight_hi - headroom).max(self.min_pipe())
        } else {
            f64::INFINITY
        }
    }

    pub(super) fn min_pipe(&self) -> f64 {
        MIN_PIPE_PACKETS * self.mss
    }

    /// Startup's gain times the initial window per round trip: the least rate of Startup (draft §4.6.2).
    pub(super) fn initial_pacing(&self, rtt: Span) -> f64 {
        STARTUP_PACING * self.initial / rtt.as_secs_f64().max(1e-6)
    }

    pub(super) fn set_pacing_rate(&mut self, gain: f64) {
        let rate = gain * self.bw * PACING_MARGIN;
        if self.bw > 0.0 && (self.full.reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    pub(super) fn set_cwnd(&mut self, acked: f64) {
        let most = self.with_quantum(self.bdp(self.bw, self.mode.cwnd_gain) + self.path.aggregation.most());
        if self.full.reached {
            self.cwnd = (self.cwnd + acked).min(most);
        } else if self.cwnd < most || self.path.log.delivered < self.initial {
            self.cwnd += acked;
        }
        if self.timed_out_at.is_none() {
            self.cwnd = self.cwnd.max(self.min_pipe());
        }
        self.bound_cwnd();
    }

    pub(super) fn bound_cwnd(&mut self) {
        let cap = match self.mode.state {
            State::Down | State::Refill | State::Up => self.bounds.inflight_hi,
            State::Cruise => self.inflight_with_headroom(),
            State::ProbeRtt => self.inflight_with_headroom().min(self.probe_rtt_cwnd()),
            State::Startup | State::Drain => f64::INFINITY,
        };
        self.cwnd = self.cwnd.min(cap.min(self.bounds.inflight_lo).max(self.min_pipe()));
    }
}
