//! Linked increases: +min(a/w_total, 1/w_r) for each packet acknowledged, −w_r/2 for a loss, with
//! `a = w_total · max_r(w_r/RTT_r²) / (Σ_r w_r/RTT_r)²`.
//!
//! RFC 6356; the two-path form of MPTCP §2.5 [P1]. `a` makes the total equal to TCP's rate on the best path; the cap
//! keeps each path from taking more than TCP would there. Where the cap has no effect, in equilibrium
//! `w_r = √(2 · max_s 1/(p_s·RTT_s²)) · (1/p_r) / Σ_s 1/(p_s·RTT_s)`.

use super::rule::{Group, Rule};

pub(crate) struct Lia;

impl Rule for Lia {
    fn increase(&self, group: &Group<'_>) -> f64 {
        let best = group.members.iter().map(|path| path.window / (path.rtt * path.rtt)).fold(0.0, f64::max);
        let sum: f64 = group.members.iter().map(|path| path.window / path.rtt).sum();
        // a / w_total: w_total cancels out.
        (best / (sum * sum)).min(1.0 / group.own().window)
    }
}
