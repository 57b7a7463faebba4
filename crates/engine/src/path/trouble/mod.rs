//! Detects a path that answers but is useless, and decides when it has recovered.
//!
//! A path whose acknowledgements arrive can have four faults:
//!
//! - **It stalls.** It delivers less than a quarter of its usual rate, and the oldest packet in flight is older than
//!   twice the usual round trip: the rate was cut, and the queue will take very long. This is checked at each
//!   acknowledgement, and when none arrives in time ([`Trouble::stall_at`]). A queue that merely fills looks different,
//!   because delivery continues. A packet so old is a fault at any rate if the path *blocks*: another path is idle
//!   because the peer's receive window is full of data that waits for this one.
//! - **It loses.** A fifth of at least [`PACKETS`] packets was lost, over at least [`ROUNDS`] round trips. No window
//!   rule can use such a path.
//! - **It answers late.** It was silent, and the first answer took more than three usual round trips, although no data
//!   arrived over it that could have delayed the answer.
//! - **It is bloated.** A standing queue before it delays the other paths (`bloat`).
//!
//! Such a path is *held*: it carries no data, and is probed a few times per round trip with packets without data. It
//! has recovered when enough successive answers came in the usual time over a long enough period, and it then passed a
//! trial (`trial`). Number and period grow with every episode, so that a flapping path is kept out. It has also
//! recovered when it answered steadily until [`Hold::until`]: then its present state is its usual one.

use anabranch_wire::{PathId, Rate, Span, Time};

use super::bloat::Bloat;
use super::return_paths::ReturnPaths;
use super::trial::{Outcome, Trial};
use crate::manager::Fault;

/// Round trips with many losses after which a path has the fault; after twice as many it is judged again.
const ROUNDS: u32 = 4;
/// Round trips without a loss after which trouble is over.
const CLEAN: u32 = 3;
/// Packets over which losses are judged, at least.
const PACKETS: u64 = 48;
/// Episodes closer together than this make the path wait longer.
const MEMORY: Span = Span::from_secs(10);
/// Answers in a row that end a hold: the first value, and the second for each recent episode.
const ANSWERS: (u32, u32) = (6, 2);
/// How long answers must arrive in time after a second episode. It doubles with each one, up to the second value.
const WHILE: (Span, Span) = (Span::from_millis(60), Span::from_secs(1));
/// How long another round-trip time must last before it counts as usual. It doubles with each episode, up to the second
/// value.
const PATIENCE: (Span, Span) = (Span::from_secs(10), Span::from_secs(60));
/// The least and largest pause between probes of a held path.
const PROBES: (Span, Span) = (Span::from_millis(10), Span::from_millis(200));
/// Share of the largest window that remains after each round trip.
const FADING: f64 = 0.98;
/// Bytes of data received on a path during its silence after which late answers are due to the peer's queue.
const INCOMING: u64 = 12_000;
/// A full queue multiplies a round trip by at most this.
const QUEUES: u64 = 6;
/// Added to multiples of the usual round trip, for paths with a very short one.
pub(super) const GRACE: Span = Span::from_millis(20);
/// The same for the first answer after a silence: a queue of a usual length may stand before the path.
const LATE: Span = Span::from_millis(50);

/// Why a path is held, and how it gets back.
#[derive(Clone, Copy, Debug)]
struct Hold {
    why: Fault,
    since: Time,
    /// From then on any answer counts as usual.
    until: Time,
    /// Answers in the usual time, in a row, and since when.
    good: u32,
    good_since: Time,
    probe_at: Time,
    trial: Option<Trial>,
    /// The rate that a failed trial found, in bytes a second.
    found_rate: Option<f64>,
}

/// An acknowledgement, as [`Trouble`] sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub now: Time,
    pub smoothed: Span,
    pub acked_bytes: u64,
    pub packets: u64,
    pub round_start: bool,
    /// The congestion window in bytes; `None` in the first slow start.
    pub window: Option<u64>,
    /// When the oldest unacknowledged packet was sent.
    pub oldest: Option<Time>,
    /// The return path of acknowledgements.
    pub via: PathId,
    /// Another path is idle until the peer's receive window opens.
    pub blocks: bool,
    /// A pause of this process or the peer delayed it together with others, which may not have been read yet.
    pub is_bunched: bool,
}

/// The path without its standing queue.
#[derive(Clone, Copy, Debug)]
struct Bloated {
    /// The round-trip time without it.
    least: Span,
    /// The window in bytes that fills the path and a queue of the same length.
    window: u64,
}

#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Trouble {
    hold: Option<Box<Hold>>,
    /// The usual round-trip time; zero before the first sample.
    usual: Span,
    /// The usual delivery, in bytes a second.
    usual_rate: f64,
    /// Start of the current period, and bytes delivered in it.
    period: (Time, u64),
    /// Round trips since the losses are judged, and those with many losses.
    rounds: (u32, u32),
    arrived: u64,
    lost: u64,
    /// Packets of the current round trip: arrived, and lost.
    round: (u64, u64),
    /// Round trips in a row without a loss.
    clean: u32,
    /// A fifth of the last round trip was lost.
    losing: bool,
    /// The largest recent window, in bytes; `None` during the first slow start.
    window: Option<f64>,
    /// The return path when it was found.
    window_via: PathId,
    /// Periods since the first slow start ended, without those of many losses.
    window_known_for: u32,
    /// The current silence is an episode: longer than one lost packet explains.
    silent: bool,
    /// Set if the latest episode was a queue and the path has not reached its window again.
    bloated: Option<Bloated>,
    found_rate: Option<f64>,
    /// Bytes of data received on the path at the start of the silence.
    heard: u64,
    episodes: u32,
    last_episode: Time,
    /// The queue that may be standing before the path.
    bloat: Bloat,
}

impl Trouble {
    /// The queue that may be standing before the path.
    pub(super) fn bloat_mut(&mut self) -> &mut Bloat {
        &mut self.bloat
    }

    /// Forgets the queue that may be standing before the path.
    pub(crate) fn forget_queue(&mut self) {
        self.bloat = Bloat::default();
    }

    /// Ends the hold of a path that was proven at another address, where its fault says nothing.
    pub(crate) fn forget_hold(&mut self) {
        self.hold = None;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// The fault that the path is held for.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.hold.as_ref().map(|hold| hold.why)
    }

    /// The time of the next probe of a held path.
    pub(crate) fn probe_at(&self) -> Option<Time> {
        self.hold.as_ref().map(|hold| hold.probe_at)
    }

    /// Schedules a probe of a held path; `size` is that of a full packet.
    pub(crate) fn on_probe(&mut self, now: Time, size: u64) {
        let pause = (self.usual / 4).max(PROBES.0).min(PROBES.1);
        if let Some(hold) = &mut self.hold {
            hold.probe_at = now + hold.trial.map_or(pause, |trial| trial.pause(size));
        }
    }

    /// Records that a probe of `size` bytes was sent on a held path.
    pub(crate) fn on_probe_sent(&mut self, size: u64) {
        if let Some(hold) = &mut self.hold
            && let Some(trial) = &mut hold.trial
            && trial.on_sent(size)
        {
            hold.probe_at = Time::NEVER;
        }
    }

    /// Ends a trial that the path's limit has no room for. It begins again after enough answers.
    pub(crate) fn put_off_trial(&mut self, now: Time) {
        if let Some(hold) = &mut self.hold {
            hold.start_over(now);
        }
    }

    /// True while probes have to be full packets.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.trial.is_some())
    }

    /// A packet that left at `sent_at` arrived.
    pub(crate) fn on_arrived(&mut self, now: Time, sent_at: Time) {
        if let Some(trial) = self.hold.as_mut().and_then(|hold| hold.trial.as_mut()) {
            trial.on_arrived(now, sent_at);
        }
    }

    /// Handles the silence of this many probe timeouts. The first may be due to one lost packet; the second begins an
    /// episode, unless one has begun.
    pub(crate) fn on_silence(&mut self, now: Time, timeouts: u32) {
        if let Some(hold) = &mut self.hold {
            hold.start_over(now);
        } else if timeouts > 1 && !self.silent {
            self.silent = true;
            self.begin_episode(now);
        }
    }

    fn begin_episode(&mut self, now: Time) {
        let recent = self.episodes > 0 && now.since(self.last_episode) < MEMORY;
        self.episodes = if recent { self.episodes + 1 } else { 1 };
        self.last_episode = now;
        if self.window_known_for < ROUNDS * 2 {
            // The trouble ended the first slow start, not the capacity of the path.
            self.window = None;
        }
    }

    /// Holds a path with a standing queue. It has recovered when it answers in the `least` round-trip time, as without
    /// a queue.
    pub(crate) fn hold_bloated(&mut self, now: Time, (least, rate): (Span, Rate)) {
        self.hold(now, Fault::Bloated);
        self.usual = least;
        self.bloated = Some(Bloated { least, window: rate.bytes_in(least) * 2 });
    }

    /// The window at which slow start ends when the path is used again, if it is limited.
    pub(crate) fn window_to_return_to(&self, returns: &ReturnPaths) -> Option<u64> {
        let bloated = self.bloated.map(|bloated| bloated.window);
        let before = self.window_before(returns);
        bloated.map(|window| window.min(before.unwrap_or(window))).or(before)
    }

    pub(crate) fn hold(&mut self, now: Time, why: Fault) {
        if self.hold.is_some() {
            return;
        }
        self.bloated = None;
        if !std::mem::take(&mut self.silent) {
            self.begin_episode(now);
        }
        let patience = doubled(PATIENCE, self.episodes);
        self.hold = Some(Box::new(Hold {
            why,
            since: now,
            until: now + patience,
            good: 0,
            good_since: now,
            probe_at: now,
            trial: None,
            found_rate: None,
        }));
        self.judge_anew();
    }

    fn judge_anew(&mut self) {
        (self.rounds, self.arrived, self.lost, self.round) = ((0, 0), 0, 0, (0, 0));
    }

    /// The window to restore: returned once, if the path was in trouble recently and has had no loss for [`CLEAN`]
    /// round trips at less than half of that window. Unbounded if the path had not reached its window before. A bloated
    /// path must first show that no queue is left, however long that takes: its window causes one, unless the path
    /// carries more than before.
    pub(crate) fn take_recovery(
        &mut self,
        now: Time,
        (window, smoothed): (u64, Span),
        returns: &ReturnPaths,
    ) -> Option<u64> {
        if let Some(bloated) = self.bloated {
            let no_queue = smoothed * 4 <= bloated.least * 5;
            return (self.clean >= CLEAN && no_queue).then(|| {
                self.bloated = None;
                u64::MAX
            });
        }
        let lately = self.episodes > 0 && now.since(self.last_episode) < MEMORY;
        let before = self.window_before(returns).unwrap_or(u64::MAX);
        if !lately || self.clean != CLEAN || window >= before / 2 {
            return None;
        }
        self.clean += 1;
        Some(before)
    }

    /// The window in bytes before the trouble, scaled to the current return path, if the path had reached one.
    pub(crate) fn window_before(&self, returns: &ReturnPaths) -> Option<u64> {
        self.window.map(|window| (window * returns.part_left(self.window_via)) as u64)
    }

    /// Handles an acknowledgement on a path that carries data; returns the fault of a useless path.
    pub(crate) fn on_ack(&mut self, answer: &Answer) -> Option<Fault> {
        if self.usual.is_zero() {
            self.usual = answer.smoothed;
            self.period = (answer.now, 0);
        }
        self.arrived += answer.packets;
        self.round.0 += answer.packets;
        if answer.round_start {
            let (arrived, lost) = std::mem::take(&mut self.round);
            self.losing = lost * 5 >= arrived && lost > 0;
            self.rounds = (self.rounds.0 + 1, self.rounds.1 + u32::from(self.losing));
            self.clean = if lost > 0 { 0 } else { self.clean + 1 };
        }
        let enough = self.arrived + self.lost >= PACKETS;
        let loses = enough && self.rounds.1 >= ROUNDS && self.lost * 4 >= self.arrived;
        if enough && self.rounds.0 >= ROUNDS * 2 && !loses {
            self.judge_anew();
        }
        self.period.1 += answer.acked_bytes;
        if loses {
            return Some(Fault::Loses);
        }
        self.stalls(answer).then_some(Fault::Stalls)
    }

    /// Judges delivery at the end of each period of about a round trip.
    fn stalls(&mut self, answer: &Answer) -> bool {
        let lasted = answer.now.since(self.period.0);
        if lasted < self.usual.max(GRACE) {
            return false;
        }
        let rate = self.period.1 as f64 / lasted.as_secs_f64();
        let age = answer.oldest.map_or(Span::ZERO, |oldest| answer.now.since(oldest));
        if age > self.usual * 2 + GRACE && (answer.blocks || rate * 4.0 < self.usual_rate) {
            return !answer.is_bunched;
        }
        self.period = (answer.now, 0);
        self.window_known_for = match answer.window {
            Some(_) => self.window_known_for + u32::from(!self.losing),
            None => 0,
        };
        let faded = self.window.unwrap_or(0.0) * FADING;
        if answer.window.is_some_and(|window| window as f64 >= faded) {
            self.window_via = answer.via;
        }
        self.window = answer.window.map(|window| faded.max(window as f64));
        // In the first slow start each round trip delivers more than the ones before.
        let is_growing = answer.window.is_none() && rate > self.usual_rate;
        self.usual_rate = if is_growing { rate } else { self.usual_rate + (rate - self.usual_rate) / 4.0 };
        self.usual = (self.usual * 3 + answer.smoothed) / 4;
        false
    }

    /// When the path stalls if nothing more is acknowledged, as [`Self::stalls`] decides. `late` is the delay that an
    /// acknowledgement may always have. `None` before a usual rate is known, or if too few bytes are `out` to decide.
    pub(crate) fn stall_at(&self, (oldest, out): (Time, u64), late: Span) -> Option<Time> {
        let quarter = self.usual_rate * self.usual.as_secs_f64() / 4.0;
        if quarter <= 0.0 || (out as f64) < quarter {
            return None;
        }
        let slow =
            Span::from_secs_f64(self.period.1 as f64 * 4.0 / self.usual_rate).max(self.usual.max(GRACE));
        Some((self.period.0 + slow).max(oldest + self.usual * 2 + GRACE + late))
    }

    /// Records the start of a silence, after this much data was received on the path.
    pub(crate) fn heard(&mut self, data_received: u64) {
        self.heard = data_received;
    }

    /// True when data kept arriving on the path: its answers wait behind the peer's data, so their delay is
    /// no fault.
    pub(crate) fn is_behind_data(&self, data_received: u64) -> bool {
        data_received >= self.heard + INCOMING
    }

    /// Packets were found lost, of which the last left at `sent_at`.
    pub(crate) fn on_lost(&mut self, now: Time, packets: u64, sent_at: Time) {
        self.lost += packets;
        self.round.1 += packets;
        if let Some(hold) = self.hold.as_mut().filter(|hold| sent_at > hold.since) {
            hold.start_over(now);
        }
    }

    /// Handles an acknowledgement on a suspect path; true if the path has recovered, which ends the hold. Otherwise it
    /// is held from now on. `detour` is the round-trip time of the return path, if that is another path: a delay up to
    /// that is no fault.
    pub(crate) fn is_well(&mut self, now: Time, sample: Option<Span>, detour: Span) -> bool {
        let grace = if self.is_held() { GRACE } else { LATE };
        let good = sample.map(|sample| self.usual.is_zero() || sample <= self.usual * 3 + grace + detour);
        let Some(hold) = &mut self.hold else {
            if good == Some(true) && !(self.silent && self.episodes > 1) {
                self.silent = false;
                return true;
            }
            if good.is_some() {
                self.hold(now, Fault::AnswersLate);
            }
            return false;
        };
        match good {
            Some(true) => {
                hold.good_since = if hold.good == 0 { now } else { hold.good_since };
                hold.good += 1;
            }
            Some(false) => hold.good = 0,
            None => {}
        }
        if now >= hold.until && good.is_some() {
            self.end_hold(now, sample);
            return true;
        }
        let wanted = ANSWERS.0 + ANSWERS.1 * self.episodes.min(5);
        let long = if self.episodes < 2 { Span::ZERO } else { doubled(WHILE, self.episodes - 1) };
        let answers = hold.good >= wanted && now.since(hold.good_since) >= long;
        let well = self.is_tried(now, good, answers);
        if well {
            self.end_hold(now, sample);
        }
        well
    }

    /// Starts or judges the trial of a held path that `answers` well enough; true if it passed or needs none. A slow
    /// train counts as an episode, because it filled the path.
    fn is_tried(&mut self, now: Time, good: Option<bool>, answers: bool) -> bool {
        let Some(hold) = &mut self.hold else { return true };
        let Some(trial) = &hold.trial else {
            if answers && self.usual_rate > 0.0 {
                (hold.trial, hold.probe_at) = (Some(Trial::new(now, self.usual, self.usual_rate)), now);
            }
            return answers && self.usual_rate <= 0.0;
        };
        match trial.outcome(now) {
            Outcome::Open if good != Some(false) => false,
            Outcome::Passed if good != Some(false) => {
                hold.found_rate = None;
                true
            }
            _ => {
                hold.found_rate = trial.rate(now).or(hold.found_rate);
                hold.start_over(now);
                self.begin_episode(now);
                false
            }
        }
    }

    /// Ends the hold; the present state becomes the usual one. If the round trip has become shorter by more than a
    /// queue, a smaller window gives the same rate.
    fn end_hold(&mut self, now: Time, sample: Option<Span>) {
        let found_rate = self.hold.as_ref().and_then(|hold| hold.found_rate);
        let Self { episodes, window, window_via, window_known_for, bloated, .. } = *self;
        let shorter = sample.filter(|sample| *sample * QUEUES < self.usual);
        let part = shorter.map_or(1.0, |sample| sample.as_secs_f64() / self.usual.as_secs_f64());
        let window = window.map(|window| window * part);
        let last_episode = now;
        let known = Self { window, window_via, window_known_for, bloated, ..Self::default() };
        *self = Self { episodes, last_episode, found_rate, ..known };
    }

    /// The rate that a trial found, for a path that was taken back although it carries much less than before.
    pub(crate) fn found_rate(&self) -> Option<Rate> {
        self.found_rate.map(|rate| Rate::from_bytes_in(rate as u64, Span::from_secs(1)))
    }
}

impl Hold {
    fn start_over(&mut self, now: Time) {
        self.good = 0;
        if self.trial.take().is_some() {
            self.probe_at = now;
        }
    }
}

/// The first span, doubled with each episode after the first, up to the second.
fn doubled((first, most): (Span, Span), episodes: u32) -> Span {
    (first * (1 << episodes.saturating_sub(1).min(10))).min(most)
}

#[cfg(test)]
mod tests;
