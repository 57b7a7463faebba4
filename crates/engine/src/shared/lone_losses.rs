//! Separate bottlenecks from heavy losses that only one path has.
//!
//! Losses of congestion are few: a queue that is full takes a packet or a burst, windows are cut, and it has room again. Where an
//! eighth of what a path sends is lost from one fast retransmit to a later one, and another path had none of
//! that though it sent as long and as many packets as tell, the losses are not those of a place that both go through: of so
//! many packets one at least would have been the other's. This is known after two fast retransmits, when windows of a group that is none were cut once.
//!
//! Slow start overshoots and loses as much in any queue, so what it lost is left out. All is forgotten after [`MEMORY`].

use anabranch_wire::{PathId, Span, Time};
use smallvec::SmallVec;

/// Of so many packets one is lost.
const HEAVY: u64 = 8;
/// So many packets tell, of each path.
const PACKETS: u64 = 24;
/// So long, in the longer of the two round trips, is looked back at most.
const ROUNDS: u64 = 4;
/// How long a finding stands.
const MEMORY: Span = Span::from_secs(30);

/// A path that may lose alone or be spared, as it stands when a path enters fast retransmit.
#[derive(Clone, Copy, Debug)]
pub struct Toll {
    /// The path.
    pub path: PathId,
    /// Packets sent and lost since it began.
    pub sent: u64,
    /// Those found lost.
    pub lost: u64,
    /// Its smoothed round-trip time.
    pub rtt: Span,
}

/// Two paths when the first entered fast retransmit.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Time,
    loser: Toll,
    spared: Toll,
}

/// The detector.
#[derive(Clone, Debug, Default)]
pub struct LoneLosses {
    marks: Vec<Mark>,
    /// Pairs, the lower first, and when they were found to be separate.
    apart: SmallVec<[((PathId, PathId), Time); 2]>,
}

impl LoneLosses {
    /// A path entered fast retransmit beside others: answers those that it was found to be separate from by that, which were not known to be.
    pub fn on_congestion(
        &mut self,
        now: Time,
        (loser, in_slow_start): (Toll, bool),
        others: impl Iterator<Item = Toll>,
    ) -> SmallVec<[PathId; 8]> {
        let mut found = SmallVec::new();
        for spared in others {
            let pair = (loser.path, spared.path);
            let index = self.marks.iter().position(|mark| (mark.loser.path, mark.spared.path) == pair);
            let mark = Mark { at: now, loser, spared };
            let Some(index) = index else {
                if !in_slow_start {
                    self.marks.push(mark);
                }
                continue;
            };
            let lasted = now.since(self.marks[index].at);
            let is_old = lasted > loser.rtt.max(spared.rtt) * ROUNDS;
            if in_slow_start || is_old || spared.lost > self.marks[index].spared.lost {
                self.marks[index] = mark;
            } else if lasted >= spared.rtt && self.marks[index].is_lone(&loser, &spared) {
                self.marks[index] = mark;
                if self.part(now, (loser.path.min(spared.path), loser.path.max(spared.path))) {
                    found.push(spared.path);
                }
            }
        }
        found
    }

    /// Notes two paths that do not share; true when that is new.
    fn part(&mut self, now: Time, pair: (PathId, PathId)) -> bool {
        if let Some((_, at)) = self.apart.iter_mut().find(|(known, _)| *known == pair) {
            let is_known = now.since(std::mem::replace(at, now)) < MEMORY;
            return !is_known;
        }
        self.apart.push((pair, now));
        true
    }

    /// True when two paths, `a` below `b`, were found to be separate.
    #[must_use]
    pub fn are_apart(&self, now: Time, a: PathId, b: PathId) -> bool {
        self.apart.iter().any(|(pair, at)| *pair == (a, b) && now.since(*at) < MEMORY)
    }

    /// Forgets a path.
    pub fn forget(&mut self, path: PathId) {
        self.marks.retain(|mark| mark.loser.path != path && mark.spared.path != path);
        self.apart.retain(|((a, b), _)| *a != path && *b != path);
    }
}

impl Mark {
    /// True when what was lost since is too much to be congestion that both would have seen.
    fn is_lone(&self, loser: &Toll, spared: &Toll) -> bool {
        let (sent, lost) = (loser.sent - self.loser.sent, loser.lost - self.loser.lost);
        sent >= PACKETS && spared.sent - self.spared.sent >= PACKETS && lost * HEAVY >= sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(2);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn toll(path: PathId, (sent, lost): (u64, u64)) -> Toll {
        Toll { path, sent, lost, rtt: Span::from_millis(40) }
    }

    /// What the second fast retransmit of A tells, so long after the first one in ms, with so many packets sent and lost on A and on B meanwhile.
    fn second(after: u64, a: (u64, u64), b: (u64, u64)) -> bool {
        let mut detector = LoneLosses::default();
        let first =
            detector.on_congestion(at(0), (toll(A, (500, 9)), false), [toll(B, (700, 4))].into_iter());
        assert!(first.is_empty(), "one fast retransmit tells nothing");
        let (a, b) = ((500 + a.0, 9 + a.1), (700 + b.0, 4 + b.1));
        let found = detector.on_congestion(at(after), (toll(A, a), false), [toll(B, b)].into_iter());
        assert_eq!(found.as_slice() == [B], detector.are_apart(at(after), A, B));
        assert!(!detector.are_apart(at(after + 30_000), A, B));
        !found.is_empty()
    }

    #[test]
    fn heavy_losses_that_another_path_has_none_of_tell_that_they_do_not_share() {
        assert!(second(45, (24, 3), (24, 0)));
        assert!(!second(45, (25, 3), (24, 0)), "fewer than an eighth");
        assert!(!second(45, (24, 3), (24, 1)), "the other lost as well");
        assert!(!second(45, (24, 3), (23, 0)), "the other sent too little to tell");
        assert!(!second(45, (23, 3), (24, 0)), "the path sent too little to tell");
        assert!(!second(39, (24, 3), (24, 0)), "the other's losses are not known yet");
        assert!(second(160, (24, 3), (24, 0)));
        assert!(!second(161, (24, 3), (24, 0)), "too long ago");
    }

    #[test]
    fn what_slow_start_lost_tells_nothing() {
        let mut detector = LoneLosses::default();
        let mut told = |ms, lost, slow| {
            let others = [toll(B, (ms, 0))];
            !detector.on_congestion(at(ms), (toll(A, (ms, lost)), slow), others.into_iter()).is_empty()
        };
        assert!(
            ![told(0, 1, true), told(50, 40, true), told(100, 41, false), told(150, 44, false)]
                .contains(&true)
        );
        assert!(told(200, 60, false));
    }

    #[test]
    fn a_path_is_forgotten() {
        let mut detector = LoneLosses::default();
        for (ms, lost) in [(0, 0), (50, 10)] {
            detector.on_congestion(at(ms), (toll(B, (ms, lost)), false), [toll(A, (ms, 0))].into_iter());
        }
        assert!(detector.are_apart(at(50), A, B));
        detector.forget(A);
        assert!(!detector.are_apart(at(50), A, B) && detector.marks.is_empty());
    }
}
