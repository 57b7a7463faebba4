//! Equally weighted TCP: +a/w_r for each packet acknowledged, −w_r/2 for a loss [P1].
//!
//! In equilibrium w_r = √(2a/p), so n paths with a = 1/n² share what one TCP gets; the paper's figures use this value.
//! Its text prints a = 1/√n, available here as a rule of its own.

use super::rule::{Group, Rule};

/// The rule for `a = n^exponent`.
pub(crate) struct Ewtcp {
    exponent: f64,
}

impl Ewtcp {
    pub(crate) const FAIR: Self = Self { exponent: -2.0 };
    pub(crate) const PRINTED: Self = Self { exponent: -0.5 };
}

impl Rule for Ewtcp {
    fn increase(&self, group: &Group<'_>) -> f64 {
        libm::pow(group.size(), self.exponent) / group.own().window
    }
}
