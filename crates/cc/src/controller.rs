//! The session's congestion controller: the windows of all paths, and the groups that couple them.
//!
//! An ack grows its path's window: in slow start by the bytes acknowledged, later by the rule's increase, and only
//! while the window limits the sender. Reductions are in `reduction`.
//!
//! Under `combined` the session's first path owns the one window of all paths; see [`Controller::window`].
//!
//! Calls for an unknown path change nothing and return a window of 0.

use anabranch_prefetch::prefetch;
use anabranch_wire::{PathId, Rate, Span, Time};
use smallvec::SmallVec;

use crate::auto::{Advice, Auto, View};
use crate::bbr::Bbr;
use crate::config::{Config, RuleKind};
use crate::rtt::{RtoBounds, RttEstimator};
use crate::rules::{self, Acked, Group, Member, Memory};
use crate::sample::{AckSample, LossCause};
use crate::slow_start::{HyStart, Verdict};
use crate::window::{Gain, Window};

/// Packets of one ack that count in slow start when their release is not paced (RFC 9406 §4.2).
const UNPACED_LIMIT: f64 = 8.0;
/// Windows per round trip at which a path is paced (RFC 9002 §7.7).
const PACING_SLOW_START: f64 = 2.0;
const PACING_AVOIDANCE: f64 = 1.25;
/// Round-trip time assumed for a path that is reduced before its first sample, in seconds (RFC 9002 §6.2.2).
const UNKNOWN_RTT: f64 = 0.333;
/// Least round-trip time when the paths of a group share its growth, in seconds.
const LEAST_RTT: f64 = 1e-6;

/// Windows and pacing rates of all paths of one session.
#[derive(Clone, Debug)]
pub struct Controller {
    pub(crate) config: Config,
    pub(crate) paths: Vec<Path>,
    /// The ids of `paths`, in the same order.
    pub(crate) ids: SmallVec<[PathId; 8]>,
    /// Counts reductions and changes of groups; either makes every cached increase stale.
    pub(crate) epoch: u64,
    /// Room for [`Self::group_of`].
    members: Vec<Member>,
    /// Under `cubic` and `auto`: whether some group has several paths.
    pub(crate) cubic_groups: bool,
}

/// The state of a path. The fields that every packet needs come first.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Path {
    pub(crate) mss: f64,
    pub(crate) in_flight: u64,
    pub(crate) last_sent: Time,
    pub(crate) window: Window,
    pub(crate) rtt: Option<f64>,
    pub(crate) rto: Span,
    /// Sets the window instead of a rule, under `bbr`.
    pub(crate) model: Option<Box<Bbr>>,
    /// Guides `cubic`, under `auto`.
    pub(crate) auto: Option<Box<Auto>>,
    pub(crate) group: u32,
}

impl Path {
    /// True when the path counts in the coupling of `group`: it belongs to it, has a round-trip sample, and has delivered
    /// something since its last timeout. A silent path does not affect the others.
    pub(crate) fn is_coupled(&self, group: u32) -> bool {
        self.group == group && self.rtt.is_some() && !self.window.timed_out
    }
}

impl Controller {
    /// A controller without paths.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            paths: Vec::new(),
            ids: SmallVec::new(),
            epoch: 1,
            members: Vec::new(),
            cubic_groups: false,
        }
    }

    /// Prefetches a path that is used soon.
    pub fn prefetch(&self, path: PathId) {
        if let Some(path) = self.index(path).and_then(|index| self.paths.get(index)) {
            prefetch(path, 0..usize::MAX);
        }
    }

    /// Adds a path, in slow start at the initial window and in group 0. `mss` is its packet size in bytes. A known path
    /// starts again. Under `combined` the path shares the session's window.
    pub fn add_path(&mut self, path: PathId, mss: u64, now: Time) {
        self.remove_path(path);
        let mss = mss.max(1) as f64;
        let memory = Memory::new(self.config.rule);
        let hystart = self.config.hystart && self.config.rule != RuleKind::Combined;
        let bytes = self.bounded(self.config.initial_window as f64 * mss, mss);
        let mut window = Window::new(bytes, hystart, memory);
        window.ssthresh = self.config.initial_ssthresh.map_or(f64::INFINITY, |packets| packets as f64 * mss);
        let rto = RtoBounds::default().min;
        let modelled = self.config.rule == RuleKind::Bbr;
        let model = modelled.then(|| Box::new(Bbr::new(bytes, mss, now, u64::from(path.0))));
        let auto = (self.config.rule == RuleKind::Auto).then(|| Box::new(Auto::new(now)));
        self.ids.push(path);
        self.paths.reserve_exact(1);
        self.paths.push(Path {
            group: 0,
            mss,
            in_flight: 0,
            last_sent: now,
            rtt: None,
            rto,
            window,
            model,
            auto,
        });
        self.epoch += 1;
        self.note_cubic_groups();
    }

    pub fn remove_path(&mut self, path: PathId) {
        let Some(index) = self.index(path) else { return };
        self.ids.remove(index);
        let removed = self.paths.remove(index);
        if self.config.rule == RuleKind::Combined
            && index == 0
            && let Some(heir) = self.paths.first_mut()
        {
            heir.window = removed.window;
        }
        self.epoch += 1;
        self.note_cubic_groups();
    }

    /// Puts a path into a group: paths of one group are coupled, different groups are independent.
    pub fn set_group(&mut self, path: PathId, group: u32) {
        let Some(index) = self.index(path) else { return };
        self.paths[index].group = group;
        self.epoch += 1;
        self.note_cubic_groups();
    }

    fn note_cubic_groups(&mut self) {
        let shares_group =
            |(index, path): (usize, &Path)| self.paths[..index].iter().any(|other| other.group == path.group);
        self.cubic_groups = matches!(self.config.rule, RuleKind::Cubic | RuleKind::Auto)
            && self.paths.iter().enumerate().any(shares_group);
    }

    /// The share of its group's growth that a path gets under `cubic`: 1/Σ(r_min/r_j), over the round-trip times r_j of
    /// the group's paths. If each window is this share of the window of one flow over the fastest path, all paths
    /// together reach the rate of that flow.
    fn share(&self, owner: usize) -> f64 {
        if !self.cubic_groups {
            return 1.0;
        }
        let group = self.paths[owner].group;
        let (mut quickest, mut rates) = (f64::INFINITY, 0.0);
        for (other, path) in self.paths.iter().enumerate() {
            if other == owner || path.is_coupled(group) {
                let rtt = path.rtt.unwrap_or(UNKNOWN_RTT).max(LEAST_RTT);
                quickest = quickest.min(rtt);
                rates += 1.0 / rtt;
            }
        }
        1.0 / (quickest * rates)
    }

    /// The group a path is in.
    pub fn group(&self, path: PathId) -> u32 {
        self.index(path).map_or(0, |index| self.paths[index].group)
    }

    /// Sets a path's packet size in bytes, as path MTU discovery finds it. The window keeps its size in bytes.
    pub fn set_mss(&mut self, path: PathId, mss: u64) {
        let Some(index) = self.index(path) else { return };
        let mss = mss.max(1) as f64;
        self.paths[index].mss = mss;
        if self.model(index, |bbr| bbr.set_mss(mss)).is_some() {
            return;
        }
        let owner = self.owner(index);
        self.resize(owner, self.paths[owner].window.bytes);
        self.epoch += 1;
    }

    /// Records a transmission; `in_flight` includes it.
    pub fn on_sent(&mut self, path: PathId, now: Time, bytes: u64, in_flight: u64) {
        let Some(index) = self.index(path) else { return };
        let sender = &mut self.paths[index];
        sender.in_flight = in_flight.max(bytes);
        sender.last_sent = now;
        if let Some(bbr) = &mut sender.model {
            let srtt = sender.rtt.map_or(Span::ZERO, Span::from_secs_f64);
            bbr.on_sent(now, sender.in_flight, srtt);
        }
    }

    /// Handles an ack; `rtt` is the path's estimator including this ack's sample.
    pub fn on_ack(&mut self, path: PathId, sample: &AckSample, rtt: &RttEstimator) {
        let Some(index) = self.index(path) else { return };
        let acker = &mut self.paths[index];
        acker.in_flight = sample.in_flight.saturating_sub(sample.acked_bytes);
        acker.rtt = Some(rtt.smoothed().as_secs_f64());
        acker.rto = rtt.rto(RtoBounds::default());
        if self.model(index, |bbr| bbr.on_ack(sample)).is_some() {
            return;
        }
        let owner = self.owner(index);
        self.paths[owner].window.memory.on_acked(sample.acked_bytes);
        let factor = self.watch_slow_start(owner, sample);
        let advice = self.advice(index, sample);
        if self.paths[owner].window.reduced_since(sample.now - sample.rtt) {
            return;
        }
        if std::mem::take(&mut self.paths[owner].window.timed_out) {
            self.epoch += 1;
        }
        match advice {
            Advice::Hold => {}
            _ if !sample.window_limited => self.paths[owner].window.memory.pause(sample.now),
            Advice::Probe(share) => {
                let added = share * self.share(owner) * sample.acked_bytes as f64;
                let bytes = self.paths[owner].window.bytes + added;
                self.paths[owner].window.memory.restart();
                self.resize(owner, bytes);
            }
            _ => self.grow(owner, index, sample, factor),
        }
    }

    /// Under `auto`, what the ack does to the path's window; reductions are done already.
    fn advice(&mut self, index: usize, sample: &AckSample) -> Advice {
        let Path { mss, ref window, ref mut auto, .. } = self.paths[index];
        let Some(auto) = auto else { return Advice::Grow };
        let view = View { window: window.bytes, mss, slow_start: window.in_slow_start() };
        let advice = auto.on_ack(sample, &view);
        match advice {
            Advice::Shrink(bytes) => self.shrink(index, bytes, sample.now),
            // A loss on a coupled path may have reduced the window since the cut.
            Advice::TakeBack if window.was_cut() => self.take_back_cut(index, sample.now),
            Advice::Restart => self.paths[index].window.memory.restart(),
            Advice::Grow | Advice::Probe(_) | Advice::Hold | Advice::TakeBack => {}
        }
        advice
    }

    /// Handles a change of the path that returns the acks of `path`. Round-trip times before and after are not comparable: a
    /// longer return path is not a queue that slow start built up.
    pub fn on_return_path_changed(&mut self, path: PathId) {
        let Some(index) = self.index(path) else { return };
        let owner = self.owner(index);
        if let Some(hystart) = &mut self.paths[owner].window.hystart {
            *hystart = HyStart::new();
        }
        if let Some(auto) = &mut self.paths[index].auto {
            auto.on_return_path_changed();
        }
    }

    /// Updates HyStart++; returns the fraction of the acknowledged bytes by which slow start grows.
    fn watch_slow_start(&mut self, owner: usize, sample: &AckSample) -> f64 {
        let window = &mut self.paths[owner].window;
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

    fn grow(&mut self, owner: usize, index: usize, sample: &AckSample, factor: f64) {
        let mut acked = sample.acked_bytes as f64;
        let mss = self.paths[owner].mss;
        let window = &mut self.paths[owner].window;
        let mut bytes = window.bytes;
        if window.in_slow_start() {
            let limit = if self.config.pacing { f64::INFINITY } else { UNPACED_LIMIT * mss };
            let step = acked.min(limit) * factor;
            let room = window.ssthresh - bytes;
            (bytes, acked) =
                if step < room { (bytes + step, 0.0) } else { (window.ssthresh, acked - room / factor) };
            self.resize(owner, bytes);
        }
        if acked > 0.0 {
            bytes = self.avoid(owner, index, sample.now, acked);
            self.resize(owner, bytes);
        }
    }

    /// The window in bytes after `acked` bytes in congestion avoidance.
    fn avoid(&mut self, owner: usize, index: usize, now: Time, acked: f64) -> f64 {
        let share = self.share(owner);
        let rtt = self.paths[index].rtt.unwrap_or(UNKNOWN_RTT);
        let Path { mss, ref mut window, .. } = self.paths[owner];
        let packets = window.bytes / mss;
        if let Some(grown) = window.memory.grow(now, packets, rtt, Acked { packets: acked / mss, share }) {
            return grown * mss;
        }
        if !window.gain.is_fresh(now, self.epoch, packets) {
            let rule = rules::rule(self.config.rule);
            let share = rule.increase(&self.group_of(owner)) * packets;
            let until = now + Span::from_secs_f64(rtt);
            self.paths[owner].window.gain = Gain { share, at: packets, until, epoch: self.epoch };
        }
        let window = &self.paths[owner].window;
        window.bytes + window.gain.share / packets * acked
    }

    /// Bytes that may be outstanding on the path. Under `combined`: the session's window without the bytes outstanding on
    /// the other paths.
    pub fn window(&self, path: PathId) -> u64 {
        let Some(index) = self.index(path) else { return 0 };
        // A shared window may belong to a path with smaller packets: always allow one packet of this path.
        let bytes = self.paths[self.owner(index)].window.bytes.max(self.paths[index].mss) as u64;
        if self.config.rule != RuleKind::Combined {
            return bytes;
        }
        let others =
            self.paths.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        others.fold(bytes, |left, other| left.saturating_sub(other.in_flight))
    }

    /// The cause of the path's losses, as `auto` judges.
    pub fn loss_cause(&self, path: PathId) -> LossCause {
        self.index(path).map_or(LossCause::Queues, |index| self.cause_of_losses(index))
    }

    pub(crate) fn cause_of_losses(&self, index: usize) -> LossCause {
        self.paths[index].auto.as_ref().map_or(LossCause::Queues, |auto| auto.loss_cause())
    }

    /// Bytes at which the path's slow start ends; `u64::MAX` before the first loss.
    pub fn ssthresh(&self, path: PathId) -> u64 {
        self.index(path).map_or(u64::MAX, |index| self.paths[self.owner(index)].window.ssthresh as u64)
    }

    /// True while the path's window is below its `ssthresh`, including conservative slow start; under `bbr` in Startup.
    pub fn in_slow_start(&self, path: PathId) -> bool {
        self.index(path).is_some_and(|index| match &self.paths[index].model {
            Some(bbr) => bbr.in_startup(),
            None => self.paths[self.owner(index)].window.in_slow_start(),
        })
    }

    /// How fast the path may send: two windows a smoothed round trip in slow start, 1.25 windows later (RFC 9002 §7.7);
    /// under `bbr` the model's rate. `None` without pacing or before a round-trip sample.
    pub fn pacing_rate(&self, path: PathId, rtt: &RttEstimator) -> Option<Rate> {
        let index = self.index(path)?;
        if !self.config.pacing || !rtt.has_sample() {
            return None;
        }
        if let Some(bbr) = &self.paths[index].model {
            return Some(bbr.pacing_rate(rtt.smoothed()));
        }
        let window = &self.paths[self.owner(index)].window;
        let gain = if window.in_slow_start() { PACING_SLOW_START } else { PACING_AVOIDANCE };
        let bytes_per_second = gain * window.bytes / rtt.smoothed().as_secs_f64();
        Some(Rate::from_bits((bytes_per_second * 8.0).max(1.0) as u64))
    }

    /// Under `bbr`, changes the path's model and adopts its window, within the bounds.
    pub(crate) fn model<R>(&mut self, index: usize, change: impl FnOnce(&mut Bbr) -> R) -> Option<R> {
        let (least, most) = (self.bounded(0.0, self.paths[index].mss), self.config.max_window as f64);
        let path = &mut self.paths[index];
        let bbr = path.model.as_mut()?;
        let answer = change(bbr);
        bbr.clamp(least, most);
        path.window.bytes = bbr.cwnd();
        Some(answer)
    }

    /// A number that changes whenever a call may have changed the window of a path it did not name, such as a loss on a
    /// coupled path. `None` where windows depend on the bytes outstanding on other paths, so that every call changes them.
    pub fn revision(&self) -> Option<u64> {
        match self.config.rule {
            RuleKind::Combined => None,
            RuleKind::Csd | RuleKind::Residual => Some(self.epoch),
            _ if self.cubic_groups => Some(self.epoch),
            _ => Some(0),
        }
    }

    /// True when [`Self::pacing_rate`] may return a rate.
    pub fn is_paced(&self) -> bool {
        self.config.pacing
    }

    pub(crate) fn index(&self, path: PathId) -> Option<usize> {
        // Each end opens every second id, and usually only one end opens paths: then this guess is right.
        let guess = path.0 as usize / 2;
        if self.ids.get(guess) == Some(&path) {
            return Some(guess);
        }
        self.ids.iter().position(|known| *known == path)
    }

    /// The path that owns the window of the path at `index`.
    pub(crate) fn owner(&self, index: usize) -> usize {
        if self.config.rule == RuleKind::Combined { 0 } else { index }
    }

    /// The group of the path at `index`, in the form rules take.
    pub(crate) fn group_of(&mut self, index: usize) -> Group<'_> {
        let group = self.paths[index].group;
        self.members.clear();
        let mut own = 0;
        for (other, path) in self.paths.iter().enumerate() {
            if other == index {
                own = self.members.len();
            } else if !path.is_coupled(group) {
                continue;
            }
            let window = path.window.bytes / path.mss;
            let interval = path.window.memory.loss_interval();
            self.members.push(Member { window, rtt: path.rtt.unwrap_or(UNKNOWN_RTT), interval });
        }
        Group { members: &self.members, own }
    }

    /// Sets a window to `bytes`, within its bounds.
    pub(crate) fn resize(&mut self, index: usize, bytes: f64) {
        self.paths[index].window.bytes = self.bounded(bytes, self.paths[index].mss);
    }

    /// `bytes` within the bounds of a window; the minimum has priority and is also used for NaN.
    pub(crate) fn bounded(&self, bytes: f64, mss: f64) -> f64 {
        let least = self.config.min_window.max(1) as f64 * mss;
        bytes.min(self.config.max_window as f64).max(least)
    }
}
