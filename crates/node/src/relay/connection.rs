//! A session to one relay, and the addresses at which the relay answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anabranch_net::{
    Config, Endpoint, Event, Events, PathId, PathInfo, PathState, Pid, PublicKey, Session, ShareId, Span,
    Target as Node, TicketSecret,
};
use anabranch_overlay::grant::GuestSecret;
use anabranch_overlay::relay::Refused;
use anabranch_secure::RelayHint;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::chain::Prepared;
use super::requests::{Flow, PATIENCE, Requests, Wanted};
use super::{Entry, RelayError};
use crate::grants::Grants;

/// A relay that is silent for this long is gone.
const IDLE: Span = Span::from_secs(20);
/// A relay is pinged after this long; a restarted one answers that it does not know the session.
const KEEP_ALIVE: Span = Span::from_secs(3);
/// First and longest pause while the relay has not proven a path yet, which takes another round trip than here.
const FIRST_PROVING: Duration = Duration::from_millis(25);
const LONGEST_PROVING: Duration = Duration::from_millis(800);
/// An address of a relay without an answer after this time is reported in the log.
const SILENT: Duration = Duration::from_secs(5);

/// A session to a relay.
pub struct RelayConnection {
    session: Session,
    requests: Requests,
    /// The relay's addresses from the user.
    named: Vec<SocketAddr>,
    /// Flows at relays before this one, over which the session's first path runs.
    before: Option<Prepared>,
    /// Tasks that end with the connection.
    tasks: JoinSet<()>,
}

impl RelayConnection {
    /// Opens a session to a relay, and shows the grant for it if there is one.
    pub async fn open(endpoint: &Endpoint, relay: &RelayHint, entry: &Entry) -> Result<Self, RelayError> {
        let (credential, grants) = match entry {
            Entry::Member(grants) => (None, grants.clone()),
            Entry::Guest(secret) => {
                let guest = GuestSecret::new(secret, &relay.node);
                (Some((guest.share(), guest.hash())), Grants::default())
            }
        };
        let target = Node { credential, ..Node::new(relay.node, relay.addresses.clone()) };
        let session = endpoint.connect(&target, config()).await?;
        let mut connection = Self::greet(session, (relay, grants), None).await?;
        let locals = endpoint.local_addresses();
        let is_possible = |to: &SocketAddr| locals.iter().any(|from| may_lead(from.ip(), to.ip()));
        let awaited = relay.addresses.iter().copied().filter(is_possible).collect();
        connection.tasks.spawn(report_silent(connection.session.clone(), awaited));
        Ok(connection)
    }

    /// As [`Self::open`], through relays with prepared flows.
    pub(crate) async fn open_through(
        endpoint: &Endpoint,
        (relay, grants): (&RelayHint, Grants),
        (own, mut before): (Pid, Prepared),
    ) -> Result<Self, RelayError> {
        let target = Node::new(relay.node, Vec::new());
        let session = endpoint.connect_through(&target, config(), (own, before.chain.clone())).await?;
        before.lead_to(&session, PathId::FIRST).await?;
        Self::greet(session, (relay, grants), Some(before)).await
    }

    async fn greet(
        session: Session,
        (relay, grants): (&RelayHint, Grants),
        before: Option<Prepared>,
    ) -> Result<Self, RelayError> {
        let late = |_| RelayError::Silent("request for a stream");
        let opened = timeout(PATIENCE, session.open_stream()).await.map_err(late)?;
        let stream = opened.map_err(|_| RelayError::Gone)?;
        let requests = Requests::begin(stream, relay.node, grants).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(announce_observed(session.clone()));
        let named = relay.addresses.clone();
        Ok(Self { session, requests, named, before, tasks })
    }

    /// The relay's identity.
    pub fn node(&self) -> PublicKey {
        self.session.peer()
    }

    /// The paths to the relay.
    pub(crate) fn paths(&self) -> Vec<PathInfo> {
        self.session.paths()
    }

    /// Waits until the session is over.
    pub async fn closed(&self) {
        self.session.closed().await;
    }

    pub(crate) fn events(&self) -> Events {
        self.session.events()
    }

    /// Whether no path of the session works at the moment.
    pub(crate) fn is_silent(&self) -> bool {
        self.session.paths().iter().all(|path| !matches!(path.state, PathState::Active | PathState::Suspect))
    }

    /// Allocates a flow, which can be used after [`Flow::ready`].
    pub async fn allocate(&self, wanted: Wanted) -> Result<Flow, RelayError> {
        self.allocate_at(None, wanted).await
    }

    /// As [`Self::allocate`], from a path to this address of the relay.
    pub(crate) async fn allocate_at(
        &self,
        entry: Option<SocketAddr>,
        wanted: Wanted,
    ) -> Result<Flow, RelayError> {
        let mut pause = FIRST_PROVING;
        loop {
            match self.allocate_once(entry, wanted).await {
                Err(RelayError::Refused(Refused::NoSuchPath)) if pause <= LONGEST_PROVING => {
                    sleep(pause).await;
                    pause *= 2;
                }
                allocated => return allocated,
            }
        }
    }

    async fn allocate_once(&self, entry: Option<SocketAddr>, wanted: Wanted) -> Result<Flow, RelayError> {
        let paths = self.usable_paths();
        let mut fitting = paths.iter().filter(|path| entry.is_none_or(|entry| path.route.remote == entry));
        let (via, entry) = fitting.next().map(|path| (path.id, path.route)).ok_or(RelayError::Gone)?;
        self.requests.allocate(wanted, via, entry).await
    }

    /// Makes this node reachable, on its own quota, for holders of the secret behind `hash`.
    pub async fn host(&self, share: ShareId, hash: TicketSecret) -> Result<(), RelayError> {
        self.requests.host(share, hash).await
    }

    /// Whether the user gave several addresses of the relay.
    pub(crate) fn has_choice(&self) -> bool {
        self.named.len() > 1
    }

    /// The user's addresses at which the relay answers, the quickest first.
    pub(crate) fn entries(&self) -> Vec<SocketAddr> {
        let mut entries: Vec<SocketAddr> = Vec::new();
        for remote in self.usable_paths().iter().map(|path| path.route.remote) {
            if self.named.contains(&remote) && !entries.contains(&remote) {
                entries.push(remote);
            }
        }
        entries
    }

    /// The session's paths that may carry flows, best first.
    fn usable_paths(&self) -> Vec<PathInfo> {
        let mut paths = self.session.paths();
        // Packets through earlier relays arrive from the last of them, even if there is a direct path.
        let fits = |path: &PathInfo| self.before.is_none() || path.id == PathId::FIRST;
        paths.retain(|path| matches!(path.state, PathState::Active | PathState::Suspect) && fits(path));
        // The user's addresses come first: the operator wants them to be used.
        paths.sort_by_key(|path| (!self.named.contains(&path.route.remote), path.rtt));
        paths
    }
}

/// Addresses that were reported as silent: reported once, not again by every session.
static REPORTED: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());
/// Most of them.
const MOST_REPORTED: usize = 1024;

/// True if packets with the source address `from` may lead to `to`.
fn may_lead(from: IpAddr, to: IpAddr) -> bool {
    let scope = |at: IpAddr| match at {
        IpAddr::V4(at) => (true, at.is_loopback(), at.is_link_local()),
        IpAddr::V6(at) => (false, at.is_loopback(), at.is_unicast_link_local()),
    };
    scope(from) == scope(to)
}

/// The awaited addresses that have not answered and were not reported.
fn newly_silent(awaited: &[SocketAddr], answered: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.len() + awaited.len() > MOST_REPORTED {
        reported.clear();
    }
    // If it falls silent later, that is news.
    answered.iter().for_each(|at| _ = reported.remove(at));
    awaited.iter().copied().filter(|at| !answered.contains(at) && reported.insert(*at)).collect()
}

/// Logs the addresses at which the relay has not answered after a while.
async fn report_silent(session: Session, awaited: Vec<SocketAddr>) {
    sleep(SILENT).await;
    let answered = |path: &PathInfo| !matches!(path.state, PathState::Validating | PathState::Closing);
    let paths = session.paths();
    let answered: Vec<SocketAddr> =
        paths.iter().filter(|path| answered(path)).map(|path| path.route.remote).collect();
    if session.close_reason().is_some() {
        return;
    }
    for address in newly_silent(&awaited, &answered) {
        let silent = SILENT.as_secs();
        tracing::warn!("relay {address} has not answered for {silent} s; its other addresses are used");
    }
}

/// Announces in the node's other sessions each address at which the relay sees this node.
async fn announce_observed(session: Session) {
    let mut events = session.events();
    loop {
        session.announce_observed();
        loop {
            match events.next().await {
                Some(Event::ObservedAddress { .. }) => break,
                Some(Event::Closed(_)) | None => return,
                Some(_) => {}
            }
        }
    }
}

fn config() -> Config {
    let mut config = Config { idle_timeout: IDLE, keep_alive: Some(KEEP_ALIVE), ..Config::default() };
    // Requests and replies are short.
    config.memory.initial_window = 16 << 10;
    config.memory.max_window = 64 << 10;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_relay_that_does_not_answer_is_reported_once() {
        let [one, other] = ["192.0.2.77:1", "192.0.2.78:1"].map(|at| at.parse().expect("an address"));
        assert_eq!(newly_silent(&[one, other], &[other]), [one]);
        assert_eq!(newly_silent(&[one, other], &[]), [other]);
        assert_eq!(newly_silent(&[one, other], &[one]), []);
        assert_eq!(newly_silent(&[one, other], &[]), [one], "it had answered");
    }

    #[test]
    fn an_address_to_which_no_address_here_leads_is_not_awaited() {
        let cases = [
            ("10.0.0.2", "198.51.100.7", true),
            ("10.0.0.2", "2001:db8::7", false),
            ("::1", "2001:db8::7", false),
            ("fe80::1", "2001:db8::7", false),
            ("2001:db8::1", "2001:db8::7", true),
            ("127.0.0.1", "127.0.0.1", true),
            ("fe80::1", "fe80::2", true),
        ];
        for (from, to, leads) in cases {
            let [at, to] = [from, to].map(|at| at.parse().expect("an address"));
            assert_eq!(may_lead(at, to), leads, "{from} {to}");
        }
    }
}
