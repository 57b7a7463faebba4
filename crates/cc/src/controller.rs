//! The session's congestion controller: every path's window, and the groups that couple them.
//!
//! An ack grows the window of its path: by what it acknowledges in slow start, by the rule's increase beyond.
//! A loss reduces it by the rule, once an episode: losses of packets sent before the last reduction belong to
//! it (RFC 9002 §7.3.1), and acks of such packets do not grow it. A timeout takes the window to its minimum and
//! back to slow start [M2].
//!
//! Under `combined` the session's first path carries the one window for all; see [`Controller::window`].
//!
//! Calls that name an unknown path change nothing; asked about one, its window is 0.

use anabranch_wire::{PathId, Rate, Span, Time};

use crate::config::{Config, RuleKind};
use crate::rtt::{RtoBounds, RttEstimator};
use crate::rules::{self, Group, Member, Memory};
use crate::sample::{AckSample, LossEvent};
use crate::slow_start::Verdict;
use crate::window::{Gain, Window};

/// Packets of one ack that count in slow start when nothing paces what they release (RFC 9406 §4.2).
const UNPACED_LIMIT: f64 = 8.0;
/// How much faster than a window a round trip a path is paced (RFC 9002 §7.7).
const PACING_SLOW_START: f64 = 2.0;
const PACING_AVOIDANCE: f64 = 1.25;
/// Assumed for a path that is reduced before its first sample, in seconds (RFC 9002 §6.2.2).
const UNKNOWN_RTT: f64 = 0.333;

/// Windows and pacing rates of all paths of one session.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    paths: Vec<Path>,
    /// Counts what makes every kept increase stale: reductions and changes of membership.
    epoch: u64,
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Path {
    id: PathId,
    group: u32,
    mss: f64,
    in_flight: u64,
    last_sent: Time,
    rtt: Option<f64>,
    rto: Span,
    window: Window,
}

impl Controller {
    /// A controller without paths.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, paths: Vec::new(), epoch: 1, members: Vec::new() }
    }

    /// Adds a path, in slow start at the initial window and in group 0. `mss` is its packet size in bytes. A
    /// path that is known already starts anew. Under `combined` it shares the session's window as it is.
    pub fn add_path(&mut self, path: PathId, mss: u64, now: Time) {
        self.remove_path(path);
        let mss = mss.max(1) as f64;
        let memory = Memory::new(self.config.rule);
        let hystart = self.config.hystart && self.config.rule != RuleKind::Combined;
        let bytes = self.bounded(self.config.initial_window as f64 * mss, mss);
        let window = Window::new(bytes, hystart, memory);
        let rto = RtoBounds::default().min;
        self.paths.push(Path {
            id: path,
            group: 0,
            mss,
            in_flight: 0,
            last_sent: now,
            rtt: None,
            rto,
            window,
        });
        self.epoch += 1;
    }

    /// Forgets a path.
    pub fn remove_path(&mut self, path: PathId) {
        let Some(index) = self.index(path) else { return };
        let removed = self.paths.remove(index);
        if self.config.rule == RuleKind::Combined
            && index == 0
            && let Some(heir) = self.paths.first_mut()
        {
            heir.window = removed.window;
        }
        self.epoch += 1;
    }

    /// Puts a path into a group: paths of one group are coupled, different groups are independent.
    pub fn set_group(&mut self, path: PathId, group: u32) {
        let Some(index) = self.index(path) else { return };
        self.paths[index].group = group;
        self.epoch += 1;
    }

    /// The group a path is in.
    #[must_use]
    pub fn group(&self, path: PathId) -> u32 {
        self.index(path).map_or(0, |index| self.paths[index].group)
    }

    /// Sets a path's packet size in bytes, as path MTU discovery finds it. The window keeps its bytes.
    pub fn set_mss(&mut self, path: PathId, mss: u64) {
        let Some(index) = self.index(path) else { return };
        self.paths[index].mss = mss.max(1) as f64;
        let seat = self.seat(index);
        self.resize(seat, self.paths[seat].window.bytes);
        self.epoch += 1;
    }

    /// Notes a transmission; `in_flight` is what is outstanding on the path with it.
    pub fn on_sent(&mut self, path: PathId, now: Time, bytes: u64, in_flight: u64) {
        let Some(index) = self.index(path) else { return };
        let sender = &mut self.paths[index];
        sender.in_flight = in_flight.max(bytes);
        sender.last_sent = now;
    }

    /// Takes in an ack; `rtt` is the path's estimator with this ack's sample in it.
    pub fn on_ack(&mut self, path: PathId, sample: &AckSample, rtt: &RttEstimator) {
        let Some(index) = self.index(path) else { return };
        let acker = &mut self.paths[index];
        acker.in_flight = sample.in_flight.saturating_sub(sample.acked_bytes);
        acker.rtt = Some(rtt.smoothed().as_secs_f64());
        acker.rto = rtt.rto(RtoBounds::default());
        let seat = self.seat(index);
        self.paths[seat].window.memory.on_acked(sample.acked_bytes);
        let factor = self.watch_slow_start(seat, sample);
        if self.paths[seat].window.reduced_since(sample.now - sample.rtt) {
            return;
        }
        if sample.window_limited {
            self.grow(seat, index, sample, factor);
        } else {
            self.paths[seat].window.memory.pause(sample.now);
        }
    }

    /// Feeds HyStart++; answers the part of what is acknowledged that slow start grows by.
    fn watch_slow_start(&mut self, seat: usize, sample: &AckSample) -> f64 {
        let window = &mut self.paths[seat].window;
        match window.hystart.as_mut().map(|hystart| hystart.on_ack(sample.rtt, sample.round_start)) {
            None => 1.0,
            Some(Verdict::Grow(factor)) => factor,
            Some(Verdict::Leave) => {
                if sample.window_limited {
                    window.leave_slow_start();
                }
                1.0
            }
        }
    }

    fn grow(&mut self, seat: usize, index: usize, sample: &AckSample, factor: f64) {
        let mut acked = sample.acked_bytes as f64;
        let mss = self.paths[seat].mss;
        let window = &mut self.paths[seat].window;
        window.timed_out = false;
        let mut bytes = window.bytes;
        if window.in_slow_start() {
            let limit = if self.config.pacing { f64::INFINITY } else { UNPACED_LIMIT * mss };
            let step = acked.min(limit) * factor;
            let room = window.ssthresh - bytes;
            (bytes, acked) =
                if step < room { (bytes + step, 0.0) } else { (window.ssthresh, acked - room / factor) };
            self.resize(seat, bytes);
        }
        if acked > 0.0 {
            bytes = self.avoid(seat, index, sample.now, acked);
            self.resize(seat, bytes);
        }
    }

    /// The window in bytes after `acked` bytes in congestion avoidance.
    fn avoid(&mut self, seat: usize, index: usize, now: Time, acked: f64) -> f64 {
        let rtt = self.paths[index].rtt.unwrap_or(UNKNOWN_RTT);
        let Path { mss, ref mut window, .. } = self.paths[seat];
        let packets = window.bytes / mss;
        if let Some(grown) = window.memory.grow(now, packets, rtt, acked / mss) {
            return grown * mss;
        }
        if window.gain.epoch != self.epoch || (window.bytes - window.gain.at).abs() >= mss {
            let rule = rules::rule(self.config.rule);
            let per_packet = rule.increase(&self.group_of(seat));
            let window = &mut self.paths[seat].window;
            window.gain = Gain { per_packet, at: window.bytes, epoch: self.epoch };
        }
        let window = &self.paths[seat].window;
        window.bytes + window.gain.per_packet * acked
    }

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

    fn reduce(&mut self, index: usize, event: &LossEvent) -> bool {
        let seat = self.seat(index);
        if self.paths[seat].window.reduced_since(event.sent_at) {
            return false;
        }
        let rule = rules::rule(self.config.rule);
        let group = self.group_of(seat);
        let spill = rule.spill(&group);
        let left = self.left_by_loss(seat);
        let bytes = self.bounded(left, self.paths[seat].mss);
        let window = &mut self.paths[seat].window;
        window.bytes = bytes.min(window.bytes);
        window.leave_slow_start();
        window.reduced_at = Some(event.now);
        self.epoch += 1;
        if spill != 1.0 {
            self.spill(seat, spill);
        }
        true
    }

    /// What a loss leaves of a window, in bytes; the state before it is kept for an undo.
    fn left_by_loss(&mut self, seat: usize) -> f64 {
        let rule = rules::rule(self.config.rule);
        let by_rule = rule.decrease(&self.group_of(seat));
        let Path { mss, ref mut window, .. } = self.paths[seat];
        window.remember();
        window.memory.on_loss(window.bytes / mss).unwrap_or(by_rule) * mss
    }

    /// Multiplies the windows of the others of a group, and keeps what they gained by it for an undo.
    fn spill(&mut self, seat: usize, factor: f64) {
        let group = self.paths[seat].group;
        let mut gifts = 0.0;
        for other in 0..self.paths.len() {
            if other != seat && self.paths[other].group == group && self.paths[other].rtt.is_some() {
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
        let seat = self.seat(index);
        if !self.paths[seat].window.timed_out {
            let left = self.left_by_loss(seat);
            let Path { mss, ref mut window, .. } = self.paths[seat];
            window.ssthresh = left.min(window.bytes).max(2.0 * mss);
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
        let seat = self.seat(index);
        let Some(gifts) = self.paths[seat].window.undo() else { return };
        self.resize(seat, self.paths[seat].window.bytes);
        self.epoch += 1;
        if gifts != 0.0 {
            self.take_back(seat, gifts);
        }
    }

    fn take_back(&mut self, seat: usize, gifts: f64) {
        let group = self.paths[seat].group;
        let shares = |other: usize, path: &Path| other != seat && path.group == group && path.rtt.is_some();
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

    /// Bytes that may be outstanding on the path. Under `combined`: what the session's window leaves to it
    /// when all that the other paths have outstanding is taken off.
    #[must_use]
    pub fn window(&self, path: PathId) -> u64 {
        let Some(index) = self.index(path) else { return 0 };
        let bytes = self.paths[self.seat(index)].window.bytes as u64;
        if self.config.rule != RuleKind::Combined {
            return bytes;
        }
        let others = self.paths.iter().filter(|other| other.id != path);
        others.fold(bytes, |left, other| left.saturating_sub(other.in_flight))
    }

    /// Bytes at which the path's slow start ends; `u64::MAX` before the first loss.
    #[must_use]
    pub fn ssthresh(&self, path: PathId) -> u64 {
        self.index(path).map_or(u64::MAX, |index| self.paths[self.seat(index)].window.ssthresh as u64)
    }

    /// True while the path's window is below its `ssthresh`, conservative slow start included.
    #[must_use]
    pub fn in_slow_start(&self, path: PathId) -> bool {
        self.index(path).is_some_and(|index| self.paths[self.seat(index)].window.in_slow_start())
    }

    /// How fast the path may send: twice a window a smoothed round trip in slow start, 1.25 windows beyond
    /// (RFC 9002 §7.7). `None` without pacing or before a round-trip sample.
    #[must_use]
    pub fn pacing_rate(&self, path: PathId, rtt: &RttEstimator) -> Option<Rate> {
        let index = self.index(path)?;
        if !self.config.pacing || !rtt.has_sample() {
            return None;
        }
        let window = &self.paths[self.seat(index)].window;
        let gain = if window.in_slow_start() { PACING_SLOW_START } else { PACING_AVOIDANCE };
        let bytes_per_second = gain * window.bytes / rtt.smoothed().as_secs_f64();
        Some(Rate::from_bits((bytes_per_second * 8.0) as u64))
    }

    fn index(&self, path: PathId) -> Option<usize> {
        self.paths.iter().position(|known| known.id == path)
    }

    /// The path whose window counts for the one at `index`.
    fn seat(&self, index: usize) -> usize {
        if self.config.rule == RuleKind::Combined { 0 } else { index }
    }

    /// The group of the path at `index` as its rule sees it.
    fn group_of(&mut self, index: usize) -> Group<'_> {
        let group = self.paths[index].group;
        self.members.clear();
        let mut own = 0;
        for (other, path) in self.paths.iter().enumerate() {
            if other == index {
                own = self.members.len();
            } else if path.group != group || path.rtt.is_none() {
                continue;
            }
            let window = path.window.bytes / path.mss;
            let interval = path.window.memory.loss_interval();
            self.members.push(Member { window, rtt: path.rtt.unwrap_or(UNKNOWN_RTT), interval });
        }
        Group { members: &self.members, own }
    }

    /// Sets a window to as much of `bytes` as its bounds allow.
    fn resize(&mut self, index: usize, bytes: f64) {
        self.paths[index].window.bytes = self.bounded(bytes, self.paths[index].mss);
    }

    /// `bytes` within the bounds of a window, of which the minimum goes first; the minimum for NaN.
    fn bounded(&self, bytes: f64, mss: f64) -> f64 {
        let least = self.config.min_window.max(1) as f64 * mss;
        bytes.min(self.config.max_window as f64).max(least)
    }
}
