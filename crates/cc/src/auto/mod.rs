//! `auto`: CUBIC that keeps its own queue short and is not slowed down by losses on the wire.
//!
//! Each path runs `cubic`, with its coupling over shared bottlenecks. Three things change it.
//!
//! **Its own queue.** A path is CUBIC until a [test](rivalry) of its queue shows that it is *alone* (Copa, Nimbus). Then it
//! keeps its queue at an aim: 25 ms, or a quarter of the least round trip or three packets if that is more. The window
//! stays as it is while the queue is longer. If it becomes still longer, the path tests it again: another flow's queue, a
//! *rival's*, makes it CUBIC again. In doubt a path is CUBIC, so a loss-based neighbour sees nothing else.
//!
//! In slow start, a path tests its queue once a larger window no longer raises the delivery rate. Without a rival, slow
//! start ends there, before it fills a deep queue.
//!
//! The short queue left the path a smaller window than CUBIC would have. So a path that was alone *catches up* with a rival:
//! it grows by half per round trip, or by its share of that, until the next loss. If the delivery rate no longer follows,
//! nearly all of the queue is the path's own, and there is no rival after all.
//!
//! **Losses.** [`losses`] judges by evidence whether losses are congestion. If they are not, a loss leaves the window
//! that the measured delivery rate needs, as in Westwood+. Without a queue the window grows by a quarter per round trip,
//! as long as the delivery rate follows. A queue of a few packets cannot be seen, but drops packets of all flows: if growth
//! comes with more losses, they are the queue's. The path then [keeps](Auto::stop_at) far below that rate, and tries to grow
//! slowly after 8 s, and each time after twice as long. The aim is much shorter then: neighbours are slowed by losses, not by queues, and
//! each millisecond would cost them.
//!
//! **The least round trip.** The path keeps it while it knows that the queue is its own. With a rival it is forgotten after
//! one to two minutes. If it were forgotten sooner, a path whose rival keeps the queue full would take the full queue for
//! its least round trip, and believe that it is alone. After a rival has left, the least round trip may include a queue.
//! Then the path cuts its window further until the round trip no longer falls.

mod delay;
mod losses;
mod recent;
mod rivalry;

use anabranch_wire::{Span, Time};

use crate::sample::{AckSample, LossCause};
use delay::Delay;
use losses::{Loss, Losses};
use recent::Largest;
use rivalry::Rivalry;

/// The queue that the path aims at: this, or this part of the least round trip.
const AIM: Span = Span::from_millis(25);
const AIM_PART: u64 = 4;
/// But at least the time of so many packets: on a slow link two already take longer than the aim.
const LEAST_PACKETS: f64 = 3.0;
/// The same while losses are no congestion.
const SHORT_AIM: Span = Span::from_millis(3);
const SHORT_AIM_PART: u64 = 16;
const AIM_PACKETS: f64 = 4.0;
/// A delay of this part of the least round trip, within these bounds, counts as no queue.
const NOISE_PART: u64 = 32;
const NOISE_PACKETS: f64 = 2.0;
const NOISE: (Span, Span) = (Span::from_micros(500), Span::from_millis(5));
/// The part of the aim by which a queue must exceed it to be tested, until the window was held for so long.
const EXCESS: u64 = 4;
const HELD: Span = Span::from_secs(10);
/// A queue that exceeds the aim by half so soon after it was the path's own belongs to a rival: its own stays at the aim.
const AGAIN: Span = Span::from_secs(5);
/// Growth per round trip when a path that was alone finds a rival.
const CATCH_UP: f64 = 0.5;
/// While the path catches up: where the window grew by the first factor, the delivery rate must have grown by the second.
/// Otherwise most of the queue is the path's own.
const CAUGHT_UP: (f64, f64) = (1.3, 1.1);
/// Growth per round trip while nothing is congested.
const PROBE: f64 = 0.25;
/// Where the window grew by the first of these factors, the delivery rate must have grown by the second.
const GREW: f64 = 1.15;
const PAID: f64 = 1.1;
/// Growth is twice as fast up to this share of what the path has delivered before.
const PROVEN: f64 = 0.8;
/// Round trips without that growth after which the path is full.
const UNPAID: u32 = 3;
/// Packets beyond what the delivery rate needs.
const SPARE: f64 = 2.0;
/// Pause of such growth after a queue.
const BREATH: Span = Span::from_secs(1);
/// How long no evidence counts after something dropped what exceeded the rate, and the longest.
const DISTRUST: (Span, Span) = (Span::from_secs(2), Span::from_secs(32));

/// A queue longer than this multiple of what counts as none can be seen.
const VISIBLE: u64 = 3;
/// After losses of a queue too short to be seen, growth stops at this share of the delivery rate, for this long at first and
/// at most.
const SAFE: f64 = 0.4;
const STOP: (Span, Span) = (Span::from_secs(8), Span::from_secs(60));
/// Growth per round trip beyond that share later.
const EXPLORE: f64 = 0.0625;

/// The effect of an acknowledgement on the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Advice {
    /// It grows as under `cubic`.
    Grow,
    /// It grows by this share of the bytes acknowledged.
    Probe(f64),
    /// It stays.
    Hold,
    /// It shrinks to this many bytes.
    Shrink(f64),
    /// The last reduction is undone: it was a test.
    TakeBack,
    /// It grows as under `cubic`, on a new curve.
    Restart,
}

/// The window as an acknowledgement or loss finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// In bytes.
    pub(crate) window: f64,
    pub(crate) mss: f64,
    pub(crate) slow_start: bool,
}

/// The current round trip.
#[derive(Clone, Copy, Debug)]
struct Round {
    since: Time,
    acked: f64,
    least: Span,
    /// The window limited the sender all the time.
    limited: bool,
}

/// Fast growth while nothing is congested.
#[derive(Clone, Copy, Debug)]
struct Probing {
    /// The delivery rate of the last round trip.
    rate: f64,
    /// The windows at the ends of the last two round trips.
    windows: [f64; 2],
    /// Round trips in which growth brought nothing.
    unpaid: u32,
    /// When the next growth may begin.
    at: Time,
    distrust_until: Time,
    distrust: Span,
    /// The delivery rate up to which no queue overflows: growth stops there until this time, after stopping this long.
    safe: f64,
    stops_until: Time,
    stops: Span,
}

/// The state of one path.
#[derive(Clone, Debug)]
pub(crate) struct Auto {
    mss: f64,
    delay: Delay,
    round: Round,
    /// The largest recent delivery rate, in bytes a second.
    rate: Largest,
    losses: Losses,
    rivalry: Rivalry,
    probing: Probing,
}

impl Auto {
    pub(crate) fn new(now: Time) -> Self {
        Self {
            mss: 0.0,
            delay: Delay::new(),
            round: Round::begin(now),
            rate: Largest::default(),
            losses: Losses::default(),
            rivalry: Rivalry::default(),
            probing: Probing {
                rate: 0.0,
                windows: [0.0; 2],
                unpaid: 0,
                at: now,
                distrust_until: now,
                distrust: Span::ZERO,
                safe: f64::INFINITY,
                stops_until: now,
                stops: Span::ZERO,
            },
        }
    }

    /// The cause of losses on the path.
    pub(crate) fn loss_cause(&self) -> LossCause {
        if self.losses.are_random() { LossCause::Wire } else { LossCause::Queues }
    }

    /// Handles a change of the path that returns acknowledgements. A short queue left a window that may be much too small
    /// for a longer one.
    pub(crate) fn on_return_path_changed(&mut self) {
        self.delay.on_return_path_changed();
        self.round.least = Span::MAX;
        self.rivalry.test = None;
        self.rivalry.refills = self.is_alone();
    }

    /// True if the path keeps a short queue: its window is smaller than `cubic`'s would be.
    pub(crate) fn is_alone(&self) -> bool {
        self.rivalry.own_since.is_some()
    }

    /// Handles the end of an impairment of a path that was alone: a share of its window from before is less than it carries.
    pub(crate) fn on_return(&mut self) {
        self.rivalry.refills = true;
    }

    /// Handles an acknowledgement.
    pub(crate) fn on_ack(&mut self, sample: &AckSample, view: &View) -> Advice {
        let now = sample.now;
        self.mss = view.mss;
        let has_rival = self.has_rival();
        self.delay.on_sample(now, sample.rtt, !has_rival);
        let round = &mut self.round;
        round.acked += sample.acked_bytes as f64;
        round.limited &= sample.window_limited;
        if sample.round_start {
            let ended = std::mem::replace(round, Round::begin(now));
            if let Some(advice) = self.end_round(&ended, sample, view) {
                return advice;
            }
        }
        self.round.least = self.round.least.min(sample.rtt);
        if has_rival {
            return if self.rivalry.catches_up { Advice::Probe(CATCH_UP) } else { Advice::Grow };
        }
        let (queue, aim) = (self.delay.queue(), self.aim());
        let is_short = self.rivalry.own_since.is_some() || self.losses.are_random();
        let holds = is_short && queue > aim || self.rivalry.test.is_some();
        let since = holds.then(|| self.rivalry.holds.unwrap_or(now));
        if std::mem::replace(&mut self.rivalry.holds, since).is_some() || holds {
            return if holds { Advice::Hold } else { Advice::Restart };
        }
        if self.rivalry.refills && queue <= self.noise() {
            return if view.slow_start { Advice::Grow } else { Advice::Probe(CATCH_UP) };
        }
        self.rivalry.refills &= self.delay.shows_old_queue(now);
        if view.slow_start || !self.losses.are_random() {
            return Advice::Grow;
        }
        if queue > self.noise() {
            self.probing.at = now + BREATH;
        } else if view.window >= self.safe_window() {
            return if now < self.probing.stops_until { Advice::Hold } else { Advice::Probe(EXPLORE) };
        } else if now >= self.probing.at {
            let proven = self.rate.get() * self.delay.base().as_secs_f64();
            return Advice::Probe(if view.window < PROVEN * proven { PROBE * 2.0 } else { PROBE });
        }
        let fitting = self.rate.get() * (self.delay.base() + self.noise()).as_secs_f64();
        if view.window < fitting + SPARE * view.mss { Advice::Grow } else { Advice::Hold }
    }

    fn has_rival(&self) -> bool {
        self.rivalry.until.is_some()
    }

    /// The longest queue that the path builds when it is alone.
    fn aim(&self) -> Span {
        if self.losses.are_random() {
            SHORT_AIM.max(self.delay.base() / SHORT_AIM_PART).max(self.time_of(AIM_PACKETS))
        } else {
            self.long_aim()
        }
    }

    /// The same while losses are congestion.
    fn long_aim(&self) -> Span {
        AIM.max(self.delay.base() / AIM_PART).max(self.time_of(LEAST_PACKETS))
    }

    /// The window that leaves a queue of half the aim at this delivery rate.
    fn fitting(&self, rate: f64) -> f64 {
        rate * (self.delay.base() + self.aim() / 2).as_secs_f64()
    }

    /// A delay that counts as no queue.
    fn noise(&self) -> Span {
        (self.delay.base() / NOISE_PART).max(NOISE.0).min(NOISE.1).max(self.time_of(NOISE_PACKETS))
    }

    /// Time that so many packets take.
    fn time_of(&self, packets: f64) -> Span {
        let rate = self.rate.get();
        if rate > 0.0 { Span::from_secs_f64(packets * self.mss / rate) } else { Span::ZERO }
    }

    fn end_round(&mut self, round: &Round, sample: &AckSample, view: &View) -> Option<Advice> {
        let now = sample.now;
        let lasted = now.since(round.since).as_secs_f64();
        if round.least == Span::MAX || lasted <= 0.0 {
            return None;
        }
        // The first acknowledgements may arrive together. No round trip is much shorter than its quickest packet.
        let rate = round.acked / lasted.max(round.least.as_secs_f64() / 2.0);
        let queue = round.least.saturating_sub(self.delay.base());
        let explores = self.explores(now, view.window);
        self.losses.end_round(now, (round.acked, round.least), explores);
        if queue > self.noise() * VISIBLE {
            self.probing.safe = f64::INFINITY;
        }
        if self.losses.are_random() && self.probing.safe.is_finite() && self.losses.have_ceased(view.mss) {
            // All losses were the queue's.
            self.losses.refute();
            self.distrust(now);
        }
        if round.limited || rate > self.rate.get() {
            self.rate.add(now, rate);
        }
        let is_full = self.is_full(rate);
        if let Some(advice) = self.probe(now, rate, view) {
            return Some(advice);
        }
        if self.rivalry.test.is_some() {
            return self.judge_test(now, round.least, now - sample.rtt, view);
        }
        let aim = self.aim();
        let held = self.rivalry.holds.is_some_and(|since| now.since(since) >= HELD);
        let longest = if held { aim } else { aim + aim / EXCESS };
        let is_due = self.rivalry.until.is_none_or(|until| now >= until);
        let is_random = self.losses.are_random();
        if !round.limited && self.rivalry.own_since.is_some() && !is_random && queue > aim + aim / 2 {
            // The window does not fill this queue: a rival does, or the link pauses.
            self.find_rival(now);
            return Some(Advice::Grow);
        }
        if !is_due || view.slow_start && !is_full || !round.limited || queue <= longest {
            return None;
        }
        let was_own = self.rivalry.own_at.is_some_and(|own| now.since(own) < AGAIN);
        if !is_random && (!self.is_steady() || was_own && queue > aim + aim / 2) {
            self.find_rival(now);
            return Some(Advice::Grow);
        }
        Some(self.begin_test(now, (round.least, rate), view))
    }

    /// True if the window grew, but a round trip that delivered `rate` gained nothing.
    fn is_full(&self, rate: f64) -> bool {
        let [last, older] = self.probing.windows;
        last >= older * GREW && rate < self.probing.rate * PAID
    }

    /// Checks whether fast growth still raises the delivery rate.
    fn probe(&mut self, now: Time, rate: f64, view: &View) -> Option<Advice> {
        let before = std::mem::replace(&mut self.probing.rate, rate);
        let [last, older] = self.probing.windows;
        self.probing.windows = [view.window, last];
        if self.rivalry.catches_up && last >= older * CAUGHT_UP.0 && rate < before * CAUGHT_UP.1 {
            // Most of the queue is the path's own.
            (self.rivalry.catches_up, self.rivalry.until) = (false, None);
            self.rivalry.own_since = Some(now);
            return Some(Advice::Shrink(self.fitting(rate).clamp(view.window / 4.0, view.window)));
        }
        let is_on = !view.slow_start && self.losses.are_random();
        if !is_on || self.delay.queue() > self.noise() || rate >= before * PAID {
            self.probing.unpaid = 0;
            return None;
        }
        self.probing.unpaid += u32::from(last >= older * GREW);
        if self.probing.unpaid < UNPAID {
            return None;
        }
        // Neither the rate nor a queue has grown: something drops what exceeds the rate.
        self.losses.refute();
        self.distrust(now);
        self.stop_at(now, view.window);
        let fitting = rate * (self.delay.base() + self.noise()).as_secs_f64();
        (fitting < view.window).then_some(Advice::Shrink(fitting.max(view.window / 2.0)))
    }

    fn distrust(&mut self, now: Time) {
        let Probing { distrust_until, distrust, .. } = &mut self.probing;
        let again = now.since(*distrust_until) < *distrust * 2;
        *distrust = if again { (*distrust * 2).min(DISTRUST.1) } else { DISTRUST.0 };
        *distrust_until = now + *distrust;
        self.probing.unpaid = 0;
    }

    /// Stops growth far below the rate of `window`, with which a queue overflowed: each time within a minute for twice as
    /// long. A queue that can be seen needs no such stop.
    fn stop_at(&mut self, now: Time, window: f64) {
        let base = self.delay.base();
        if self.losses.longest() > base + self.noise() * VISIBLE {
            self.probing.safe = f64::INFINITY;
            return;
        }
        let rate = self.rate.get().min(window / base.as_secs_f64());
        let Probing { safe, stops_until, stops, .. } = &mut self.probing;
        let again = now.since(*stops_until) < STOP.1;
        *stops = if again { (*stops * 2).clamp(STOP.0, STOP.1) } else { STOP.0 };
        *stops_until = now + *stops;
        *safe = if rate > *safe { safe.max(rate * SAFE) } else { rate * SAFE };
    }

    /// True if the path tries to grow beyond a queue that overflowed.
    fn explores(&self, now: Time, window: f64) -> bool {
        self.losses.are_random() && now >= self.probing.stops_until && window > self.safe_window()
    }

    /// The window for the rate up to which no queue overflows.
    fn safe_window(&self) -> f64 {
        self.probing.safe * self.delay.base().as_secs_f64()
    }

    /// Ends a test and catching up: a timeout or a pause has set the window.
    pub(crate) fn on_restart(&mut self) {
        self.rivalry.stop();
    }

    /// Records lost bytes.
    pub(crate) fn on_lost(&mut self, bytes: f64) {
        self.losses.on_lost(bytes);
    }

    /// Judges a recorded loss that would reduce the window; returns the window that it leaves if it is no congestion.
    pub(crate) fn spare(&mut self, now: Time, view: &View) -> Option<f64> {
        let (base, queue, noise) = (self.delay.base(), self.delay.queue_at_loss(), self.noise());
        let View { window, mss, slow_start } = *view;
        let proven = self.rate.get() * base.as_secs_f64();
        let was_random = self.losses.are_random();
        if queue > noise && self.has_rival() || was_random && queue > self.long_aim() * 2 {
            self.losses.congested();
            return None;
        }
        let loss = Loss { window, mss, proven, slow_start, base, queue, noise };
        if self.explores(now, window) && self.losses.are_more(&loss) {
            self.stop_at(now, window);
            return Some(self.safe_window().min(window));
        }
        let is_spared = self.losses.spare(&loss, now >= self.probing.distrust_until || was_random);
        if is_spared {
            let fitting = self.rate.get() * (self.delay.base() + self.aim()).as_secs_f64();
            return Some(if slow_start { window } else { fitting.clamp(0.7 * window, window) });
        }
        if was_random {
            // Too much was lost for the window before.
            self.distrust(now);
            self.stop_at(now, window);
            self.rate.limit(self.probing.rate);
        }
        None
    }

    /// Handles a reduction for a loss.
    pub(crate) fn on_reduced(&mut self) {
        self.rivalry.stop();
        if self.delay.queue() <= self.noise() {
            // Nobody fills the queue.
            self.rivalry.until = None;
        }
    }
}

impl Round {
    fn begin(now: Time) -> Self {
        Self { since: now, acked: 0.0, least: Span::MAX, limited: true }
    }
}

#[cfg(test)]
mod tests;
