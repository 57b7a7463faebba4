//! Reductions of windows, and how they are undone.
//!
//! A loss reduces its path's window by the rule, once an episode: losses of packets sent before the last reduction belong
//! to it (RFC 9002 §7.3.1), and acks of such packets do not grow the window. They only show how far slow start overshot.
//! A timeout sets the window to its minimum and restarts slow start [M2]. A pause makes the window decay. A reduction that
//! proves unjustified is undone, with its changes to other paths. Under `bbr` all events go to the path's model.

use anabranch_wire::{PathId, Time};

use crate::auto::View;
use crate::bbr::Bbr;
use crate::controller::{Controller, Path};
use crate::rules;
use crate::sample::{LossCause, LossEvent};

impl Controller {
    /// Handles losses found by later acks. True when they reduced the window: one reduction an episode.
    pub fn on_loss(&mut self, path: PathId, event: &LossEvent) -> bool {
        let Some(index) = self.index(path) else { return false };
        self.paths[index].in_flight = event.in_flight.saturating_sub(event.lost_bytes);
        self.reduce(index, event)
    }

    /// Handles congestion-experienced marks, which count as a loss (RFC 3168 §6.1.2). True when they reduced the window.
    pub fn on_ecn(&mut self, path: PathId, event: &LossEvent) -> bool {
        let Some(index) = self.index(path) else { return false };
        self.reduce(index, event)
    }

    /// Restarts a path that carries data again after it was given up: slow start from the initial window, because its queue
    /// is unknown, up to 0.7 of its former window `before` in bytes, if known.
    pub fn on_return(&mut self, path: PathId, before: Option<u64>, now: Time) {
        let Some(index) = self.index(path) else { return };
        let (group, mss) = (self.paths[index].group, self.paths[index].mss);
        let was_alone = self.is_alone(index);
        self.add_path(path, mss as u64, now);
        self.set_group(path, group);
        let own = self.config.rule != crate::RuleKind::Combined;
        if let Some(index) = self.index(path)
            && let Some(before) = before.filter(|_| own)
        {
            let window = &mut self.paths[index].window;
            window.ssthresh = (before as f64 * 0.7).max(window.bytes);
            window.hystart = None;
            self.refill(index, was_alone);
        }
    }

    /// Handles the end of an impairment that caused losses: slow start from the current window up to 0.7 of the window
    /// `before`, in bytes.
    pub fn on_recovery(&mut self, path: PathId, before: u64) {
        let Some(index) = self.index(path).filter(|_| self.config.rule != crate::RuleKind::Combined) else {
            return;
        };
        let window = &mut self.paths[index].window;
        window.ssthresh = window.ssthresh.max(before as f64 * 0.7);
        window.memory.restart();
        self.refill(index, self.is_alone(index));
        self.epoch += 1;
    }

    /// Under `auto`: the path keeps a short queue.
    fn is_alone(&self, index: usize) -> bool {
        self.paths[index].auto.as_ref().is_some_and(|auto| auto.is_alone())
    }

    /// Under `auto`, handles the end of an impairment.
    fn refill(&mut self, index: usize, was_alone: bool) {
        if let Some(auto) = self.paths[index].auto.as_mut().filter(|_| was_alone) {
            auto.on_return();
        }
    }

    fn reduce(&mut self, index: usize, event: &LossEvent) -> bool {
        if let Some(lowered) = self.model(index, |bbr| bbr.on_loss(event)) {
            return lowered;
        }
        if let Some(auto) = &mut self.paths[index].auto {
            auto.on_lost(event.lost_bytes as f64);
        }
        let owner = self.owner(index);
        if self.paths[owner].window.reduced_since(event.sent_at) {
            if event.lost_bytes == 0 || self.cause_of_losses(index) == LossCause::Queues {
                self.paths[owner].window.note_earlier_loss(event.sent_at);
            }
            self.take_off_overshoot(owner, event.lost_bytes);
            return false;
        }
        if self.spare(index, event) {
            return false;
        }
        self.lower(owner, event);
        true
    }

    /// Reduces a window for a loss.
    fn lower(&mut self, owner: usize, event: &LossEvent) {
        let rule = rules::rule(self.config.rule);
        let group = self.group_of(owner);
        let spill = rule.spill(&group);
        let left = self.left_by_loss(owner);
        let bytes = self.bounded(left, self.paths[owner].mss);
        let window = &mut self.paths[owner].window;
        window.bytes = bytes.min(window.bytes);
        window.left();
        window.leave_slow_start();
        window.reduced_at = Some(event.now);
        if let Some(auto) = &mut self.paths[owner].auto {
            auto.on_reduced();
        }
        self.take_off_overshoot(owner, event.lost_bytes);
        self.epoch += 1;
        if spill != 1.0 {
            self.spill(owner, spill);
        }
        if self.cubic_groups {
            self.share_loss(owner, event);
        }
    }

    /// Under `auto`, handles a loss that is no congestion; false for all others.
    fn spare(&mut self, index: usize, event: &LossEvent) -> bool {
        let Path { mss, ref window, ref mut auto, .. } = self.paths[index];
        let Some(auto) = auto else { return false };
        if event.lost_bytes == 0 {
            return false;
        }
        let view = View { window: window.bytes, mss, slow_start: window.in_slow_start() };
        let Some(left) = auto.spare(event.now, &view) else { return false };
        if left < window.bytes {
            self.resize(index, left);
            let window = &mut self.paths[index].window;
            window.ssthresh = window.ssthresh.min(window.bytes);
        }
        true
    }

    /// Under `auto`, shrinks a window for its queue, in a way that can be undone.
    pub(crate) fn shrink(&mut self, index: usize, bytes: f64, now: Time) {
        self.left_by_loss(index);
        self.resize(index, bytes);
        let window = &mut self.paths[index].window;
        window.note_cut();
        window.leave_slow_start();
        window.reduced_at = Some(now);
        self.epoch += 1;
    }

    /// Under `auto`, undoes a cut. If a packet from before it was lost, the window is reduced for that instead.
    pub(crate) fn take_back_cut(&mut self, index: usize, now: Time) {
        let window = &mut self.paths[index].window;
        let lost_before = window.reduced_at.filter(|_| window.has_earlier_loss());
        window.undo();
        self.resize(index, self.paths[index].window.bytes);
        self.epoch += 1;
        if let Some(sent_at) = lost_before {
            self.lower(index, &LossEvent { now, lost_bytes: 0, in_flight: 0, sent_at });
        }
    }

    /// Reduces the window further if slow start overshot. Slow start doubles the window until a loss is noticed, a
    /// round trip late, when up to twice the path's capacity is outstanding. The share that was lost shows how far the
    /// window overshot; without this, further losses would follow at once. RFC 5681 and the profile `tcp` do not do
    /// this.
    fn take_off_overshoot(&mut self, owner: usize, lost_bytes: u64) {
        if !self.config.hystart || self.config.rule == crate::RuleKind::Combined {
            return;
        }
        let mss = self.paths[owner].mss;
        let Some(left) = self.paths[owner].window.overshot(lost_bytes as f64, mss) else { return };
        let bytes = self.bounded(left, mss);
        let window = &mut self.paths[owner].window;
        if bytes < window.bytes {
            window.bytes = bytes;
            window.ssthresh = bytes;
            self.epoch += 1;
        }
    }

    /// Under `cubic`, a loss on one path of a group reduces all its paths, except those in slow start and those reduced in
    /// this episode already.
    fn share_loss(&mut self, owner: usize, event: &LossEvent) {
        let group = self.paths[owner].group;
        for other in 0..self.paths.len() {
            let path = &self.paths[other];
            let already_reduced = path.window.reduced_since(event.sent_at) || path.window.in_slow_start();
            if other == owner || !path.is_coupled(group) || already_reduced {
                continue;
            }
            let left = self.left_by_loss(other);
            let bytes = self.bounded(left, self.paths[other].mss);
            let by = self.ids[owner];
            let window = &mut self.paths[other].window;
            window.bytes = bytes.min(window.bytes);
            window.leave_slow_start();
            window.reduced_at = Some(event.now);
            window.reduced_by(by);
        }
    }

    /// Undoes a path's last reduction if it was for a loss on `other`, with which the path turns out to share no bottleneck.
    pub fn on_parted(&mut self, path: PathId, other: PathId) {
        let Some(index) = self.index(path) else { return };
        if self.paths[index].window.take_back_from(other) {
            self.resize(index, self.paths[index].window.bytes);
            self.epoch += 1;
        }
    }

    /// The window that a loss leaves, in bytes; saves the state before it for an undo.
    fn left_by_loss(&mut self, owner: usize) -> f64 {
        let Path { mss, ref mut window, .. } = self.paths[owner];
        window.remember();
        let left = window.memory.on_loss(window.bytes / mss);
        left.unwrap_or_else(|| rules::rule(self.config.rule).decrease(&self.group_of(owner))) * mss
    }

    /// Multiplies the windows of the group's other paths, and saves their gains for an undo.
    fn spill(&mut self, owner: usize, factor: f64) {
        let group = self.paths[owner].group;
        let mut given = 0.0;
        for other in 0..self.paths.len() {
            if other != owner && self.paths[other].is_coupled(group) {
                given += self.scale(other, factor);
            }
        }
        self.paths[owner].window.set_given(given);
    }

    /// Multiplies a window without moving it into or out of slow start; returns the bytes gained.
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

    /// Handles a retransmission timeout or persistent congestion: the window falls to its minimum. Slow start then goes
    /// up to the window after a loss, at least two packets [M2, RFC 5681 §3.1]. `in_flight` is the number of bytes
    /// still outstanding: 0 if a timeout empties the pipe [M3].
    pub fn on_timeout(&mut self, path: PathId, now: Time, in_flight: u64) {
        let Some(index) = self.index(path) else { return };
        self.paths[index].in_flight = in_flight;
        if self.model(index, |bbr| bbr.on_timeout(now)).is_some() {
            return;
        }
        let owner = self.owner(index);
        if !self.paths[owner].window.timed_out {
            let left = self.left_by_loss(owner);
            let Path { mss, ref mut window, .. } = self.paths[owner];
            window.ssthresh = left.min(window.bytes).max(2.0 * mss);
            window.memory.on_timeout();
        }
        self.end_test(index);
        let least = self.bounded(0.0, self.paths[owner].mss);
        let window = &mut self.paths[owner].window;
        window.bytes = least;
        window.hystart = None;
        window.timed_out = true;
        window.reduced_at = Some(now);
        self.epoch += 1;
    }

    /// Undoes the path's last reduction because the packets declared lost had arrived (RFC 4015, RFC 5682). Does nothing
    /// without a reduction to undo, or if the last one was not for a loss.
    pub fn on_spurious_loss(&mut self, path: PathId) {
        let Some(index) = self.index(path) else { return };
        if self.model(index, Bbr::on_spurious_loss).is_some() {
            return;
        }
        let owner = self.owner(index);
        if self.paths[owner].window.was_cut() {
            return self.paths[owner].window.forget_earlier_loss();
        }
        let reduced_at = self.paths[owner].window.reduced_at;
        let Some(given) = self.paths[owner].window.undo() else { return };
        if self.cubic_groups {
            let group = self.paths[owner].group;
            let shared = |path: &&mut Path| path.is_coupled(group) && path.window.reduced_at == reduced_at;
            self.paths.iter_mut().filter(shared).for_each(|path| {
                path.window.undo();
            });
        }
        self.resize(owner, self.paths[owner].window.bytes);
        self.epoch += 1;
        if given != 0.0 {
            self.take_back(owner, given);
        }
    }

    fn take_back(&mut self, owner: usize, given: f64) {
        let group = self.paths[owner].group;
        let shares = |other: usize, path: &Path| other != owner && path.is_coupled(group);
        let receivers = self.paths.iter().enumerate().filter(|(other, path)| shares(*other, path));
        let total: f64 = receivers.map(|(_, path)| path.window.bytes).sum();
        for other in 0..self.paths.len() {
            if shares(other, &self.paths[other]) {
                self.scale(other, (1.0 - given / total).max(0.0));
            }
        }
    }

    /// Handles the first packet after a pause: the window halves for each retransmission timeout of silence, down to the
    /// initial window, and slow start may raise it to 3/4 of its former size (RFC 2861 §3.1, RFC 5681 §4.1).
    pub fn on_idle_restart(&mut self, path: PathId, now: Time) {
        let Some(index) = self.index(path) else { return };
        if self.model(index, |bbr| bbr.on_idle_restart(now)).is_some() {
            return;
        }
        let owner = self.owner(index);
        let Path { mss, rto, last_sent, .. } = self.paths[index];
        let halvings = now.since(last_sent).as_nanos() / rto.as_nanos().max(1);
        let restart = self.config.initial_window as f64 * mss;
        let window = &mut self.paths[owner].window;
        if halvings == 0 || window.bytes <= restart {
            return;
        }
        window.ssthresh = window.ssthresh.max(0.75 * window.bytes);
        window.memory.restart();
        let halved = window.bytes * libm::exp2(-(halvings.min(64) as f64));
        self.resize(owner, halved.max(restart));
        self.end_test(index);
        self.epoch += 1;
    }

    /// Under `auto`, ends a test of the queue. Taking back its cut would undo what came after it.
    fn end_test(&mut self, index: usize) {
        if let Some(auto) = &mut self.paths[index].auto {
            auto.on_restart();
        }
    }
}
