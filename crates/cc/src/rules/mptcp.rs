//! MPTCP's rule for any number of paths: for each packet acknowledged on r
//! `+min over S ⊆ R, r ∈ S of max_{s∈S}(w_s/RTT_s²) / (Σ_{s∈S} w_s/RTT_s)²`, and −w_r/2 for a loss [P1].
//!
//! The minimum needs no search over subsets (the paper's appendix). Sort paths by √w/RTT: a set with the largest member u
//! has the same numerator whatever lower members it holds, and each of them increases its denominator. So only the sets
//! "everything up to u", for each u from r on, can have the minimum.

use smallvec::SmallVec;

use super::rule::{Group, Member, Rule};

pub(crate) struct Mptcp;

impl Rule for Mptcp {
    fn increase(&self, group: &Group<'_>) -> f64 {
        let own = strength(group.own());
        let mut paths: SmallVec<[(f64, f64); 8]> =
            group.members.iter().map(|path| (strength(path), path.window / path.rtt)).collect();
        paths.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut sum, mut least) = (0.0, f64::INFINITY);
        for (strength, rate) in paths {
            sum += rate;
            // Among paths as strong as this one, the last one added gives the least ratio.
            if strength >= own {
                least = least.min(strength / (sum * sum));
            }
        }
        least
    }
}

/// The square of √w/RTT.
fn strength(path: &Member) -> f64 {
    path.window / (path.rtt * path.rtt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule as stated: a search over all sets of paths.
    fn by_search(members: &[Member], own: usize) -> f64 {
        let sets = (1_usize..1 << members.len()).filter(|set| set & (1 << own) != 0);
        let ratio = |set: usize| {
            let chosen = || members.iter().enumerate().filter(move |(index, _)| set & (1 << index) != 0);
            let best = chosen().map(|(_, path)| path.window / (path.rtt * path.rtt)).fold(0.0, f64::max);
            let sum: f64 = chosen().map(|(_, path)| path.window / path.rtt).sum();
            best / (sum * sum)
        };
        sets.map(ratio).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        /// The paper's appendix [P1]; coarse values make ties common.
        #[test]
        fn the_linear_scan_finds_the_minimum_over_all_sets_of_paths(
            paths in prop::collection::vec((1_u32..40, 1_u32..8), 1..8),
            fine in any::<bool>(),
        ) {
            let spread = |value: u32, index: usize| f64::from(value) * if fine { 1.0 + 0.01 * index as f64 } else { 1.0 };
            let members: Vec<Member> = paths.iter().enumerate().map(|(index, &(window, rtt))| {
                Member { window: spread(window, index), rtt: 0.01 * f64::from(rtt), interval: 0.0 }
            }).collect();
            for own in 0..members.len() {
                let scanned = Mptcp.increase(&Group { members: &members, own });
                let searched = by_search(&members, own);
                prop_assert!((scanned / searched - 1.0).abs() < 1e-12, "{scanned} {searched}");
            }
        }
    }
}
