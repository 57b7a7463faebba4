//! The window rules: how a window grows in congestion avoidance, and what a loss leaves of it.
//!
//! A rule works in packets, over the [`Group`] of coupled paths: [`Rule::increase`] is the growth of a window for each
//! packet acknowledged, [`Rule::decrease`] the window after a loss. The controller handles slow start, bounds and
//! episodes.
//!
//! The coupling, the increase times the window (1 for TCP), is cached. It is computed again when the window has grown by a
//! packet [P2], when a window of the session was reduced, and once a round trip. It is divided by the current window. If
//! the increase itself were cached, TCP would grow by one packet in exactly one round, always at the same point of the
//! round; of two flows that fill a queue in turn, one would always meet it full.
//!
//! `cubic` is a function of time rather than of windows and keeps its own [`Memory`]. `bbr` follows no rule.

mod balia;
mod combined;
mod coupled;
mod csd;
mod cubic;
mod ewtcp;
mod lia;
mod mptcp;
mod olia;
mod reno;
mod residual;
mod rule;
mod semi_coupled;

use anabranch_wire::Time;

use crate::config::RuleKind;
pub(crate) use cubic::Acked;
use cubic::Cubic;
use olia::Intervals;
pub(crate) use rule::{Group, Member, Rule};

/// A rule's state for one window.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// Nothing.
    None,
    /// `cubic`'s curve.
    Cubic(Cubic),
    /// `olia`'s intervals between losses.
    Olia(Intervals),
}

impl Memory {
    pub(crate) fn new(kind: RuleKind) -> Self {
        match kind {
            RuleKind::Cubic | RuleKind::Auto => Self::Cubic(Cubic::default()),
            RuleKind::Olia => Self::Olia(Intervals::default()),
            _ => Self::None,
        }
    }

    /// Records bytes acknowledged.
    pub(crate) fn on_acked(&mut self, bytes: u64) {
        if let Self::Olia(intervals) = self {
            intervals.on_acked(bytes);
        }
    }

    /// Records a loss at a window of this many packets; returns the window it leaves if the memory decides that.
    pub(crate) fn on_loss(&mut self, window: f64) -> Option<f64> {
        match self {
            Self::None => None,
            Self::Cubic(cubic) => Some(cubic.on_loss(window)),
            Self::Olia(intervals) => {
                intervals.on_loss();
                None
            }
        }
    }

    /// Records that a timeout revealed the loss.
    pub(crate) fn on_timeout(&mut self) {
        if let Self::Cubic(cubic) = self {
            cubic.on_timeout();
        }
    }

    /// The window in packets after an ack, if the memory decides it; `rtt` is in seconds.
    pub(crate) fn grow(&mut self, now: Time, window: f64, rtt: f64, acked: Acked) -> Option<f64> {
        match self {
            Self::Cubic(cubic) => Some(cubic.grow(now, window, rtt, acked)),
            _ => None,
        }
    }

    /// Records that the window does not limit the sender.
    pub(crate) fn pause(&mut self, now: Time) {
        if let Self::Cubic(cubic) = self {
            cubic.pause(now);
        }
    }

    /// Records that the window was reset after a pause.
    pub(crate) fn restart(&mut self) {
        if let Self::Cubic(cubic) = self {
            cubic.restart();
        }
    }

    /// Bytes acknowledged between losses; zero for other rules than `olia`.
    pub(crate) fn loss_interval(&self) -> f64 {
        match self {
            Self::Olia(intervals) => intervals.longest(),
            _ => 0.0,
        }
    }
}

pub(crate) fn rule(kind: RuleKind) -> &'static dyn Rule {
    match kind {
        // `cubic` and `auto` use their memory and `bbr` its model instead of a rule.
        RuleKind::Reno | RuleKind::Cubic | RuleKind::Auto | RuleKind::Bbr => &reno::Reno,
        RuleKind::Combined => &combined::Combined,
        RuleKind::Lia => &lia::Lia,
        RuleKind::Mptcp => &mptcp::Mptcp,
        RuleKind::Ewtcp => &ewtcp::Ewtcp::FAIR,
        RuleKind::EwtcpPrinted => &ewtcp::Ewtcp::PRINTED,
        RuleKind::Coupled => &coupled::Coupled,
        RuleKind::SemiCoupled => &semi_coupled::SemiCoupled,
        RuleKind::Csd => &csd::Csd,
        RuleKind::Residual => &residual::Residual,
        RuleKind::Olia => &olia::Olia,
        RuleKind::Balia => &balia::Balia,
    }
}

#[cfg(test)]
mod equilibria;

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_wire::Span;

    /// The window ten seconds after a loss, when `interrupt` affects the curve after two.
    fn cubic_after(interrupt: impl Fn(&mut Memory, Time)) -> f64 {
        let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
        let mut memory = Memory::new(RuleKind::Cubic);
        assert_eq!(memory.on_loss(1000.0), Some(700.0));
        let grow = |memory: &mut Memory, seconds| {
            memory
                .grow(at(seconds), 700.0, 0.1, Acked { packets: 700.0, share: 1.0 })
                .expect("cubic has a window of its own")
        };
        grow(&mut memory, 0);
        interrupt(&mut memory, at(2));
        grow(&mut memory, 10)
    }

    #[test]
    fn pauses_and_restarts_slow_the_curve_down() {
        let uninterrupted = cubic_after(|_, _| {});
        let paused = cubic_after(Memory::pause);
        let restarted = cubic_after(|memory, _| memory.restart());
        assert!(restarted < paused && paused < uninterrupted, "{restarted} {paused} {uninterrupted}");
    }
}
