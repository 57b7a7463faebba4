//! Finds separate bottlenecks from queues of which one is full while the other is not.
//!
//! A path loses packets at a full queue, and packets that arrive just then waited as long as that queue allows. At that
//! time, packets of another path through the same queue wait as long. So a path whose packets wait less than three
//! quarters of that has another bottleneck. So has a path whose packets never waited less than four thirds of it for
//! two round trips. A single loss suffices, so the result comes long before those of waves and losses. Only *separate*
//! can be found, because two queues may be full at once. If both paths waited alike at a later loss, the finding is
//! doubtful and removed.
//!
//! Losses after waits below [`FULL`] need no full queue and are ignored. A shorter wait means nothing on a path with a
//! round trip longer by half, because its samples are older. In slow start, where a queue fills within a round trip,
//! this applies to any path with a longer round trip. Findings expire after [`MEMORY`].

use anabranch_wire::{PathId, Span, Time};

use super::Verdict;

/// The shortest wait in a queue that may be full.
const FULL: Span = Span::from_millis(5);
/// Difference of waits in one queue, because they are measured at different times.
const SLACK: Span = Span::from_millis(1);
/// How long a finding is valid.
const MEMORY: Span = Span::from_secs(30);

/// How long the recent packets of a path waited in queues.
#[derive(Clone, Debug)]
struct Waits {
    path: PathId,
    rtt: Span,
    latest: Span,
    /// The shortest and the longest wait of this round trip, and of the one before.
    this: (Span, Span),
    before: (Span, Span),
    /// The start of this round trip.
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

    /// True if its packets pass another queue than the one in which another path waited for `full` until its loss.
    /// Samples of paths with round trips longer than `longest_rtt` are too old.
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
    /// Pairs found to be separate, lower id first, with the time of the finding.
    apart: Vec<((PathId, PathId), Time)>,
}

impl FullQueues {
    /// Handles the wait of a packet; `rtt` is the path's smoothed round-trip time.
    pub fn on_wait(&mut self, now: Time, path: PathId, wait: Span, rtt: Span) {
        match self.waits.iter_mut().find(|waits| waits.path == path) {
            Some(waits) => waits.on_wait(now, wait, rtt),
            None => {
                let (this, before) = ((wait, wait), (wait, wait));
                self.waits.push(Waits { path, rtt, latest: wait, this, before, since: now });
            }
        }
    }

    /// Handles the fast retransmit of a path; true if that gave a new finding.
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
    pub fn verdict(&self, now: Time, a: PathId, b: PathId) -> Verdict {
        match self.apart.iter().find(|(pair, _)| *pair == (a, b)) {
            Some((_, at)) if now.since(*at) < MEMORY => Verdict::Separate,
            _ => Verdict::Undecided,
        }
    }

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

    /// Path A waits up to 20 ms and loses at 1 s; path B waits as the function says. Returns whether that gave a
    /// finding, and the verdict after it.
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
    fn samples_of_a_longer_path_are_too_old_unless_it_waits_longer_all_the_time() {
        assert_eq!(found(|_| Span::ZERO, RTT * 2), (false, Verdict::Undecided));
        assert_eq!(found(|ms| Span::from_millis(ms / 25), RTT * 2), (true, Verdict::Separate));
        assert_eq!(found(|ms| Span::from_millis(ms % 40), RTT * 2), (false, Verdict::Undecided));
    }

    #[test]
    fn in_slow_start_only_paths_with_no_longer_round_trip_count() {
        for (rtt, is_new) in [(RTT, true), (RTT + RTT / 4, false)] {
            let mut queues = FullQueues::default();
            queues.on_wait(at(0), A, Span::from_millis(20), RTT);
            queues.on_wait(at(0), B, Span::ZERO, rtt);
            assert_eq!(queues.on_congestion(at(1), A, true), is_new);
            assert!(queues.on_congestion(at(1), A, false) != is_new);
        }
    }

    #[test]
    fn a_finding_expires_and_a_loss_without_a_queue_finds_nothing() {
        let mut queues = FullQueues::default();
        queues.on_wait(at(0), A, Span::from_millis(9), RTT);
        queues.on_wait(at(0), B, Span::ZERO, RTT);
        assert!(!queues.on_congestion(at(1), B, false));
        assert!(queues.on_congestion(at(1), A, false));
        assert_eq!(queues.verdict(at(29_000), A, B), Verdict::Separate);
        assert_eq!(queues.verdict(at(31_000), A, B), Verdict::Undecided);
    }
}
