//! Finds separate bottlenecks from heavy losses on only one path.
//!
//! Congestion losses are few: a full queue drops a packet or a burst, windows shrink, and it has room again. Suppose a path
//! loses an eighth of its packets between two fast retransmits, and another path loses none although it sent for as long
//! and enough packets. Then the two do not share the place of the losses: one of so many would have hit the other path.
//! This is known after two fast retransmits, when the windows of a false group were reduced once.
//!
//! Slow start overshoots and loses as much in any queue, so its losses are ignored. Findings expire after [`MEMORY`].

use anabranch_wire::{PathId, Span, Time};
use smallvec::SmallVec;

/// Losses are heavy if one in this many packets is lost.
const HEAVY: u64 = 8;
/// Packets required of each path.
const PACKETS: u64 = 24;
/// Longest period examined, in multiples of the longer round trip.
const ROUNDS: u64 = 4;
/// How long a finding is valid.
const MEMORY: Span = Span::from_secs(30);

/// A path's counts when a path enters fast retransmit.
#[derive(Clone, Copy, Debug)]
pub struct LossCounts {
    pub path: PathId,
    /// Packets sent so far, including lost ones.
    pub sent: u64,
    /// Packets found lost so far.
    pub lost: u64,
    /// Its smoothed round-trip time.
    pub rtt: Span,
}

/// The counts of two paths when the first entered fast retransmit.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Time,
    loser: LossCounts,
    spared: LossCounts,
}

/// The detector.
#[derive(Clone, Debug, Default)]
pub struct LoneLosses {
    marks: Vec<Mark>,
    /// Pairs found to be separate, lower id first, with the time of the finding.
    apart: SmallVec<[((PathId, PathId), Time); 2]>,
}

impl LoneLosses {
    /// Handles the fast retransmit of a path. Returns the other paths newly found to be separate from it.
    pub fn on_congestion(
        &mut self,
        now: Time,
        (loser, in_slow_start): (LossCounts, bool),
        others: impl Iterator<Item = LossCounts>,
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

    /// Records two paths that do not share; true when that is new.
    fn part(&mut self, now: Time, pair: (PathId, PathId)) -> bool {
        if let Some((_, at)) = self.apart.iter_mut().find(|(known, _)| *known == pair) {
            let is_known = now.since(std::mem::replace(at, now)) < MEMORY;
            return !is_known;
        }
        self.apart.push((pair, now));
        true
    }

    /// True when two paths, `a` below `b`, were found to be separate.
    pub fn are_apart(&self, now: Time, a: PathId, b: PathId) -> bool {
        self.apart.iter().any(|(pair, at)| *pair == (a, b) && now.since(*at) < MEMORY)
    }

    pub fn forget(&mut self, path: PathId) {
        self.marks.retain(|mark| mark.loser.path != path && mark.spared.path != path);
        self.apart.retain(|((a, b), _)| *a != path && *b != path);
    }
}

impl Mark {
    /// True when the losses since the mark are too heavy for congestion that both paths would have noticed.
    fn is_lone(&self, loser: &LossCounts, spared: &LossCounts) -> bool {
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

    fn counts(path: PathId, (sent, lost): (u64, u64)) -> LossCounts {
        LossCounts { path, sent, lost, rtt: Span::from_millis(40) }
    }

    /// Whether the second fast retransmit of A finds B separate, `after` ms after the first, with these packets sent and lost
    /// on A and B since then.
    fn second(after: u64, a: (u64, u64), b: (u64, u64)) -> bool {
        let mut detector = LoneLosses::default();
        let first =
            detector.on_congestion(at(0), (counts(A, (500, 9)), false), [counts(B, (700, 4))].into_iter());
        assert!(first.is_empty(), "one fast retransmit proves nothing");
        let (a, b) = ((500 + a.0, 9 + a.1), (700 + b.0, 4 + b.1));
        let found = detector.on_congestion(at(after), (counts(A, a), false), [counts(B, b)].into_iter());
        assert_eq!(found.as_slice() == [B], detector.are_apart(at(after), A, B));
        assert!(!detector.are_apart(at(after + 30_000), A, B));
        !found.is_empty()
    }

    #[test]
    fn heavy_losses_on_one_path_only_show_that_two_paths_do_not_share() {
        assert!(second(45, (24, 3), (24, 0)));
        assert!(!second(45, (25, 3), (24, 0)), "fewer than an eighth");
        assert!(!second(45, (24, 3), (24, 1)), "the other lost too");
        assert!(!second(45, (24, 3), (23, 0)), "the other sent too little");
        assert!(!second(45, (23, 3), (24, 0)), "the path sent too little");
        assert!(!second(39, (24, 3), (24, 0)), "the other's losses are not known yet");
        assert!(second(160, (24, 3), (24, 0)));
        assert!(!second(161, (24, 3), (24, 0)), "too long ago");
    }

    #[test]
    fn losses_of_slow_start_prove_nothing() {
        let mut detector = LoneLosses::default();
        let mut finds = |ms, lost, slow| {
            let others = [counts(B, (ms, 0))];
            !detector.on_congestion(at(ms), (counts(A, (ms, lost)), slow), others.into_iter()).is_empty()
        };
        assert!(
            ![finds(0, 1, true), finds(50, 40, true), finds(100, 41, false), finds(150, 44, false)]
                .contains(&true)
        );
        assert!(finds(200, 60, false));
    }

    #[test]
    fn a_path_can_be_removed() {
        let mut detector = LoneLosses::default();
        for (ms, lost) in [(0, 0), (50, 10)] {
            detector.on_congestion(at(ms), (counts(B, (ms, lost)), false), [counts(A, (ms, 0))].into_iter());
        }
        assert!(detector.are_apart(at(50), A, B));
        detector.forget(A);
        assert!(!detector.are_apart(at(50), A, B) && detector.marks.is_empty());
    }
}
