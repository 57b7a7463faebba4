//! Advice while a session runs: which path to try beside those in use (mTCP §3.4 [M11]). Which to drop is for who opened
//! them to say.

use std::cmp::Reverse;

use anabranch_wire::Rate;

/// An unused path worth trying (mTCP §3.4.2 [M11]), by its place in `unused`: the one that can carry most, when that is at least
/// `factor` times what the weakest path in use can, or when fewer than `wanted` are in use. Of equals it is the first.
///
/// `None` stands for what has not been measured: it is taken to be as good as the median of those in use (of an even number the
/// better one), so that the unknown is tried when a path falls behind the others, and not when all are much the same.
#[must_use]
pub fn recruit(in_use: &[Rate], unused: &[Option<Rate>], (wanted, factor): (usize, f64)) -> Option<usize> {
    let mut sorted = in_use.to_vec();
    sorted.sort_unstable();
    let weakest = sorted.first().copied().unwrap_or(Rate::ZERO);
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(Rate::ZERO);
    let expected = unused.iter().map(|rate| rate.unwrap_or(usual)).enumerate();
    let (at, best) = expected.max_by_key(|(at, rate)| (*rate, Reverse(*at)))?;
    let much_better = best.as_bits() as f64 >= weakest.as_bits() as f64 * factor;
    (in_use.len() < wanted || much_better).then_some(at)
}
