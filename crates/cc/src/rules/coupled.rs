//! Fully coupled windows: +1/w_total for each packet acknowledged, −w_total/2 for a loss [P1].
//!
//! In equilibrium w_total = √(2/p) of the least congested paths, and all others have the smallest window. This is the most
//! efficient choice of paths, but it hardly notices when another one improves.

use super::rule::{Group, Rule};

pub(crate) struct Coupled;

impl Rule for Coupled {
    fn increase(&self, group: &Group<'_>) -> f64 {
        1.0 / group.total()
    }

    fn decrease(&self, group: &Group<'_>) -> f64 {
        group.own().window - group.total() / 2.0
    }
}
