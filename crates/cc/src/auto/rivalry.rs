//! Tests of the queue: whether it is the path's own, or a rival's.
//!
//! A path is CUBIC until a test shows that it is alone; after a rival, until two tests in succession do. A test cuts the
//! window by a quarter. The queue is the path's own if it shrinks by as much as the cut while the delivery rate stays that
//! of the recent past. If not, the cut is undone, and the next test follows after ten seconds or 64 round trips, twice as
//! late each time.
//!
//! No test is made while the delivery rate is below that of the recent past although there is a queue: another flow
//! takes the rest, or the link's rate varies, as on radio links. A short queue would waste such a link.

use anabranch_wire::{Span, Time};

use super::{Advice, Auto, View};

/// The least share of the expected decrease of a queue that is the path's own.
const OWN: f64 = 0.9;
/// A second test confirms this so much later: the first one may have coincided with a rival's loss.
const CONFIRM: Span = Span::from_secs(3);
/// Noise counts for at most this part of that decrease: it is longer than the whole decrease of a small window.
const DOUBT: u64 = 4;
/// A queue at less than this share of the recent delivery rate is another flow's, or the link's rate varies.
const STEADY: f64 = 0.85;
/// How long a path that found a rival is `cubic`, at least also in round trips, and the longest.
const RIVALRY: (Span, Span) = (Span::from_secs(10), Span::from_secs(80));
const RIVALRY_ROUNDS: u64 = 64;
/// Share of the window that remains in a search for the least round trip.
const SEARCH: f64 = 0.75;

/// A cut of the window, and what it should do to the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
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
}

/// Tests of the queue, and their results.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rivalry {
    pub(super) test: Option<Test>,
    /// The path has a rival, and looks again after this time.
    pub(super) until: Option<Time>,
    /// How long the last rivalry was.
    lasted: Span,
    /// The last test, which a second one is to confirm, found that the queue is the path's own.
    seems_own: bool,
    /// Since when the queue is the path's own, and when a test last showed that and left a short queue.
    pub(super) own_since: Option<Time>,
    pub(super) own_at: Option<Time>,
    /// It catches up with a rival that was just found.
    pub(super) catches_up: bool,
    /// It grows fast until there is a queue, because its window may be much too small.
    pub(super) refills: bool,
    /// Since when the window stays as it is. `cubic`'s curve goes on.
    pub(super) holds: Option<Time>,
}

impl Auto {
    /// True if the last round trip delivered as much as the best recent one, up to a packet.
    pub(super) fn is_steady(&self) -> bool {
        let packet = self.mss / self.delay.now().as_secs_f64();
        self.probing.rate + packet >= STEADY * self.rate.get()
    }

    /// Cuts the window so that half of the aim should be left of the queue, if it is the path's own. The last round trip
    /// took `before` and delivered `rate`.
    pub(super) fn begin_test(&mut self, now: Time, (before, rate): (Span, f64), view: &View) -> Advice {
        let deepest = if self.rivalry.own_since.is_some() { 0.5 } else { SEARCH };
        // Soon after slow start, the window is larger than what is outstanding.
        let used = view.window.min(rate * before.as_secs_f64());
        let left = self.fitting(rate).clamp(used * deepest, used);
        let share = (left / (rate * before.as_secs_f64())).clamp(0.5, 1.0);
        self.watch(now, before, before.mul_f64(1.0 - share), Kind::Test);
        Advice::Shrink(left)
    }

    /// Judges a test after a whole round trip of packets that left after it, of which the quickest took `least`.
    pub(super) fn judge_test(
        &mut self,
        now: Time,
        least: Span,
        sent_at: Time,
        view: &View,
    ) -> Option<Advice> {
        let test = self.rivalry.test.as_mut()?;
        if !test.is_measured {
            test.is_measured = sent_at >= test.at;
            return None;
        }
        let Test { before, expected, kind, .. } = *test;
        self.rivalry.test = None;
        let fell = before.saturating_sub(least);
        let noise = self.noise();
        // If there is still a queue, the path alone delivers as much as before.
        let is_random = self.losses.are_random();
        let is_steady = is_random || least <= self.delay.base() + noise || self.is_steady();
        let is_own = is_steady && fell + noise.min(expected / DOUBT) >= expected.mul_f64(OWN);
        let had_rival = self.rivalry.until.is_some();
        match kind {
            Kind::Search if is_own && self.is_steady() && fell > noise => Some(self.search(now, least, view)),
            Kind::Search => {
                if least > self.delay.base() + noise * 2 {
                    // A queue is left that does not follow the window.
                    self.find_rival(now);
                }
                Some(Advice::TakeBack)
            }
            Kind::Test if is_own && !is_random && !self.rivalry.is_confirmed() => {
                (self.rivalry.seems_own, self.rivalry.until) = (true, Some(now + CONFIRM));
                Some(Advice::TakeBack)
            }
            Kind::Test if is_own => {
                let fits = self.probing.rate * (self.delay.base() + self.aim()).as_secs_f64();
                let Rivalry { until, own_since, own_at, .. } = &mut self.rivalry;
                *until = None;
                *own_since = own_since.or((!is_random).then_some(now));
                *own_at = (view.window <= fits).then_some(now);
                had_rival.then(|| self.search(now, least, view))
            }
            Kind::Test => {
                self.find_rival(now);
                Some(Advice::TakeBack)
            }
        }
    }

    /// The path is CUBIC from now on. It catches up if it was alone, because its window is smaller than CUBIC's would be.
    pub(super) fn find_rival(&mut self, now: Time) {
        let least = RIVALRY.0.max(self.delay.now() * RIVALRY_ROUNDS).min(RIVALRY.1);
        let Rivalry { until, lasted, seems_own, own_since, catches_up, .. } = &mut self.rivalry;
        *seems_own = false;
        let was_alone = own_since.take().is_some_and(|since| now.since(since) >= (*lasted).max(least));
        *catches_up = was_alone && !self.losses.are_random();
        *lasted = if was_alone { least } else { (*lasted * 2).clamp(least, RIVALRY.1) };
        *until = Some(now + *lasted);
    }

    /// Expects a cut of the window to shorten the round trip by `decrease`, as far as there is a queue.
    fn watch(&mut self, now: Time, before: Span, decrease: Span, kind: Kind) {
        let expected = decrease.min(before.saturating_sub(self.delay.base()));
        self.rivalry.test = Some(Test { at: now, before, expected, is_measured: false, kind });
    }

    /// Looks for a lower round trip than `least`.
    fn search(&mut self, now: Time, least: Span, view: &View) -> Advice {
        let left = (view.window * SEARCH).min(self.fitting(self.probing.rate));
        // The last cut may have shortened the queue by more than the window needs, for a moment.
        let after = Span::from_secs_f64(left / self.probing.rate.max(1.0));
        self.watch(now, least, least.saturating_sub(after), Kind::Search);
        Advice::Shrink(left)
    }
}

impl Rivalry {
    /// Ends a test and fast growth.
    pub(super) fn stop(&mut self) {
        (self.test, self.catches_up, self.refills) = (None, false, false);
    }

    /// True if one more test is enough to find that the queue is the path's own: there was no rival yet, or the last test
    /// found none.
    fn is_confirmed(&self) -> bool {
        self.seems_own || self.own_since.is_some() || self.lasted.is_zero()
    }
}
