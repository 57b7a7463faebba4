//! The time of day at a relay whose own clock may be wrong.
//!
//! The clock is read once, at the start. From then on the monotonic clock counts, so setting the clock later has no
//! effect. Two sources override it:
//!
//! - Controllers' heartbeats carry their time. The median of those from the last [`HEARD`] counts; with an even number,
//!   the one of the two middle times that is nearer to the relay's time. Grants are then judged with a tolerance of 30
//!   s, without heartbeats with one of 300 s.
//! - A grant proves that its time of signing has passed. Before the first heartbeat, a slow clock is moved forward to
//!   it. So an old grant cannot be used without end at a relay whose clock is in the past.
//!
//! A jump of one controller's clock must not end everyone's grants. For [`SETTLING`] after the first heartbeat the
//! median is adopted at once. Later, a median that differs by more than [`LEAP`] is adopted only after it has differed
//! in the same direction for [`LASTING`] without a break. Grants in use then move their ends with the time
//! ([`WallClock::on_heartbeat`] returns by how much).

use std::collections::BTreeMap;

use anabranch_secure::PublicKey;
use anabranch_wire::{Span, Time};

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixTime(pub u64);

/// How long a controller's time is valid: several heartbeats.
const HEARD: Span = Span::from_secs(10);
/// How long after the first heartbeat any time is adopted: until every controller has sent one.
const SETTLING: Span = Span::from_secs(10);
/// Difference that counts as a leap, in seconds; correct clocks differ by less.
const LEAP: u64 = 30;
/// How long a leap must last before it is adopted.
const LASTING: Span = Span::from_secs(300);

/// How a heartbeat's time compares with the relay's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockVerdict {
    /// It agrees, within 30 s.
    Agrees,
    /// The relay adopted the controllers' time, which differed by this many seconds.
    Adopted(u64),
    /// It differs by this many seconds, and the relay keeps its own.
    Apart(u64),
}

/// An adopted leap of the controllers' time: the times of day before and after it, at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leap {
    /// The time until then.
    pub from: UnixTime,
    /// The time from then on.
    pub to: UnixTime,
}

impl Leap {
    /// The new time of a moment that was known by the old time.
    pub fn moved(self, time: UnixTime) -> UnixTime {
        let Self { from, to } = self;
        UnixTime(if to >= from {
            time.0.saturating_add(to.0 - from.0)
        } else {
            time.0.saturating_sub(from.0 - to.0)
        })
    }
}

/// The best estimate of the time of day.
#[derive(Clone, Debug)]
pub struct WallClock {
    anchor: (Time, UnixTime),
    /// Time of the first heartbeat of a controller.
    confirmed: Option<Time>,
    /// Each controller's latest time, and when it arrived.
    said: BTreeMap<PublicKey, (Time, UnixTime)>,
    /// Since when the controllers' time differs, and whether it is ahead.
    leap: Option<(Time, bool)>,
}

impl WallClock {
    /// Starts with the operating system's clock.
    pub fn new(now: Time, wall: UnixTime) -> Self {
        Self { anchor: (now, wall), confirmed: None, said: BTreeMap::new(), leap: None }
    }

    /// The time of day.
    pub fn at(&self, now: Time) -> UnixTime {
        later(self.anchor, now)
    }

    /// Whether a controller has confirmed the time.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.is_some()
    }

    /// Tolerance when grants are judged, in seconds.
    pub fn tolerance(&self) -> u64 {
        if self.is_confirmed() { 30 } else { 300 }
    }

    /// Handles a controller's time. Returns how it compares, and the leap if one was adopted.
    pub fn on_heartbeat(
        &mut self,
        now: Time,
        (controller, says): (&PublicKey, UnixTime),
    ) -> (ClockVerdict, Option<Leap>) {
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
            ClockVerdict::Apart(apart)
        } else if taken > LEAP {
            ClockVerdict::Adopted(taken)
        } else {
            ClockVerdict::Agrees
        };
        (told, leap)
    }

    /// Uses the fact that a controller signed something at `issued`.
    pub fn on_signature(&mut self, now: Time, issued: UnixTime) {
        if !self.is_confirmed() && issued > self.at(now) {
            self.anchor = (now, issued);
        }
    }

    /// The controllers' time, taken together.
    fn median(&self, now: Time) -> UnixTime {
        let mut said: Vec<UnixTime> = self.said.values().map(|said| later(*said, now)).collect();
        said.sort_unstable();
        let middle = [said[(said.len() - 1) / 2], said[said.len() / 2]];
        let [lower, upper] = middle.map(|time| time.0.abs_diff(self.at(now).0));
        middle[usize::from(upper < lower)]
    }

    /// Whether to adopt the controllers' time now; a leap must last.
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

/// The time now, by a time that was received at `at`.
fn later((at, time): (Time, UnixTime), now: Time) -> UnixTime {
    UnixTime(time.0.saturating_add(now.since(at).as_nanos() / 1_000_000_000))
}
