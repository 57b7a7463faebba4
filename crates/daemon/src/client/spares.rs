//! Keeps so many relay paths in use and the rest of the candidates in reserve: a bad path is dropped and another recruited
//! while data flow (mTCP §3.4 [M10, M11]).
//!
//! Ten times a second it looks at the session's paths. A path is bad when it has failed, hangs, does not open, or can carry less
//! than 1/ω of the best one, and that for half a second on end. What a path can carry is its window over its round-trip
//! time, whether or not there is anything to send. A bad path goes behind those in reserve and the first of them takes its place;
//! when all have been tried, that is the one that was dropped longest ago.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_net::{
    Endpoint, PathInfo, PathReport, PathState, PublicKey, Rate, Session, SuppressionLimits, suppress,
};
use tokio::time::sleep;

use super::RelayRoute;
use super::keeper::{Peer, RelayPaths};

/// How often paths are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a path has to be bad before it is replaced.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a new path may take to open, and then to find its rate.
const GRACE: Duration = Duration::from_secs(3);
/// A candidate that was dropped is left alone for so long.
const REST: Duration = Duration::from_secs(20);

/// A path in use.
struct Place {
    route: RelayRoute,
    since: Instant,
    opened: bool,
    bad_since: Option<Instant>,
    _kept: RelayPaths,
}

impl Place {
    fn leads_through(&self, relays: &[PublicKey]) -> bool {
        self.route.0.iter().map(|hint| hint.node).eq(relays.iter().copied())
    }
}

struct Spares {
    endpoint: Arc<Endpoint>,
    session: Session,
    peer: Peer,
    in_use: Vec<Place>,
    /// With the time before which it is not tried.
    reserve: VecDeque<(RelayRoute, Instant)>,
}

/// Keeps paths through `at_once` of the candidates until the session ends or this is dropped.
pub(super) async fn keep(
    (endpoint, session): (Arc<Endpoint>, Session),
    candidates: Vec<RelayRoute>,
    (peer, at_once): (Peer, usize),
) {
    let now = Instant::now();
    let reserve = candidates.into_iter().map(|route| (route, now)).collect();
    let mut spares = Spares { endpoint, session: session.clone(), peer, in_use: Vec::new(), reserve };
    let work = async {
        loop {
            while spares.in_use.len() < at_once && spares.recruit(Instant::now()) {}
            spares.look(Instant::now());
            sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = work => {}
        _ = session.closed() => {}
    }
}

impl Spares {
    /// Takes the next candidate into use; false when none is left that may be tried.
    fn recruit(&mut self, now: Instant) -> bool {
        let Some(at) = self.reserve.iter().position(|(_, not_before)| *not_before <= now) else {
            return false;
        };
        let Some((route, _)) = self.reserve.remove(at) else { return false };
        let kept = RelayPaths::keep(&self.endpoint, &self.session, std::slice::from_ref(&route), &self.peer);
        self.in_use.push(Place { route, since: now, opened: false, bad_since: None, _kept: kept });
        true
    }

    /// Drops what has been bad for too long, if there is anything better to try.
    fn look(&mut self, now: Instant) {
        let paths = self.session.paths();
        let bad = bad_paths(&paths);
        let mut dropped = None;
        for (at, place) in self.in_use.iter_mut().enumerate() {
            let path = paths.iter().find(|path| place.leads_through(&self.session.relays(&path.route)));
            place.opened |= path.is_some_and(|path| path.state == PathState::Active);
            let young = now < place.since + GRACE;
            let is_bad = match path {
                Some(path) if hangs(path) => true,
                Some(path) => !young && bad.contains(&path.id),
                None => place.opened || !young,
            };
            place.bad_since = if is_bad { place.bad_since.or(Some(now)) } else { None };
            if place.bad_since.is_some_and(|since| now >= since + PATIENCE) {
                dropped = dropped.or(Some(at));
            }
        }
        if let Some(at) = dropped
            && self.recruit(now)
        {
            let place = self.in_use.remove(at);
            tracing::info!(relay = %place.route, "replaced: it carries too little, or nothing");
            self.reserve.push_back((place.route, now + REST));
        }
    }
}

fn hangs(path: &PathInfo) -> bool {
    matches!(path.state, PathState::Suspect | PathState::Failed)
}

/// Paths that can carry far less than the best.
fn bad_paths(paths: &[PathInfo]) -> Vec<anabranch_net::PathId> {
    let measured = paths.iter().filter(|path| path.state == PathState::Active && path.rtt.as_nanos() > 0);
    let report = |path: &PathInfo| PathReport {
        path: path.id,
        throughput: Rate::from_bits((path.window as f64 * 8.0 / path.rtt.as_secs_f64()) as u64),
        failed: false,
        shares_with: Vec::new(),
    };
    let reports: Vec<PathReport> = measured.map(report).collect();
    suppress(&reports, &SuppressionLimits::default()).into_iter().map(|(path, _)| path).collect()
}
