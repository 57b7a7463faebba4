//! BBR's steady state: cycles that probe for bandwidth, and probes for the least round-trip time (draft §4.3.3, §4.3.4).

use anabranch_wire::{Span, Time};

use super::{Ack, AckPhase, Bbr, CWND_GAIN, STARTUP_PACING, State};

const UP_PACING: f64 = 1.25;
const UP_CWND: f64 = 2.25;
const DOWN_PACING: f64 = 0.9;
const PROBE_RTT_CWND: f64 = 0.5;
const PROBE_RTT_DURATION: Span = Span::from_millis(200);
const MAX_RENO_ROUNDS: f64 = 63.0;
const MAX_UP_ROUNDS: u32 = 30;

/// The state of the probing cycle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycle {
    started: Time,
    wait: Span,
    pub(super) rounds_since_probe: u32,
    phase: AckPhase,
    /// True while losses count against a probe.
    pub(super) samples: bool,
    up_rounds: u32,
    up_acked: f64,
    /// Bytes to be acknowledged for each packet by which the long-term bound rises.
    up_bytes: f64,
    probe_rtt_done: Option<Time>,
    probe_rtt_round_done: bool,
    seed: u64,
}

impl Cycle {
    pub(super) fn new(now: Time, seed: u64) -> Self {
        Self {
            started: now,
            wait: Span::from_secs(2),
            rounds_since_probe: 0,
            phase: AckPhase::Init,
            samples: false,
            up_rounds: 0,
            up_acked: 0.0,
            up_bytes: f64::INFINITY,
            probe_rtt_done: None,
            probe_rtt_round_done: false,
            seed,
        }
    }

    /// Picks a wait of 2 to 3 s and a head start of 0 or 1 rounds, so that flows do not probe in step.
    fn pick_wait(&mut self) {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.rounds_since_probe = (self.seed >> 63) as u32;
        self.wait = Span::from_secs(2) + Span::from_nanos((self.seed >> 32) % 1_000_000_000);
    }
}

impl Bbr {
    pub(super) fn update_cycle(&mut self, ack: &Ack<'_>) {
        if !self.full.reached {
            return;
        }
        self.adapt_upper_bounds(ack);
        let now = ack.sample.now;
        match self.mode.state {
            State::Down | State::Cruise if self.is_time_to_probe(now) => self.start_refill(now),
            State::Down if self.is_time_to_cruise(ack.in_flight) => self.enter(State::Cruise, 1.0, CWND_GAIN),
            State::Refill if self.round.begins => {
                self.cycle.samples = true;
                self.start_up(now, ack.rate.unwrap_or(0.0));
            }
            State::Up => self.watch_up(ack),
            _ => {}
        }
    }

    fn adapt_upper_bounds(&mut self, ack: &Ack<'_>) {
        if self.round.begins && self.cycle.phase == AckPhase::Starting {
            self.cycle.phase = AckPhase::Feedback;
        }
        if self.round.begins && self.cycle.phase == AckPhase::Stopping {
            self.cycle.samples = false;
            self.cycle.phase = AckPhase::Init;
            let in_cycle = matches!(self.mode.state, State::Down | State::Cruise | State::Refill | State::Up);
            if in_cycle && !ack.app_limited {
                self.path.max_bw.advance();
            }
        }
        if ack.too_lossy() {
            if self.cycle.samples {
                self.on_inflight_too_high(ack.sample.now, ack.sent.in_flight, ack.app_limited);
            }
        } else if self.bounds.inflight_hi.is_finite() {
            self.bounds.inflight_hi = self.bounds.inflight_hi.max(ack.sent.in_flight);
            if self.mode.state == State::Up {
                self.raise_inflight_hi(ack);
            }
        }
    }

    fn raise_inflight_hi(&mut self, ack: &Ack<'_>) {
        if !ack.cwnd_limited || self.cwnd < self.bounds.inflight_hi {
            return;
        }
        self.cycle.up_acked += ack.acked;
        if self.cycle.up_acked >= self.cycle.up_bytes {
            let packets = (self.cycle.up_acked / self.cycle.up_bytes).floor();
            self.cycle.up_acked -= packets * self.cycle.up_bytes;
            self.bounds.inflight_hi += packets * self.mss;
        }
        if self.round.begins {
            self.steepen();
        }
    }

    /// Doubles, in each round of Up, the packets by which the long-term bound rises in a round.
    fn steepen(&mut self) {
        let growth = libm::exp2(f64::from(self.cycle.up_rounds)) * self.mss;
        self.cycle.up_rounds = (self.cycle.up_rounds + 1).min(MAX_UP_ROUNDS);
        self.cycle.up_bytes = (self.cwnd / growth).max(1.0) * self.mss;
    }

    fn is_time_to_probe(&self, now: Time) -> bool {
        let reno_rounds = (self.target_inflight() / self.mss).min(MAX_RENO_ROUNDS);
        now.since(self.cycle.started) > self.cycle.wait
            || f64::from(self.cycle.rounds_since_probe) >= reno_rounds
    }

    fn is_time_to_cruise(&self, in_flight: f64) -> bool {
        in_flight <= self.inflight_with_headroom() && in_flight <= self.inflight(self.path.max_bw.get(), 1.0)
    }

    /// Ends Up when a higher rate delivers no more, unless the long-term bound is the limit.
    fn watch_up(&mut self, ack: &Ack<'_>) {
        if ack.cwnd_limited && self.cwnd >= self.bounds.inflight_hi {
            self.full.reset(ack.rate.unwrap_or(0.0));
        } else if self.full.now {
            self.start_down(ack.sample.now);
        }
    }

    pub(super) fn start_down(&mut self, now: Time) {
        self.losses.in_round = false;
        (self.losses.bw_latest, self.losses.inflight_latest) = (0.0, 0.0);
        self.cycle.up_bytes = f64::INFINITY;
        self.cycle.pick_wait();
        self.cycle.started = now;
        self.cycle.phase = AckPhase::Stopping;
        self.round.restart(now);
        self.enter(State::Down, DOWN_PACING, CWND_GAIN);
    }

    pub(super) fn start_refill(&mut self, now: Time) {
        self.bounds.lift_short_term();
        (self.cycle.up_rounds, self.cycle.up_acked) = (0, 0.0);
        self.cycle.phase = AckPhase::Refilling;
        self.round.restart(now);
        self.enter(State::Refill, 1.0, CWND_GAIN);
    }

    pub(super) fn start_up(&mut self, now: Time, rate: f64) {
        self.cycle.phase = AckPhase::Starting;
        self.round.restart(now);
        self.full.reset(rate);
        self.enter(State::Up, UP_PACING, UP_CWND);
        self.steepen();
    }

    pub(super) fn check_probe_rtt(&mut self, ack: &Ack<'_>, expired: bool) {
        let now = ack.sample.now;
        if self.mode.state != State::ProbeRtt && expired && !self.idle_restart {
            self.save_cwnd();
            self.enter(State::ProbeRtt, 1.0, PROBE_RTT_CWND);
            self.path.held_back.begin(now);
            self.cycle.probe_rtt_done = None;
            self.cycle.phase = AckPhase::Stopping;
            self.round.restart(now);
        }
        if self.mode.state == State::ProbeRtt {
            self.hold_probe_rtt(now, ack.in_flight);
        }
        self.idle_restart &= ack.acked <= 0.0;
    }

    /// Stays in ProbeRTT for 200 ms and a round after the bytes in flight are few enough.
    fn hold_probe_rtt(&mut self, now: Time, in_flight: f64) {
        if self.cycle.probe_rtt_done.is_some() {
            self.cycle.probe_rtt_round_done |= self.round.begins;
            if self.cycle.probe_rtt_round_done {
                self.check_probe_rtt_done(now);
            }
        } else if in_flight <= self.probe_rtt_cwnd() {
            self.cycle.probe_rtt_done = Some(now + PROBE_RTT_DURATION);
            self.cycle.probe_rtt_round_done = false;
            self.round.restart(now);
        }
    }

    pub(super) fn check_probe_rtt_done(&mut self, now: Time) {
        if self.cycle.probe_rtt_done.is_none_or(|done| now < done) {
            return;
        }
        self.path.min_rtt.probed(now);
        self.path.held_back.end(now);
        self.cwnd = self.cwnd.max(self.prior_cwnd);
        self.bounds.lift_short_term();
        if self.full.reached {
            self.start_down(now);
            self.enter(State::Cruise, 1.0, CWND_GAIN);
        } else {
            self.enter(State::Startup, STARTUP_PACING, CWND_GAIN);
        }
    }

    pub(super) fn probe_rtt_cwnd(&self) -> f64 {
        self.bdp(self.bw, PROBE_RTT_CWND).max(self.min_pipe())
    }
}
