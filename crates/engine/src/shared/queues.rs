//! Separate bottlenecks from queues of which one is full while the other is not.
//!
//! A path loses where a queue is full, and what arrives just then has waited as long as that queue can make it wait. A path through the
//! same queue waits as long at that moment: one that waits less than three quarters of it has its bottleneck elsewhere, and so has one that
//! for two round trips never waited less than four thirds of it. One loss tells, so this is
//! known long before waves and losses are; only *separate* can be learnt from it, since two queues may be full at once. Where both waited
//! alike at a later loss, what was found is doubtful and forgotten.
//!
//! Nothing is said of losses after waits below [`FULL`], which need no full queue. That a path waits less is no sign where its round trip is
//! longer by half, and in slow start, where a queue fills within a round trip, longer at all: what it shows is of an earlier moment.
//! All is forgotten after [`MEMORY`].

use anabranch_wire::{PathId, Span, Time};

use super::Verdict;

/// A wait from which on a queue may be full.
const FULL: Span = Span::from_millis(5);
/// By so much waits in one queue differ: they are measured at other moments.
const SLACK: Span = Span::from_millis(1);
/// How long a finding stands.
const MEMORY: Span = Span::from_secs(30);

/// How long packets of a path waited in queues of late.
#[derive(Clone, Debug)]
struct Waits {
    path: PathId,
    rtt: Span,
    latest: Span,
    /// The shortest and the longest wait of this round trip, and of the one before.
    this: (Span, Span),
    before: (Span, Span),
    /// When this round trip began.
    since: Time,
}

impl Waits {
    fn on_wait(&mut self, now: Time, wait: Span, rtt: Span) {
        if now.since(self.since) >= self.rtt {
            (self.before, self.this, self.since) = (self.this, (wait, wait), now);
        }
        self.this = (self.this.0.min(wait), self.this.1.max(wait));
        (self.latest, self.rtt) = (wait, rtt);
    }

    /// True when its packets were elsewhere than in the queue in which those of another path waited so long just now, until they did not fit.
    /// Beyond this round-trip time it shows another moment.
    fn is_elsewhere(&self, full: Span, longest_rtt: Span) -> bool {
        let (shortest, longest) = (self.this.0.min(self.before.0), self.this.1.max(self.before.1));
        let is_of_now = self.rtt <= longest_rtt;
        let waits_less = (longest + SLACK) * 4 < full * 3;
        let waits_more = shortest * 3 > (full + SLACK) * 4;
        (waits_less && is_of_now) || waits_more
    }
}

/// The detector.
#[derive(Clone, Debug, Default)]
pub struct FullQueues {
    waits: Vec<Waits>,
    /// Pairs, the lower first, and when they were found to be separate.
    apart: Vec<((PathId, PathId), Time)>,
}

impl FullQueues {
    /// A packet of a path waited so long, out of a smoothed round trip of `rtt`.
    pub fn on_wait(&mut self, now: Time, path: PathId, wait: Span, rtt: Span) {
        match self.waits.iter_mut().find(|waits| waits.path == path) {
            Some(waits) => waits.on_wait(now, wait, rtt),
            None => {
                let (this, before) = ((wait, wait), (wait, wait));
                self.waits.push(Waits { path, rtt, latest: wait, this, before, since: now });
            }
        }
    }

    /// A path entered fast retransmit; true when that tells something new.
    pub fn on_congestion(&mut self, now: Time, path: PathId, in_slow_start: bool) -> bool {
        let Some(full) = self.waits.iter().find(|waits| waits.path == path) else { return false };
        if full.latest < FULL {
            return false;
        }
        let longest_rtt = if in_slow_start { full.rtt } else { full.rtt + full.rtt / 2 };
        let wait = full.latest;
        let is_known = |other: &&Waits| other.path != path && now.since(other.since) <= other.rtt * 2;
        let mut is_new = false;
        for other in self.waits.iter().filter(is_known) {
            let pair = (path.min(other.path), path.max(other.path));
            let known = self.apart.iter().position(|(known, _)| *known == pair);
            let is_elsewhere = other.is_elsewhere(wait, longest_rtt);
            match known {
                Some(index) if is_elsewhere => self.apart[index].1 = now,
                Some(index) => drop(self.apart.swap_remove(index)),
                None if is_elsewhere => self.apart.push((pair, now)),
                None => continue,
            }
            is_new |= known.is_none();
        }
        is_new
    }

    /// Judges two paths, `a` below `b`.
    #[must_use]
    pub fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict {
        match self.apart.iter().find(|(pair, _)| *pair == (a, b)) {
            Some((_, at)) if now.since(*at) < MEMORY => Verdict::Separate,
            _ => Verdict::Undecided,
        }
    }

    /// Forgets a path.
    pub fn forget(&mut self, path: PathId) {
        self.waits.retain(|waits| waits.path != path);
        self.apart.retain(|((a, b), _)| *a != path && *b != path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PathId = PathId(0);
    const B: PathId = PathId(2);
    const RTT: Span = Span::from_millis(40);

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    /// Path A waits up to 20 ms and loses at 1 s, while path B with this round trip waits so long; what is found, at once and after.
    fn found(waits_of_b: impl Fn(u64) -> Span, rtt: Span) -> (bool, Verdict) {
        let mut queues = FullQueues::default();
        for ms in (0..1000).step_by(10) {
            queues.on_wait(at(ms), A, Span::from_millis(ms / 50), RTT);
            queues.on_wait(at(ms), B, waits_of_b(ms), rtt);
        }
        let is_new = queues.on_congestion(at(1000), A, false);
        assert!(!queues.on_congestion(at(1001), A, false), "nothing new");
        (is_new, queues.verdict(at(1000), A, B))
    }

    #[test]
    fn a_path_that_hardly_waits_while_another_loses_is_separate() {
        assert_eq!(found(|_| Span::from_millis(4), RTT), (true, Verdict::Separate));
    }

    #[test]
    fn a_path_that_waits_as_long_or_just_did_may_share() {
        let undecided = (false, Verdict::Undecided);
        assert_eq!(found(|ms| Span::from_millis(ms / 55), RTT), undecided);
        assert_eq!(found(|ms| Span::from_millis(if ms == 950 { 19 } else { 0 }), RTT), undecided);
    }

    #[test]
    fn what_a_longer_path_shows_is_of_another_moment_unless_it_waits_longer_all_the_time() {
        assert_eq!(found(|_| Span::ZERO, RTT * 2), (false, Verdict::Undecided));
        assert_eq!(found(|ms| Span::from_millis(ms / 25), RTT * 2), (true, Verdict::Separate));
        assert_eq!(found(|ms| Span::from_millis(ms % 40), RTT * 2), (false, Verdict::Undecided));
    }

    #[test]
    fn in_slow_start_only_paths_that_are_no_longer_tell() {
        for (rtt, is_new) in [(RTT, true), (RTT + RTT / 4, false)] {
            let mut queues = FullQueues::default();
            queues.on_wait(at(0), A, Span::from_millis(20), RTT);
            queues.on_wait(at(0), B, Span::ZERO, rtt);
            assert_eq!(queues.on_congestion(at(1), A, true), is_new);
            assert!(queues.on_congestion(at(1), A, false) != is_new);
        }
    }

    #[test]
    fn a_finding_is_forgotten_and_a_loss_without_a_queue_finds_nothing() {
        let mut queues = FullQueues::default();
        queues.on_wait(at(0), A, Span::from_millis(9), RTT);
        queues.on_wait(at(0), B, Span::ZERO, RTT);
        assert!(!queues.on_congestion(at(1), B, false));
        assert!(queues.on_congestion(at(1), A, false));
        assert_eq!(queues.verdict(at(29_000), A, B), Verdict::Separate);
        assert_eq!(queues.verdict(at(31_000), A, B), Verdict::Undecided);
    }
}
