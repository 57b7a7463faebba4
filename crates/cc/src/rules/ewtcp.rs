//! Equally weighted TCP: +a/w_r for each packet acknowledged, −w_r/2 for a loss [P1].
//!
//! In equilibrium w_r = √(2a/p), so n paths with a = 1/n² take one TCP's share between them; this is
//! what the paper's figures come from. It prints a = 1/√n, kept here under a name of its own.

use super::{Group, Rule};

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
