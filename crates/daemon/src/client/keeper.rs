//! Keeps paths through relays open in a session while it lives.
//!
//! One task a chain: opens the sessions to its relays, makes flows, opens the path, waits for whatever ends it (the
//! session's path manager, the relay, the network), and begins again after a pause that grows while nothing works. What
//! carries data meanwhile is the session's affair: a relay that falls silent is noticed there first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anabranch_net::{
    Endpoint, Event, Events, PathChange, PathError, PathId, Pid, PublicKey, ReservedPath, Session,
    SessionError,
};
use anabranch_secure::RelayHint;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::chain::{Prepared, RelayChain};
use super::spares;
use super::trouble::Trouble;
use super::{Entry, Grants, RelayError, RelayRoute};

/// Pause after the first failure; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Pause while the peer has not made a path ready: within a round trip it has.
const NOT_READY_PAUSE: Duration = Duration::from_millis(5);

/// How relays reach the peer.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its addresses, tried in turn.
    pub addresses: Vec<SocketAddr>,
    /// As what this node comes to the relays.
    pub entry: Entry,
}

/// Paths through relays, kept open until this is dropped or the session ends.
#[derive(Debug, Default)]
pub struct RelayPaths {
    tasks: Vec<JoinHandle<()>>,
    routes: Vec<Kept>,
    granted: Grants,
}

/// A chain of relays, and the path through it that is open, or being opened.
#[derive(Debug)]
struct Kept {
    route: RelayRoute,
    path: Arc<Mutex<Option<PathId>>>,
}

impl RelayPaths {
    /// Begins to keep a path through each of `routes`.
    #[must_use]
    pub fn keep(endpoint: &Arc<Endpoint>, session: &Session, routes: &[RelayRoute], peer: &Peer) -> Self {
        let mut paths = Self::default();
        for route in routes {
            paths.add(endpoint, session, route.clone(), peer.clone());
        }
        paths
    }

    /// Notes a path of that way that somebody else keeps.
    #[must_use]
    pub(super) fn noted(route: RelayRoute, path: PathId) -> Self {
        let kept = Kept { route, path: Arc::new(Mutex::new(Some(path))) };
        Self { tasks: Vec::new(), routes: vec![kept], granted: Grants::default() }
    }

    /// Begins to keep a path through each relay that controllers have granted, also those that they grant later instead.
    #[must_use]
    pub fn keep_granted(
        endpoint: &Arc<Endpoint>,
        session: &Session,
        grants: &Grants,
        addresses: &[SocketAddr],
    ) -> Self {
        let peer = Peer { addresses: addresses.to_vec(), entry: Entry::Member(grants.clone()) };
        let granted = grants.clone();
        let (endpoint, session, grants) = (endpoint.clone(), session.clone(), grants.clone());
        let task = tokio::spawn(async move {
            let mut kept: BTreeMap<PublicKey, Self> = BTreeMap::new();
            let mut seen = grants.watch();
            loop {
                let relays = grants.relays();
                // While another grant is asked for, paths live on as long as their relays allow.
                if !relays.is_empty() {
                    kept.retain(|node, _| relays.iter().any(|relay| relay.node == *node));
                }
                for relay in relays {
                    kept.entry(relay.node).or_insert_with(|| {
                        Self::keep(&endpoint, &session, &[RelayRoute(vec![relay.into()])], &peer)
                    });
                }
                grants.changed(&mut seen).await;
            }
        });
        Self { tasks: vec![task], routes: Vec::new(), granted }
    }

    /// Begins to keep paths through `at_once` of the candidates, the first of them at first, and replaces a bad one by another.
    #[must_use]
    pub fn choose(
        endpoint: &Arc<Endpoint>,
        session: &Session,
        candidates: &[RelayRoute],
        (peer, at_once): (&Peer, usize),
    ) -> Self {
        if candidates.is_empty() || at_once == 0 {
            return Self::default();
        }
        let who = (endpoint.clone(), session.clone());
        let task = tokio::spawn(spares::keep(who, candidates.to_vec(), (peer.clone(), at_once)));
        let candidate = |route: &RelayRoute| Kept { route: route.clone(), path: Arc::default() };
        let routes = candidates.iter().map(candidate).collect();
        Self { tasks: vec![task], routes, granted: Grants::default() }
    }

    /// Adds one more.
    pub fn add(&mut self, endpoint: &Arc<Endpoint>, session: &Session, route: RelayRoute, peer: Peer) {
        let kept = Kept { route: route.clone(), path: Arc::default() };
        let path = kept.path.clone();
        let keeper = Keeper { endpoint: endpoint.clone(), session: session.clone(), route, peer, path };
        self.tasks.push(tokio::spawn(keeper.run()));
        self.routes.push(kept);
    }

    /// Whether a path of that way is kept, or would be if it were needed. Where granted relays are reached is the controllers' affair.
    pub(super) fn leads_through(&self, route: &RelayRoute) -> bool {
        let is_granted = || self.granted.relays().iter().any(|relay| route.nodes().eq([relay.node]));
        self.routes.iter().any(|kept| kept.route.is_way_of(route)) || is_granted()
    }

    /// Whether a path is one of those that were added here, or noted.
    pub(super) fn keeps(&self, path: PathId) -> bool {
        self.routes.iter().any(|kept| *lock(&kept.path) == Some(path))
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
    /// With the addresses that were named, or that their names have now.
    named: Vec<RelayHint>,
    /// With those at which they are called.
    relays: Vec<RelayHint>,
    was_lost: bool,
}

struct Keeper {
    endpoint: Arc<Endpoint>,
    session: Session,
    route: RelayRoute,
    peer: Peer,
    /// The path, for others to see.
    path: Arc<Mutex<Option<PathId>>>,
}

impl Keeper {
    async fn run(self) {
        let session = self.session.clone();
        tokio::select! {
            _ = session.closed() => {}
            () = self.keep() => {}
        }
    }

    async fn keep(&self) {
        let mut pause = FIRST_PAUSE;
        let mut told = Vec::new();
        let grants = self.peer.entry.grants();
        let (mut seen, mut was_lost) = (grants.watch(), false);
        loop {
            let mut worked = false;
            let (named, unresolved) = self.route.resolve().await;
            let relays = grants.known(&named, was_lost);
            let error = match unresolved.filter(|_| relays.iter().any(|relay| relay.addresses.is_empty())) {
                Some(unresolved) => unresolved.into(),
                None => self.attempt(&Way { grants: &grants, named, relays, was_lost }, &mut worked).await,
            };
            was_lost = error.is_lost();
            if was_lost {
                grants.on_tried(self.route.nodes(), false);
            }
            // Waiting does not mend that: somebody should know, once. Controllers replace relays that they granted and that are gone.
            let is_granted = |node| grants.relays().iter().any(|relay| relay.node == node);
            let is_replaced = was_lost && self.route.nodes().any(is_granted);
            match Trouble::of(&error).filter(|trouble| !told.contains(trouble) && !is_replaced) {
                Some(trouble) => {
                    told.push(trouble);
                    let advice = trouble.advice(&self.endpoint.node());
                    tracing::warn!(relay = %self.route, "no path through the relay: {error}{advice}");
                }
                None => tracing::info!(relay = %self.route, %error, "no path through the relay now"),
            }
            if worked {
                pause = FIRST_PAUSE;
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                // Controllers have told where relays are now.
                () = grants.changed(&mut seen) => pause = FIRST_PAUSE,
            }
        }
    }

    /// Opens the path and waits for its end; again over the same sessions as long as they live.
    async fn attempt(&self, way: &Way<'_>, worked: &mut bool) -> RelayError {
        let Way { grants, named, relays, was_lost } = way;
        let opened = tokio::select! {
            opened = RelayChain::open(&self.endpoint, relays, &self.peer.entry) => opened,
            () = grants.moved(named, (relays, *was_lost)) => return RelayError::Gone,
        };
        let chain = match opened {
            Ok(chain) => chain,
            Err(error) => return error,
        };
        grants.on_tried(self.route.nodes(), true);
        let lost = async {
            tokio::select! {
                () = chain.broken() => {}
                () = self.moved_while_silent(way, &chain) => {}
            }
        };
        tokio::pin!(lost);
        loop {
            let path = tokio::select! {
                path = self.open_path(&chain) => path,
                () = &mut lost => return RelayError::Gone,
            };
            let (path, mut prepared, mut events) = match path {
                Ok(path) => path,
                Err(error) => return error,
            };
            // Also when nobody wants the path any more: what was on its way there is sent elsewhere at once.
            let _open = OpenPath::new(self, path);
            let error = tokio::select! {
                opened = closed(&mut events, path) => {
                    *worked |= opened;
                    // The session has let go of the path: unreachable, or not wanted. The relay may be well.
                    if !opened {
                        return RelayError::Path(PathError::Unknown);
                    }
                    continue;
                }
                error = prepared.over() => error,
                () = &mut lost => RelayError::Gone,
            };
            *worked = true;
            return error;
        }
    }

    /// Has controllers asked where a relay is that falls silent, and waits until they tell that it is elsewhere. One that was restarted at
    /// another address does not say that it knows the session no more; one that answers again goes on with it.
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

    /// A path through the chain, with the flows that carry it.
    async fn open_path(&self, chain: &RelayChain) -> Result<(PathId, Prepared, Events), RelayError> {
        let targets: Vec<Option<SocketAddr>> = if chain.is_guest() {
            vec![None]
        } else {
            self.peer.addresses.iter().copied().map(Some).collect()
        };
        let mut last = RelayError::NoAddress;
        for target in targets {
            let reservation = self.reserve().await?;
            let reserved = reservation.path;
            let prepared = match self.prepare(chain, target, &reserved).await {
                Ok(prepared) => prepared,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            let events = self.session.events();
            let opened = self.session.open_path_through(reserved, prepared.chain.clone());
            opened.map_err(|error| path_error(&error))?;
            return Ok((reserved.id, prepared, events));
        }
        Err(last)
    }

    async fn prepare(
        &self,
        chain: &RelayChain,
        target: Option<SocketAddr>,
        reserved: &ReservedPath,
    ) -> Result<Prepared, RelayError> {
        let (own, out): (Pid, Pid) = (reserved.own, reserved.remote);
        let peer = self.session.peer();
        chain.prepare(target.map(|address| (address, peer)), out, own).await
    }

    async fn reserve(&self) -> Result<Reservation<'_>, RelayError> {
        loop {
            match self.session.reserve_path() {
                Ok(path) => return Ok(Reservation { session: &self.session, path }),
                Err(SessionError::Path(PathError::NotReady)) => sleep(NOT_READY_PAUSE).await,
                Err(error) => return Err(path_error(&error)),
            }
        }
    }
}

/// Gives its path id back when dropped, unless the path was opened: also when the relay goes before that, or nobody wants the path any more.
struct Reservation<'a> {
    session: &'a Session,
    path: ReservedPath,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.session.release_path(self.path);
    }
}

/// Closes its path when dropped.
struct OpenPath<'a> {
    keeper: &'a Keeper,
    path: PathId,
}

impl<'a> OpenPath<'a> {
    fn new(keeper: &'a Keeper, path: PathId) -> Self {
        *lock(&keeper.path) = Some(path);
        Self { keeper, path }
    }
}

impl Drop for OpenPath<'_> {
    fn drop(&mut self) {
        *lock(&self.keeper.path) = None;
        self.keeper.session.close_path(self.path);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while held")
}

fn path_error(error: &SessionError) -> RelayError {
    match error {
        SessionError::Path(error) => RelayError::Path(*error),
        _ => RelayError::Gone,
    }
}

/// Waits until the path is closed; true when it had been open.
async fn closed(events: &mut Events, path: PathId) -> bool {
    let mut opened = false;
    while let Some(event) = events.next().await {
        match event {
            Event::Path { path: changed, change: PathChange::Opened(_) } if changed == path => opened = true,
            Event::Path { path: changed, change: PathChange::Closed(_) } if changed == path => return opened,
            _ => {}
        }
    }
    std::future::pending().await
}
