//! BBR, version 3: models a path by its bandwidth and least round-trip time, and sends accordingly
//! (draft-ietf-ccwg-bbr-02; section numbers refer to it). Each path is a flow of its own; groups have no effect.
//!
//! The *model* has the highest delivery rate of the last two probing cycles (`max_bw`), the least round-trip time of 10 s,
//! and their product, the BDP. Losses add bounds. The long-term bound `inflight_hi` is the volume in flight at which more
//! than 2 % were lost. The short-term bounds `bw_lo` and `inflight_lo` are 0.7 of what the last lossy round had, and last
//! until the next probe. The *control* sets a pacing rate and a window: gains times the model.
//!
//! ```text
//! Startup --plateau or losses--> Drain --queue gone--> Down --> Cruise --> Refill --> Up --plateau or losses--> Down
//!     ^---- pipe not yet full ----- ProbeRtt <-- from any, when the least round-trip time is 5 s old
//! ```
//!
//! Startup doubles the rate each round until three rounds brought less than a quarter more. Up sends a quarter above the
//! bandwidth and raises `inflight_hi` faster each round; Down makes room; Cruise keeps the rate; Refill fills the pipe
//! without a queue for one round. The next probe follows after 2 to 3 s, or as many rounds as Reno would need.
//!
//! Differences from the draft:
//!
//! - Packets are not visible here, so times identify rounds and the state when a packet was sent
//!   ([`model::SendLog`]). Losses count as limited by the application if the last ack was.
//! - For the same reason, the model itself marks packets sent in ProbeRTT as limited by the application
//!   ([`model::HeldBack`]), and counts loss reports where the draft counts gaps, six of which may end Startup.
//! - In fast recovery only the bounds apply, without packet conservation, as in Linux. Only a timeout saves the window,
//!   and lowers it to one packet until something sent since is acknowledged.
//! - Spurious losses are undone by -06 §5.5.11, since -02 does not describe it; the window grows back by itself.
//! - The samples of a probe end a round after it, as in -06.
//! - A round-trip time *equal to* the lowest, not only a lower one, shows an empty queue and postpones ProbeRTT.
//! - The bound that losses set in Startup has room for bursts, and ProbeRTT never finds the pipe full.
//! - Congestion-experienced marks count as losses.

mod control;
mod cycle;
mod losses;
mod model;

use anabranch_wire::{Rate, Span, Time};

use crate::sample::AckSample;
use model::{PathModel, Sent};

const STARTUP_PACING: f64 = 2.77;
const DRAIN_PACING: f64 = 0.35;
const CWND_GAIN: f64 = 2.0;
const LOSS_THRESHOLD: f64 = 0.02;
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

/// The part of the last bandwidth probe that arriving acks belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

/// BBR on one path. Volumes are in bytes, bandwidths in bytes a second.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    mode: Mode,
    mss: f64,
    initial: f64,
    cwnd: f64,
    prior_cwnd: f64,
    pacing_rate: f64,
    path: PathModel,
    bw: f64,
    bounds: Bounds,
    round: Rounds,
    loss_round: Rounds,
    losses: Losses,
    full: FullPipe,
    cycle: cycle::Cycle,
    timed_out_at: Option<Time>,
    idle_restart: bool,
    undo: Option<Undo>,
    last_ack: LastAck,
}

/// The state and its gains.
#[derive(Clone, Copy, Debug)]
struct Mode {
    state: State,
    pacing_gain: f64,
    cwnd_gain: f64,
}

/// The bounds that losses set; infinite without any.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    bw_lo: f64,
    inflight_lo: f64,
    inflight_hi: f64,
}

impl Bounds {
    const NONE: Self = Self { bw_lo: f64::INFINITY, inflight_lo: f64::INFINITY, inflight_hi: f64::INFINITY };

    fn lift_short_term(&mut self) {
        (self.bw_lo, self.inflight_lo) = (f64::INFINITY, f64::INFINITY);
    }
}

/// When the last ack arrived, and whether the application or ProbeRTT limited it.
#[derive(Clone, Copy, Debug)]
struct LastAck {
    at: Time,
    app_limited: bool,
}

/// Packet-timed rounds: one ends when a packet sent after its start is acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    started: Option<Time>,
    count: u64,
    begins: bool,
}

impl Rounds {
    fn on_ack(&mut self, now: Time, sent_at: Time) {
        self.begins = self.started.is_none_or(|started| sent_at >= started);
        if self.begins {
            self.started = Some(now);
            self.count += 1;
        }
    }

    fn restart(&mut self, now: Time) {
        self.started = Some(now);
    }
}

/// Congestion signals of the round.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    in_round: bool,
    events: u32,
    bw_latest: f64,
    inflight_latest: f64,
    /// Losses of packets sent before this time belong to the current episode.
    episode: Option<Time>,
}

/// Whether a higher rate still delivers more.
#[derive(Clone, Copy, Debug, Default)]
struct FullPipe {
    reached: bool,
    now: bool,
    bw: f64,
    rounds: u32,
}

impl FullPipe {
    fn reset(&mut self, bw: f64) {
        (self.bw, self.rounds, self.now) = (bw, 0, false);
    }
}

/// The state before an episode of losses.
#[derive(Clone, Copy, Debug)]
struct Undo {
    /// The search that the losses ended: Startup or Up.
    ended: Option<State>,
    bounds: Bounds,
}

/// An ack, with the path's counts when its newest packet was sent.
struct Ack<'a> {
    sample: &'a AckSample,
    acked: f64,
    in_flight: f64,
    rate: Option<f64>,
    sent: Sent,
    delivered: f64,
    lost: f64,
    app_limited: bool,
    cwnd_limited: bool,
}

impl Ack<'_> {
    fn too_lossy(&self) -> bool {
        self.lost > self.sent.in_flight * LOSS_THRESHOLD
    }
}

impl Bbr {
    /// BBR at a window of `initial` bytes; `seed` spreads the probing times of different paths.
    pub(crate) fn new(initial: f64, mss: f64, now: Time, seed: u64) -> Self {
        Self {
            mode: Mode { state: State::Startup, pacing_gain: STARTUP_PACING, cwnd_gain: CWND_GAIN },
            mss,
            initial,
            cwnd: initial,
            prior_cwnd: 0.0,
            pacing_rate: 0.0,
            path: PathModel::new(now),
            bw: 0.0,
            bounds: Bounds::NONE,
            round: Rounds::default(),
            loss_round: Rounds::default(),
            losses: Losses::default(),
            full: FullPipe::default(),
            cycle: cycle::Cycle::new(now, seed),
            timed_out_at: None,
            idle_restart: false,
            undo: None,
            last_ack: LastAck { at: now, app_limited: false },
        }
    }

    /// The window in bytes.
    pub(crate) fn cwnd(&self) -> f64 {
        self.cwnd
    }

    pub(crate) fn in_startup(&self) -> bool {
        self.mode.state == State::Startup
    }

    pub(crate) fn set_mss(&mut self, mss: f64) {
        self.mss = mss;
    }

    /// The pacing rate; before the first ack, the rate that an ack after `srtt` would start with.
    pub(crate) fn pacing_rate(&self, srtt: Span) -> Rate {
        let rate = if self.pacing_rate > 0.0 { self.pacing_rate } else { self.initial_pacing(srtt) };
        Rate::from_bits((rate * 8.0).max(1.0) as u64)
    }

    pub(crate) fn on_sent(&mut self, now: Time, in_flight: u64, srtt: Span) {
        self.path.log.on_sent(now, in_flight as f64, srtt);
    }

    pub(crate) fn on_ack(&mut self, sample: &AckSample) {
        let sent_at = sample.now - sample.rtt;
        let acked = sample.acked_bytes as f64;
        self.path.log.delivered += acked;
        let app_limited = self.path.held_back.on_ack(sample.now, sent_at) || sample.app_limited;
        self.last_ack = LastAck { at: sample.now, app_limited };
        let sent = self.path.log.at(sent_at);
        let ack = Ack {
            sample,
            acked,
            in_flight: (sample.in_flight as f64 - acked).max(0.0),
            rate: sample.delivery_rate.map(Rate::as_bytes_f64),
            sent,
            delivered: self.path.log.delivered - sent.delivered,
            lost: self.path.log.lost - sent.lost,
            app_limited,
            cwnd_limited: sample.window_limited && sample.in_flight as f64 + 3.0 * self.mss >= self.cwnd,
        };
        if self.timed_out_at.is_some_and(|timeout| sent_at >= timeout) {
            self.timed_out_at = None;
            self.cwnd = self.cwnd.max(self.prior_cwnd);
        }
        self.round.on_ack(sample.now, sent_at);
        self.loss_round.on_ack(sample.now, sent_at);
        self.update_model(&ack);
        self.update_state(&ack);
        if self.pacing_rate == 0.0 {
            self.pacing_rate = self.initial_pacing(sample.rtt);
        }
        self.set_pacing_rate(self.mode.pacing_gain);
        self.set_cwnd(acked);
    }

    fn update_model(&mut self, ack: &Ack<'_>) {
        let rate = ack.rate.unwrap_or(0.0);
        self.losses.bw_latest = self.losses.bw_latest.max(rate);
        self.losses.inflight_latest = self.losses.inflight_latest.max(ack.delivered);
        if self.round.begins {
            self.cycle.rounds_since_probe = self.cycle.rounds_since_probe.saturating_add(1);
            self.path.aggregation.begin_round(self.round.count, self.full.reached);
        }
        if rate >= self.path.max_bw.get() || !ack.app_limited {
            self.path.max_bw.update(rate);
        }
        if self.loss_round.begins {
            self.adapt_lower_bounds();
        }
        self.path.aggregation.update(ack.sample.now, self.round.count, self.bw, ack.acked, self.cwnd);
        self.check_full_pipe(ack);
    }

    fn update_state(&mut self, ack: &Ack<'_>) {
        self.check_startup_losses(ack);
        if self.mode.state == State::Startup && self.full.reached {
            self.enter(State::Drain, DRAIN_PACING, CWND_GAIN);
        }
        if self.mode.state == State::Drain && ack.in_flight <= self.inflight(self.bw, 1.0) {
            self.start_down(ack.sample.now);
        }
        self.update_cycle(ack);
        let expired = self.path.min_rtt.update(ack.sample.now, ack.sample.rtt);
        self.check_probe_rtt(ack, expired);
        if self.loss_round.begins {
            self.losses.in_round = false;
            self.losses.events = 0;
            self.losses.bw_latest = ack.rate.unwrap_or(0.0);
            self.losses.inflight_latest = ack.delivered;
        }
        self.bw = self.path.max_bw.get().min(self.bounds.bw_lo);
    }

    fn check_full_pipe(&mut self, ack: &Ack<'_>) {
        let Some(rate) = ack.rate else { return };
        let probing_rtt = self.mode.state == State::ProbeRtt;
        if self.full.now || !self.round.begins || ack.app_limited || probing_rtt {
            return;
        }
        if rate >= self.full.bw * FULL_GROWTH {
            self.full.reset(rate);
        } else {
            self.full.rounds += 1;
            self.full.now = self.full.rounds >= FULL_ROUNDS;
            self.full.reached |= self.full.now;
        }
    }

    pub(crate) fn on_idle_restart(&mut self, now: Time) {
        self.idle_restart = true;
        self.path.aggregation.restart(now);
        match self.mode.state {
            State::Down | State::Cruise | State::Refill | State::Up => self.set_pacing_rate(1.0),
            State::ProbeRtt => self.check_probe_rtt_done(now),
            State::Startup | State::Drain => {}
        }
    }

    fn enter(&mut self, state: State, pacing_gain: f64, cwnd_gain: f64) {
        self.mode = Mode { state, pacing_gain, cwnd_gain };
    }

    /// Keeps the window within the controller's bounds.
    pub(crate) fn clamp(&mut self, least: f64, most: f64) {
        self.cwnd = self.cwnd.min(most).max(least);
    }
}

#[cfg(test)]
mod tests;
