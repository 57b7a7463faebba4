//! Groups of paths whose windows are coupled: evidence where there is some, the interface before.
//!
//! Two paths are joined when they are found to share a bottleneck, or while nothing is known and both leave over the
//! same local socket: most often that is the bottleneck. What is joined to one is joined to all of
//! its group. A group is named by its lowest path.
//!
//! A verdict is not believed at once when it changes another: it has to hold for [`PATIENCE`], so that groups
//! do not flap, unless it is beyond doubt. When the evidence stays away for [`MEMORY`], what it showed is forgotten.

use anabranch_wire::{PathId, Span, Time};
use smallvec::{SmallVec, smallvec};

use super::Verdict;

/// How long a verdict that changes another has to hold.
const PATIENCE: Span = Span::from_secs(1);
/// How long evidence has to be missing until what it had shown is forgotten.
const MEMORY: Span = Span::from_secs(30);

/// Why a path is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupReason {
    /// It leaves over the same interface as another, and nothing else is known.
    SameInterface,
    /// It was found to share a bottleneck with another.
    SharedBottleneck,
    /// It was found to share with none.
    Separate,
    /// Nothing is known, and it has an interface of its own.
    OwnInterface,
}

impl GroupReason {
    /// A phrase for people and for JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameInterface => "same interface",
            Self::SharedBottleneck => "shared bottleneck",
            Self::Separate => "separate bottleneck",
            Self::OwnInterface => "own interface",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    paths: (PathId, PathId),
    believed: Verdict,
    /// What is said instead, and since when.
    heard: (Verdict, Time),
}

/// The groups of a session's paths.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    pairs: Vec<Pair>,
}

impl Groups {
    /// Notes what the evidence says of two paths now, `a` below `b`.
    pub fn note(&mut self, now: Time, (a, b): (PathId, PathId), verdict: Verdict) {
        let index = self.pairs.iter().position(|pair| pair.paths == (a, b)).unwrap_or_else(|| {
            self.pairs.push(Pair { paths: (a, b), believed: verdict, heard: (verdict, now) });
            self.pairs.len() - 1
        });
        let pair = &mut self.pairs[index];
        if pair.heard.0 != verdict {
            pair.heard = (verdict, now);
        }
        let patience = if verdict == Verdict::Undecided { MEMORY } else { PATIENCE };
        if pair.believed == Verdict::Undecided || now.since(pair.heard.1) >= patience {
            pair.believed = verdict;
        }
    }

    /// Believes of two paths, `a` below `b`, at once that they do not share.
    pub fn part(&mut self, now: Time, (a, b): (PathId, PathId)) {
        self.note(now, (a, b), Verdict::Separate);
        if let Some(pair) = self.pairs.iter_mut().find(|pair| pair.paths == (a, b)) {
            pair.believed = Verdict::Separate;
        }
    }

    /// Forgets a path.
    pub fn forget(&mut self, path: PathId) {
        self.pairs.retain(|pair| pair.paths.0 != path && pair.paths.1 != path);
    }

    /// What is believed of two paths, `a` below `b`.
    #[must_use]
    pub fn believed(&self, a: PathId, b: PathId) -> Verdict {
        self.pairs.iter().find(|pair| pair.paths == (a, b)).map_or(Verdict::Undecided, |pair| pair.believed)
    }

    /// The group of each path, in order, and why. `paths` are ids and local sockets, sorted by id.
    #[must_use]
    pub fn of(&self, paths: &[(PathId, u32)]) -> SmallVec<[(u32, GroupReason); 8]> {
        let mut group: SmallVec<[usize; 8]> = (0..paths.len()).collect();
        let mut reasons: SmallVec<[GroupReason; 8]> = smallvec![GroupReason::OwnInterface; paths.len()];
        for b in 0..paths.len() {
            for a in 0..b {
                let verdict = self.believed(paths[a].0, paths[b].0);
                let reason = match verdict {
                    Verdict::Shared => GroupReason::SharedBottleneck,
                    Verdict::Separate => GroupReason::Separate,
                    Verdict::Undecided if paths[a].1 == paths[b].1 => GroupReason::SameInterface,
                    Verdict::Undecided => continue,
                };
                for index in [a, b] {
                    reasons[index] = stronger(reasons[index], reason);
                }
                if reason != GroupReason::Separate {
                    let (low, high) = (group[a].min(group[b]), group[a].max(group[b]));
                    group.iter_mut().filter(|of| **of == high).for_each(|of| *of = low);
                }
            }
        }
        group.into_iter().zip(reasons).map(|(index, reason)| (paths[index].0.0, reason)).collect()
    }
}

/// What says more about a path.
fn stronger(a: GroupReason, b: GroupReason) -> GroupReason {
    let rank = |reason| match reason {
        GroupReason::SharedBottleneck => 3,
        GroupReason::SameInterface => 2,
        GroupReason::Separate => 1,
        GroupReason::OwnInterface => 0,
    };
    if rank(b) > rank(a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [(PathId, u32); 3] = [(PathId(0), 7), (PathId(2), 7), (PathId(4), 8)];

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    #[test]
    fn before_there_is_evidence_the_interface_decides() {
        let groups: Vec<_> = Groups::default().of(&PATHS).into_iter().map(|(group, _)| group).collect();
        assert_eq!(groups, [0, 0, 4]);
    }

    #[test]
    fn evidence_goes_before_the_interface() {
        let mut groups = Groups::default();
        groups.note(at(1), (PathId(0), PathId(2)), Verdict::Separate);
        groups.note(at(1), (PathId(2), PathId(4)), Verdict::Shared);
        let of = groups.of(&PATHS);
        assert_eq!(of[0], (0, GroupReason::Separate));
        assert_eq!(of[1], (2, GroupReason::SharedBottleneck));
        assert_eq!(of[2], (2, GroupReason::SharedBottleneck));
    }

    #[test]
    fn a_changed_verdict_has_to_hold_before_it_is_believed() {
        let mut groups = Groups::default();
        let pair = (PathId(0), PathId(4));
        groups.note(at(1), pair, Verdict::Shared);
        groups.note(at(5), pair, Verdict::Separate);
        assert_eq!(groups.believed(pair.0, pair.1), Verdict::Shared);
        groups.note(at(7), pair, Verdict::Separate);
        assert_eq!(groups.believed(pair.0, pair.1), Verdict::Separate);
        groups.note(at(9), pair, Verdict::Shared);
        groups.note(at(11), pair, Verdict::Shared);
        groups.part(at(11), pair);
        assert_eq!(groups.believed(pair.0, pair.1), Verdict::Separate);
        groups.forget(PathId(4));
        assert!(groups.pairs.is_empty());
    }
}
