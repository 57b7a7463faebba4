//! A session with its paths: lists them, changes their rules, and adds and removes relays while data flow.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anabranch_net::{
    Endpoint, PathInfo, PathRule, PathRules, PathState, PublicKey, Rate, Session, Standing, TicketSecret,
};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use crate::relay::{Entry, Peer, RelayPaths, RelayRoute};

/// How long adding a path may take before it is reported as not open yet.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long resolving names may take, to compare routes; it is part of what a caller waits.
const NAMES: Duration = Duration::from_secs(1);
/// How often to check whether it is open.
const LOOK: Duration = Duration::from_millis(10);

/// A path of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Its id, never used again in the session.
    pub id: u32,
    /// The interface that its packets leave by, if it has a name.
    pub interface: Option<String>,
    /// The address here.
    pub local: Option<String>,
    /// The remote address; for a path through relays the one of the first relay.
    pub remote: String,
    /// The keys of the relays that it goes through, in order.
    pub relays: Vec<String>,
    pub state: String,
    /// Its current use: `in-use`, `stands-in`, or why it carries nothing.
    pub standing: String,
    /// The same in words; `None` while it is in use.
    pub why: Option<String>,
    /// The cap that its bytes count against.
    pub cap: Option<CapStatus>,
    /// The highest rate for packets to the peer, the lower of both ends' limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_mbit: Option<f64>,
    /// Smoothed round-trip time.
    pub rtt_ms: f64,
    /// Bytes sent, and received.
    pub bytes: [u64; 2],
    /// Packets declared lost.
    pub lost: u64,
}

/// A byte cap, shared by all paths under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapStatus {
    /// The whole cap.
    pub bytes: u64,
    /// The bytes not assigned to a path yet.
    pub left: u64,
    /// The day of the month on which it starts anew, if its use is kept until then.
    pub resets_on: Option<u8>,
}

/// A session and its paths through relays, which can change at run time. Clones are handles to the same session. A node
/// holds one until the session is closed; dropping the last one closes the paths through relays.
#[derive(Clone)]
pub struct NodeSession(Arc<Inner>);

impl fmt::Debug for NodeSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSession").field("peer", &self.0.session.peer()).finish_non_exhaustive()
    }
}

struct Inner {
    endpoint: Arc<Endpoint>,
    session: Session,
    peer: Peer,
    kept: Mutex<Vec<(RelayRoute, RelayPaths)>>,
    /// Further paths, which cannot be removed by hand.
    others: Mutex<Vec<RelayPaths>>,
    /// The relays that admit this node as a guest of the peer, and the secret for them.
    hosts: OnceLock<(Vec<PublicKey>, TicketSecret)>,
}

impl NodeSession {
    /// Begins to keep a path open through each of `routes`.
    pub fn new(endpoint: &Arc<Endpoint>, session: &Session, routes: &[RelayRoute], peer: &Peer) -> Self {
        let (endpoint, session, peer) = (endpoint.clone(), session.clone(), peer.clone());
        let (kept, others, hosts) = Default::default();
        let running = Self(Arc::new(Inner { endpoint, session, peer, kept, others, hosts }));
        routes.iter().for_each(|route| running.adopt(route.clone(), running.keep(route)));
        running
    }

    /// Keeps further paths: through granted relays, or through chosen candidates. No second path is added through their
    /// relays.
    #[must_use]
    pub fn beside(self, others: RelayPaths) -> Self {
        self.others().push(others);
        self
    }

    /// Names the relays of the peer's ticket: a path that is added there again needs the ticket's secret.
    pub(crate) fn guest_at(&self, relays: impl Iterator<Item = PublicKey>, secret: &TicketSecret) {
        // A session has one ticket.
        let _ = self.0.hosts.set((relays.collect(), secret.clone()));
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.0.session
    }

    /// Registers paths through `route` that are already kept.
    pub(crate) fn adopt(&self, route: RelayRoute, paths: RelayPaths) {
        self.kept().push((route, paths));
    }

    fn kept(&self) -> MutexGuard<'_, Vec<(RelayRoute, RelayPaths)>> {
        self.0.kept.lock().expect("no panic while held")
    }

    fn others(&self) -> MutexGuard<'_, Vec<RelayPaths>> {
        self.0.others.lock().expect("no panic while held")
    }

    fn keep(&self, route: &RelayRoute) -> RelayPaths {
        let Inner { endpoint, session, .. } = &*self.0;
        RelayPaths::keep(endpoint, session, std::slice::from_ref(route), &self.peer_through(route))
    }

    /// The peer as the relays of a route reach it.
    fn peer_through(&self, route: &RelayRoute) -> Peer {
        match self.0.hosts.get() {
            Some((relays, secret)) if route.nodes().all(|node| relays.contains(&node)) => {
                Peer { addresses: Vec::new(), entry: Entry::Guest(secret.clone()) }
            }
            _ => self.peer(),
        }
    }

    /// The peer's addresses for relays: the given ones, or the remote addresses of the direct paths.
    fn peer(&self) -> Peer {
        let Inner { session, peer, .. } = &*self.0;
        let mut peer = peer.clone();
        if peer.addresses.is_empty() {
            let direct = session.paths().into_iter().filter(|path| session.relays(&path.route).is_empty());
            peer.addresses = direct.map(|path| path.route.remote).collect();
        }
        peer
    }

    /// All paths, in the order in which they were opened.
    pub fn list(&self) -> Vec<PathStatus> {
        let session = &self.0.session;
        let status = |path: PathInfo| PathStatus {
            id: path.id.0,
            interface: session.interface(&path.route).filter(|name| !name.is_empty()),
            local: session.local_address(&path.route).map(|address| address.to_string()),
            remote: path.route.remote.to_string(),
            relays: session.relays(&path.route).iter().map(ToString::to_string).collect(),
            state: path.state.as_str().to_owned(),
            standing: path.standing.as_str().to_owned(),
            why: (path.standing != Standing::InUse).then(|| path.standing.to_string()),
            cap: path.meter.map(|meter| CapStatus {
                bytes: meter.cap(),
                left: meter.left(),
                resets_on: meter.resets_on(),
            }),
            limit_mbit: path.rate_limit.map(Rate::as_mbit),
            rtt_ms: path.rtt.as_secs_f64() * 1e3,
            bytes: [path.stats.bytes_sent, path.stats.bytes_received],
            lost: path.stats.packets_lost,
        };
        session.paths().into_iter().map(status).collect()
    }

    /// Routes through relays that never gave a path, each with the reason.
    pub fn without_path(&self) -> Vec<(String, String)> {
        let (kept, others) = (self.kept(), self.others());
        kept.iter().map(|(_, paths)| paths).chain(&*others).flat_map(RelayPaths::without_path).collect()
    }

    /// Adds a rule before all others: `PATTERN=USE[:CAP][@RATE]`; a path's number as the pattern matches that path.
    ///
    /// # Errors
    /// If it is not a rule, there is no such path, or no path would remain.
    pub fn set(&self, rule: &str) -> Result<(), String> {
        let session = &self.0.session;
        let numbered = rule.split_once('=').and_then(|(id, terms)| Some((id.parse::<u32>().ok()?, terms)));
        let rule = match numbered {
            Some((id, terms)) => {
                let terms = super::rules::parse_terms(terms)?;
                if terms.meter.as_ref().is_some_and(|meter| meter.resets_on().is_some()) {
                    return Err("a cap that lasts needs a pattern, such as the interface of the path".into());
                }
                let path = session.paths().into_iter().find(|path| path.id.0 == id);
                let path = path.ok_or_else(|| format!("there is no path {id}"))?;
                PathRule { pattern: session.pattern_of(&path.route), terms }
            }
            None => super::rules::parse_rule(rule)?,
        };
        let rules = super::keep_caps(session.path_rules().with(&rule)).map_err(|error| error.to_string())?;
        session.set_path_rules(rules).map_err(|error| error.to_string())?;
        super::rules::warn_of_idle_rules(&self.0.endpoint, &PathRules::new(vec![rule]), None);
        Ok(())
    }

    /// Whether the path of this route is open.
    fn is_open(&self, route: &RelayRoute) -> bool {
        let kept = self.kept();
        let mut paths = self.0.session.paths().into_iter().filter(|path| path.state == PathState::Active);
        paths.any(|path| kept.iter().any(|(known, keeper)| known == route && keeper.keeps(path.id)))
    }

    /// Refuses a route that is already kept: two paths over one route would share everything.
    fn check_is_new(
        &self,
        (route, ways): (&RelayRoute, &[(RelayRoute, RelayRoute)]),
        kept: &[(RelayRoute, RelayPaths)],
    ) -> Result<(), String> {
        let session = &self.0.session;
        let paths = session.paths();
        let way = way_of(route, ways);
        let known = kept.iter().find(|(known, _)| way_of(known, ways).is_way_of(way));
        let (why, open) = if let Some((_, keeper)) = known {
            ("named or added before", paths.iter().find(|path| keeper.keeps(path.id)))
        } else if self.others().iter().any(|others| others.leads_through(way)) {
            let is_named = |path: &PathInfo| kept.iter().any(|(_, keeper)| keeper.keeps(path.id));
            let leads = |path: &&PathInfo| session.relays(&path.route).into_iter().eq(route.nodes());
            let mut open = paths.iter().filter(leads);
            ("granted by a controller, or one of those to choose from", open.find(|path| !is_named(path)))
        } else {
            return Ok(());
        };
        let which =
            open.map_or("none is open at the moment".to_owned(), |path| format!("path {}", path.id.0));
        Err(format!("a path through {route} is kept already, {why}: {which}"))
    }

    /// Starts to keep a path through these relays, and waits until it is open.
    ///
    /// # Errors
    /// If there is one already, it is removed meanwhile, or it does not open soon. In the last case the attempts
    /// continue.
    pub async fn add(&self, route: &RelayRoute) -> Result<(), String> {
        let begin = Instant::now();
        self.begin(route).await?;
        while !self.is_open(route) {
            let known = self
                .kept()
                .iter()
                .find(|(known, _)| known == route)
                .map(|(_, keeper)| keeper.why_without_path(route));
            let Some(why) = known else {
                return Err(format!("the path through {route} was taken back before it was open"));
            };
            if begin.elapsed() > PATIENCE {
                let why = why.unwrap_or_else(|| "one was open and is gone".to_owned());
                let given = match self.0.peer.entry {
                    Entry::Member(_) => "",
                    Entry::Guest(_) => "; was the ticket's maker given it with `--relay`?",
                };
                return Err(format!(
                    "no path through {route} yet: {why}{given} (it is tried on until it is taken back with `path remove`)"
                ));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// Checks that a route is new and starts to keep it, under one lock because requests may run concurrently.
    async fn begin(&self, route: &RelayRoute) -> Result<(), String> {
        // Routes that are written alike are found without a name server.
        self.check_is_new((route, &[]), &self.kept())?;
        let ways = self.ways(route).await;
        let mut kept = self.kept();
        self.check_is_new((route, &ways), &kept)?;
        kept.push((route.clone(), self.keep(route)));
        Ok(())
    }

    /// This route and the kept ones, each as written and with the current addresses of its names, if these resolve
    /// within [`NAMES`].
    async fn ways(&self, route: &RelayRoute) -> Vec<(RelayRoute, RelayRoute)> {
        let named: Vec<RelayRoute> = self.kept().iter().map(|(route, _)| route.clone()).collect();
        let resolving = named.into_iter().chain([route.clone()]).map(async |named| {
            let way = timeout(NAMES, named.with_addresses()).await.unwrap_or_else(|_| named.clone());
            (named, way)
        });
        join_all(resolving).await
    }

    /// Closes a path through relays for good.
    ///
    /// # Errors
    /// If there is no such path, it was not requested by hand, or no other path is open.
    pub fn remove(&self, id: u32) -> Result<(), String> {
        let paths = self.0.session.paths();
        let path = paths.iter().find(|path| path.id.0 == id);
        let path = path.ok_or_else(|| format!("there is no path {id}"))?;
        let mut kept = self.kept();
        // Other paths may use the same relays.
        let Some(at) = kept.iter().position(|(_, keeper)| keeper.keeps(path.id)) else {
            return Err(format!(
                "path {id} is not one through relays that were named or added here; \
                 `anabranch path set {id}=never` leaves it unused"
            ));
        };
        self.give_up((&mut kept, at), &paths)
    }

    /// Like [`Self::remove`], for the path over this route, which need not be open.
    ///
    /// # Errors
    /// If no such path was requested by hand, or it is the only open path.
    pub async fn take_back(&self, route: &RelayRoute) -> Result<(), String> {
        let is_told = find((route, &[]), &self.kept()).is_some();
        let ways = if is_told { Vec::new() } else { self.ways(route).await };
        let mut kept = self.kept();
        let at = find((route, &ways), &kept);
        let at = at.ok_or_else(|| format!("no path through {route} was named or added here"))?;
        self.give_up((&mut kept, at), &self.0.session.paths())
    }

    /// Stops keeping a route and closes its path.
    fn give_up(
        &self,
        (kept, at): (&mut Vec<(RelayRoute, RelayPaths)>, usize),
        paths: &[PathInfo],
    ) -> Result<(), String> {
        let path = paths.iter().find(|path| kept[at].1.keeps(path.id));
        let stands = |path: &PathInfo| !matches!(path.state, PathState::Validating | PathState::Closing);
        if let Some(path) = path.filter(|path| stands(path))
            && !paths.iter().any(|other| other.id != path.id && stands(other))
        {
            return Err(format!("path {} is the only one that is open", path.id.0));
        }
        // The keeper must end first, or it would reopen the path.
        drop(kept.remove(at));
        if let Some(path) = path {
            self.0.session.close_path(path.id);
        }
        Ok(())
    }
}

/// The index of a route among the kept ones: as written, or by the addresses of its names.
fn find(
    (route, ways): (&RelayRoute, &[(RelayRoute, RelayRoute)]),
    kept: &[(RelayRoute, RelayPaths)],
) -> Option<usize> {
    let way = way_of(route, ways);
    let named = kept.iter().position(|(known, _)| known == route);
    named.or_else(|| kept.iter().position(|(known, _)| way_of(known, ways).is_way_of(way)))
}

/// A route with the addresses of its names, if they were resolved.
fn way_of<'a>(route: &'a RelayRoute, ways: &'a [(RelayRoute, RelayRoute)]) -> &'a RelayRoute {
    ways.iter().find(|(named, _)| named == route).map_or(route, |(_, way)| way)
}
