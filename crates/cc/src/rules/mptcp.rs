//! MPTCP's rule for any number of paths: for each packet acknowledged on r
//! `+min over S ⊆ R, r ∈ S of max_{s∈S}(w_s/RTT_s²) / (Σ_{s∈S} w_s/RTT_s)²`, and −w_r/2 for a loss [P1].
//!
//! The minimum needs no search over subsets (the paper's appendix): in the order of √w/RTT, a set whose
//! largest member is u has the same numerator whatever lies below u, and the more of these it holds the larger
//! its denominator. So only the sets "everything up to u", for each u from r on, can be the least.

use smallvec::SmallVec;

use super::{Group, Member, Rule};

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
            // Of paths as strong as this one the last to be added gives the least ratio, this one among them.
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
