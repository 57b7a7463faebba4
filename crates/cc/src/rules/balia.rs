//! Balanced linked adaptation: with x_r = w_r/RTT_r and α_r = max_k(x_k)/x_r, for each packet acknowledged
//! `+ x_r / (RTT_r · (Σ_k x_k)²) · (1 + α_r)/2 · (4 + α_r)/5`, and for a loss `− w_r/2 · min(α_r, 3/2)`.
//!
//! Peng, Walid, Hwang, Low, *Multipath TCP: Analysis, Design, and Implementation* (2016);
//! draft-walid-mptcp-congestion-control. A compromise between LIA's responsiveness and OLIA's fairness; with
//! one path (α = 1) it is TCP.

use super::{Group, Rule};

pub(crate) struct Balia;

impl Rule for Balia {
    fn increase(&self, group: &Group<'_>) -> f64 {
        let own = group.own();
        let sum: f64 = group.members.iter().map(|path| path.window / path.rtt).sum();
        let alpha = alpha(group);
        own.window / (own.rtt * own.rtt) / (sum * sum) * (1.0 + alpha) / 2.0 * (4.0 + alpha) / 5.0
    }

    fn decrease(&self, group: &Group<'_>) -> f64 {
        let own = group.own().window;
        own - own / 2.0 * alpha(group).min(1.5)
    }
}

fn alpha(group: &Group<'_>) -> f64 {
    let fastest = group.members.iter().map(|path| path.window / path.rtt).fold(0.0, f64::max);
    fastest * group.own().rtt / group.own().window
}
