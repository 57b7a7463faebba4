//! The time of day at a relay whose own clock may be wrong.
//!
//! The clock is read once, at the start; from then on time passes as the monotonic clock says, so that a clock which is
//! set later changes nothing. Two things are better than the own clock, and are believed:
//!
//! - a controller's heartbeat says what time it is. From then on grants are judged with a tolerance of 30 s,
//!   without it with one of 300 s;
//! - a grant was signed at some time, so that time has passed: where no heartbeat came yet, a clock that is
//!   behind is moved forward to it. So an old grant cannot be used for ever at a relay that lives in the past.

use anabranch_wire::Time;

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixTime(pub u64);

/// The time of day, as far as is known.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    anchor: (Time, UnixTime),
    from_controller: bool,
}

impl WallClock {
    /// Starts with what the operating system's clock says now.
    #[must_use]
    pub fn new(now: Time, wall: UnixTime) -> Self {
        Self { anchor: (now, wall), from_controller: false }
    }

    /// The time of day.
    #[must_use]
    pub fn at(&self, now: Time) -> UnixTime {
        UnixTime(self.anchor.1.0.saturating_add(now.since(self.anchor.0).as_nanos() / 1_000_000_000))
    }

    /// Whether a controller has said what time it is.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.from_controller
    }

    /// How far grants may be out of their time, in seconds.
    #[must_use]
    pub fn tolerance(&self) -> u64 {
        if self.from_controller { 30 } else { 300 }
    }

    /// Takes over a controller's time; returns by how many seconds the own was off.
    pub fn on_heartbeat(&mut self, now: Time, controller: UnixTime) -> u64 {
        let off = self.at(now).0.abs_diff(controller.0);
        *self = Self { anchor: (now, controller), from_controller: true };
        off
    }

    /// A controller has signed something at `issued`, so that time has passed.
    pub fn on_signature(&mut self, now: Time, issued: UnixTime) {
        if !self.from_controller && issued > self.at(now) {
            self.anchor = (now, issued);
        }
    }
}
