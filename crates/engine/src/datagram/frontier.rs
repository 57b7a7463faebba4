//! Decides from the order on each path that a datagram is lost (PSMC §III.C [T6]).
//!
//! A path delivers the datagrams of a lane in the order in which they were sent. Once every path that could carry a
//! missing datagram has delivered a later one, the missing one is lost, and nothing has to wait for it.
//!
//! A path that has delivered nothing of the lane for the buffer's patience carries none of it, and does not count. A
//! path that delivers an earlier datagram after a later one does not keep order: then only the timer and the size of
//! the buffer decide for a while.

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_wire::{PathId, Span, Time};
use smallvec::SmallVec;

/// Suspect ranges remembered.
const SUSPECTS: usize = 16;
/// How long the order on the paths proves nothing after one of them broke it.
const DISTRUST: Span = Span::from_secs(2);

/// The highest place of one lane that each path has delivered.
#[derive(Debug, Default)]
pub(crate) struct Frontier {
    paths: SmallVec<[Progress; 4]>,
    last: Time,
    distrusted_until: Time,
    /// Places between two that a path delivered with packet numbers missing in between. One of them may be lost.
    suspects: VecDeque<Range<u64>>,
}

/// A datagram that a path brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    pub path: PathId,
    /// How many of the path's packet numbers are missing so far.
    pub missing: u64,
    pub place: u64,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    path: PathId,
    /// The highest place that it delivered.
    highest: Option<u64>,
    /// How many of its packet numbers were missing then.
    missing: u64,
    /// When it last delivered one, or else when it was first seen.
    at: Time,
}

impl Frontier {
    /// A datagram came. `known` are the session's paths.
    pub(crate) fn note(
        &mut self,
        now: Time,
        Came { path, missing, place }: Came,
        (known, patience): (impl Iterator<Item = PathId> + Clone, Span),
    ) {
        if now.since(self.last) > patience {
            // After a pause any path may carry the next datagrams.
            self.paths.clear();
        }
        self.last = now;
        self.paths.retain(|progress| known.clone().any(|id| id == progress.path));
        for id in known {
            if !self.paths.iter().any(|progress| progress.path == id) {
                self.paths.push(Progress { path: id, highest: None, missing: 0, at: now });
            }
        }
        let Some(progress) = self.paths.iter_mut().find(|progress| progress.path == path) else { return };
        if progress.highest.is_some_and(|highest| place < highest) {
            self.distrusted_until = now + DISTRUST;
            progress.missing = progress.missing.min(missing);
            return;
        }
        let before = progress.highest.replace(place);
        let has_lost = std::mem::replace(&mut progress.missing, missing) < missing;
        if let Some(before) = before.filter(|_| has_lost) {
            if self.suspects.len() == SUSPECTS {
                self.suspects.pop_front();
            }
            self.suspects.push_back(before + 1..place);
        }
        progress.at = now;
    }

    /// True if a path has lost a packet where it may have carried this place.
    pub(crate) fn suspects(&self, place: u64) -> bool {
        self.suspects.iter().any(|range| range.contains(&place))
    }

    /// Missing datagrams below this place are lost.
    pub(crate) fn lost_below(&self, now: Time, patience: Span) -> u64 {
        if now < self.distrusted_until {
            return 0;
        }
        let in_use = self.paths.iter().filter(|progress| now.since(progress.at) <= patience);
        in_use.map(|progress| progress.highest.unwrap_or(0)).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Span = Span::from_millis(60);

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    /// Notes these arrivals, each a time, a path and a place, on a session with paths 0 and 2.
    fn after(arrivals: &[(u64, u32, u64)]) -> Frontier {
        let mut frontier = Frontier::default();
        for (millis, path, place) in arrivals {
            let known = [PathId(0), PathId(2)].into_iter();
            let came = Came { path: PathId(*path), missing: 0, place: *place };
            frontier.note(at(*millis), came, (known, PATIENCE));
        }
        frontier
    }

    #[test]
    fn what_all_paths_have_passed_is_lost() {
        let frontier = after(&[(0, 0, 4), (1, 2, 3), (2, 0, 9)]);
        assert_eq!(frontier.lost_below(at(2), PATIENCE), 3);
    }

    #[test]
    fn a_path_that_has_not_delivered_yet_may_still_bring_everything() {
        assert_eq!(after(&[(0, 0, 4), (1, 0, 9)]).lost_below(at(1), PATIENCE), 0);
    }

    #[test]
    fn a_path_that_carries_nothing_of_the_lane_does_not_count() {
        let frontier = after(&[(0, 0, 1), (30, 0, 4), (61, 0, 9)]);
        assert_eq!(frontier.lost_below(at(61), PATIENCE), 9);
    }

    #[test]
    fn after_a_pause_every_path_counts_again() {
        assert_eq!(after(&[(0, 0, 4), (0, 2, 5), (100, 0, 9)]).lost_below(at(100), PATIENCE), 0);
    }

    #[test]
    fn a_path_that_overtakes_itself_proves_nothing_for_a_while() {
        let frontier = after(&[(0, 0, 4), (1, 2, 6), (2, 0, 3), (3, 0, 9)]);
        assert_eq!(frontier.lost_below(at(3), PATIENCE), 0);
        let later = after(&[(0, 0, 4), (2, 0, 3), (2010, 0, 9), (2011, 2, 9)]);
        assert_eq!(later.lost_below(at(2011), PATIENCE), 9);
    }

    #[test]
    fn a_place_is_suspect_where_a_path_lost_packets_around_it() {
        let mut frontier = Frontier::default();
        let known = [0, 2].map(PathId).into_iter();
        for (path, missing, place) in [(0, 4, 0), (2, 1, 1), (0, 4, 3), (2, 2, 8), (0, 4, 9)] {
            let came = Came { path: PathId(path), missing, place };
            frontier.note(at(0), came, (known.clone(), PATIENCE));
        }
        let suspects: Vec<u64> = (0..12).filter(|place| frontier.suspects(*place)).collect();
        assert_eq!(suspects, [2, 3, 4, 5, 6, 7], "between 1 and 8, the places around path 2's second loss");
    }
}
