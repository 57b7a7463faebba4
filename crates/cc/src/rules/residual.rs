//! Residual bandwidth: the session's window W grows as TCP's, and a loss on path r takes from it what r's part
//! was: W becomes (Σ s_i − s_r)/Σ s_i · W, with one path W/2 [T7].
//!
//! The striping ratio s_i of a path is its share of the group's windows, and a loss leaves the ratios as
//! they are, so every window is multiplied by the same 1 − s_r. For n paths alike that is the paper's (n−1)/n.
//! Where r has more than half of W the factor is 1/2: the formula is there to lose less than TCP's half, and
//! one path, which has all of W, loses just that.
//!
//! What changes the ratios is growth: +1/W for each packet acknowledged goes to the path it was acknowledged on. Where
//! queues are full they become those of the bandwidths, as the paper asks of a striping ratio. Where losses alone limit
//! the paths, a window delivers w/RTT, and in equilibrium the path of the shortest RTT has all of W, as TCP there.

use super::{Group, Rule};

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
    use crate::rules::Member;

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
