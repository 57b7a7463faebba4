//! Advice while a session runs: which path to try beside those in use (mTCP §3.4 [M11]). Which to drop is the engine's
//! path manager's to say; it alone opens and closes paths.

use anabranch_wire::Rate;

use super::score::Candidate;

/// An unused candidate worth trying (mTCP §3.4.2 [M11]): the one of best score among those that score at least `factor`
/// times as much as the weakest path in use, or the best at all when fewer than `wanted` are in use. Suppression
/// over all is then run as if it were in use.
#[must_use]
pub fn recruit(in_use: &[Candidate], unused: &[Candidate], (wanted, factor): (usize, f64)) -> Option<usize> {
    let weakest = in_use.iter().map(Candidate::score).min().unwrap_or(Rate::ZERO);
    let alive = unused.iter().enumerate().filter(|(_, candidate)| candidate.loss < 1.0);
    let (at, best) = alive.max_by_key(|(at, candidate)| (candidate.score(), std::cmp::Reverse(*at)))?;
    let much_better = best.score().as_bits() as f64 >= weakest.as_bits() as f64 * factor;
    (in_use.len() < wanted || much_better).then_some(at)
}
