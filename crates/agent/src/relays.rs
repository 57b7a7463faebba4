//! Chooses which relays of many candidates carry paths.
//!
//! A number of relayed paths is in use, and the other candidates are in reserve. While data flows, bad paths are
//! replaced and better ones are recruited (mTCP §3.4 [M10, M11]). Ten times a second the agent compares the paths'
//! estimated rates ([`Capacity`]):
//!
//! - A path is *bad* when it has failed, hangs, does not open, or carries less than 1/ω of the best, for [`PATIENCE`]
//!   without a break. A candidate that is expected to carry more replaces it at once.
//! - A path is *weak* when a candidate in reserve is expected to carry [`BETTER`] times as much, for [`DOUBT`] without
//!   a break. Then that candidate is tried as an additional path. After [`GRACE`] the slowest path is given up, which
//!   may be the new one.
//!
//! The rate of a path that was given up is remembered for [`MEMORY`]. Other candidates are expected to carry the median
//! of the paths in use. So each candidate is tried once when a path falls behind, and none while all paths are alike.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anabranch_engine::{PathInfo, PathReport, PathState, SuppressionLimits, suppress};
use anabranch_wire::{PathId, Rate, Span, Time};

use crate::capacity::Capacity;

/// How long direct paths race alone before relays join.
pub const HEAD_START: Span = Span::from_millis(750);
/// Time between two looks at the paths.
const LOOK: Span = Span::from_millis(100);
/// A path is replaced after it was bad for this long.
const PATIENCE: Span = Span::from_millis(500);
/// Another path is tried after one was weak for this long: longer than a window takes to recover from a loss.
const DOUBT: Span = Span::from_secs(2);
/// A candidate is tried if it is expected to carry this many times as much.
const BETTER: f64 = 2.0;
/// How long a new path may take to open, and then to reach its rate.
const GRACE: Span = Span::from_secs(3);
/// Pause of a candidate that was given up.
const REST: Span = Span::from_secs(20);
/// How long a path's rate is remembered.
const MEMORY: Span = Span::from_secs(300);

/// A relay, or a chain of relays, for a path: its index in the list of candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Candidate(pub usize);

/// A decision for the driver to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayAction {
    /// Open a path through the candidate; reopen it after losses.
    OpenThrough(Candidate),
    /// Close the path through the candidate, and do not reopen it.
    Close(Candidate, GivenUp),
}

/// Why a candidate is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It carries far less than the best path.
    Bad,
    /// It was the slowest after another was tried.
    Weakest,
}

impl std::fmt::Display for GivenUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Bad => "it carries far too little, or nothing",
            Self::Weakest => "others carry more",
        })
    }
}

#[derive(Debug)]
struct InUse {
    candidate: Candidate,
    since: Time,
    opened: bool,
    bad_since: Option<Time>,
    /// The estimated rate of its path, if known.
    rate: Option<Rate>,
}

#[derive(Debug)]
struct Reserve {
    candidate: Candidate,
    /// When it was given up, and its rate then, if known.
    given_up: Option<(Time, Option<Rate>)>,
}

/// Chooses among the relay candidates of one session.
#[derive(Debug)]
pub struct RelayChoice {
    at_once: usize,
    capacity: Capacity,
    in_use: Vec<InUse>,
    reserve: Vec<Reserve>,
    weak_since: Option<Time>,
    next_look: Time,
    actions: Vec<RelayAction>,
}

impl InUse {
    fn is_young(&self, now: Time) -> bool {
        now < self.since + GRACE
    }

    /// The rate that closing it would lose: zero while it is bad. A working path of unknown rate, perhaps held back by
    /// rules, is kept.
    fn worth(&self) -> Rate {
        let works = self.opened && self.bad_since.is_none();
        self.rate.unwrap_or(if works { Rate::from_bits(u64::MAX) } else { Rate::ZERO })
    }

    fn note(&mut self, now: Time, seen: Seen<'_>) {
        let Seen { path, rate, is_far_slower } = seen;
        self.opened |= path.is_some_and(|path| path.state == PathState::Active);
        let is_bad = match path {
            Some(path) => hangs(path) || is_far_slower && !self.is_young(now),
            None => self.opened || !self.is_young(now),
        };
        self.bad_since = if is_bad { self.bad_since.or(Some(now)) } else { None };
        let works = self.opened && path.is_some_and(|path| !hangs(path));
        self.rate = if works { rate } else { Some(Rate::ZERO) };
    }
}

/// The state of a candidate's path at one look.
#[derive(Clone, Copy)]
struct Seen<'a> {
    path: Option<&'a PathInfo>,
    rate: Option<Rate>,
    is_far_slower: bool,
}

impl Reserve {
    fn may_be_tried(&self, now: Time) -> bool {
        self.given_up.is_none_or(|(at, _)| now >= at + REST)
    }

    fn rate(&self, now: Time) -> Option<Rate> {
        self.given_up.filter(|(at, _)| now < *at + MEMORY).and_then(|(_, rate)| rate)
    }
}

impl RelayChoice {
    /// Keeps `at_once` of `candidates` in use, starting with the first ones.
    pub fn new(candidates: usize, at_once: usize) -> Self {
        let reserve = |number| Reserve { candidate: Candidate(number), given_up: None };
        Self {
            at_once,
            capacity: Capacity::default(),
            in_use: Vec::new(),
            reserve: (0..candidates).map(reserve).collect(),
            weak_since: None,
            next_look: Time::ZERO,
            actions: Vec::new(),
        }
    }

    /// When to call [`Self::look`] next.
    pub fn next_look(&self) -> Time {
        self.next_look
    }

    /// Checks the session's paths and returns the actions; `path_of` gives the path that a candidate has or is opening.
    pub fn look(
        &mut self,
        now: Time,
        paths: &[PathInfo],
        path_of: impl Fn(Candidate) -> Option<PathId>,
    ) -> Vec<RelayAction> {
        self.next_look = now + LOOK;
        let is_carrying = self.look_at_paths(now, paths, path_of);
        while self.in_use.len() < self.at_once && self.recruit(usize::MAX, now) {}
        self.replace_bad(now);
        if self.in_use.len() > self.at_once {
            self.settle(now);
        } else if is_carrying {
            self.try_better(now);
        } else {
            self.weak_since = None;
        }
        std::mem::take(&mut self.actions)
    }

    /// Gives up the worst of the paths that were bad for long enough, if another can replace it.
    fn replace_bad(&mut self, now: Time) {
        let Some(at) = worst(&self.in_use, now) else { return };
        // Any candidate may replace a path that does not work. To replace a working path, it must promise more.
        let wanted = if self.in_use[at].rate == Some(Rate::ZERO) { usize::MAX } else { 1 };
        if self.in_use.len() > self.at_once || self.recruit(wanted, now) {
            self.give_up(at, GivenUp::Bad, now);
        }
    }

    /// Ends a trial: gives up the slowest path.
    fn settle(&mut self, now: Time) {
        if !self.in_use.iter().any(|path| path.is_young(now)) {
            let weakest = (0..self.in_use.len()).min_by_key(|at| self.in_use[*at].worth());
            weakest.into_iter().for_each(|at| self.give_up(at, GivenUp::Weakest, now));
        }
    }

    /// Updates the paths in use; true if enough data flows to compare them.
    fn look_at_paths(
        &mut self,
        now: Time,
        paths: &[PathInfo],
        path_of: impl Fn(Candidate) -> Option<PathId>,
    ) -> bool {
        let rates = self.capacity.look(paths, now);
        let slow = far_slower(&rates);
        for used in &mut self.in_use {
            let id = path_of(used.candidate);
            let path = paths.iter().find(|path| Some(path.id) == id);
            // Without estimates, the last rate counts.
            let last = used.rate.filter(|rate| rates.is_empty() && *rate > Rate::ZERO);
            let rate = path.and_then(|path| rates.get(&path.id)).copied().or(last);
            let is_far_slower = path.is_some_and(|path| slow.contains(&path.id));
            used.note(now, Seen { path, rate, is_far_slower });
        }
        !rates.is_empty()
    }

    /// Tries an additional candidate when a path was weak for long enough.
    fn try_better(&mut self, now: Time) {
        match self.weak_since {
            _ if self.rates(now).is_empty() || self.better(1, now).is_none() => self.weak_since = None,
            None => self.weak_since = Some(now),
            Some(since) if now >= since + DOUBT => {
                self.weak_since = None;
                self.recruit(1, now);
            }
            Some(_) => {}
        }
    }

    /// The known rates of the paths that had time to reach them.
    fn rates(&self, now: Time) -> Vec<Rate> {
        self.in_use.iter().filter(|path| !path.is_young(now)).filter_map(|path| path.rate).collect()
    }

    /// The best candidate in reserve, if it is much better than the slowest path in use, or fewer than `wanted` are in
    /// use.
    fn better(&self, wanted: usize, now: Time) -> Option<usize> {
        let (ready, rates): (Vec<usize>, Vec<Option<Rate>>) = (self.reserve.iter().enumerate())
            .filter(|(_, reserve)| reserve.may_be_tried(now))
            .map(|(at, reserve)| (at, reserve.rate(now)))
            .unzip();
        recruit(&self.rates(now), &rates, (wanted, BETTER)).map(|at| ready[at])
    }

    /// Starts to use the candidate of [`Self::better`]; false without one.
    fn recruit(&mut self, wanted: usize, now: Time) -> bool {
        let Some(at) = self.better(wanted, now) else { return false };
        let candidate = self.reserve.remove(at).candidate;
        self.actions.push(RelayAction::OpenThrough(candidate));
        self.in_use.push(InUse { candidate, since: now, opened: false, bad_since: None, rate: None });
        true
    }

    fn give_up(&mut self, at: usize, why: GivenUp, now: Time) {
        let used = self.in_use.remove(at);
        self.actions.push(RelayAction::Close(used.candidate, why));
        self.reserve.push(Reserve { candidate: used.candidate, given_up: Some((now, used.rate)) });
    }
}

/// The index in `unused` of the candidate worth trying (mTCP §3.4.2 [M11]): the fastest one, if it can carry at least
/// `factor` times as much as the slowest path in use, or if fewer than `wanted` are in use. The first of equals wins.
///
/// `None` is a rate not yet measured. It counts as the median of the paths in use (the upper one of two), so that
/// unknown candidates are tried only when a path falls behind the others.
fn recruit(in_use: &[Rate], unused: &[Option<Rate>], (wanted, factor): (usize, f64)) -> Option<usize> {
    let mut sorted = in_use.to_vec();
    sorted.sort_unstable();
    let weakest = sorted.first().copied().unwrap_or(Rate::ZERO);
    let usual = sorted.get(sorted.len() / 2).copied().unwrap_or(Rate::ZERO);
    let expected = unused.iter().map(|rate| rate.unwrap_or(usual)).enumerate();
    let (at, best) = expected.max_by_key(|(at, rate)| (*rate, Reverse(*at)))?;
    let much_better = best.as_bits() as f64 >= weakest.as_bits() as f64 * factor;
    (in_use.len() < wanted || much_better).then_some(at)
}

/// The slowest of the paths that were bad for long enough.
fn worst(in_use: &[InUse], now: Time) -> Option<usize> {
    let is_bad = |path: &InUse| path.bad_since.is_some_and(|since| now >= since + PATIENCE);
    (0..in_use.len()).filter(|at| is_bad(&in_use[*at])).min_by_key(|at| in_use[*at].worth())
}

fn hangs(path: &PathInfo) -> bool {
    matches!(path.state, PathState::Suspect | PathState::Failed)
}

/// Paths that carry far less than the best.
fn far_slower(rates: &BTreeMap<PathId, Rate>) -> Vec<PathId> {
    let report = |(path, rate): (&PathId, &Rate)| PathReport {
        path: *path,
        throughput: *rate,
        failed: false,
        shares_with: Vec::new(),
    };
    let reports: Vec<PathReport> = rates.iter().map(report).collect();
    suppress(&reports, &SuppressionLimits::default()).into_iter().map(|(path, _)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_bad_paths_the_worst_is_replaced_first() {
        let begin = Time::ZERO + Span::from_secs(1);
        let path = |bad_since: Option<Time>, mbit: Option<f64>| InUse {
            candidate: Candidate(0),
            since: begin,
            opened: true,
            bad_since,
            rate: mbit.map(Rate::from_mbit),
        };
        let now = begin + Span::from_secs(10);
        let bad = Some(begin + Span::from_secs(9));
        let slow = || path(bad, Some(0.5));
        // The slowest is neither the first, nor the last, nor bad for longest.
        let longest = path(Some(begin), Some(0.3));
        let in_use = [slow(), longest, path(bad, Some(0.1)), slow()];
        assert_eq!(worst(&in_use, now), Some(2));
        // A path without any rate is worse, and so is a bad one of unknown rate.
        for rate in [Some(0.0), None] {
            assert_eq!(worst(&[slow(), path(bad, rate), path(bad, Some(0.1))], now), Some(1), "{rate:?}");
        }
        // A path that was only briefly bad stays, and so do good ones at any rate.
        let brief = path(Some(now - PATIENCE / 2), Some(0.0));
        assert_eq!(worst(&[path(None, Some(0.0)), brief, path(None, None)], now), None);
    }

    #[test]
    fn an_unused_path_is_recruited_when_it_is_much_better_or_too_few_are_in_use() {
        let [slow, fast] = [2.0, 10.0].map(Rate::from_mbit);
        assert_eq!(recruit(&[slow], &[Some(fast)], (1, 2.0)), Some(0));
        assert_eq!(recruit(&[fast], &[Some(slow)], (1, 2.0)), None);
        assert_eq!(recruit(&[fast], &[Some(slow)], (2, 2.0)), Some(0));
        assert_eq!(recruit(&[fast], &[], (2, 2.0)), None);
        assert_eq!(recruit(&[slow], &[Some(slow), Some(fast), Some(fast)], (1, 2.0)), Some(1));
    }

    #[test]
    fn an_unknown_path_is_tried_when_one_falls_behind_and_not_when_all_are_alike() {
        let rates = |mbit: &[f64]| mbit.iter().copied().map(Rate::from_mbit).collect::<Vec<_>>();
        assert_eq!(recruit(&rates(&[10.0, 8.0, 11.0]), &[None], (1, 2.0)), None);
        assert_eq!(recruit(&rates(&[10.0, 2.0, 11.0]), &[None], (1, 2.0)), Some(0));
        assert_eq!(recruit(&rates(&[10.0, 2.0]), &[None], (1, 2.0)), Some(0));
        assert_eq!(recruit(&rates(&[10.0]), &[None], (1, 2.0)), None);
        // The order is: a better known rate, an unknown rate, a worse known rate.
        let best = [None, Some(Rate::from_mbit(20.0))];
        assert_eq!(recruit(&rates(&[10.0, 2.0, 11.0]), &best, (1, 2.0)), Some(1));
        let worse = [Some(Rate::from_mbit(5.0)), None];
        assert_eq!(recruit(&rates(&[10.0, 2.0, 11.0]), &worse, (1, 2.0)), Some(1));
        assert_eq!(recruit(&[], &[None, None], (1, 2.0)), Some(0));
    }
}
