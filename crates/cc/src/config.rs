//! The choice of a rule and the settings all rules share.

use std::fmt;
use std::str::FromStr;

/// How windows grow and shrink in congestion avoidance. The module of each rule explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleKind {
    /// TCP's rule on each path separately; mTCP's separate windows [M2], MPTCP's REGULAR [P1].
    Reno,
    /// One Reno window for the whole session, whatever its paths and groups [M2].
    Combined,
    /// CUBIC; paths of a group share its growth and its losses (RFC 9438).
    Cubic,
    /// CUBIC with a short queue of its own, which losses on the wire do not slow down.
    Auto,
    /// Linked increases (RFC 6356), MPTCP's two-path form [P1].
    Lia,
    /// MPTCP's rule for any number of paths, by linear scan [P1].
    Mptcp,
    /// Equally weighted TCP with a = 1/n², which adds up to one TCP [P1].
    Ewtcp,
    /// Equally weighted TCP with a = 1/√n, as the paper prints it [P1].
    EwtcpPrinted,
    /// All traffic to the least congested paths [P1].
    Coupled,
    /// Coupled increases, uncoupled decreases [P1].
    SemiCoupled,
    /// Common source decrease [R9].
    Csd,
    /// Residual bandwidth after a loss [T7].
    Residual,
    /// Opportunistic linked increases (Khalili et al.).
    Olia,
    /// Balanced linked adaptation (Peng et al.).
    Balia,
    /// A model of each path (draft-ietf-ccwg-bbr, version 3); needs pacing and delivery rates.
    Bbr,
}

impl RuleKind {
    /// Every rule, in the order of this enumeration.
    pub const ALL: [Self; 15] = [
        Self::Reno,
        Self::Combined,
        Self::Cubic,
        Self::Auto,
        Self::Lia,
        Self::Mptcp,
        Self::Ewtcp,
        Self::EwtcpPrinted,
        Self::Coupled,
        Self::SemiCoupled,
        Self::Csd,
        Self::Residual,
        Self::Olia,
        Self::Balia,
        Self::Bbr,
    ];

    /// The rule's name in settings and results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Combined => "combined",
            Self::Cubic => "cubic",
            Self::Auto => "auto",
            Self::Lia => "lia",
            Self::Mptcp => "mptcp",
            Self::Ewtcp => "ewtcp",
            Self::EwtcpPrinted => "ewtcp-printed",
            Self::Coupled => "coupled",
            Self::SemiCoupled => "semi-coupled",
            Self::Csd => "csd",
            Self::Residual => "residual",
            Self::Olia => "olia",
            Self::Balia => "balia",
            Self::Bbr => "bbr",
        }
    }
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no congestion control is called \"{name}\"; there are {}", RuleKind::ALL.map(RuleKind::name).join(", "))]
pub struct UnknownRule {
    /// The name requested.
    pub name: String,
}

impl FromStr for RuleKind {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownRule { name: name.to_owned() })
    }
}

/// The settings of a [`Controller`](crate::Controller).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// How windows grow and shrink.
    pub rule: RuleKind,
    /// The window at the start of slow start, in packets (RFC 6928: 10).
    pub initial_window: u64,
    /// The window in packets at which a path's first slow start ends (RFC 5681 §3.1); `None`: at the first loss or
    /// delay. `bbr` ignores it.
    pub initial_ssthresh: Option<u64>,
    /// The smallest window, in packets, at least 1. It has priority over `max_window`.
    pub min_window: u64,
    /// Leave slow start when the round-trip time grows (RFC 9406).
    pub hystart: bool,
    /// Return pacing rates.
    pub pacing: bool,
    /// The largest window, in bytes.
    pub max_window: u64,
}

impl Config {
    /// The default profile's settings: 10 packets at first, at least 2, HyStart++, pacing, at most 1 GiB.
    pub const fn new(rule: RuleKind) -> Self {
        let initial_ssthresh = None;
        Self {
            rule,
            initial_window: 10,
            initial_ssthresh,
            min_window: 2,
            hystart: true,
            pacing: true,
            max_window: 1 << 30,
        }
    }

    /// The papers' TCP: 10 packets at first, at least 1, no HyStart++, no pacing [M2]. (The engine's `tcp` profile begins
    /// with 2.)
    pub const fn tcp(rule: RuleKind) -> Self {
        Self { min_window: 1, hystart: false, pacing: false, ..Self::new(rule) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_found_by_its_name() {
        for kind in RuleKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
    }

    #[test]
    fn the_error_for_an_unknown_name_lists_the_known_ones() {
        let error = "renno".parse::<RuleKind>().unwrap_err();
        assert!(error.to_string().contains("\"renno\"; there are reno, combined, cubic"), "{error}");
    }
}
