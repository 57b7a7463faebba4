//! The session's congestion controller: every path's window, and the groups that couple them.
//!
//! An ack grows the window of its path: by what it acknowledges in slow start, by the rule's increase beyond,
//! and only while the window is what limits the sender. What makes a window smaller is in `reduction`.
//!
//! Under `combined` the session's first path carries the one window for all; see [`Controller::window`].
//!
//! Calls that name an unknown path change nothing; asked about one, its window is 0.

use anabranch_prefetch::prefetch;
use anabranch_wire::{PathId, Rate, Span, Time};
use smallvec::SmallVec;

use crate::bbr::Bbr;
use crate::config::{Config, RuleKind};
use crate::rtt::{RtoBounds, RttEstimator};
use crate::rules::{self, Group, Member, Memory};
use crate::sample::AckSample;
use crate::slow_start::{HyStart, Verdict};
use crate::window::{Gain, Window};

/// Packets of one ack that count in slow start when nothing paces what they release (RFC 9406 §4.2).
const UNPACED_LIMIT: f64 = 8.0;
/// How much faster than a window a round trip a path is paced (RFC 9002 §7.7).
const PACING_SLOW_START: f64 = 2.0;
const PACING_AVOIDANCE: f64 = 1.25;
/// Assumed for a path that is reduced before its first sample, in seconds (RFC 9002 §6.2.2).
const UNKNOWN_RTT: f64 = 0.333;
/// Round-trip times below count as this when paths of a group share its growth, in seconds.
const LEAST_RTT: f64 = 1e-6;

/// Windows and pacing rates of all paths of one session.
#[derive(Clone, Debug)]
pub struct Controller {
    pub(crate) config: Config,
    pub(crate) paths: Vec<Path>,
    /// Their ids, in the same order.
    pub(crate) ids: SmallVec<[PathId; 8]>,
    /// Counts what makes every kept increase stale: reductions and changes of membership.
    pub(crate) epoch: u64,
    members: Vec<Member>,
    /// Under `cubic`: some group has several paths.
    pub(crate) linked: bool,
}

/// What every packet needs lies in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Path {
    pub(crate) mss: f64,
    pub(crate) in_flight: u64,
    pub(crate) last_sent: Time,
    pub(crate) window: Window,
    pub(crate) rtt: Option<f64>,
    pub(crate) rto: Span,
    /// Sets the window in the rule's stead, under `bbr`.
    pub(crate) model: Option<Box<Bbr>>,
    pub(crate) group: u32,
}

impl Path {
    /// True when the path takes part in the coupling of a group: it is in it, has a round-trip sample, and
    /// something was acknowledged since its last timeout. A silent path has no say in what the others do.
    pub(crate) fn is_coupled(&self, group: u32) -> bool {
        self.group == group && self.rtt.is_some() && !self.window.timed_out
    }
}

impl Controller {
    /// A controller without paths.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, paths: Vec::new(), ids: SmallVec::new(), epoch: 1, members: Vec::new(), linked: false }
    }

    /// Has a path fetched that is soon told about.
    pub fn prefetch(&self, path: PathId) {
        if let Some(path) = self.index(path).and_then(|index| self.paths.get(index)) {
            prefetch(path, 0..usize::MAX);
        }
    }

    /// Adds a path, in slow start at the initial window and in group 0. `mss` is its packet size in bytes. A
    /// path that is known already starts anew. Under `combined` it shares the session's window as it is.
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
        self.ids.push(path);
        self.paths.reserve_exact(1);
        self.paths.push(Path { group: 0, mss, in_flight: 0, last_sent: now, rtt: None, rto, window, model });
        self.epoch += 1;
        self.note_links();
    }

    /// Forgets a path.
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
        self.note_links();
    }

    /// Puts a path into a group: paths of one group are coupled, different groups are independent.
    pub fn set_group(&mut self, path: PathId, group: u32) {
        let Some(index) = self.index(path) else { return };
        self.paths[index].group = group;
        self.epoch += 1;
        self.note_links();
    }

    fn note_links(&mut self) {
        let linked =
            |(index, path): (usize, &Path)| self.paths[..index].iter().any(|other| other.group == path.group);
        self.linked = self.config.rule == RuleKind::Cubic && self.paths.iter().enumerate().any(linked);
    }

    /// A path's part in the growth of its group, which under `cubic` is that of one flow over the quickest path. Windows with
    /// this part of that flow's, on paths of round-trip times r_j, are as fast together: 1/Σ(r_min/r_j).
    fn share(&self, seat: usize) -> f64 {
        if !self.linked {
            return 1.0;
        }
        let group = self.paths[seat].group;
        let (mut quickest, mut rates) = (f64::INFINITY, 0.0);
        for (other, path) in self.paths.iter().enumerate() {
            if other == seat || path.is_coupled(group) {
                let rtt = path.rtt.unwrap_or(UNKNOWN_RTT).max(LEAST_RTT);
                quickest = quickest.min(rtt);
                rates += 1.0 / rtt;
            }
        }
        1.0 / (quickest * rates)
    }

    /// The group a path is in.
    #[must_use]
    pub fn group(&self, path: PathId) -> u32 {
        self.index(path).map_or(0, |index| self.paths[index].group)
    }

    /// Sets a path's packet size in bytes, as path MTU discovery finds it. The window keeps its bytes.
    pub fn set_mss(&mut self, path: PathId, mss: u64) {
        let Some(index) = self.index(path) else { return };
        let mss = mss.max(1) as f64;
        self.paths[index].mss = mss;
        if self.model(index, |bbr| bbr.set_mss(mss)).is_some() {
            return;
        }
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
        if let Some(bbr) = &mut sender.model {
            let srtt = sender.rtt.map_or(Span::ZERO, Span::from_secs_f64);
            bbr.on_sent(now, sender.in_flight, srtt);
        }
    }

    /// Takes in an ack; `rtt` is the path's estimator with this ack's sample in it.
    pub fn on_ack(&mut self, path: PathId, sample: &AckSample, rtt: &RttEstimator) {
        let Some(index) = self.index(path) else { return };
        let acker = &mut self.paths[index];
        acker.in_flight = sample.in_flight.saturating_sub(sample.acked_bytes);
        acker.rtt = Some(rtt.smoothed().as_secs_f64());
        acker.rto = rtt.rto(RtoBounds::default());
        if self.model(index, |bbr| bbr.on_ack(sample)).is_some() {
            return;
        }
        let seat = self.seat(index);
        self.paths[seat].window.memory.on_acked(sample.acked_bytes);
        let factor = self.watch_slow_start(seat, sample);
        if self.paths[seat].window.reduced_since(sample.now - sample.rtt) {
            return;
        }
        if std::mem::take(&mut self.paths[seat].window.timed_out) {
            self.epoch += 1;
        }
        if sample.window_limited {
            self.grow(seat, index, sample, factor);
        } else {
            self.paths[seat].window.memory.pause(sample.now);
        }
    }

    /// Acknowledgements of `path` come back over another path than before: round-trip times cannot be compared with
    /// those before, and a longer way back is no queue that slow start built up.
    pub fn on_return_path_changed(&mut self, path: PathId) {
        let Some(index) = self.index(path) else { return };
        let seat = self.seat(index);
        if let Some(hystart) = &mut self.paths[seat].window.hystart {
            *hystart = HyStart::new();
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
        let share = self.share(seat);
        let rtt = self.paths[index].rtt.unwrap_or(UNKNOWN_RTT);
        let Path { mss, ref mut window, .. } = self.paths[seat];
        let packets = window.bytes / mss;
        if let Some(grown) = window.memory.grow(now, packets, rtt, (acked / mss, share)) {
            return grown * mss;
        }
        if !window.gain.is_fresh(now, self.epoch, packets) {
            let rule = rules::rule(self.config.rule);
            let share = rule.increase(&self.group_of(seat)) * packets;
            let until = now + Span::from_secs_f64(rtt);
            self.paths[seat].window.gain = Gain { share, at: packets, until, epoch: self.epoch };
        }
        let window = &self.paths[seat].window;
        window.bytes + window.gain.share / packets * acked
    }

    /// Bytes that may be outstanding on the path. Under `combined`: what the session's window leaves to it
    /// when all that the other paths have outstanding is taken off.
    #[must_use]
    pub fn window(&self, path: PathId) -> u64 {
        let Some(index) = self.index(path) else { return 0 };
        // A shared window may belong to a path with smaller packets: this one may still send one of its own.
        let bytes = self.paths[self.seat(index)].window.bytes.max(self.paths[index].mss) as u64;
        if self.config.rule != RuleKind::Combined {
            return bytes;
        }
        let others =
            self.paths.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        others.fold(bytes, |left, other| left.saturating_sub(other.in_flight))
    }

    /// Bytes at which the path's slow start ends; `u64::MAX` before the first loss.
    #[must_use]
    pub fn ssthresh(&self, path: PathId) -> u64 {
        self.index(path).map_or(u64::MAX, |index| self.paths[self.seat(index)].window.ssthresh as u64)
    }

    /// True while the path's window is below its `ssthresh`, conservative slow start included; under `bbr` in
    /// its Startup.
    #[must_use]
    pub fn in_slow_start(&self, path: PathId) -> bool {
        self.index(path).is_some_and(|index| match &self.paths[index].model {
            Some(bbr) => bbr.in_startup(),
            None => self.paths[self.seat(index)].window.in_slow_start(),
        })
    }

    /// How fast the path may send: twice a window a smoothed round trip in slow start, 1.25 windows beyond
    /// (RFC 9002 §7.7); under `bbr` what its model says. `None` without pacing or before a round-trip sample.
    #[must_use]
    pub fn pacing_rate(&self, path: PathId, rtt: &RttEstimator) -> Option<Rate> {
        let index = self.index(path)?;
        if !self.config.pacing || !rtt.has_sample() {
            return None;
        }
        if let Some(bbr) = &self.paths[index].model {
            return Some(bbr.pacing_rate(rtt.smoothed()));
        }
        let window = &self.paths[self.seat(index)].window;
        let gain = if window.in_slow_start() { PACING_SLOW_START } else { PACING_AVOIDANCE };
        let bytes_per_second = gain * window.bytes / rtt.smoothed().as_secs_f64();
        Some(Rate::from_bits((bytes_per_second * 8.0).max(1.0) as u64))
    }

    /// Under `bbr`, tells the path's model something and takes the window from it, within its bounds.
    pub(crate) fn model<R>(&mut self, index: usize, tell: impl FnOnce(&mut Bbr) -> R) -> Option<R> {
        let (least, most) = (self.bounded(0.0, self.paths[index].mss), self.config.max_window as f64);
        let path = &mut self.paths[index];
        let bbr = path.model.as_mut()?;
        let answer = tell(bbr);
        bbr.clamp(least, most);
        path.window.bytes = bbr.cwnd();
        Some(answer)
    }

    /// A number that changes whenever a call may have changed the window of a path that it did not name, as a loss on a
    /// coupled path does; `None` where windows depend on what other paths have outstanding, and so on every call.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        match self.config.rule {
            RuleKind::Combined => None,
            RuleKind::Csd | RuleKind::Residual => Some(self.epoch),
            _ if self.linked => Some(self.epoch),
            _ => Some(0),
        }
    }

    /// True when [`Self::pacing_rate`] may have one.
    #[must_use]
    pub fn is_paced(&self) -> bool {
        self.config.pacing
    }

    pub(crate) fn index(&self, path: PathId) -> Option<usize> {
        // Each end opens paths with every second id, and most often only one does: then it lies there.
        let guess = path.0 as usize / 2;
        if self.ids.get(guess) == Some(&path) {
            return Some(guess);
        }
        self.ids.iter().position(|known| *known == path)
    }

    /// The path whose window counts for the one at `index`.
    pub(crate) fn seat(&self, index: usize) -> usize {
        if self.config.rule == RuleKind::Combined { 0 } else { index }
    }

    /// The group of the path at `index` as its rule sees it.
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

    /// Sets a window to as much of `bytes` as its bounds allow.
    pub(crate) fn resize(&mut self, index: usize, bytes: f64) {
        self.paths[index].window.bytes = self.bounded(bytes, self.paths[index].mss);
    }

    /// `bytes` within the bounds of a window, of which the minimum goes first; the minimum for NaN.
    pub(crate) fn bounded(&self, bytes: f64, mss: f64) -> f64 {
        let least = self.config.min_window.max(1) as f64 * mss;
        bytes.min(self.config.max_window as f64).max(least)
    }
}
