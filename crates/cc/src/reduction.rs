//! What makes a window smaller, and what takes that back.
//!
//! A loss reduces its path's window by the rule, once an episode: losses of packets sent before the last reduction
//! belong to it (RFC 9002 §7.3.1), and acks of such packets do not grow the window. They tell how far slow start overshot. A timeout takes it to its
//! minimum and back to slow start [M2]. A reduction that was made in error is undone, together with what it changed
//! on other paths. A pause makes the window decay. Under `bbr` the path's model is told instead.

use anabranch_wire::{PathId, Time};

use crate::bbr::Bbr;
use crate::controller::{Controller, Path};
use crate::rules;
use crate::sample::LossEvent;

impl Controller {
    /// Takes in losses found by later acks. True when they reduced the window: one reduction an episode.
    pub fn on_loss(&mut self, path: PathId, event: &LossEvent) -> bool {
        let Some(index) = self.index(path) else { return false };
        self.paths[index].in_flight = event.in_flight.saturating_sub(event.lost_bytes);
        self.reduce(index, event)
    }

    /// Takes in congestion-experienced marks, which count as a loss does (RFC 3168 §6.1.2). True when they
    /// reduced the window.
    pub fn on_ecn(&mut self, path: PathId, event: &LossEvent) -> bool {
        let Some(index) = self.index(path) else { return false };
        self.reduce(index, event)
    }

    /// Takes in that a path carries data again after it was given up for a while: slow start from the initial window, as
    /// nothing is known of its queue, up to 0.7 of the window in bytes that it had before, if that is known.
    pub fn on_return(&mut self, path: PathId, before: Option<u64>, now: Time) {
        let Some(index) = self.index(path) else { return };
        let (group, mss) = (self.paths[index].group, self.paths[index].mss);
        self.add_path(path, mss as u64, now);
        self.set_group(path, group);
        let own = self.config.rule != crate::RuleKind::Combined;
        if let Some(index) = self.index(path)
            && let Some(before) = before.filter(|_| own)
        {
            let window = &mut self.paths[index].window;
            window.ssthresh = (before as f64 * 0.7).max(window.bytes);
            window.hystart = None;
        }
    }

    /// Takes in that the losses of a while were of an ailment that is over: slow start from the window as it is up to 0.7 of the
    /// window in bytes that the path had before.
    pub fn on_recovery(&mut self, path: PathId, before: u64) {
        let Some(index) = self.index(path).filter(|_| self.config.rule != crate::RuleKind::Combined) else {
            return;
        };
        let window = &mut self.paths[index].window;
        window.ssthresh = window.ssthresh.max(before as f64 * 0.7);
        window.memory.restart();
        self.epoch += 1;
    }

    fn reduce(&mut self, index: usize, event: &LossEvent) -> bool {
        if let Some(lowered) = self.model(index, |bbr| bbr.on_loss(event)) {
            return lowered;
        }
        let seat = self.seat(index);
        if self.paths[seat].window.reduced_since(event.sent_at) {
            self.take_off_overshoot(seat, event.lost_bytes);
            return false;
        }
        let rule = rules::rule(self.config.rule);
        let group = self.group_of(seat);
        let spill = rule.spill(&group);
        let left = self.left_by_loss(seat);
        let bytes = self.bounded(left, self.paths[seat].mss);
        let window = &mut self.paths[seat].window;
        window.bytes = bytes.min(window.bytes);
        window.left();
        window.leave_slow_start();
        window.reduced_at = Some(event.now);
        self.take_off_overshoot(seat, event.lost_bytes);
        self.epoch += 1;
        if spill != 1.0 {
            self.spill(seat, spill);
        }
        if self.linked {
            self.share_loss(seat, event);
        }
        true
    }

    /// Slow start doubles the window until something is lost; when that is known, a round trip later, there may be twice as much
    /// out as the path holds. What of it was lost tells how much too much, and without it the next losses would follow at
    /// once. RFC 5681 does not do this, and neither does the profile `tcp`.
    fn take_off_overshoot(&mut self, seat: usize, lost_bytes: u64) {
        if !self.config.hystart || self.config.rule == crate::RuleKind::Combined {
            return;
        }
        let mss = self.paths[seat].mss;
        let Some(left) = self.paths[seat].window.overshot(lost_bytes as f64, mss) else { return };
        let bytes = self.bounded(left, mss);
        let window = &mut self.paths[seat].window;
        if bytes < window.bytes {
            window.bytes = bytes;
            window.ssthresh = bytes;
            self.epoch += 1;
        }
    }

    /// Under `cubic`: a loss on one path of a group is a loss of all, but of those that still look for their window and
    /// those that took it in already.
    fn share_loss(&mut self, seat: usize, event: &LossEvent) {
        let group = self.paths[seat].group;
        for other in 0..self.paths.len() {
            let path = &self.paths[other];
            let told = path.window.reduced_since(event.sent_at) || path.window.in_slow_start();
            if other == seat || !path.is_coupled(group) || told {
                continue;
            }
            let left = self.left_by_loss(other);
            let bytes = self.bounded(left, self.paths[other].mss);
            let by = self.ids[seat];
            let window = &mut self.paths[other].window;
            window.bytes = bytes.min(window.bytes);
            window.leave_slow_start();
            window.reduced_at = Some(event.now);
            window.reduced_by(by);
        }
    }

    /// Takes in that a path never shared a bottleneck with `other`: its last reduction is taken back if that was for a loss on the other.
    pub fn on_parted(&mut self, path: PathId, other: PathId) {
        let Some(index) = self.index(path) else { return };
        if self.paths[index].window.take_back_from(other) {
            self.resize(index, self.paths[index].window.bytes);
            self.epoch += 1;
        }
    }

    /// What a loss leaves of a window, in bytes; the state before it is kept for an undo.
    fn left_by_loss(&mut self, seat: usize) -> f64 {
        let Path { mss, ref mut window, .. } = self.paths[seat];
        window.remember();
        let left = window.memory.on_loss(window.bytes / mss);
        left.unwrap_or_else(|| rules::rule(self.config.rule).decrease(&self.group_of(seat))) * mss
    }

    /// Multiplies the windows of the others of a group, and keeps what they gained by it for an undo.
    fn spill(&mut self, seat: usize, factor: f64) {
        let group = self.paths[seat].group;
        let mut gifts = 0.0;
        for other in 0..self.paths.len() {
            if other != seat && self.paths[other].is_coupled(group) {
                gifts += self.scale(other, factor);
            }
        }
        self.paths[seat].window.gave(gifts);
    }

    /// Multiplies a window without moving it into or out of slow start; answers the bytes gained.
    fn scale(&mut self, index: usize, factor: f64) -> f64 {
        let before = self.paths[index].window.bytes;
        let slow = self.paths[index].window.in_slow_start();
        self.resize(index, before * factor);
        let window = &mut self.paths[index].window;
        if !slow {
            window.ssthresh = window.ssthresh.min(window.bytes);
        }
        window.bytes - before
    }

    /// Takes in a retransmission timeout or persistent congestion: the window to its minimum, slow start up to
    /// what a loss would have left, two packets at least [M2, RFC 5681 §3.1]. `in_flight` is what is still
    /// counted as outstanding: 0 where a timeout empties the pipe [M3].
    pub fn on_timeout(&mut self, path: PathId, now: Time, in_flight: u64) {
        let Some(index) = self.index(path) else { return };
        self.paths[index].in_flight = in_flight;
        if self.model(index, |bbr| bbr.on_timeout(now)).is_some() {
            return;
        }
        let seat = self.seat(index);
        if !self.paths[seat].window.timed_out {
            let left = self.left_by_loss(seat);
            let Path { mss, ref mut window, .. } = self.paths[seat];
            window.ssthresh = left.min(window.bytes).max(2.0 * mss);
            window.memory.on_timeout();
        }
        let least = self.bounded(0.0, self.paths[seat].mss);
        let window = &mut self.paths[seat].window;
        window.bytes = least;
        window.hystart = None;
        window.timed_out = true;
        window.reduced_at = Some(now);
        self.epoch += 1;
    }

    /// Takes the path's last reduction back, because what was declared lost had arrived (RFC 4015, RFC 5682).
    /// Without a reduction to take back, or twice, it does nothing.
    pub fn on_spurious_loss(&mut self, path: PathId) {
        let Some(index) = self.index(path) else { return };
        if self.model(index, Bbr::on_spurious_loss).is_some() {
            return;
        }
        let seat = self.seat(index);
        let reduced_at = self.paths[seat].window.reduced_at;
        let Some(gifts) = self.paths[seat].window.undo() else { return };
        if self.linked {
            let group = self.paths[seat].group;
            let shared = |path: &&mut Path| path.is_coupled(group) && path.window.reduced_at == reduced_at;
            self.paths.iter_mut().filter(shared).for_each(|path| {
                path.window.undo();
            });
        }
        self.resize(seat, self.paths[seat].window.bytes);
        self.epoch += 1;
        if gifts != 0.0 {
            self.take_back(seat, gifts);
        }
    }

    fn take_back(&mut self, seat: usize, gifts: f64) {
        let group = self.paths[seat].group;
        let shares = |other: usize, path: &Path| other != seat && path.is_coupled(group);
        let given_to = self.paths.iter().enumerate().filter(|(other, path)| shares(*other, path));
        let total: f64 = given_to.map(|(_, path)| path.window.bytes).sum();
        for other in 0..self.paths.len() {
            if shares(other, &self.paths[other]) {
                self.scale(other, (1.0 - gifts / total).max(0.0));
            }
        }
    }

    /// Takes in that the path sends again after a pause: its window halves for each retransmission timeout of
    /// silence, down to the initial window, and slow start may take it back to 3/4 of what it was
    /// (RFC 2861 §3.1, RFC 5681 §4.1).
    pub fn on_idle_restart(&mut self, path: PathId, now: Time) {
        let Some(index) = self.index(path) else { return };
        if self.model(index, |bbr| bbr.on_idle_restart(now)).is_some() {
            return;
        }
        let seat = self.seat(index);
        let Path { mss, rto, last_sent, .. } = self.paths[index];
        let halvings = now.since(last_sent).as_nanos() / rto.as_nanos().max(1);
        let restart = self.config.initial_window as f64 * mss;
        let window = &mut self.paths[seat].window;
        if halvings == 0 || window.bytes <= restart {
            return;
        }
        window.ssthresh = window.ssthresh.max(0.75 * window.bytes);
        window.memory.restart();
        let halved = window.bytes * libm::exp2(-(halvings.min(64) as f64));
        self.resize(seat, halved.max(restart));
        self.epoch += 1;
    }
}
