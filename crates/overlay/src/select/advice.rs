//! Advice while a session runs: which paths to drop, which to try (mTCP §3.4 [M10, M11]).
//!
//! Pure functions of what the engine's path manager knows; it alone opens and closes paths.

use anabranch_wire::{PathId, Rate};

use super::score::Candidate;

/// What is known of a path in use.
#[derive(Clone, Debug, PartialEq)]
pub struct PathReport {
    /// The path.
    pub path: PathId,
    /// What it carries.
    pub throughput: Rate,
    /// It has failed (mTCP §3.5 [M12]).
    pub failed: bool,
    /// Paths with which it shares congestion, by evidence [M8].
    pub shares_with: Vec<PathId>,
}

/// When a path is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuppressionLimits {
    /// A path slower than 1/ω of the best is dropped.
    pub omega: f64,
    /// At least so many paths are kept from being dropped for shared congestion (an MPd flow).
    pub d: usize,
}

impl Default for SuppressionLimits {
    /// ω = 10, d = 1 (mTCP §3.4 [M10]).
    fn default() -> Self {
        Self { omega: 10.0, d: 1 }
    }
}

/// Why a path should be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suppression {
    /// It failed.
    Failed,
    /// It carries less than 1/ω of what the best carries.
    FarSlower {
        /// The best.
        than: PathId,
    },
    /// It shares congestion with a path that carries more.
    SharesCongestion {
        /// That path.
        with: PathId,
    },
}

/// Which paths should be dropped (mTCP §3.4.1 [M10]), the slowest first. Never all: the best working path stays. Of two
/// paths that share and carry the same the one with the higher id goes. A path that is being dropped itself is no
/// reason to drop another.
#[must_use]
pub fn suppress(paths: &[PathReport], limits: &SuppressionLimits) -> Vec<(PathId, Suppression)> {
    let mut dropped: Vec<(PathId, Suppression)> =
        paths.iter().filter(|path| path.failed).map(|path| (path.path, Suppression::Failed)).collect();
    let mut working: Vec<&PathReport> = paths.iter().filter(|path| !path.failed).collect();
    working.sort_by(|a, b| b.throughput.cmp(&a.throughput).then(a.path.cmp(&b.path)));
    let Some(&best) = working.first() else { return dropped };
    let mut kept: Vec<&PathReport> = Vec::new();
    let mut sharing: Vec<(PathId, Suppression)> = Vec::new();
    for path in working {
        let far_slower = path.throughput.as_bits() as f64 * limits.omega < best.throughput.as_bits() as f64;
        let shares = |other: &&&PathReport| {
            other.shares_with.contains(&path.path) || path.shares_with.contains(&other.path)
        };
        if far_slower {
            dropped.push((path.path, Suppression::FarSlower { than: best.path }));
        } else if let Some(other) = kept.iter().find(shares) {
            sharing.push((path.path, Suppression::SharesCongestion { with: other.path }));
        } else {
            kept.push(path);
        }
    }
    // The fastest of those that share are kept until there are d.
    let spared = limits.d.saturating_sub(kept.len()).min(sharing.len());
    dropped.extend(sharing.drain(spared..));
    let throughput =
        |id: PathId| paths.iter().find(|path| path.path == id).map_or(Rate::ZERO, |path| path.throughput);
    dropped.sort_by_key(|(id, why)| (*why != Suppression::Failed, throughput(*id), *id));
    dropped
}

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
