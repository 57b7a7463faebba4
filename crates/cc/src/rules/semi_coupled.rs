//! Coupled increases, uncoupled decreases: +a/w_total for each packet acknowledged, −w_r/2 for a loss [P1].
//!
//! In equilibrium w_r = √(2a) · (1/p_r) / √(Σ_s 1/p_s): a bias towards less congested paths that keeps some traffic on
//! all. The paper leaves `a` open; a = 1/n adds up to one TCP over n paths with equal loss.

use super::rule::{Group, Rule};

pub(crate) struct SemiCoupled;

impl Rule for SemiCoupled {
    fn increase(&self, group: &Group<'_>) -> f64 {
        1.0 / (group.size() * group.total())
    }
}
