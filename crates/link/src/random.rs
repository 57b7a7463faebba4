//! The link's random generator: portable and seeded from the configuration, so that runs can be repeated.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A seeded random generator, the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    /// Boxed, away from the fields of every packet: most links need no randomness.
    generator: Box<ChaCha8Rng>,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { generator: Box::new(ChaCha8Rng::seed_from_u64(seed)) }
    }

    /// True with the given probability. Draws nothing when the outcome is certain, so that a disabled feature does not change
    /// the draws of others. NaN counts as never.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        if probability >= 1.0 {
            return true;
        }
        probability > 0.0 && self.unit() < probability
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `[-1, 1)`.
    pub(crate) fn signed_unit(&mut self) -> f64 {
        self.unit() * 2.0 - 1.0
    }

    /// Normal with mean zero and deviation one (Box–Muller without its second value).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(1.0 - self.unit())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }
}
