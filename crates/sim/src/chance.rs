//! Reproducible random numbers: each party has its own generator, seeded from the run's seed, the same on every
//! machine.

use anabranch_wire::Span;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::network::plan::{Duration, Sizes};

/// Largest file of a distribution, in bytes: a Pareto tail is unbounded.
const MAX_SIZE: f64 = 1e12;

/// The seed of party `index` of this kind (SplitMix64 over all three numbers).
pub fn seed_of(seed: u64, kind: u64, index: u64) -> u64 {
    mix(mix(mix(seed) ^ kind) ^ index)
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A seeded generator with the distributions that sources need.
#[derive(Clone, Debug)]
pub struct Chance {
    generator: ChaCha8Rng,
}

impl Chance {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self { generator: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform on a logarithmic scale in `[low, high)`; both are above zero.
    pub fn scaled(&mut self, low: f64, high: f64) -> f64 {
        libm::exp(self.between(libm::log(low), libm::log(high)))
    }

    /// Uniform in `0..count`; `count` is not zero.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.generator.next_u64()) * count as u128) >> 64) as usize
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(1.0 - self.unit())
    }

    /// A length of time.
    pub fn duration(&mut self, duration: Duration) -> Span {
        match duration {
            Duration::Fixed(span) => span,
            Duration::Exponential(mean) => mean.mul_f64(self.exponential()),
            Duration::Uniform(mean) => mean.mul_f64(2.0 * self.unit()),
        }
    }

    /// A file's size in bytes, at least 1.
    pub fn size(&mut self, sizes: Sizes) -> u64 {
        let bytes = match sizes {
            Sizes::Fixed(bytes) => return bytes.max(1),
            Sizes::Exponential(mean) => mean * self.exponential(),
            Sizes::Pareto { mean, shape } => {
                let least = mean * (shape - 1.0) / shape;
                least / libm::pow(1.0 - self.unit(), 1.0 / shape)
            }
        };
        bytes.clamp(1.0, MAX_SIZE) as u64
    }

    /// Puts a list in random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for place in (1..list.len()).rev() {
            list.swap(place, self.below(place + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(draw: impl FnMut(usize) -> f64) -> f64 {
        (0..200_000).map(draw).sum::<f64>() / 2e5
    }

    #[test]
    fn distributions_have_the_mean_they_were_given() {
        let mut chance = Chance::new(3);
        let ten = Span::from_millis(10);
        for duration in [Duration::Fixed(ten), Duration::Exponential(ten), Duration::Uniform(ten)] {
            let mean = mean(|_| chance.duration(duration).as_millis_f64());
            assert!((mean - 10.0).abs() < 0.1, "{duration:?}: {mean}");
        }
        let sizes = [Sizes::Fixed(5000), Sizes::Exponential(5e3), Sizes::Pareto { mean: 5e3, shape: 2.5 }];
        for sizes in sizes {
            let mean = mean(|_| chance.size(sizes) as f64);
            assert!((mean / 5e3 - 1.0).abs() < 0.02, "{sizes:?}: {mean}");
        }
    }

    #[test]
    fn parties_next_to_each_other_get_seeds_far_apart() {
        let seeds = [seed_of(1, 0, 0), seed_of(1, 0, 1), seed_of(1, 1, 0), seed_of(2, 0, 0)];
        for (index, seed) in seeds.iter().enumerate() {
            assert!(seeds[index + 1..].iter().all(|other| (other ^ seed).count_ones() > 10));
        }
    }

    #[test]
    fn a_shuffled_list_has_every_item_once() {
        let mut list: Vec<usize> = (0..50).collect();
        Chance::new(9).shuffle(&mut list);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
