//! TCP's rule, separately on each path: +1/w for each packet acknowledged, −w/2 for a loss.
//!
//! RFC 5681; mTCP's separate windows [M2] and MPTCP's REGULAR [P1]. In equilibrium w = √(2/p). `combined` is
//! this rule over the session's one window.

use super::rule::{Group, Rule};

pub(crate) struct Reno;

impl Rule for Reno {
    fn increase(&self, group: &Group<'_>) -> f64 {
        1.0 / group.own().window
    }
}
