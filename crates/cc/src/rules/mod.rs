//! The window rules: how a window grows in congestion avoidance and what a loss leaves of it.
//!
//! A rule is stated in packets over the [`Group`] of paths that are coupled: [`Rule::increase`] is what a
//! window grows by for each packet acknowledged, [`Rule::decrease`] the window that a loss leaves. Slow start,
//! bounds and episodes are not its business.
//!
//! What couples the paths (the increase times the window, 1 for TCP) is computed anew only when the window has grown
//! by a packet [P2], when a window of the session was reduced, and once a round trip. The window that it is divided by is the
//! one of the moment. Were the increase itself kept, TCP would grow by one packet in exactly one round, always at
//! the same place of the round, and where two flows fill a queue in turn the other one would meet it full.
//!
//! `cubic` is a function of time rather than of windows and keeps its own [`Memory`]. `bbr` is not of this kind.

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
mod semi_coupled;

use anabranch_wire::Time;

use crate::config::RuleKind;
use cubic::Cubic;
use olia::Intervals;

/// One path's part in its group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Member {
    /// Its window in packets, greater than zero.
    pub(crate) window: f64,
    /// Its smoothed round-trip time in seconds, greater than zero.
    pub(crate) rtt: f64,
    /// Bytes acknowledged between its losses, for `olia` alone; zero under the other rules.
    pub(crate) interval: f64,
}

/// The paths coupled with one of them that is being asked about. Paths without a round-trip sample, or silent
/// since a timeout, are left out, unless it is that one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) members: &'a [Member],
    pub(crate) own: usize,
}

impl Group<'_> {
    pub(crate) fn own(&self) -> &Member {
        &self.members[self.own]
    }

    /// How many paths there are.
    pub(crate) fn size(&self) -> f64 {
        self.members.len() as f64
    }

    /// The sum of all windows.
    pub(crate) fn total(&self) -> f64 {
        self.members.iter().map(|member| member.window).sum()
    }
}

/// A loss-based rule.
pub(crate) trait Rule {
    /// Packets by which the path's window grows for each packet acknowledged in congestion avoidance.
    fn increase(&self, group: &Group<'_>) -> f64;

    /// The window in packets that a loss leaves: half, unless the rule says otherwise.
    fn decrease(&self, group: &Group<'_>) -> f64 {
        group.own().window / 2.0
    }

    /// The factor by which a loss on this path changes the windows of the others of its group.
    fn spill(&self, _group: &Group<'_>) -> f64 {
        1.0
    }
}

/// What a rule remembers of one window.
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
            RuleKind::Cubic => Self::Cubic(Cubic::default()),
            RuleKind::Olia => Self::Olia(Intervals::default()),
            _ => Self::None,
        }
    }

    /// Notes bytes acknowledged.
    pub(crate) fn on_acked(&mut self, bytes: u64) {
        if let Self::Olia(intervals) = self {
            intervals.on_acked(bytes);
        }
    }

    /// Notes a loss at a window of so many packets; answers the window it leaves if that is the memory's to say.
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

    /// Notes that the loss was told of by a timeout.
    pub(crate) fn on_timeout(&mut self) {
        if let Self::Cubic(cubic) = self {
            cubic.on_timeout();
        }
    }

    /// The window in packets after `acked` packets where the path has this share of its group's growth, if that is the
    /// memory's to say; `rtt` in seconds.
    pub(crate) fn grow(
        &mut self,
        now: Time,
        window: f64,
        rtt: f64,
        (acked, share): (f64, f64),
    ) -> Option<f64> {
        match self {
            Self::Cubic(cubic) => Some(cubic.grow(now, window, rtt, (acked, share))),
            _ => None,
        }
    }

    /// Notes that the window is not what limits the sender.
    pub(crate) fn pause(&mut self, now: Time) {
        if let Self::Cubic(cubic) = self {
            cubic.pause(now);
        }
    }

    /// Notes that the window was set anew after a pause.
    pub(crate) fn restart(&mut self) {
        if let Self::Cubic(cubic) = self {
            cubic.restart();
        }
    }

    /// Bytes acknowledged between losses; zero where nobody asks.
    pub(crate) fn loss_interval(&self) -> f64 {
        match self {
            Self::Olia(intervals) => intervals.longest(),
            _ => 0.0,
        }
    }
}

/// The rule that a kind names.
pub(crate) fn rule(kind: RuleKind) -> &'static dyn Rule {
    match kind {
        // `cubic` grows and shrinks by its memory and `bbr` by its model; neither asks a rule.
        RuleKind::Reno | RuleKind::Cubic | RuleKind::Bbr => &reno::Reno,
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

    /// The window ten seconds after a loss, where the curve is told something after two.
    fn cubic_after(tell: impl Fn(&mut Memory, Time)) -> f64 {
        let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
        let mut memory = Memory::new(RuleKind::Cubic);
        assert_eq!(memory.on_loss(1000.0), Some(700.0));
        let grow = |memory: &mut Memory, seconds| {
            memory.grow(at(seconds), 700.0, 0.1, (700.0, 1.0)).expect("cubic has a window of its own")
        };
        grow(&mut memory, 0);
        tell(&mut memory, at(2));
        grow(&mut memory, 10)
    }

    #[test]
    fn what_interrupts_a_curve_is_told_to_it() {
        let uninterrupted = cubic_after(|_, _| {});
        let paused = cubic_after(Memory::pause);
        let restarted = cubic_after(|memory, _| memory.restart());
        assert!(restarted < paused && paused < uninterrupted, "{restarted} {paused} {uninterrupted}");
    }
}
