//! Balanced linked adaptation (Balia): with x_r = w_r/RTT_r and α_r = max_k(x_k)/x_r, the window of path r grows by
//! `x_r / (RTT_r · (Σ_k x_k)²) · (1 + α_r)/2 · (4 + α_r)/5` for each packet acknowledged, and shrinks by
//! `w_r/2 · min(α_r, 3/2)` at a loss.
//!
//! Peng, Walid, Hwang, Low, *Multipath TCP: Analysis, Design, and Implementation* (2016);
//! draft-walid-mptcp-congestion-control. A compromise between LIA's responsiveness and OLIA's fairness; with one path
//! (α = 1) it is TCP.
//!
//! In equilibrium the fastest path is the one where TCP would have the highest rate, T, and all paths together have
//! that rate. A path where TCP would have the rate T_r has 1/α_r of the fastest path's rate, with
//! `α_r = (√(9 + 60·(T/T_r)²) − 5) / 2`, at least 1.65. Even equal paths do not share evenly: near α = 1 the decrease
//! grows faster with α than the increase, so the faster path gains.

use super::rule::{Group, Rule};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::rule::Member;

    #[test]
    fn a_path_at_a_third_of_the_best_rate_grows_by_the_formula_and_loses_three_quarters() {
        let members = [30.0, 10.0].map(|window| Member { window, rtt: 0.1, interval: 0.0 });
        let [best, third] = [0, 1].map(|own| Group { members: &members, own });
        assert!((Balia.increase(&best) - 30.0 / 1_600.0).abs() < 1e-12);
        assert!((Balia.increase(&third) - 10.0 / 1_600.0 * 2.0 * 1.4).abs() < 1e-12);
        assert_eq!((Balia.decrease(&best), Balia.decrease(&third)), (15.0, 2.5));
    }
}
