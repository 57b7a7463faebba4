//! Decides from the order on each path that a datagram is lost (PSMC §III.C [T6]).
//!
//! A path delivers the datagrams of a lane in the order in which they were sent. Once every path that could carry a
//! missing datagram has delivered a later one, the missing one is lost, and nothing has to wait for it.
//!
//! A path that has delivered nothing of the lane for the buffer's patience carries none of it, and does not count. A
//! path that delivers an earlier datagram after a later one does not keep order: then only the timer and the size of
//! the buffer decide for a while.

use anabranch_wire::{PathId, Span, Time};
use smallvec::SmallVec;

/// How long the order on the paths proves nothing after one of them broke it.
const DISTRUST: Span = Span::from_secs(2);

/// The highest place of one lane that each path has delivered.
#[derive(Debug, Default)]
pub(crate) struct Frontier {
    paths: SmallVec<[Progress; 4]>,
    last: Time,
    distrusted_until: Time,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    path: PathId,
    /// The highest place that it delivered.
    highest: Option<u64>,
    /// When it last delivered one, or else when it was first seen.
    at: Time,
}

impl Frontier {
    /// A datagram with this place came over `path`. `known` are the session's paths.
    pub(crate) fn note(
        &mut self,
        now: Time,
        (path, place): (PathId, u64),
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
                self.paths.push(Progress { path: id, highest: None, at: now });
            }
        }
        let Some(progress) = self.paths.iter_mut().find(|progress| progress.path == path) else { return };
        if progress.highest.is_some_and(|highest| place < highest) {
            self.distrusted_until = now + DISTRUST;
            return;
        }
        (progress.highest, progress.at) = (Some(place), now);
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
            frontier.note(at(*millis), (PathId(*path), *place), (known, PATIENCE));
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
}
