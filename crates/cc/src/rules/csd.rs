//! Common source decrease: the session's window W grows like TCP's, path r has the weight w_r in it, and a loss on r
//! shifts weight to other paths before W is reduced [R9].
//!
//! A loss halves the weight, w_r' = w_r/2. The others receive the difference in proportion to their weights, and W becomes
//! (1 − w_r')·W. With one path that is TCP's half; with n equal paths W keeps 1 − 1/(2n): 50, 75, 83 and 87.5 %
//! (Fig 6 [R12]). The lossy path keeps (w_r/2)(1 − w_r/2) of W, and each other path is multiplied by
//! (1 − w_r/2)² / (1 − w_r). As in the paper, W grows by 1/W for each packet acknowledged, here on the path that
//! delivered it. A path's weight is its share of the group's windows.
//!
//! Growth keeps the weights of paths with equal RTTs. Otherwise it shifts weight to paths that deliver more: those with
//! shorter RTTs, or with more bandwidth when queues are full. In equilibrium
//! `(p_r · w_r · (1 − w_r/2) / (1 − w_r) − 2/W²) / RTT_r` is equal on all paths; with equal RTTs, without the 2/W².

use super::rule::{Group, Rule};

pub(crate) struct Csd;

impl Rule for Csd {
    fn increase(&self, group: &Group<'_>) -> f64 {
        1.0 / group.total()
    }

    fn decrease(&self, group: &Group<'_>) -> f64 {
        let own = group.own().window;
        if group.members.len() == 1 {
            return own / 2.0;
        }
        own / 2.0 * (1.0 - halved_weight(group))
    }

    fn spill(&self, group: &Group<'_>) -> f64 {
        if group.members.len() == 1 {
            return 1.0;
        }
        let halved = halved_weight(group);
        (1.0 - halved) * (1.0 - halved) / (1.0 - 2.0 * halved)
    }
}

fn halved_weight(group: &Group<'_>) -> f64 {
    group.own().window / group.total() / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::rule::Member;

    #[test]
    fn one_loss_leaves_50_75_83_and_87_5_percent_of_one_to_four_like_paths() {
        for (paths, kept) in [(1, 0.5), (2, 0.75), (3, 5.0 / 6.0), (4, 0.875)] {
            let members = vec![Member { window: 60.0, rtt: 0.1, interval: 0.0 }; paths];
            let group = Group { members: &members, own: 0 };
            let after = Csd.decrease(&group) + 60.0 * (paths - 1) as f64 * Csd.spill(&group);
            assert!((after / group.total() - kept).abs() < 1e-12, "{paths} paths keep {after}");
        }
    }
}
