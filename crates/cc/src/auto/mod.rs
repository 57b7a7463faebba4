//! `auto`: CUBIC that keeps its own queue short and is not slowed down by losses on the wire.
//!
//! Each path runs `cubic`, with its coupling over shared bottlenecks. Three things change it.
//!
//! **Its own queue.** When the round trip exceeds the least one by the aim (25 ms, or a quarter of the least round trip or
//! three packets if that is more), the window stops growing, and slow start ends. A longer queue is another flow's, or the
//! rate has fallen. To find out, the path *tests* it: it cuts its window so that its queue should shrink to half of the aim.
//! If the queue shrinks by nearly as much as the cut, it is the path's own (Copa, Nimbus). If it does not, a *rival*
//! fills it. The cut is undone, and the path grows as CUBIC does, for ten seconds and twice as long after each test
//! that finds a rival again. A loss-based neighbour therefore sees a CUBIC flow. A queue shorter than the aim
//! never starts a test: there the path is CUBIC as well. A slightly longer one does after ten seconds: if the route
//! has become longer, the window would otherwise never grow again.
//!
//! The short queue left the path a smaller window than CUBIC would have. So after the first test that finds a rival, it
//! *catches up*: it grows by half per round trip until the next loss. If the delivery rate no longer follows, nearly
//! all of the queue is the path's own, and there is no rival after all.
//!
//! **Losses.** [`losses`] judges by evidence whether losses are congestion. If they are not, a loss leaves the window
//! that the measured delivery rate needs, as in Westwood+. Without a queue the window grows by a quarter per round trip,
//! as long as the delivery rate follows. The aim is much shorter then: neighbours are slowed by losses, not by queues, and
//! each millisecond would cost them.
//!
//! **The least round trip.** The path keeps it while it knows that the queue is its own. With a rival it is forgotten after
//! one to two minutes. If it were forgotten sooner, a path whose rival keeps the queue full would take the full queue for
//! its least round trip, and believe that it is alone. After a rival has left, the least round trip may include a queue.
//! Then the path cuts its window further until the round trip no longer falls.

mod delay;
mod losses;
mod recent;

use anabranch_wire::{Rate, Span, Time};

use crate::sample::{AckSample, LossCause};
use delay::Delay;
use losses::{Loss, Losses};
use recent::Largest;

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
/// The least share of the expected decrease of a queue that is the path's own.
const OWN: f64 = 0.75;
/// Noise counts for at most this part of that decrease: it is longer than the whole decrease of a small window.
const DOUBT: u64 = 4;
/// A queue that exceeds the aim by half so soon after it was the path's own belongs to a rival: its own stays at the aim.
const AGAIN: Span = Span::from_secs(5);
/// A path that was alone for so long has a smaller window than CUBIC would have. When it finds a rival, it grows by this
/// share per round trip.
const ALONE: Span = Span::from_secs(30);
const CATCH_UP: f64 = 0.5;
/// While the path catches up: where the window grew by the first factor, the delivery rate must have grown by the second.
/// Otherwise most of the queue is the path's own.
const CAUGHT_UP: (f64, f64) = (1.3, 1.1);
/// How long a path that found a rival is `cubic`, and the longest.
const RIVALRY: (Span, Span) = (Span::from_secs(10), Span::from_secs(80));
/// Share of the window that remains in a search for the least round trip.
const SEARCH: f64 = 0.75;
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

/// A cut of the window, and what it should do to the queue.
#[derive(Clone, Copy, Debug)]
struct Test {
    at: Time,
    /// The round trip before, and the decrease that is expected.
    before: Span,
    expected: Span,
    /// Whether the current round trip shows its effect.
    is_measured: bool,
    kind: Kind,
}

/// Why the window was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// To find out whose queue it is.
    Test,
    /// To find a lower round trip.
    Search,
    /// For a loss, which shows the same.
    Loss,
}

/// Tests of the queue, and their results.
#[derive(Clone, Copy, Debug, Default)]
struct Rivalry {
    test: Option<Test>,
    /// The path has a rival, and looks again after this time.
    until: Option<Time>,
    /// How long the last rivalry was.
    lasted: Span,
    /// When the queue was last found to be the path's own.
    own_at: Option<Time>,
    /// When the path last had a rival.
    rival_at: Option<Time>,
    /// It catches up with a rival that was just found.
    catches_up: bool,
    /// Since when the window stays as it is. `cubic`'s curve goes on.
    holds: Option<Time>,
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
            },
        }
    }

    /// The cause of losses on the path.
    pub(crate) fn loss_cause(&self) -> LossCause {
        if self.losses.are_random() { LossCause::Wire } else { LossCause::Queues }
    }

    /// Forgets delays: the acknowledgements now return another way.
    pub(crate) fn on_return_path_changed(&mut self) {
        self.delay = Delay::new();
        self.round.least = Span::MAX;
        self.rivalry.test = None;
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
        if view.slow_start && queue > aim {
            let latest = sample.delivery_rate.map_or(0.0, Rate::as_bytes_f64);
            let fitting = self.fitting(self.rate.get().max(latest));
            self.rivalry.own_at = Some(now);
            return Advice::Shrink(fitting.clamp(view.window / 2.0, view.window));
        }
        let holds = queue > aim || self.rivalry.test.is_some();
        let since = holds.then(|| self.rivalry.holds.unwrap_or(now));
        if std::mem::replace(&mut self.rivalry.holds, since).is_some() || holds {
            return if holds { Advice::Hold } else { Advice::Restart };
        }
        if view.slow_start || !self.losses.are_random() {
            return Advice::Grow;
        }
        if queue > self.noise() {
            self.probing.at = now + BREATH;
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

    /// True if a path with a rival waited so long for a loss that it must test its queue itself.
    fn is_overdue(&self, now: Time) -> bool {
        self.rivalry.until.is_none_or(|until| now >= until + self.rivalry.lasted)
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
        let rate = round.acked / lasted;
        let queue = round.least.saturating_sub(self.delay.base());
        self.losses.end_round(now, round.acked, round.least);
        if round.limited || rate > self.rate.get() {
            self.rate.add(now, rate);
        }
        if let Some(advice) = self.probe(now, rate, view) {
            return Some(advice);
        }
        if self.rivalry.test.is_some() {
            return self.judge_test(now, round.least, now - sample.rtt, view);
        }
        let aim = self.aim();
        let held = self.rivalry.holds.is_some_and(|since| now.since(since) >= HELD);
        let longest = if held { aim } else { aim + aim / EXCESS };
        if !self.is_overdue(now) || view.slow_start || !round.limited || queue <= longest {
            return None;
        }
        let was_own = self.rivalry.own_at.is_some_and(|own| now.since(own) < AGAIN);
        if was_own && !self.losses.are_random() && queue > aim + aim / 2 {
            self.find_rival(now);
            return Some(Advice::Grow);
        }
        Some(self.begin_test(now, (round.least, rate), view))
    }

    /// Checks whether fast growth still raises the delivery rate.
    fn probe(&mut self, now: Time, rate: f64, view: &View) -> Option<Advice> {
        let before = std::mem::replace(&mut self.probing.rate, rate);
        let [last, older] = self.probing.windows;
        self.probing.windows = [view.window, last];
        if self.rivalry.catches_up && last >= older * CAUGHT_UP.0 && rate < before * CAUGHT_UP.1 {
            // Most of the queue is the path's own.
            (self.rivalry.catches_up, self.rivalry.until, self.rivalry.own_at) = (false, None, None);
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

    /// Cuts the window so that half of the aim should be left of the queue, if it is the path's own. The last round trip
    /// took `before` and delivered `rate`.
    fn begin_test(&mut self, now: Time, (before, rate): (Span, f64), view: &View) -> Advice {
        let left = self.fitting(rate).clamp(view.window / 2.0, view.window);
        let share = (left / (rate * before.as_secs_f64())).clamp(0.5, 1.0);
        self.watch(now, before, before.mul_f64(1.0 - share), Kind::Test);
        Advice::Shrink(left)
    }

    /// Judges a test after a whole round trip of packets that left after it, of which the quickest took `least`.
    fn judge_test(&mut self, now: Time, least: Span, sent_at: Time, view: &View) -> Option<Advice> {
        let test = self.rivalry.test.as_mut()?;
        if !test.is_measured {
            test.is_measured = sent_at >= test.at;
            return None;
        }
        let Test { before, expected, kind, .. } = *test;
        self.rivalry.test = None;
        let fell = before.saturating_sub(least);
        let noise = self.noise();
        let is_own = fell + noise.min(expected / DOUBT) >= expected.mul_f64(OWN);
        let had_rival = self.rivalry.until.is_some();
        match kind {
            Kind::Search if is_own && fell > noise => Some(self.search(now, least, view)),
            Kind::Search => {
                if least > self.delay.base() + noise * 2 {
                    // A queue is left that does not follow the window.
                    self.rivalry.until = Some(now + self.rivalry.lasted);
                }
                Some(Advice::TakeBack)
            }
            Kind::Test | Kind::Loss if is_own => {
                self.rivalry.rival_at = if had_rival { Some(now) } else { self.rivalry.rival_at };
                (self.rivalry.until, self.rivalry.own_at) = (None, Some(now));
                had_rival.then(|| self.search(now, least, view))
            }
            Kind::Loss => {
                self.rivalry.until = Some(now + self.rivalry.lasted);
                None
            }
            Kind::Test => {
                self.find_rival(now);
                Some(Advice::TakeBack)
            }
        }
    }

    fn find_rival(&mut self, now: Time) {
        let had_rival = self.has_rival();
        let Rivalry { until, lasted, catches_up, rival_at, .. } = &mut self.rivalry;
        let was_alone = rival_at.is_none_or(|rival| now.since(rival) >= ALONE);
        *catches_up = was_alone && !self.losses.are_random();
        *lasted = if had_rival { (*lasted * 2).min(RIVALRY.1) } else { RIVALRY.0 };
        (*until, *rival_at) = (Some(now + *lasted), Some(now));
    }

    /// Expects a cut of the window to shorten the round trip by `decrease`, as far as there is a queue.
    fn watch(&mut self, now: Time, before: Span, decrease: Span, kind: Kind) {
        let expected = decrease.min(before.saturating_sub(self.delay.base()));
        self.rivalry.test = Some(Test { at: now, before, expected, is_measured: false, kind });
    }

    /// Looks for a lower round trip than `least`.
    fn search(&mut self, now: Time, least: Span, view: &View) -> Advice {
        let left = view.window * SEARCH;
        // The last cut may have shortened the queue by more than the window needs, for a moment.
        let after = Span::from_secs_f64(left / self.probing.rate.max(1.0));
        self.watch(now, least, least.saturating_sub(after), Kind::Search);
        Advice::Shrink(left)
    }

    /// Ends a test and catching up: a timeout or a pause has set the window.
    pub(crate) fn on_restart(&mut self) {
        (self.rivalry.test, self.rivalry.catches_up) = (None, false);
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
        if was_random && (self.has_rival() || queue > self.long_aim() * 2) {
            self.losses.congested();
            return None;
        }
        let is_spared = self.losses.spare(
            &Loss { window, mss, proven, slow_start, base, queue, noise },
            now >= self.probing.distrust_until || was_random,
        );
        if is_spared {
            let fitting = self.rate.get() * (self.delay.base() + self.aim()).as_secs_f64();
            return Some(if slow_start { window } else { fitting.clamp(0.7 * window, window) });
        }
        if was_random {
            // Too much was lost for the window before.
            self.distrust(now);
            self.rate.limit(self.probing.rate);
        }
        None
    }

    /// Handles a reduction for a loss to this share of the window.
    pub(crate) fn on_reduced(&mut self, now: Time, share: f64) {
        (self.rivalry.test, self.rivalry.catches_up) = (None, false);
        if self.delay.queue() <= self.noise() {
            // Nobody fills the queue.
            self.rivalry.until = None;
        } else if self.rivalry.until.is_some_and(|until| now >= until) {
            let before = self.delay.now();
            self.watch(now, before, before.mul_f64(1.0 - share), Kind::Loss);
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
