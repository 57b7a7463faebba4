//! Groups of paths whose windows are coupled: by evidence, or by interface before there is any.
//!
//! Two paths are joined when they share a bottleneck. Without evidence they are joined when they use the same local
//! socket, the usual bottleneck. A path joined to one path is joined to its whole group. A group is named by its lowest
//! path.
//!
//! A changed verdict must hold for [`PATIENCE`] before it is accepted, so that groups do not flap, unless it is certain.
//! Evidence is forgotten when none follows for [`MEMORY`].

use anabranch_wire::{PathId, Span, Time};
use smallvec::{SmallVec, smallvec};

use super::Verdict;

/// How long a changed verdict must hold.
const PATIENCE: Span = Span::from_secs(1);
/// Evidence is forgotten after this long without new evidence.
const MEMORY: Span = Span::from_secs(30);

/// Why a path is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupReason {
    /// It uses the same interface as another, and nothing else is known.
    SameInterface,
    /// It shares a bottleneck with another.
    SharedBottleneck,
    /// It shares a bottleneck with no other path.
    Separate,
    /// Nothing is known, and it has an interface of its own.
    OwnInterface,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    paths: (PathId, PathId),
    accepted: Verdict,
    /// The latest verdict, and since when.
    latest: (Verdict, Time),
}

/// The groups of a session's paths.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    pairs: Vec<Pair>,
}

impl Groups {
    /// Records the current verdict on two paths, `a` below `b`.
    pub fn note(&mut self, now: Time, (a, b): (PathId, PathId), verdict: Verdict) {
        let index = self.pairs.iter().position(|pair| pair.paths == (a, b)).unwrap_or_else(|| {
            self.pairs.push(Pair { paths: (a, b), accepted: verdict, latest: (verdict, now) });
            self.pairs.len() - 1
        });
        let pair = &mut self.pairs[index];
        if pair.latest.0 != verdict {
            pair.latest = (verdict, now);
        }
        let patience = if verdict == Verdict::Undecided { MEMORY } else { PATIENCE };
        if pair.accepted == Verdict::Undecided || now.since(pair.latest.1) >= patience {
            pair.accepted = verdict;
        }
    }

    /// Records with certainty that two paths, `a` below `b`, do not share.
    pub fn part(&mut self, now: Time, (a, b): (PathId, PathId)) {
        self.note(now, (a, b), Verdict::Separate);
        if let Some(pair) = self.pairs.iter_mut().find(|pair| pair.paths == (a, b)) {
            pair.accepted = Verdict::Separate;
        }
    }

    pub fn forget(&mut self, path: PathId) {
        self.pairs.retain(|pair| pair.paths.0 != path && pair.paths.1 != path);
    }

    /// The accepted verdict on two paths, `a` below `b`.
    pub fn believed(&self, a: PathId, b: PathId) -> Verdict {
        self.pairs.iter().find(|pair| pair.paths == (a, b)).map_or(Verdict::Undecided, |pair| pair.accepted)
    }

    /// The group of each path, in order, and the reason. `paths` are ids and local sockets, sorted by id.
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

/// The more specific reason.
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
    fn without_evidence_the_interface_decides() {
        let groups: Vec<_> = Groups::default().of(&PATHS).into_iter().map(|(group, _)| group).collect();
        assert_eq!(groups, [0, 0, 4]);
    }

    #[test]
    fn evidence_overrides_the_interface() {
        let mut groups = Groups::default();
        groups.note(at(1), (PathId(0), PathId(2)), Verdict::Separate);
        groups.note(at(1), (PathId(2), PathId(4)), Verdict::Shared);
        let of = groups.of(&PATHS);
        assert_eq!(of[0], (0, GroupReason::Separate));
        assert_eq!(of[1], (2, GroupReason::SharedBottleneck));
        assert_eq!(of[2], (2, GroupReason::SharedBottleneck));
    }

    #[test]
    fn a_changed_verdict_must_hold_before_it_is_accepted() {
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
