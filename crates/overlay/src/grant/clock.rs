//! The time of day at a relay whose own clock may be wrong.
//!
//! The clock is read once, at the start; from then on time passes as the monotonic clock says, so that a clock which is
//! set later changes nothing. Two things are better than the own clock, and are believed:
//!
//! - controllers' heartbeats say what time it is. The median of what those say that were heard in the last [`HEARD`] counts;
//!   of the two in the middle of an even number, the one nearer to what was gone by. From then on grants are judged
//!   with a tolerance of 30 s, without it with one of 300 s;
//! - a grant was signed at some time, so that time has passed: where no heartbeat came yet, a clock that is
//!   behind is moved forward to it. So an old grant cannot be used for ever at a relay that lives in the past.
//!
//! One controller's clock that leaps must not end everybody's grants. For [`SETTLING`] after the first heartbeat the median is taken as it
//! is; later one that is more than [`LEAP`] off is believed when it has been off, in the same direction, for [`LASTING`] on end. What counts
//! already then has the ends of before: they move with the time ([`WallClock::on_heartbeat`] says by how much).

use std::collections::BTreeMap;

use anabranch_secure::PublicKey;
use anabranch_wire::{Span, Time};

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixTime(pub u64);

/// What a controller said counts for so long: some heartbeats.
const HEARD: Span = Span::from_secs(10);
/// How long after the first heartbeat any time is believed: until every controller was heard.
const SETTLING: Span = Span::from_secs(10);
/// How far off a time is a leap, in seconds: more than clocks that are right differ.
const LEAP: u64 = 30;
/// How long a leap has to last.
const LASTING: Span = Span::from_secs(300);

/// What a heartbeat's time was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is the time that was gone by, within 30 s.
    Agrees,
    /// It was taken over: what was gone by was so many seconds off.
    Taken(u64),
    /// It is so many seconds off, and is not gone by.
    Apart(u64),
}

/// A leap of the controllers' time that was believed: from one time of day to another, at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leap {
    /// What was gone by until then.
    pub from: UnixTime,
    /// What is gone by since.
    pub to: UnixTime,
}

impl Leap {
    /// What was to be at some time of before, by the time of now.
    #[must_use]
    pub fn moved(self, time: UnixTime) -> UnixTime {
        let Self { from, to } = self;
        UnixTime(if to >= from {
            time.0.saturating_add(to.0 - from.0)
        } else {
            time.0.saturating_sub(from.0 - to.0)
        })
    }
}

/// The time of day, as far as is known.
#[derive(Clone, Debug)]
pub struct WallClock {
    anchor: (Time, UnixTime),
    /// When a controller first said what time it is.
    confirmed: Option<Time>,
    /// What each controller said last, and when.
    said: BTreeMap<PublicKey, (Time, UnixTime)>,
    /// Since when the controllers' time is off, and whether it is ahead.
    leap: Option<(Time, bool)>,
}

impl WallClock {
    /// Starts with what the operating system's clock says now.
    #[must_use]
    pub fn new(now: Time, wall: UnixTime) -> Self {
        Self { anchor: (now, wall), confirmed: None, said: BTreeMap::new(), leap: None }
    }

    /// The time of day.
    #[must_use]
    pub fn at(&self, now: Time) -> UnixTime {
        later(self.anchor, now)
    }

    /// Whether a controller has said what time it is.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.is_some()
    }

    /// How far grants may be out of their time, in seconds.
    #[must_use]
    pub fn tolerance(&self) -> u64 {
        if self.is_confirmed() { 30 } else { 300 }
    }

    /// A controller says what time it is; gives what that was worth, and the leap if one was believed.
    pub fn on_heartbeat(
        &mut self,
        now: Time,
        (controller, says): (&PublicKey, UnixTime),
    ) -> (Told, Option<Leap>) {
        self.said.insert(*controller, (now, says));
        self.said.retain(|_, (at, _)| now.since(*at) < HEARD);
        let before = self.at(now);
        let told = self.median(now);
        let was_settled = self.confirmed.is_some_and(|first| now.since(first) >= SETTLING);
        if self.believes(now, (before, told)) {
            self.anchor = (now, told);
            self.leap = None;
        }
        let taken = before.0.abs_diff(self.at(now).0);
        let apart = says.0.abs_diff(self.at(now).0);
        let leap = (was_settled && taken > LEAP).then(|| Leap { from: before, to: self.at(now) });
        let told = if apart > LEAP {
            Told::Apart(apart)
        } else if taken > LEAP {
            Told::Taken(taken)
        } else {
            Told::Agrees
        };
        (told, leap)
    }

    /// A controller has signed something at `issued`, so that time has passed.
    pub fn on_signature(&mut self, now: Time, issued: UnixTime) {
        if !self.is_confirmed() && issued > self.at(now) {
            self.anchor = (now, issued);
        }
    }

    /// What the controllers say, taken together.
    fn median(&self, now: Time) -> UnixTime {
        let mut said: Vec<UnixTime> = self.said.values().map(|said| later(*said, now)).collect();
        said.sort_unstable();
        let middle = [said[(said.len() - 1) / 2], said[said.len() / 2]];
        let [lower, upper] = middle.map(|time| time.0.abs_diff(self.at(now).0));
        middle[usize::from(upper < lower)]
    }

    /// Whether to go by the controllers' time from now on; a leap has to last.
    fn believes(&mut self, now: Time, (before, told): (UnixTime, UnixTime)) -> bool {
        let first = *self.confirmed.get_or_insert(now);
        if now.since(first) < SETTLING || before.0.abs_diff(told.0) <= LEAP {
            return true;
        }
        let is_ahead = told > before;
        let since = self.leap.filter(|(_, was)| *was == is_ahead).map_or(now, |(since, _)| since);
        self.leap = Some((since, is_ahead));
        now.since(since) >= LASTING
    }
}

/// What time it is when `at` some time was told.
fn later((at, time): (Time, UnixTime), now: Time) -> UnixTime {
    UnixTime(time.0.saturating_add(now.since(at).as_nanos() / 1_000_000_000))
}
