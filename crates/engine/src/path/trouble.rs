//! Notices a path that still answers but is no use, and says when it is well again.
//!
//! Four things can be wrong with a path whose acknowledgements keep coming:
//!
//! - **It stalls.** Delivery has fallen below a quarter of what is usual while the oldest packet out is older than
//!   twice the usual round trip: the rate was cut and what is in the queue will take for ever. That is seen when an answer comes, or when
//!   none has come in time ([`Trouble::stall_at`]). A queue that merely fills does not look so, as delivery goes on. Whatever is delivered, so old a packet is too much when it
//!   *blocks*: another path has nothing in flight, because the peer's receive window is full of what waits for this one.
//! - **It loses.** Of at least [`PACKETS`] packets a fifth was lost, and not in one burst: in [`ROUNDS`] round trips at
//!   least. No window rule makes anything of such a path.
//! - **It is slow to answer.** It was silent, and the first answer took more than three usual round trips, while no data came in
//!   over it that the answer could have waited behind.
//! - **It is bloated.** A queue stands before it that other paths need not wait for (`bloat`).
//!
//! Such a path is *held*: it carries no data and is probed a few times a round trip with packets of no value. It is well
//! when enough answers in a row came in the usual time over long enough a while, both of which grow with
//! every episode, so that a path that flaps is kept out, and it then stood a trial of what it carries (`trial`);
//! or when it answered steadily for [`Hold::until`], for then this is how it is now.

use anabranch_wire::{PathId, Rate, Span, Time};

use super::WaysBack;
use super::trial::{Outcome, Trial};
use crate::manager::Fault;

/// Round trips of many losses that make a path one that loses; after twice as many it is judged anew.
const ROUNDS: u32 = 4;
/// Round trips without a loss after which trouble is over.
const CLEAN: u32 = 3;
/// Packets over which losses are judged, at least.
const PACKETS: u64 = 48;
/// Episodes closer together than this make for more patience.
const MEMORY: Span = Span::from_secs(10);
/// Answers in a row that a first episode asks for, and how many more each further one does.
const ANSWERS: (u32, u32) = (6, 2);
/// How long answers must have come after a second episode; it doubles with each, up to the second.
const WHILE: (Span, Span) = (Span::from_millis(60), Span::from_secs(1));
/// How long another round-trip time has to last until it counts as usual; it doubles with each episode up to the second.
const PATIENCE: (Span, Span) = (Span::from_secs(10), Span::from_secs(60));
/// Probes of a held path are this far apart.
const PROBES: (Span, Span) = (Span::from_millis(10), Span::from_millis(200));
/// What of the largest window is remembered after each round trip.
const FADING: f64 = 0.98;
/// Bytes of data that came in over a path during its silence after which late answers are the peer's queue.
const INCOMING: u64 = 12_000;
/// A full queue makes a round trip at most so many times as long.
const QUEUES: u64 = 6;
/// Added to multiples of the usual round trip, for paths on which that is next to nothing.
pub(super) const GRACE: Span = Span::from_millis(20);

/// Why a path is held, and since when.
#[derive(Clone, Copy, Debug)]
struct Hold {
    why: Fault,
    since: Time,
    /// From then on whatever it answers counts as usual.
    until: Time,
    /// Answers in the usual time, in a row, and since when.
    good: u32,
    good_since: Time,
    probe_at: Time,
    trial: Option<Trial>,
    /// What a trial found where that is too little, in bytes a second.
    found_rate: Option<f64>,
}

/// What an acknowledgement told of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub now: Time,
    pub smoothed: Span,
    pub acked_bytes: u64,
    pub packets: u64,
    pub round_start: bool,
    /// The congestion window in bytes; `None` in the first slow start.
    pub window: Option<u64>,
    /// When the oldest packet left that is still to be acknowledged.
    pub oldest: Option<Time>,
    /// The path that acknowledgements come back on.
    pub via: PathId,
    /// Another path stands idle until the peer's receive window opens.
    pub blocks: bool,
}

/// A queue stood before the path.
#[derive(Clone, Copy, Debug)]
struct Bloated {
    /// The round-trip time without it.
    least: Span,
    /// The window in bytes that fills the path, and a queue as long.
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
    /// What was delivered in the period under way.
    period: (Time, u64),
    /// Round trips since losses are judged, those of many losses, and packets.
    rounds: (u32, u32),
    arrived: u64,
    lost: u64,
    /// Packets of the round trip under way.
    round: (u64, u64),
    /// Round trips in a row without a loss.
    clean: u32,
    /// Of the last round trip a fifth was lost.
    losing: bool,
    /// The largest window lately, in bytes; `None` while the first slow start looks for it.
    window: Option<f64>,
    /// The path that acknowledgements came back on when it was found.
    window_via: PathId,
    /// Periods since the first slow start ended, those of many losses left out.
    window_known_for: u32,
    /// The silence under way is an episode: longer than what one lost packet makes.
    silent: bool,
    /// The latest episode was a queue, and the path has not found its window again.
    bloated: Option<Bloated>,
    found_rate: Option<f64>,
    /// Bytes of data that had come in over the path when the silence began.
    heard: u64,
    episodes: u32,
    last_episode: Time,
}

impl Trouble {
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// What the path is held for.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.hold.as_ref().map(|hold| hold.why)
    }

    /// When a held path is to be probed next.
    pub(crate) fn probe_at(&self) -> Option<Time> {
        self.hold.as_ref().map(|hold| hold.probe_at)
    }

    /// A probe of a held path is due; `size` is that of a full packet in bytes.
    pub(crate) fn on_probe(&mut self, now: Time, size: u64) {
        let pause = (self.usual / 4).max(PROBES.0).min(PROBES.1);
        if let Some(hold) = &mut self.hold {
            hold.probe_at = now + hold.trial.map_or(pause, |trial| trial.pause(size));
        }
    }

    /// A probe of a held path of so many bytes has left.
    pub(crate) fn on_probe_sent(&mut self, size: u64) {
        if let Some(hold) = &mut self.hold
            && let Some(trial) = &mut hold.trial
            && trial.on_sent(size)
        {
            hold.probe_at = Time::NEVER;
        }
    }

    /// True while probes are to be full packets.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.trial.is_some())
    }

    /// A packet that left at `sent_at` arrived.
    pub(crate) fn on_arrived(&mut self, now: Time, sent_at: Time) {
        if let Some(trial) = self.hold.as_mut().and_then(|hold| hold.trial.as_mut()) {
            trial.on_arrived(now, sent_at);
        }
    }

    /// The path was silent for so many probe timeouts. The first may be due to one lost packet; the second begins an
    /// episode, unless one is under way.
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
            // It was the trouble that ended the first slow start, not the path's room.
            self.window = None;
        }
    }

    /// Holds a path before which a queue stands: well is what answers as without it, in the `least` round-trip time.
    pub(crate) fn hold_bloated(&mut self, now: Time, (least, rate): (Span, Rate)) {
        self.hold(now, Fault::Bloated);
        self.usual = least;
        self.bloated = Some(Bloated { least, window: rate.bytes_in(least) * 2 });
    }

    /// The window in bytes up to which a path that is taken back starts slowly, if there is a bound.
    pub(crate) fn window_to_return_to(&self, ways: &WaysBack) -> Option<u64> {
        let bloated = self.bloated.map(|bloated| bloated.window);
        let before = self.window_before(ways);
        bloated.map(|window| window.min(before.unwrap_or(window))).or(before)
    }

    /// Holds the path from now on.
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

    /// The window in bytes that the path should find again, when it was in trouble lately and has now been without loss for
    /// [`CLEAN`] round trips at less than half of it; once. Without a bound where it had not found its window yet. A path that was bloated has to show
    /// that no queue is left, however long that takes: with the window that it was given there is one, unless it carries more
    /// than it did, and nobody knows how much.
    pub(crate) fn take_recovery(
        &mut self,
        now: Time,
        (window, smoothed): (u64, Span),
        ways: &WaysBack,
    ) -> Option<u64> {
        if let Some(bloated) = self.bloated {
            let no_queue = smoothed * 4 <= bloated.least * 5;
            return (self.clean >= CLEAN && no_queue).then(|| {
                self.bloated = None;
                u64::MAX
            });
        }
        let lately = self.episodes > 0 && now.since(self.last_episode) < MEMORY;
        let before = self.window_before(ways).unwrap_or(u64::MAX);
        if !lately || self.clean != CLEAN || window >= before / 2 {
            return None;
        }
        self.clean += 1;
        Some(before)
    }

    /// The window that the path had before it was in trouble, in bytes, once it had found one: as much of it as the way
    /// leaves that acknowledgements take back now.
    pub(crate) fn window_before(&self, ways: &WaysBack) -> Option<u64> {
        self.window.map(|window| (window * ways.part_left(self.window_via)) as u64)
    }

    /// Takes in an acknowledgement on a path that carries data; answers what is wrong when the path is no use.
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
        if lasted < self.usual {
            return false;
        }
        let rate = self.period.1 as f64 / lasted.as_secs_f64();
        let age = answer.oldest.map_or(Span::ZERO, |oldest| answer.now.since(oldest));
        if age > self.usual * 2 + GRACE && (answer.blocks || rate * 4.0 < self.usual_rate) {
            return true;
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

    /// When the path stalls if nothing more is acknowledged, as [`Self::stalls`] judges it; `late` is how much later than usual an
    /// acknowledgement may be in any case. `None` while nothing is usual, or so few bytes are `out` that little can be delivered.
    pub(crate) fn stall_at(&self, (oldest, out): (Time, u64), late: Span) -> Option<Time> {
        let quarter = self.usual_rate * self.usual.as_secs_f64() / 4.0;
        if quarter <= 0.0 || (out as f64) < quarter {
            return None;
        }
        let slow = Span::from_secs_f64(self.period.1 as f64 * 4.0 / self.usual_rate).max(self.usual);
        Some((self.period.0 + slow).max(oldest + self.usual * 2 + GRACE + late))
    }

    /// So much data had come in over the path when its silence began.
    pub(crate) fn heard(&mut self, data_received: u64) {
        self.heard = data_received;
    }

    /// True when data went on coming in over the path: its answers wait behind what the peer sends, and being late says
    /// nothing against it.
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

    /// Takes in an acknowledgement on a path that carries no data because of doubt; true when it is well, which
    /// ends the hold. A path that is not well is held from now on. `detour` is the round-trip time of the path that
    /// the acknowledgement came back on when that is another: as much more is no fault of this one.
    pub(crate) fn is_well(&mut self, now: Time, sample: Option<Span>, detour: Span) -> bool {
        let good = sample.map(|sample| self.usual.is_zero() || sample <= self.usual * 3 + GRACE + detour);
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

    /// Tries a held path that `answers` well enough, and judges the trial; true when there is no more to find out. A train
    /// that is slow is an episode: it filled the path.
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

    /// The path is taken back: as it is now is usual. Over a round trip that is shorter, by more than a queue makes, a smaller window makes
    /// the same rate.
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

    /// The rate of a path that was taken back although a trial found so much less than usual.
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
