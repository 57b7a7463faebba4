//! BBR's response to losses, timeouts (draft §4.2.4, §4.5.10, §4.6.4.4) and spurious losses (-06 §5.5.11).

use anabranch_wire::Time;

use super::{Ack, Bbr, CWND_GAIN, LOSS_THRESHOLD, Losses, STARTUP_PACING, State, Undo};
use crate::sample::LossEvent;

const STARTUP_LOSS_EVENTS: u32 = 6;
const BETA: f64 = 0.7;

impl Bbr {
    /// Handles losses; true when they lowered the long-term bound.
    pub(crate) fn on_loss(&mut self, event: &LossEvent) -> bool {
        if self.losses.episode.is_none_or(|episode| event.sent_at > episode) {
            self.losses.episode = Some(event.now);
            self.undo = Some(Undo { ended: None, bounds: self.bounds });
        }
        let size = event.lost_bytes as f64;
        self.path.log.lost += size;
        self.losses.events = self.losses.events.saturating_add(1);
        if !self.losses.in_round {
            self.losses.in_round = true;
            self.loss_round.restart(event.now);
        }
        if !self.cycle.samples || self.mode.state == State::Startup {
            return false;
        }
        let sent = self.path.log.at(event.sent_at);
        let lost = self.path.log.lost - sent.lost;
        if lost <= sent.in_flight * LOSS_THRESHOLD {
            return false;
        }
        // The volume at which losses passed the threshold lies within the packets lost now.
        let (volume, lost_before) = ((sent.in_flight - size).max(0.0), (lost - size).max(0.0));
        let within = ((LOSS_THRESHOLD * volume - lost_before) / (1.0 - LOSS_THRESHOLD)).max(0.0);
        let before = self.bounds.inflight_hi;
        self.on_inflight_too_high(event.now, volume + within, self.last_ack.app_limited);
        self.bound_cwnd();
        self.bounds.inflight_hi < before
    }

    pub(super) fn on_inflight_too_high(&mut self, now: Time, volume: f64, app_limited: bool) {
        self.cycle.samples = false;
        if !app_limited {
            self.bounds.inflight_hi = volume.max(self.target_inflight() * BETA);
        }
        if self.mode.state == State::Up {
            self.note_ended(State::Up);
            self.start_down(now);
        }
    }

    fn note_ended(&mut self, state: State) {
        if let Some(undo) = &mut self.undo {
            undo.ended = Some(state);
        }
    }

    /// Undoes what the last episode of losses changed (-06 §5.5.11.2).
    pub(crate) fn on_spurious_loss(&mut self) {
        if self.timed_out_at.take().is_some() {
            self.cwnd = self.cwnd.max(self.prior_cwnd);
        }
        let Some(undo) = self.undo.take() else { return };
        self.losses = Losses { in_round: false, events: 0, episode: None, ..self.losses };
        self.full.reset(0.0);
        self.bounds.bw_lo = self.bounds.bw_lo.max(undo.bounds.bw_lo);
        self.bounds.inflight_lo = self.bounds.inflight_lo.max(undo.bounds.inflight_lo);
        self.bounds.inflight_hi = self.bounds.inflight_hi.max(undo.bounds.inflight_hi);
        match undo.ended {
            Some(State::Startup) => {
                self.full.reached = false;
                if self.mode.state != State::ProbeRtt {
                    self.enter(State::Startup, STARTUP_PACING, CWND_GAIN);
                }
            }
            Some(_) if !matches!(self.mode.state, State::Up | State::ProbeRtt) => {
                self.start_refill(self.last_ack.at);
            }
            _ => {}
        }
    }

    /// Sends one packet until something sent after it is acknowledged; then the window returns.
    pub(crate) fn on_timeout(&mut self, now: Time) {
        if self.timed_out_at.is_none() {
            self.save_cwnd();
        }
        self.timed_out_at = Some(now);
        self.cwnd = self.mss;
    }

    /// Saves the window for the end of a timeout or a ProbeRTT, whichever lasts longer.
    pub(super) fn save_cwnd(&mut self) {
        let lowered = self.mode.state == State::ProbeRtt || self.timed_out_at.is_some();
        self.prior_cwnd = if lowered { self.prior_cwnd.max(self.cwnd) } else { self.cwnd };
    }

    /// After a lossy round outside of probing: lowers the short-term bounds to 0.7, but not below what was just delivered.
    pub(super) fn adapt_lower_bounds(&mut self) {
        let probing = matches!(self.mode.state, State::Startup | State::Refill | State::Up);
        if probing || !self.losses.in_round {
            return;
        }
        let bw = if self.bounds.bw_lo.is_finite() { self.bounds.bw_lo } else { self.path.max_bw.get() };
        let inflight = if self.bounds.inflight_lo.is_finite() { self.bounds.inflight_lo } else { self.cwnd };
        self.bounds.bw_lo = self.losses.bw_latest.max(bw * BETA);
        self.bounds.inflight_lo = self.losses.inflight_latest.max(inflight * BETA);
    }

    /// Also ends Startup after a round of many losses: the volume it delivered becomes the long-term bound.
    pub(super) fn check_startup_losses(&mut self, ack: &Ack<'_>) {
        let lossy = self.loss_round.begins && self.losses.events >= STARTUP_LOSS_EVENTS && ack.too_lossy();
        if !self.full.reached && lossy {
            self.full.reached = true;
            self.note_ended(State::Startup);
            self.bounds.inflight_hi =
                self.inflight(self.path.max_bw.get(), 1.0).max(self.losses.inflight_latest);
        }
    }
}
