//! BBR, version 3: a path is modelled by its bandwidth and its least round-trip time, and sent to accordingly
//! (draft-ietf-ccwg-bbr). Each path is a flow of its own; groups mean nothing to it.
//!
//! The *model*: the most delivery rate of the last two probing cycles (`max_bw`), the least round-trip time of 10 s,
//! their product the BDP, and bounds drawn from losses: long-term, the volume in flight at which more than 2 %
//! were lost (`inflight_hi`), and short-term, 0.7 of what the last lossy round had (`bw_lo`, `inflight_lo`), until the
//! next probe. The *control*: a pacing rate and a window, gains times the model.
//!
//! ```text
//! Startup --plateau or losses--> Drain --queue gone--> Down --> Cruise --> Refill --> Up --plateau or losses--> Down
//!     ^---- pipe not yet full ----- ProbeRtt <-- from any, when the least round-trip time is 5 s old
//! ```
//!
//! Startup doubles the rate each round until three rounds brought less than a quarter more. Up sends a quarter above
//! the bandwidth, raising `inflight_hi` faster each round; Down makes room; Cruise keeps the rate; Refill fills the pipe
//! without a queue for one round. The next probe comes after 2 to 3 s or as many rounds as Reno would need.
//!
//! What differs from the draft: rounds and the state at a packet's sending are told by times, since packets are not seen
//! here (see [`model::SendLog`]); fast recovery is left to the bounds, without packet conservation, as in Linux's
//! version; congestion-experienced marks count as losses.

mod cycle;
mod model;

use anabranch_wire::{Rate, Span, Time};

use crate::sample::{AckSample, LossEvent};
use model::{Aggregation, MaxBandwidth, MinRtt, SendLog, Sent};

const STARTUP_PACING: f64 = 2.77;
const DRAIN_PACING: f64 = 0.35;
const CWND_GAIN: f64 = 2.0;
const PACING_MARGIN: f64 = 0.99;
const LOSS_THRESHOLD: f64 = 0.02;
const STARTUP_LOSS_EVENTS: u32 = 6;
const BETA: f64 = 0.7;
const HEADROOM: f64 = 0.15;
const MIN_PIPE_PACKETS: f64 = 4.0;
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

/// What the acks that arrive now tell of the last bandwidth probe.
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
    state: State,
    pacing_gain: f64,
    cwnd_gain: f64,
    mss: f64,
    initial: f64,
    cwnd: f64,
    prior_cwnd: f64,
    pacing_rate: f64,
    log: SendLog,
    max_bw: MaxBandwidth,
    bw: f64,
    bw_lo: f64,
    inflight_hi: f64,
    inflight_lo: f64,
    aggregation: Aggregation,
    min_rtt: MinRtt,
    round: Rounds,
    loss_round: Rounds,
    losses: Losses,
    full: FullPipe,
    cycle: cycle::Cycle,
    timed_out_at: Option<Time>,
    idle_restart: bool,
    undo: Option<Undo>,
    /// The last ack's time and whether the application was what limited it.
    heard: (Time, bool),
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
    /// Losses of packets sent before belong to the episode in hand.
    episode: Option<Time>,
}

/// Whether sending more still delivers more.
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

/// What an episode of losses changed.
#[derive(Clone, Copy, Debug)]
struct Undo {
    state: State,
    bw_lo: f64,
    inflight_lo: f64,
    inflight_hi: f64,
}

/// An ack with what was counted when its newest packet was sent.
struct Ack<'a> {
    sample: &'a AckSample,
    acked: f64,
    in_flight: f64,
    rate: Option<f64>,
    sent: Sent,
    delivered: f64,
    lost: f64,
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
            state: State::Startup,
            pacing_gain: STARTUP_PACING,
            cwnd_gain: CWND_GAIN,
            mss,
            initial,
            cwnd: initial,
            prior_cwnd: 0.0,
            pacing_rate: 0.0,
            log: SendLog::default(),
            max_bw: MaxBandwidth::default(),
            bw: 0.0,
            bw_lo: f64::INFINITY,
            inflight_hi: f64::INFINITY,
            inflight_lo: f64::INFINITY,
            aggregation: Aggregation::new(now),
            min_rtt: MinRtt::new(now),
            round: Rounds::default(),
            loss_round: Rounds::default(),
            losses: Losses::default(),
            full: FullPipe::default(),
            cycle: cycle::Cycle::new(now, seed),
            timed_out_at: None,
            idle_restart: false,
            undo: None,
            heard: (now, false),
        }
    }

    /// The window in bytes.
    pub(crate) fn cwnd(&self) -> f64 {
        self.cwnd
    }

    pub(crate) fn in_startup(&self) -> bool {
        self.state == State::Startup
    }

    pub(crate) fn set_mss(&mut self, mss: f64) {
        self.mss = mss;
    }

    /// The pacing rate; before there is a bandwidth, Startup's gain times a window a round trip.
    pub(crate) fn pacing_rate(&self, srtt: Span) -> Rate {
        let nominal = STARTUP_PACING * self.cwnd / srtt.as_secs_f64().max(1e-6);
        let rate = if self.pacing_rate > 0.0 { self.pacing_rate } else { nominal };
        Rate::from_bits((rate * 8.0).max(1.0) as u64)
    }

    pub(crate) fn on_sent(&mut self, now: Time, in_flight: u64, srtt: Span) {
        self.log.on_sent(now, in_flight as f64, srtt);
    }

    pub(crate) fn on_ack(&mut self, sample: &AckSample) {
        let sent_at = sample.now - sample.rtt;
        let acked = sample.acked_bytes as f64;
        self.log.delivered += acked;
        self.heard = (sample.now, sample.app_limited);
        let sent = self.log.at(sent_at);
        let ack = Ack {
            sample,
            acked,
            in_flight: (sample.in_flight as f64 - acked).max(0.0),
            rate: sample.delivery_rate.map(Rate::as_bytes_f64),
            sent,
            delivered: self.log.delivered - sent.delivered,
            lost: self.log.lost - sent.lost,
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
        self.set_pacing_rate(self.pacing_gain);
        self.set_cwnd(acked);
    }

    fn update_model(&mut self, ack: &Ack<'_>) {
        let rate = ack.rate.unwrap_or(0.0);
        self.losses.bw_latest = self.losses.bw_latest.max(rate);
        self.losses.inflight_latest = self.losses.inflight_latest.max(ack.delivered);
        if self.round.begins {
            self.cycle.rounds_since_probe = self.cycle.rounds_since_probe.saturating_add(1);
            self.aggregation.begin_round(self.round.count);
        }
        if rate >= self.max_bw.get() || !ack.sample.app_limited {
            self.max_bw.update(rate);
        }
        if self.loss_round.begins {
            self.adapt_lower_bounds();
        }
        self.aggregation.update(ack.sample.now, self.round.count, self.bw, ack.acked, self.cwnd);
        self.check_full_pipe(ack);
    }

    fn update_state(&mut self, ack: &Ack<'_>) {
        self.check_startup_losses(ack);
        if self.state == State::Startup && self.full.reached {
            self.enter(State::Drain, DRAIN_PACING, CWND_GAIN);
        }
        if self.state == State::Drain && ack.in_flight <= self.inflight(self.bw, 1.0) {
            self.start_down(ack.sample.now);
        }
        self.update_cycle(ack);
        let expired = self.min_rtt.update(ack.sample.now, ack.sample.rtt);
        self.check_probe_rtt(ack, expired);
        if self.loss_round.begins {
            self.losses.in_round = false;
            self.losses.events = 0;
            self.losses.bw_latest = ack.rate.unwrap_or(0.0);
            self.losses.inflight_latest = ack.delivered;
        }
        self.bw = self.max_bw.get().min(self.bw_lo);
    }

    /// Once a lossy round outside of probing: 0.7 of the short-term bounds, but not less than was just delivered.
    fn adapt_lower_bounds(&mut self) {
        let probing = matches!(self.state, State::Startup | State::Refill | State::Up);
        if probing || !self.losses.in_round {
            return;
        }
        let bw = if self.bw_lo.is_finite() { self.bw_lo } else { self.max_bw.get() };
        let inflight = if self.inflight_lo.is_finite() { self.inflight_lo } else { self.cwnd };
        self.bw_lo = self.losses.bw_latest.max(bw * BETA);
        self.inflight_lo = self.losses.inflight_latest.max(inflight * BETA);
    }

    fn check_full_pipe(&mut self, ack: &Ack<'_>) {
        let Some(rate) = ack.rate else { return };
        if self.full.now || ack.sample.app_limited || self.state == State::ProbeRtt {
            return;
        }
        if rate >= self.full.bw * FULL_GROWTH {
            self.full.reset(rate);
        } else if self.round.begins {
            self.full.rounds += 1;
            self.full.now = self.full.rounds >= FULL_ROUNDS;
            self.full.reached |= self.full.now;
        }
    }

    /// Startup also ends with a round of many losses: the volume it delivered is the long-term bound.
    fn check_startup_losses(&mut self, ack: &Ack<'_>) {
        let lossy = self.loss_round.begins && self.losses.events >= STARTUP_LOSS_EVENTS && ack.too_lossy();
        if !self.full.reached && lossy {
            self.full.reached = true;
            self.inflight_hi = self.inflight(self.max_bw.get(), 1.0).max(self.losses.inflight_latest);
        }
    }

    /// Takes in losses; true when they lowered the long-term bound.
    pub(crate) fn on_loss(&mut self, event: &LossEvent) -> bool {
        if self.losses.episode.is_none_or(|episode| event.sent_at > episode) {
            self.losses.episode = Some(event.now);
            let Self { state, bw_lo, inflight_lo, inflight_hi, .. } = *self;
            self.undo = Some(Undo { state, bw_lo, inflight_lo, inflight_hi });
        }
        let size = event.lost_bytes as f64;
        self.log.lost += size;
        self.losses.events = self.losses.events.saturating_add(1);
        if !self.losses.in_round {
            self.losses.in_round = true;
            self.loss_round.restart(event.now);
        }
        if !self.cycle.samples || self.state == State::Startup {
            return false;
        }
        let sent = self.log.at(event.sent_at);
        let lost = self.log.lost - sent.lost;
        if lost <= sent.in_flight * LOSS_THRESHOLD {
            return false;
        }
        // the volume at which losses passed the threshold lies within the packets lost now
        let (volume, lost_before) = ((sent.in_flight - size).max(0.0), (lost - size).max(0.0));
        let within = ((LOSS_THRESHOLD * volume - lost_before) / (1.0 - LOSS_THRESHOLD)).max(0.0);
        let before = self.inflight_hi;
        self.on_inflight_too_high(event.now, volume + within, self.heard.1);
        self.bound_cwnd();
        self.inflight_hi < before
    }

    fn on_inflight_too_high(&mut self, now: Time, volume: f64, app_limited: bool) {
        self.cycle.samples = false;
        if !app_limited {
            self.inflight_hi = volume.max(self.target_inflight() * BETA);
        }
        if self.state == State::Up {
            self.start_down(now);
        }
    }

    /// Takes back what the last episode of losses changed.
    pub(crate) fn on_spurious_loss(&mut self) {
        if self.timed_out_at.take().is_some() {
            self.cwnd = self.cwnd.max(self.prior_cwnd);
        }
        let Some(undo) = self.undo.take() else { return };
        self.losses.in_round = false;
        self.losses.episode = None;
        self.full.reset(0.0);
        self.bw_lo = self.bw_lo.max(undo.bw_lo);
        self.inflight_lo = self.inflight_lo.max(undo.inflight_lo);
        self.inflight_hi = self.inflight_hi.max(undo.inflight_hi);
        if self.state == State::ProbeRtt || self.state == undo.state {
            return;
        }
        match undo.state {
            State::Startup => {
                self.full.reached = false;
                self.enter(State::Startup, STARTUP_PACING, CWND_GAIN);
            }
            State::Up => self.start_up(self.heard.0, 0.0),
            _ => {}
        }
    }

    /// Sends one packet until something sent from now on is acknowledged; then the window is what it was.
    pub(crate) fn on_timeout(&mut self, now: Time) {
        if self.timed_out_at.is_none() {
            self.save_cwnd();
        }
        self.timed_out_at = Some(now);
        self.cwnd = self.mss;
    }

    pub(crate) fn on_idle_restart(&mut self, now: Time) {
        self.idle_restart = true;
        self.aggregation.restart(now);
        match self.state {
            State::Down | State::Cruise | State::Refill | State::Up => self.set_pacing_rate(1.0),
            State::ProbeRtt => self.check_probe_rtt_done(now),
            State::Startup | State::Drain => {}
        }
    }

    /// Keeps the window for when a timeout or a probe of the round-trip time is over, whichever lasts longer.
    fn save_cwnd(&mut self) {
        let lowered = self.state == State::ProbeRtt || self.timed_out_at.is_some();
        self.prior_cwnd = if lowered { self.prior_cwnd.max(self.cwnd) } else { self.cwnd };
    }

    fn enter(&mut self, state: State, pacing_gain: f64, cwnd_gain: f64) {
        (self.state, self.pacing_gain, self.cwnd_gain) = (state, pacing_gain, cwnd_gain);
    }

    fn bdp(&self, bw: f64, gain: f64) -> f64 {
        self.min_rtt.get().map_or(self.initial, |min| gain * bw * min.as_secs_f64())
    }

    /// A volume in flight, made large enough for bursts, acks for several packets and a probe.
    fn with_quantum(&self, volume: f64) -> f64 {
        let quantum = (self.pacing_rate * 0.001).min(65_536.0).max(2.0 * self.mss);
        let volume = volume.max(3.0 * quantum).max(self.min_pipe());
        if self.state == State::Up { volume + 2.0 * self.mss } else { volume }
    }

    fn inflight(&self, bw: f64, gain: f64) -> f64 {
        self.with_quantum(self.bdp(bw, gain))
    }

    fn target_inflight(&self) -> f64 {
        self.inflight(self.bw, 1.0).min(self.cwnd)
    }

    fn inflight_with_headroom(&self) -> f64 {
        let headroom = self.mss.max(HEADROOM * self.inflight_hi);
        if self.inflight_hi.is_finite() {
            (self.inflight_hi - headroom).max(self.min_pipe())
        } else {
            f64::INFINITY
        }
    }

    fn min_pipe(&self) -> f64 {
        MIN_PIPE_PACKETS * self.mss
    }

    fn set_pacing_rate(&mut self, gain: f64) {
        let rate = gain * self.bw * PACING_MARGIN;
        if self.bw > 0.0 && (self.full.reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    fn set_cwnd(&mut self, acked: f64) {
        let most = self.with_quantum(self.bdp(self.bw, self.cwnd_gain) + self.aggregation.most());
        if self.full.reached {
            self.cwnd = (self.cwnd + acked).min(most);
        } else if self.cwnd < most || self.log.delivered < self.initial {
            self.cwnd += acked;
        }
        if self.timed_out_at.is_none() {
            self.cwnd = self.cwnd.max(self.min_pipe());
        }
        self.bound_cwnd();
    }

    fn bound_cwnd(&mut self) {
        let cap = match self.state {
            State::Down | State::Refill | State::Up => self.inflight_hi,
            State::Cruise => self.inflight_with_headroom(),
            State::ProbeRtt => self.inflight_with_headroom().min(self.probe_rtt_cwnd()),
            State::Startup | State::Drain => f64::INFINITY,
        };
        self.cwnd = self.cwnd.min(cap.min(self.inflight_lo).max(self.min_pipe()));
    }

    /// Keeps the window below a bound from outside.
    pub(crate) fn clamp(&mut self, least: f64, most: f64) {
        self.cwnd = self.cwnd.min(most).max(least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: f64 = 1_000.0;

    /// BBR at 10 Mbyte/s and 100 ms, with a full window sent a round trip ago.
    fn steady(state: State) -> Bbr {
        let mut bbr = Bbr::new(10.0 * MSS, MSS, Time::ZERO, 1);
        bbr.max_bw.update(1e7);
        bbr.bw = 1e7;
        bbr.min_rtt.update(Time::ZERO, Span::from_millis(100));
        bbr.full.reached = true;
        bbr.cwnd = 2e6;
        bbr.on_sent(Time::ZERO, 1_250_000, Span::from_millis(100));
        bbr.enter(state, 1.0, CWND_GAIN);
        bbr
    }

    fn loss(bytes: u64) -> LossEvent {
        let now = Time::ZERO + Span::from_millis(100);
        LossEvent { now, lost_bytes: bytes, in_flight: 1_250_000, sent_at: Time::ZERO }
    }

    #[test]
    fn two_percent_lost_of_a_probe_bound_the_volume_where_they_were_lost_and_undo_unbinds_it() {
        let mut bbr = steady(State::Up);
        bbr.cycle.samples = true;
        assert!(!bbr.on_loss(&loss(25_000)), "two percent are borne");
        assert!(bbr.on_loss(&loss(1_000)));
        assert_eq!(bbr.state, State::Down);
        assert!((1.2e6..1.25e6).contains(&bbr.inflight_hi), "{}", bbr.inflight_hi);
        assert_eq!(bbr.cwnd(), bbr.inflight_hi);
        bbr.on_spurious_loss();
        assert_eq!((bbr.state, bbr.inflight_hi), (State::Up, f64::INFINITY));
    }

    #[test]
    fn a_lossy_round_in_cruise_lowers_the_short_term_bounds_and_undo_lifts_them() {
        let mut bbr = steady(State::Cruise);
        assert!(!bbr.on_loss(&loss(100_000)));
        bbr.losses.bw_latest = 6e6;
        bbr.adapt_lower_bounds();
        assert_eq!((bbr.bw_lo, bbr.inflight_lo), (7e6, 1.4e6));
        bbr.on_spurious_loss();
        assert_eq!((bbr.bw_lo, bbr.inflight_lo), (f64::INFINITY, f64::INFINITY));
    }

    #[test]
    fn five_seconds_without_a_low_sample_call_for_half_a_bdp_for_200_ms() {
        let mut bbr = steady(State::Cruise);
        let ack = |millis: u64, in_flight: u64| AckSample {
            now: Time::ZERO + Span::from_millis(millis),
            acked_bytes: 1_000,
            rtt: Span::from_millis(120),
            in_flight,
            delivery_rate: Some(Rate::from_mbit(80.0)),
            round_start: false,
            app_limited: false,
            window_limited: true,
            ce_marks: 0,
        };
        bbr.on_ack(&ack(5_001, 1_000_000));
        assert_eq!(bbr.state, State::ProbeRtt);
        assert_eq!(bbr.cwnd(), 500_000.0);
        bbr.on_ack(&ack(5_100, 400_000));
        bbr.on_ack(&ack(5_250, 400_000));
        assert_eq!(bbr.state, State::ProbeRtt);
        bbr.on_ack(&ack(5_310, 400_000));
        assert_eq!(bbr.state, State::Cruise);
        assert!(bbr.cwnd() > 1e6);
    }
}
