//! Keeps so many relay paths in use and the rest of the candidates in reserve: a bad path is replaced and a better one recruited
//! while data flow (mTCP §3.4 [M10, M11]).
//!
//! Ten times a second it looks at what the session's paths can carry ([`Carried`]).
//! - A path is *bad* when it has failed, hangs, does not open, or can carry less than 1/ω of the best one, and that for
//!   [`PATIENCE`] on end. Another takes its place at once, if more is expected of it.
//! - A path is *weak* when one in reserve is expected to carry [`BETTER`] times as much, and that for [`DOUBT`] on end. Then that one is
//!   tried beside it; after [`GRACE`] the one that carries least goes, which may be the new one.
//!
//! What a path could carry when it was put back in reserve is remembered for [`MEMORY`], nothing if it did not work; of one that was
//! never in use, or not lately, as much is expected as of the median of those in use. So each candidate is tried once when a path
//! falls behind, and none when all are much the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_net::{
    Endpoint, PathId, PathInfo, PathReport, PathState, Rate, Session, SuppressionLimits, suppress,
};
use anabranch_overlay::select::recruit;
use tokio::time::sleep;

use super::RelayRoute;
use super::carried::Carried;
use super::keeper::{Peer, RelayPaths};
use super::tries::Tries;

/// How often paths are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a path has to be bad before it is replaced.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a path has to be weak before another is tried: longer than a window takes to recover from a loss.
const DOUBT: Duration = Duration::from_secs(2);
/// How many times as much one in reserve is expected to carry to be tried.
const BETTER: f64 = 2.0;
/// How long a new path may take to open, and then to find its rate.
const GRACE: Duration = Duration::from_secs(3);
/// A candidate that was put back is left alone for so long.
const REST: Duration = Duration::from_secs(20);
/// What a path could carry is remembered for so long.
const MEMORY: Duration = Duration::from_secs(300);

/// A path in use.
struct Place {
    route: RelayRoute,
    since: Instant,
    opened: bool,
    bad_since: Option<Instant>,
    /// What it can carry, if that is known.
    rate: Option<Rate>,
    kept: RelayPaths,
}

/// A candidate that is not in use.
struct Spare {
    route: RelayRoute,
    /// When it was put back, and what it could carry then, if that was known.
    put_back: Option<(Instant, Option<Rate>)>,
}

struct Spares {
    endpoint: Arc<Endpoint>,
    session: Session,
    peer: Peer,
    at_once: usize,
    carried: Carried,
    in_use: Vec<Place>,
    reserve: Vec<Spare>,
    weak_since: Option<Instant>,
    tries: Tries,
}

/// Keeps paths through `at_once` of the candidates until the session ends or this is dropped.
pub(crate) async fn keep(
    (endpoint, session): (Arc<Endpoint>, Session),
    candidates: Vec<RelayRoute>,
    (peer, at_once): (Peer, usize),
    tries: Tries,
) {
    let mut spares = Spares {
        endpoint,
        session: session.clone(),
        peer,
        at_once,
        carried: Carried::default(),
        in_use: Vec::new(),
        reserve: candidates.into_iter().map(|route| Spare { route, put_back: None }).collect(),
        weak_since: None,
        tries,
    };
    let work = async {
        loop {
            spares.look(Instant::now());
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = work => {}
        _ = session.closed() => {}
    }
}

impl Place {
    fn is_young(&self, now: Instant) -> bool {
        now < self.since + GRACE
    }

    /// What would be lost without it: nothing while it is bad, and nobody knows of a path that is kept back by rules: it stays.
    fn worth(&self) -> Rate {
        let works = self.opened && self.bad_since.is_none();
        self.rate.unwrap_or(if works { Rate::from_bits(u64::MAX) } else { Rate::ZERO })
    }

    /// Takes what is known of its path, and whether that is among the bad ones.
    fn look(&mut self, path: Option<&PathInfo>, (rate, is_far_slower): (Option<Rate>, bool), now: Instant) {
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

impl Spare {
    fn may_be_tried(&self, now: Instant) -> bool {
        self.put_back.is_none_or(|(at, _)| now >= at + REST)
    }

    fn rate(&self, now: Instant) -> Option<Rate> {
        self.put_back.filter(|(at, _)| now < *at + MEMORY).and_then(|(_, rate)| rate)
    }
}

impl Spares {
    fn look(&mut self, now: Instant) {
        let is_carrying = self.look_at_paths(now);
        while self.in_use.len() < self.at_once && self.recruit(usize::MAX, now) {}
        self.replace_bad(now);
        if self.in_use.len() > self.at_once {
            self.settle(now);
        } else if is_carrying {
            self.try_better(now);
        } else {
            self.weak_since = None;
        }
    }

    /// Puts back the worst path of those that have been bad for long enough, if there is another for it.
    fn replace_bad(&mut self, now: Instant) {
        let Some(at) = worst(&self.in_use, now) else { return };
        // Anything is better than a path that does not work; for one that does, it has to be expected of another.
        let wanted = if self.in_use[at].rate == Some(Rate::ZERO) { usize::MAX } else { 1 };
        if self.in_use.len() > self.at_once || self.recruit(wanted, now) {
            self.put_back(at, "it carries far too little, or nothing", now);
        }
    }

    /// Ends a trial: the path that carries least goes.
    fn settle(&mut self, now: Instant) {
        if !self.in_use.iter().any(|place| place.is_young(now)) {
            let weakest = (0..self.in_use.len()).min_by_key(|at| self.in_use[*at].worth());
            weakest.into_iter().for_each(|at| self.put_back(at, "others carry more", now));
        }
    }

    /// Whether enough flows to tell paths apart.
    fn look_at_paths(&mut self, now: Instant) -> bool {
        let paths = self.session.paths();
        let rates = self.carried.look(&paths, now);
        let slow = far_slower(&rates);
        for place in &mut self.in_use {
            // Its own: there may be others through the same relays.
            let path = paths.iter().find(|path| place.kept.keeps(path.id));
            // While nothing is known, what was known last counts.
            let last = place.rate.filter(|rate| rates.is_empty() && *rate > Rate::ZERO);
            let rate = path.and_then(|path| rates.get(&path.id)).copied().or(last);
            let is_far_slower = path.is_some_and(|path| slow.contains(&path.id));
            place.look(path, (rate, is_far_slower), now);
        }
        !rates.is_empty()
    }

    /// Tries one more beside a path that has been weak for long enough.
    fn try_better(&mut self, now: Instant) {
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

    /// What those in use can carry, as far as that is known and they have had the time to find it.
    fn rates(&self, now: Instant) -> Vec<Rate> {
        self.in_use.iter().filter(|place| !place.is_young(now)).filter_map(|place| place.rate).collect()
    }

    /// The spare to take: one much better than the weakest in use, or any when fewer than `wanted` are in use.
    fn better(&self, wanted: usize, now: Instant) -> Option<usize> {
        let (ready, rates): (Vec<usize>, Vec<Option<Rate>>) = (self.reserve.iter().enumerate())
            .filter(|(_, spare)| spare.may_be_tried(now))
            .map(|(at, spare)| (at, spare.rate(now)))
            .unzip();
        recruit(&self.rates(now), &rates, (wanted, BETTER)).map(|at| ready[at])
    }

    /// Takes a spare into use, as [`Self::better`] says; false when there is none to take.
    fn recruit(&mut self, wanted: usize, now: Instant) -> bool {
        let Some(at) = self.better(wanted, now) else { return false };
        let Spare { route, .. } = self.reserve.remove(at);
        let who = (&self.endpoint, &self.session);
        let kept = RelayPaths::keep_noted(who, std::slice::from_ref(&route), &self.peer, &self.tries);
        tracing::info!(relay = %route, "recruited");
        self.in_use.push(Place { route, since: now, opened: false, bad_since: None, rate: None, kept });
        true
    }

    fn put_back(&mut self, at: usize, why: &str, now: Instant) {
        let place = self.in_use.remove(at);
        tracing::info!(relay = %place.route, "put back in reserve: {why}");
        self.reserve.push(Spare { route: place.route, put_back: Some((now, place.rate)) });
    }
}

/// Of the paths that have been bad for long enough the one that carries least.
fn worst(in_use: &[Place], now: Instant) -> Option<usize> {
    let is_bad = |place: &Place| place.bad_since.is_some_and(|since| now >= since + PATIENCE);
    (0..in_use.len()).filter(|at| is_bad(&in_use[*at])).min_by_key(|at| in_use[*at].worth())
}

fn hangs(path: &PathInfo) -> bool {
    matches!(path.state, PathState::Suspect | PathState::Failed)
}

/// Paths that can carry far less than the best.
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
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let place = |bad_since: Option<Instant>, mbit: Option<f64>| Place {
            route: RelayRoute(Vec::new()),
            since: begin,
            opened: true,
            bad_since,
            rate: mbit.map(Rate::from_mbit),
            kept: RelayPaths::default(),
        };
        let now = begin + 10 * second;
        let bad = Some(begin + 9 * second);
        let slow = || place(bad, Some(0.5));
        // Neither the first, nor the last, nor the one that has been bad for longest.
        let longest = place(Some(begin), Some(0.3));
        let in_use = [slow(), longest, place(bad, Some(0.1)), slow()];
        assert_eq!(worst(&in_use, now), Some(2));
        // One that carries nothing is worse, and so is a bad one of which nothing is known.
        for rate in [Some(0.0), None] {
            assert_eq!(worst(&[slow(), place(bad, rate), place(bad, Some(0.1))], now), Some(1), "{rate:?}");
        }
        // Bad for a moment only, and well: nobody is replaced, however little it carries.
        let moment = place(Some(now - PATIENCE / 2), Some(0.0));
        assert_eq!(worst(&[place(None, Some(0.0)), moment, place(None, None)], now), None);
    }
}
