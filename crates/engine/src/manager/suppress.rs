//! Leaves out paths that work but gain nothing, for a while (mTCP §3.4.1 [M10]).
//!
//! Of the paths that share a bottleneck, all but the fastest are left out, while at least `d` stay in use (an MPd
//! flow). A path slower than 1/ω of the fastest is left out too. The reason may disappear, but a path without traffic
//! cannot show that. So after [`PATIENCE`], which doubles each time up to its maximum, the path is used and judged
//! again. It returns at once if the path in whose favour it was left out stops working.

use anabranch_wire::{PathId, Rate, Span, Time};

use super::IdleReason;

/// How long a path is left out: the first time, and at most.
const PATIENCE: (Span, Span) = (Span::from_secs(10), Span::from_secs(600));
/// How often paths are judged.
const REVIEW: Span = Span::from_millis(500);

/// The measurements of a path in use.
#[derive(Clone, Debug, PartialEq)]
pub struct PathReport {
    pub path: PathId,
    pub throughput: Rate,
    /// It has failed (mTCP §3.5 [M12]).
    pub failed: bool,
    /// Paths that share congestion with it, by the evidence [M8].
    pub shares_with: Vec<PathId>,
}

/// When a path is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SuppressionLimits {
    /// A path slower than 1/ω of the best is dropped; infinite for never.
    pub omega: f64,
    /// Sharing congestion drops no path while this few are left (an MPd flow); `usize::MAX` drops none.
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
    Failed,
    /// It carries less than 1/ω of what the best carries.
    FarSlower {
        /// The best.
        than: PathId,
    },
    /// It shares congestion with a path that carries more.
    SharesCongestion {
        with: PathId,
    },
}

/// Chooses the paths to drop (mTCP §3.4.1 [M10]), slowest first, but never the best working one. If two paths share
/// congestion and carry the same, the one with the higher id goes. A path that is being dropped is no reason to drop another.
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
    // Keep the fastest of the sharing paths until there are `d`.
    let spared = limits.d.saturating_sub(kept.len()).min(sharing.len());
    dropped.extend(sharing.drain(spared..));
    let throughput =
        |id: PathId| paths.iter().find(|path| path.path == id).map_or(Rate::ZERO, |path| path.throughput);
    dropped.sort_by_key(|(id, why)| (*why != Suppression::Failed, throughput(*id), *id));
    dropped
}

impl Suppression {
    fn reason(self) -> IdleReason {
        match self {
            Self::Failed => IdleReason::Failed,
            Self::FarSlower { than } => IdleReason::TooSlow { than },
            Self::SharesCongestion { with } => IdleReason::SharesBottleneck { with },
        }
    }

    /// The path in whose favour another is left out.
    fn favoured(self) -> Option<PathId> {
        match self {
            Self::Failed => None,
            Self::FarSlower { than: path } | Self::SharesCongestion { with: path } => Some(path),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct LeftOut {
    path: PathId,
    /// The reason; `None` while the path is being tried again.
    why: Option<Suppression>,
    until: Time,
    patience: Span,
}

/// Tracks which paths are left out.
#[derive(Clone, Debug)]
pub(crate) struct Suppressor {
    limits: SuppressionLimits,
    review_at: Time,
    left_out: Vec<LeftOut>,
}

impl Suppressor {
    pub(crate) fn new(limits: SuppressionLimits) -> Self {
        Self { limits, review_at: Time::ZERO, left_out: Vec::new() }
    }

    /// True when the paths are due for judgement; then false for [`REVIEW`].
    pub(crate) fn is_due(&mut self, now: Time) -> bool {
        let due = now >= self.review_at;
        if due {
            self.review_at = now + REVIEW;
        }
        due
    }

    /// Why a path is left out, if it is.
    pub(crate) fn reason(&self, path: PathId) -> Option<IdleReason> {
        let found = self.left_out.iter().find(|left| left.path == path)?;
        found.why.map(Suppression::reason)
    }

    pub(crate) fn forget(&mut self, path: PathId) {
        self.left_out.retain(|left| left.path != path);
    }

    /// Readmits paths that were left out in favour of a path that no longer works.
    pub(crate) fn release(&mut self, works: impl Fn(PathId) -> bool) {
        for left in &mut self.left_out {
            left.why = left.why.filter(|why| why.favoured().is_some_and(&works));
        }
    }

    /// Judges all working paths with a known rate.
    pub(crate) fn review(&mut self, now: Time, reports: &[PathReport]) {
        for left in self.left_out.iter_mut().filter(|left| left.until <= now) {
            left.why = None;
        }
        let judged: Vec<PathReport> =
            reports.iter().filter(|report| self.reason(report.path).is_none()).cloned().collect();
        for (path, why) in suppress(&judged, &self.limits) {
            if why != Suppression::Failed {
                self.leave_out(now, path, why);
            }
        }
    }

    fn leave_out(&mut self, now: Time, path: PathId, why: Suppression) {
        let known = self.left_out.iter().find(|left| left.path == path);
        // Forget the history of a path that has done well for long.
        let again = known.filter(|left| now.since(left.until) < left.patience);
        let patience = again.map_or(PATIENCE.0, |left| (left.patience * 2).min(PATIENCE.1));
        self.forget(path);
        self.left_out.push(LeftOut { path, why: Some(why), until: now + patience, patience });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(path: u32, mbit: f64, shares_with: &[u32]) -> PathReport {
        PathReport {
            path: PathId(path),
            throughput: Rate::from_mbit(mbit),
            failed: false,
            shares_with: shares_with.iter().map(|path| PathId(*path)).collect(),
        }
    }

    #[test]
    fn paths_that_fail_lag_or_share_are_dropped_and_an_mpd_flow_keeps_d() {
        let mut paths =
            vec![report(0, 20.0, &[2]), report(2, 15.0, &[0]), report(4, 1.0, &[]), report(6, 12.0, &[0, 2])];
        paths.push(PathReport { failed: true, ..report(8, 0.0, &[]) });
        let shares = |with| Suppression::SharesCongestion { with: PathId(with) };
        let expected = [
            (PathId(8), Suppression::Failed),
            (PathId(4), Suppression::FarSlower { than: PathId(0) }),
            (PathId(6), shares(0)),
            (PathId(2), shares(0)),
        ];
        assert_eq!(suppress(&paths, &SuppressionLimits::default()), expected);
        let two = suppress(&paths, &SuppressionLimits { omega: 10.0, d: 2 });
        assert_eq!(
            two.iter().map(|(path, _)| path.0).collect::<Vec<_>>(),
            [8, 4, 6],
            "the faster of those that share stays"
        );
        assert!(suppress(&[], &SuppressionLimits::default()).is_empty());
        let only_failed = suppress(&paths[4..], &SuppressionLimits::default());
        assert_eq!(only_failed, [(PathId(8), Suppression::Failed)]);
    }

    #[test]
    fn with_no_limits_nothing_is_dropped() {
        let paths = [report(0, 1000.0, &[2]), report(2, 0.001, &[0])];
        assert!(suppress(&paths, &SuppressionLimits { omega: f64::INFINITY, d: usize::MAX }).is_empty());
    }

    #[test]
    fn a_path_left_out_is_tried_again_ever_more_rarely() {
        let mut suppressor = Suppressor::new(SuppressionLimits::default());
        let paths = [report(0, 20.0, &[]), report(2, 1.0, &[])];
        let (mut tried, mut out) = (Vec::new(), false);
        for second in 0..200_u64 {
            suppressor.review(Time::ZERO + Span::from_secs(second), &paths);
            let now_out = suppressor.reason(PathId(2)).is_some();
            assert!(now_out || !out, "it is judged at once");
            let until = suppressor.left_out[0].until;
            if tried.last() != Some(&until) {
                tried.push(until);
            }
            out = now_out;
        }
        let ends: Vec<f64> = tried.iter().map(|until| until.as_secs_f64()).collect();
        assert_eq!(ends, [10.0, 30.0, 70.0, 150.0, 310.0]);
    }

    #[test]
    fn a_path_left_out_is_back_at_once_when_the_better_one_dies() {
        let mut suppressor = Suppressor::new(SuppressionLimits::default());
        suppressor.review(Time::ZERO, &[report(0, 20.0, &[2]), report(2, 18.0, &[])]);
        assert_eq!(suppressor.reason(PathId(2)), Some(IdleReason::SharesBottleneck { with: PathId(0) }));
        suppressor.release(|path| path == PathId(0));
        assert!(suppressor.reason(PathId(2)).is_some());
        suppressor.release(|_| false);
        assert_eq!(suppressor.reason(PathId(2)), None);
    }
}
