//! Keeps paths through relays open in a session while it lives.
//!
//! Each chain has one task. It opens the sessions to the relays, allocates flows, opens the path and waits for its end,
//! caused by the session's path manager, the relay or the network. Then it starts again after a pause, which grows
//! while nothing works. Meanwhile the session moves its data to other paths: it notices a silent relay first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anabranch_agent::Retry;
use anabranch_net::{
    AbandonReason, Endpoint, PathError, PathId, Pid, PublicKey, ReservedPath, Session, SessionError,
};
use anabranch_secure::RelayHint;
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};

use super::chain::{Prepared, RelayChain};
use super::entries;
use super::open_path::{self, Carrier, End, OpenPath, Shown, lock};
use super::spares::{self, Candidates};
use super::tries::Tries;
use super::trouble::Trouble;
use super::{Entry, RelayError, RelayRoute};
use crate::grants::Grants;

/// First and longest pause while the peer has not provided the next path id, which takes a round trip.
const FIRST_NOT_READY: Duration = Duration::from_millis(5);
const LONGEST_NOT_READY: Duration = Duration::from_millis(250);

/// How relays reach the peer.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its addresses, tried one after the other.
    pub addresses: Vec<SocketAddr>,
    /// How relays admit this node.
    pub entry: Entry,
}

/// How a session began: its first path leads through relays.
pub(crate) struct Begun {
    pub route: RelayRoute,
    pub peer: Peer,
    pub carrier: Carrier,
}

/// Paths through relays, kept open until this is dropped or the session ends.
#[derive(Debug, Default)]
pub struct RelayPaths {
    tasks: Vec<JoinHandle<()>>,
    routes: Vec<Kept>,
    granted: Grants,
    tries: Tries,
}

/// A chain of relays, and its path that is open or being opened.
#[derive(Debug)]
struct Kept {
    route: RelayRoute,
    path: Shown,
}

impl RelayPaths {
    /// Starts to keep a path through each of `routes`.
    pub fn keep(endpoint: &Arc<Endpoint>, session: &Session, routes: &[RelayRoute], peer: &Peer) -> Self {
        Self::keep_noted((endpoint, session), routes, peer, &Tries::default())
    }

    /// As [`Self::keep`], but records the attempts in shared `tries`.
    pub(crate) fn keep_noted(
        (endpoint, session): (&Arc<Endpoint>, &Session),
        routes: &[RelayRoute],
        peer: &Peer,
        tries: &Tries,
    ) -> Self {
        let tries = tries.clone();
        let mut paths = Self { tasks: Vec::new(), routes: Vec::new(), granted: Grants::default(), tries };
        for route in routes {
            paths.add(endpoint, session, route.clone(), peer.clone());
        }
        paths
    }

    /// Continues to keep the path on which the session began.
    pub(crate) fn go_on(endpoint: &Arc<Endpoint>, session: &Session, begun: Begun) -> Self {
        Self::go_on_noted((endpoint, session), begun, &Tries::default())
    }

    /// As [`Self::go_on`], but records the attempts in shared `tries`.
    pub(crate) fn go_on_noted(
        (endpoint, session): (&Arc<Endpoint>, &Session),
        Begun { route, peer, carrier }: Begun,
        tries: &Tries,
    ) -> Self {
        let mut paths = Self::keep_noted((endpoint, session), &[], &peer, tries);
        let keeper = paths.keeper(endpoint, session, (route, peer));
        let first = OpenPath::new((session, session.events()), (PathId::FIRST, &keeper.path), carrier);
        paths.tasks.push(tokio::spawn(keeper.run(Some(first.opened()))));
        paths
    }

    /// Starts to keep a path through each granted relay, including later replacements.
    pub fn keep_granted(
        endpoint: &Arc<Endpoint>,
        session: &Session,
        grants: &Grants,
        addresses: &[SocketAddr],
    ) -> Self {
        let peer = Peer { addresses: addresses.to_vec(), entry: Entry::Member(grants.clone()) };
        let (granted, tries) = (grants.clone(), Tries::default());
        let noted = tries.clone();
        let (endpoint, session, grants) = (endpoint.clone(), session.clone(), grants.clone());
        let task = tokio::spawn(async move {
            let mut kept: BTreeMap<PublicKey, Self> = BTreeMap::new();
            let mut seen = grants.watch();
            loop {
                let relays = grants.relays();
                // While another grant is requested, paths continue as long as their relays allow.
                if !relays.is_empty() {
                    kept.retain(|node, _| relays.iter().any(|relay| relay.node == *node));
                }
                for relay in relays {
                    kept.entry(relay.node).or_insert_with(|| {
                        let route = RelayRoute(vec![relay.into()]);
                        Self::keep_noted((&endpoint, &session), &[route], &peer, &noted)
                    });
                }
                grants.changed(&mut seen).await;
            }
        });
        Self { tasks: vec![task], routes: Vec::new(), granted, tries }
    }

    /// Starts to keep paths through `at_once` of the candidates, beginning with the first ones; replaces bad ones.
    pub fn choose(
        endpoint: &Arc<Endpoint>,
        session: &Session,
        candidates: &[RelayRoute],
        (peer, at_once): (&Peer, usize),
    ) -> Self {
        Self::choose_among(Candidates::new(endpoint, session, peer, candidates), at_once, None)
    }

    /// As [`Self::choose`]. If the session began through the first candidate, `begun` carries its path.
    pub(crate) fn choose_among(among: Candidates, at_once: usize, begun: Option<Carrier>) -> Self {
        if among.routes.is_empty() || at_once == 0 {
            return Self::default();
        }
        let candidate = |route: &RelayRoute| Kept { route: route.clone(), path: Arc::default() };
        let routes = among.routes.iter().map(candidate).collect();
        let tries = among.tries.clone();
        let task = tokio::spawn(spares::keep(among, at_once, begun));
        Self { tasks: vec![task], routes, granted: Grants::default(), tries }
    }

    pub fn add(&mut self, endpoint: &Arc<Endpoint>, session: &Session, route: RelayRoute, peer: Peer) {
        let keeper = self.keeper(endpoint, session, (route, peer));
        self.tasks.push(tokio::spawn(keeper.run(None)));
    }

    fn keeper(
        &mut self,
        endpoint: &Arc<Endpoint>,
        session: &Session,
        (route, peer): (RelayRoute, Peer),
    ) -> Keeper {
        let tried = self.tries.begin(&route);
        let path = Shown::new(open_path::Way { tried, ..open_path::Way::default() });
        self.routes.push(Kept { route: route.clone(), path: path.clone() });
        Keeper { endpoint: endpoint.clone(), session: session.clone(), route, peer, path }
    }

    /// Whether this route is kept, in use or in reserve. The addresses of granted relays are not compared.
    pub(crate) fn leads_through(&self, route: &RelayRoute) -> bool {
        let is_granted = || self.granted.relays().iter().any(|relay| route.nodes().eq([relay.node]));
        self.routes.iter().any(|kept| kept.route.is_way_of(route)) || is_granted()
    }

    /// The routes that never gave a path, as written, each with the reason.
    pub(crate) fn without_path(&self) -> Vec<(String, String)> {
        self.tries.without_path()
    }

    /// Why this route gave no path so far.
    pub(crate) fn why_without_path(&self, route: &RelayRoute) -> Option<String> {
        self.tries.why_without_path(route)
    }

    /// Whether a path belongs to one of these routes.
    pub(crate) fn keeps(&self, path: PathId) -> bool {
        self.routes.iter().any(|kept| *lock(&kept.path.path) == Some(path))
    }
}

impl Drop for RelayPaths {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// The relays of a route for one attempt.
struct Way<'a> {
    grants: &'a Grants,
    /// The configured addresses, or those of the configured names.
    named: Vec<RelayHint>,
    /// The addresses to call.
    relays: Vec<RelayHint>,
    was_lost: bool,
}

struct Keeper {
    endpoint: Arc<Endpoint>,
    session: Session,
    route: RelayRoute,
    peer: Peer,
    /// The current path, shared with others.
    path: Shown,
}

impl Keeper {
    async fn run(self, first: Option<OpenPath>) {
        let session = self.session.clone();
        tokio::select! {
            _ = session.closed() => {}
            () = self.keep(first) => {}
        }
    }

    /// Keeps a path open; `first` is already open.
    async fn keep(&self, mut first: Option<OpenPath>) {
        let (clock, mut retry) = (self.endpoint.clock(), Retry::default());
        let mut told = Vec::new();
        let grants = self.peer.entry.grants();
        let (mut seen, mut was_lost) = (grants.watch(), false);
        loop {
            let mut worked = false;
            let (named, unresolved) = self.route.resolve().await;
            let relays = grants.known(&named, was_lost);
            let error = match unresolved.filter(|_| relays.iter().any(|relay| relay.addresses.is_empty())) {
                Some(unresolved) => unresolved.into(),
                None => {
                    let way = Way { grants: &grants, named, relays, was_lost };
                    self.attempt(&way, first.take(), &mut worked).await
                }
            };
            if worked {
                told.clear();
            }
            let trouble = Trouble::of(&error);
            let advice = trouble.map_or_else(String::new, |trouble| trouble.advice(&self.endpoint.node()));
            self.path.tried.failed(format!("{error}{advice}"));
            was_lost = error.is_lost();
            if was_lost {
                grants.on_tried(self.route.nodes(), false);
            }
            // Retries do not help, so warn once. Controllers replace granted relays that are gone.
            let is_granted = |node| grants.relays().iter().any(|relay| relay.node == node);
            let is_replaced = was_lost && self.route.nodes().any(is_granted);
            match trouble.filter(|trouble| !told.contains(trouble) && !is_replaced) {
                Some(trouble) => {
                    told.push(trouble);
                    self.path.tried.warned();
                    tracing::warn!(relay = %self.route, "no path through the relay: {error}{advice}");
                }
                None => tracing::info!(relay = %self.route, %error, "no path through the relay now"),
            }
            let retry_at = retry.on_failed(clock.now(), worked);
            tokio::select! {
                () = sleep_until(clock.instant(retry_at).into()) => {}
                // Controllers have reported new addresses of relays.
                () = grants.changed(&mut seen) => retry.on_news(),
            }
        }
    }

    /// Opens the path and waits for its end; repeats this over the same sessions while they live.
    async fn attempt(&self, way: &Way<'_>, mut first: Option<OpenPath>, worked: &mut bool) -> RelayError {
        let chain = match first.as_ref().and_then(OpenPath::chain) {
            Some(chain) => chain.clone(),
            None => match self.open_chain(way).await {
                Ok(chain) => Arc::new(chain),
                Err(error) => return error,
            },
        };
        self.path.tried.reached();
        way.grants.on_tried(self.route.nodes(), true);
        let lost = async {
            tokio::select! {
                () = chain.broken() => {}
                () = self.moved_while_silent(way, &chain) => {}
            }
        };
        tokio::pin!(lost);
        loop {
            let opened = match first.take() {
                Some(first) => Ok(first),
                None => tokio::select! {
                    opened = self.open_path(&chain, (None, self.path.clone())) => opened,
                    () = &mut lost => return RelayError::Gone,
                },
            };
            let mut open = match opened {
                Ok(open) => open,
                Err(error) => return error,
            };
            let open_at = |entry| self.open_path(&chain, (Some(entry), Shown::default()));
            let held = entries::hold((&self.endpoint, &self.session), (&chain, &mut open), open_at);
            let error = tokio::select! {
                end = held => match end {
                    End::Closed { was_open } => {
                        *worked |= was_open;
                        // The session closed the path because it did not answer or is not wanted. The relay may still
                        // work.
                        if !was_open {
                            let why = open.why_closed().unwrap_or(AbandonReason::Unreachable);
                            return RelayError::NotOpened(why);
                        }
                        continue;
                    }
                    End::Dropped(error) => error,
                },
                () = &mut lost => RelayError::Gone,
            };
            open.on_dropped();
            *worked = true;
            return error;
        }
    }

    async fn open_chain(&self, way: &Way<'_>) -> Result<RelayChain, RelayError> {
        let Way { grants, named, relays, was_lost } = way;
        tokio::select! {
            opened = RelayChain::open(&self.endpoint, relays, &self.peer.entry) => opened,
            () = grants.moved(named, (relays, *was_lost)) => Err(RelayError::Gone),
        }
    }

    /// Has controllers asked for the address of a silent relay, and waits until they report a new one. A relay that
    /// restarted at another address cannot report that it lost the session. A relay that answers again keeps its
    /// session.
    async fn moved_while_silent(&self, way: &Way<'_>, chain: &RelayChain) {
        let Way { grants, named, .. } = way;
        let known = grants.known(named, true);
        loop {
            let at = chain.silent(None).await;
            grants.on_tried([named[at].node], false);
            tokio::select! {
                () = grants.moved(named, (&known, true)) => return,
                _ = chain.silent(Some(at)) => grants.on_tried([named[at].node], true),
            }
        }
    }

    /// A path through the chain, with the flows that carry it. It enters at this address, or at any.
    async fn open_path(
        &self,
        chain: &Arc<RelayChain>,
        (entry, shown): (Option<SocketAddr>, Shown),
    ) -> Result<OpenPath, RelayError> {
        let targets: Vec<Option<SocketAddr>> = if chain.is_guest() {
            vec![None]
        } else {
            self.peer.addresses.iter().copied().map(Some).collect()
        };
        let mut last = RelayError::NoAddress;
        for target in targets {
            let reservation = self.reserve().await?;
            let reserved = reservation.path;
            let prepared = match self.prepare(chain, (target, entry), &reserved).await {
                Ok(prepared) => prepared,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            let events = self.session.events();
            let opened = self.session.open_path_through(reserved, prepared.chain.clone());
            opened.map_err(|error| path_error(&error))?;
            let carrier = Carrier { chain: chain.clone(), prepared };
            return Ok(OpenPath::new((&self.session, events), (reserved.id, &shown), carrier));
        }
        Err(last)
    }

    async fn prepare(
        &self,
        chain: &RelayChain,
        (target, entry): (Option<SocketAddr>, Option<SocketAddr>),
        reserved: &ReservedPath,
    ) -> Result<Prepared, RelayError> {
        let pids: (Pid, Pid) = (reserved.remote, reserved.own);
        let peer = self.session.peer();
        chain.prepare(target.map(|address| (address, peer)), pids, entry).await
    }

    async fn reserve(&self) -> Result<Reservation<'_>, RelayError> {
        let mut pause = FIRST_NOT_READY;
        loop {
            match self.session.reserve_path() {
                Ok(path) => return Ok(Reservation { session: &self.session, path }),
                Err(SessionError::Path(PathError::NotReady)) => {
                    sleep(pause).await;
                    pause = longer(pause);
                }
                Err(error) => return Err(path_error(&error)),
            }
        }
    }
}

/// The next pause. It adds at most a quarter to what the peer takes.
fn longer(pause: Duration) -> Duration {
    (pause + pause / 4).min(LONGEST_NOT_READY)
}

/// A reserved path id. Dropping it returns the id unless the path was opened.
struct Reservation<'a> {
    session: &'a Session,
    path: ReservedPath,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.session.release_path(self.path);
    }
}

fn path_error(error: &SessionError) -> RelayError {
    match error {
        SessionError::Path(error) => RelayError::Path(*error),
        _ => RelayError::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_provides_no_path_ids_is_asked_ever_less_often() {
        let mut pauses = vec![FIRST_NOT_READY];
        while pauses.iter().sum::<Duration>() < Duration::from_secs(60) {
            pauses.push(longer(pauses[pauses.len() - 1]));
        }
        assert!(pauses.len() < 300, "{}", pauses.len());
        assert!(pauses.is_sorted() && pauses[0] < pauses[1]);
    }
}
