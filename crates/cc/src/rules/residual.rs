//! Residual bandwidth: the session's window W grows like TCP's, and a loss on path r removes r's share: W becomes
//! (Σ s_i − s_r)/Σ s_i · W, with one path W/2 [T7].
//!
//! The striping ratio s_i of a path is its share of the group's windows. A loss keeps the ratios, so every window is
//! multiplied by 1 − s_r. For n equal paths that is the paper's (n−1)/n. If r has more than half of W the factor is 1/2,
//! because the formula is meant to lose less than TCP's half; a single path loses exactly that.
//!
//! Growth changes the ratios: W grows by 1/W for each packet acknowledged, on the path that delivered it. With full queues
//! the ratios approach those of the bandwidths, as the paper asks of a striping ratio. If only losses limit the paths, a
//! window delivers w/RTT, and in equilibrium the path with the shortest RTT has all of W, as TCP would have there.

use super::rule::{Group, Rule};

pub(crate) struct Residual;

impl Rule for Residual {
    fn increase(&self, group: &Group<'_>) -> f64 {
        1.0 / group.total()
    }

    fn decrease(&self, group: &Group<'_>) -> f64 {
        group.own().window * self.spill(group)
    }

    fn spill(&self, group: &Group<'_>) -> f64 {
        (1.0 - group.own().window / group.total()).max(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::rule::Member;

    #[test]
    fn a_loss_on_one_of_n_like_paths_takes_one_nth_and_on_a_lone_path_half() {
        for (paths, kept) in [(1, 0.5), (2, 0.5), (3, 2.0 / 3.0), (5, 0.8)] {
            let members = vec![Member { window: 60.0, rtt: 0.1, interval: 0.0 }; paths];
            let group = Group { members: &members, own: 0 };
            assert!((Residual.spill(&group) - kept).abs() < 1e-12);
            assert!((Residual.decrease(&group) - 60.0 * kept).abs() < 1e-9);
        }
    }
}
