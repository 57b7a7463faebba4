//! Opens a session to a node that may be reachable directly, or only through relays.
//!
//! The direct route has a head start. Then all relays are tried at once: a ticket's relays as a guest of the ticket's
//! maker, and this node's own relays as their user. The first session to be established wins, and the others end. A
//! session that began through a relay also gets direct paths if possible, because both ends exchange and try their
//! addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anabranch_agent::HEAD_START;
use anabranch_net::{
    Config, ConnectError, Endpoint, PathId, PathRule, PathRules, Pattern, Pid, PublicKey, Session, Target,
    Terms, Ticket, TicketSecret, Tried,
};
use anabranch_secure::RelayHint;
use anabranch_wire::Span;
use futures_util::FutureExt;
use futures_util::future::select_ok;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::error::{Error, ErrorKind};
use crate::late::Late;
use crate::paths::NodeSession;
use crate::relay::chain::RelayChain;
use crate::relay::open_path::{Carrier, outlive};
use crate::relay::{Begun, Entry, Peer, RelayCandidates, RelayError, RelayPaths, RelayRoute};

/// A relay without an answer after this time is reported in the log, and still tried.
const SLOW: Duration = Duration::from_secs(3);
/// How long closing the sessions that lost the race may take.
const FAREWELL: Duration = Duration::from_secs(3);
/// How long to wait for an answer to an expired ticket.
const PATIENCE_WITH_EXPIRED: Span = Span::from_secs(3);
/// The port of a node whose ticket has no address.
const USUAL_PORT: u16 = 4433;

/// The node to dial, and how.
#[derive(Clone, Debug)]
pub struct Dial {
    target: Target,
    /// The relays of the ticket's maker, and the secret that admits its guests there.
    guest: Option<(Vec<RelayHint>, TicketSecret)>,
    expires: Option<u64>,
    at_once: Option<usize>,
    rules: PathRules,
}

impl From<&Ticket> for Dial {
    fn from(ticket: &Ticket) -> Self {
        let mut dial = Self::node(ticket.node, ticket.addresses.clone());
        dial.target.credential = Some((ticket.share, ticket.secret.clone()));
        dial.expires = ticket.expires;
        dial.guest_of(ticket.relays.clone(), ticket.secret.clone())
    }
}

impl Dial {
    /// The maker of a ticket.
    pub fn ticket(ticket: &Ticket) -> Self {
        ticket.into()
    }

    /// A node that admits this one by its key.
    pub fn node(node: PublicKey, addresses: Vec<SocketAddr>) -> Self {
        let (target, rules) = (Target::new(node, addresses), PathRules::default());
        Self { target, guest: None, expires: None, at_once: None, rules }
    }

    /// Relays at which the node hosts everyone who has this secret.
    #[must_use]
    pub fn guest_of(mut self, relays: Vec<RelayHint>, secret: TicketSecret) -> Self {
        self.guest = Some((relays, secret));
        self
    }

    /// Adds addresses of the node that the user named.
    #[must_use]
    pub fn addresses(mut self, more: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.target.typed.extend(more);
        self
    }

    /// Uses exactly these pairs of local and remote address as direct paths.
    #[must_use]
    pub fn pins(mut self, pins: Vec<(IpAddr, SocketAddr)>) -> Self {
        self.target.pins = pins;
        self
    }

    /// Uses only this many of the node's relays at a time, starting with the first ones; a bad one is replaced. All are
    /// tried for the first path, and the one that gives it is in use from the start.
    #[must_use]
    pub fn relays_at_once(mut self, count: usize) -> Self {
        self.at_once = Some(count);
        self
    }

    /// Sets rules for the paths of this session, in place of the node's.
    #[must_use]
    pub fn path_rules(mut self, rules: PathRules) -> Self {
        // Empty rules would leave the node's in force.
        let any = || PathRules::new(vec![PathRule { pattern: Pattern::Any, terms: Terms::default() }]);
        self.rules = if rules.is_empty() { any() } else { rules };
        self
    }

    /// The known addresses of the node and of the ticket's relays.
    pub fn hosts(&self) -> Vec<IpAddr> {
        let relays = self.guest.iter().flat_map(|(relays, _)| relays).flat_map(|relay| &relay.addresses);
        let all = self.target.typed.iter().chain(&self.target.addresses).chain(relays);
        all.map(SocketAddr::ip).collect()
    }

    /// The port of the node's first address.
    pub fn port(&self) -> u16 {
        self.target.typed.iter().chain(&self.target.addresses).next().map_or(USUAL_PORT, SocketAddr::port)
    }

    pub(crate) fn secret(&self) -> Option<&TicketSecret> {
        self.guest.as_ref().map(|(_, secret)| secret)
    }

    /// How long ago the ticket expired, by this clock.
    fn overdue(&self, now: SystemTime) -> Option<Duration> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        now.checked_sub(Duration::from_secs(self.expires?)).filter(|ago| !ago.is_zero())
    }
}

/// The node's part of a dial.
pub(crate) struct Means<'a> {
    pub endpoint: &'a Arc<Endpoint>,
    pub config: &'a Config,
    /// The node's own relays.
    pub relays: &'a [RelayRoute],
    /// How the node's own relays, and relays added to the session later, admit this node.
    pub entry: Entry,
    /// How many paths through relays may be added to the session later.
    pub addable: usize,
    pub late: &'a Late,
}

/// Opens a session. A ticket that has expired by this machine's clock is tried for a shorter time, because the clock
/// may be wrong.
pub(crate) async fn dial(means: Means<'_>, dial: &Dial) -> Result<NodeSession, Error> {
    let overdue = dial.overdue(SystemTime::now());
    let mut config = means.config.clone();
    if !dial.rules.is_empty() {
        config.rules = dial.rules.clone();
    }
    if overdue.is_some() {
        config.connect_timeout = config.connect_timeout.min(PATIENCE_WITH_EXPIRED);
    }
    let patience = config.connect_timeout;
    let Failed { why, relays } = match open(means, dial, config).await {
        Ok(session) => return Ok(session),
        Err(failed) => failed,
    };
    match (why, overdue) {
        (ConnectError::TimedOut(_), Some(ago)) => {
            let ago = Span::from_secs(ago.as_secs()).in_words();
            let message = format!("the ticket expired {ago} ago, and its maker does not answer");
            Err(Error::new(ErrorKind::Refused, message).hint("ask for a new ticket"))
        }
        (ConnectError::TimedOut(tried), None) => {
            Err(with_relays(unanswered(dial, &tried, patience), &relays))
        }
        (error @ ConnectError::NoRoute { .. }, _) => {
            let error = Error::from(error);
            let hint = error.hint.clone().unwrap_or_default() + way_to_meet(dial);
            Err(with_relays(error.hint(hint), &relays))
        }
        (error, _) => Err(with_relays(error.into(), &relays)),
    }
}

/// Adds the relays that were tried. If this machine allows no direct route, a relay may still help later.
fn with_relays(error: Error, relays: &[(RelayRoute, RelayError)]) -> Error {
    let is_local = |error: &RelayError| {
        let RelayError::Connect(error) = error else { return false };
        Error::from(error.clone()).kind == ErrorKind::Local
    };
    let may_pass = relays.iter().any(|(_, why)| !is_local(why));
    let mut error = relays.iter().fold(error, |error, (relay, why)| error.tried(format!("{relay}: {why}")));
    if may_pass && error.kind == ErrorKind::Local {
        error.kind = ErrorKind::Unreachable;
    }
    error
}

/// The error without an answer. A node with another key is silent too: it cannot read the packet and does not reveal
/// itself.
fn unanswered(dial: &Dial, tried: &Tried, patience: Span) -> Error {
    let all = dial.target.typed.iter().chain(&dial.target.addresses);
    let addresses: Vec<String> = all.map(ToString::to_string).collect();
    let (addresses, patience) = (addresses.join(" or "), patience.in_words());
    let message = format!("no answer from {addresses} within {patience}");
    let pairs = tried.pairs.iter().map(|(local, remote)| format!("{} → {remote}", local.ip()));
    let error = pairs.fold(Error::new(ErrorKind::Unreachable, message), Error::tried);
    if let Some(obstacle) = &tried.obstacle {
        return error.hint(obstacle.to_string());
    }
    let relay = way_to_meet(dial);
    error.hint(format!(
        "is the program still running there, and is this its newest ticket (after a restart it may have another key, and does \
         not answer to the old one)? Is the network up, and does the firewall there let the UDP port in?{relay}",
    ))
}

/// How a node without a relay in its ticket is reached behind a router.
fn way_to_meet(dial: &Dial) -> &'static str {
    match &dial.guest {
        Some((relays, _)) if relays.is_empty() => {
            " If it is behind a router, `--map-port` there may open that; else a relay connects the two: `anabranch relay` on a third machine, and `--relay` there"
        }
        _ => "",
    }
}

/// Opens a session, and keeps paths through both ends' relays open in it.
async fn open(means: Means<'_>, dial: &Dial, config: Config) -> Result<NodeSession, Failed> {
    let Means { endpoint, relays, entry, addable, late, .. } = means;
    let granted = entry.grants();
    let mut target = dial.target.clone();
    target.relayed = (relays.len() + granted.relays().len() + addable) as u32;
    let listed = target.addresses.iter().filter(|address| !target.typed.contains(address));
    let own = Peer { addresses: target.typed.iter().chain(listed).copied().collect(), entry };
    let at_once = dial.at_once.unwrap_or_default();
    let mut candidates = guest_routes(dial, relays);
    // Of those after these, only some stay in use.
    let kept = candidates.len() + if at_once == 0 { relays.len() } else { 0 };
    candidates.extend(relays.iter().map(|route| Candidate { route: route.clone(), peer: own.clone() }));
    if target.relayed > 0 {
        // A trial of a relay's other addresses takes further paths.
        target.relayed += anabranch_agent::MOST_ENTRIES as u32 - 1;
    }
    let call = Call { target, config, late: late.clone() };
    let Dialed { session, through } = race(endpoint, &call, &candidates).await?;
    late.forget();
    let some = candidates.split_off(kept).into_iter().map(|candidate| candidate.route);
    let (mut some, mut begun): (Vec<RelayRoute>, _) = (some.collect(), None);
    let running = NodeSession::new(endpoint, &session, &[], &own);
    let first = through.as_ref().map(|(index, _)| *index);
    for (index, Candidate { route, peer }) in candidates.iter().enumerate() {
        if Some(index) != first {
            let paths = RelayPaths::keep(endpoint, &session, std::slice::from_ref(route), peer);
            running.adopt(route.clone(), paths);
        }
    }
    match through {
        Some((index, carrier)) if index >= kept => {
            some[..=index - kept].rotate_right(1);
            begun = Some(carrier);
        }
        Some((index, carrier)) => {
            let Candidate { route, peer } = candidates.swap_remove(index);
            running
                .adopt(route.clone(), RelayPaths::go_on(endpoint, &session, Begun { route, peer, carrier }));
        }
        None => {}
    }
    if let Some((relays, secret)) = &dial.guest {
        running.guest_at(relays.iter().map(|relay| relay.node), secret);
    }
    let among = RelayCandidates::new(endpoint, &session, &own, &some);
    let chosen = RelayPaths::choose_among(among, at_once, begun);
    let granted = RelayPaths::keep_granted(endpoint, &session, &granted, &own.addresses);
    Ok(running.beside(granted).beside(chosen))
}

/// The ticket's relays, except those that this node may use itself.
fn guest_routes(dial: &Dial, own: &[RelayRoute]) -> Vec<Candidate> {
    let Some((relays, secret)) = &dial.guest else { return Vec::new() };
    let peer = Peer { addresses: Vec::new(), entry: Entry::Guest(secret.clone()) };
    let routes = relays.iter().map(|relay| RelayRoute(vec![relay.clone().into()]));
    let routes = routes.filter(|route| !own.iter().any(|own| own.is_way_of(route)));
    routes.map(|route| Candidate { route, peer: peer.clone() }).collect()
}

/// A route through relays for the first path.
#[derive(Clone)]
struct Candidate {
    route: RelayRoute,
    peer: Peer,
}

/// The session to open.
#[derive(Clone)]
struct Call {
    target: Target,
    config: Config,
    late: Late,
}

/// A session, and the candidate of its first path, unless that is direct.
struct Dialed {
    session: Session,
    through: Option<(usize, Carrier)>,
}

/// Why there is no session.
struct Failed {
    /// The direct attempt's error.
    why: ConnectError,
    /// The relays that were tried, each with its error.
    relays: Vec<(RelayRoute, RelayError)>,
}

impl From<ConnectError> for Failed {
    fn from(why: ConnectError) -> Self {
        Self { why, relays: Vec::new() }
    }
}

async fn race(endpoint: &Arc<Endpoint>, call: &Call, candidates: &[Candidate]) -> Result<Dialed, Failed> {
    let direct = endpoint.connect(&call.target, call.config.clone());
    // With pinned paths, only these may be first.
    if candidates.is_empty() || !call.target.pins.is_empty() {
        return Ok(Dialed { session: direct.await?, through: None });
    }
    tokio::pin!(direct);
    let mut failed = None;
    tokio::select! {
        result = &mut direct => match result {
            Ok(session) => return Ok(Dialed { session, through: None }),
            Err(error) if may_be_reached_otherwise(&error) => failed = Some(error),
            Err(error) => return Err(error.into()),
        },
        () = sleep(Duration::from_nanos(HEAD_START.as_nanos())) => {}
    }
    let (mut attempts, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for (index, candidate) in candidates.iter().cloned().enumerate() {
        let (endpoint, call, is_over) = (endpoint.clone(), call.clone(), is_over.clone());
        attempts.spawn(async move {
            let attempt =
                Attempt { endpoint: &endpoint, call: &call, candidate: &candidate, is_over: &is_over };
            match attempt.open().await {
                Ok((session, carrier)) => Ok(Dialed { session, through: Some((index, carrier)) }),
                Err(error) => Err((candidate.route, error)),
            }
        });
    }
    let mut relays = Vec::new();
    let first = loop {
        tokio::select! {
            result = &mut direct, if failed.is_none() => match result {
                Ok(session) => break Dialed { session, through: None },
                Err(error) => failed = Some(error),
            },
            Some(result) = attempts.join_next(), if !attempts.is_empty() => match result {
                Ok(Ok(dialed)) => break dialed,
                Ok(Err((relay, error))) => {
                    tracing::debug!(%relay, %error, "no session through the relay");
                    relays.push((relay, error));
                }
                Err(error) => tracing::warn!(%error, "an attempt through a relay ended"),
            },
        }
        if let Some(why) = failed.clone().filter(|_| attempts.is_empty()) {
            // Redialing reports another reason, but not another order.
            relays.sort_by_key(|(relay, _)| relay.to_string());
            return Err(Failed { why, relays });
        }
    };
    is_over.store(true, Ordering::Relaxed);
    tokio::spawn(part(attempts));
    Ok(first)
}

/// Whether a relay may help: a node that answers and refuses does so through a relay too.
fn may_be_reached_otherwise(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::NoRoute { .. }
            | ConnectError::NotTried(_)
            | ConnectError::RuledOut { .. }
            | ConnectError::CapUsedUp { .. }
            | ConnectError::TimedOut(_)
    )
}

/// Closes the sessions that lost the race, or are about to be established, while relays still forward for them.
/// Otherwise the other end would count each as another client until its idle timeout.
async fn part(mut attempts: JoinSet<Result<Dialed, (RelayRoute, RelayError)>>) {
    let all = async {
        while let Some(done) = attempts.join_next().await {
            if let Ok(Ok(Dialed { session, through })) = done {
                tokio::spawn(async move {
                    let _ = timeout(FAREWELL, session.close()).await;
                    outlive(&session, through.map(|(_, carrier)| carrier)).await;
                });
            }
        }
    };
    // A peer that was not informed by then notices by its idle timeout.
    let _ = timeout(FAREWELL, all).await;
}

/// An attempt to open the session through one candidate.
struct Attempt<'a> {
    endpoint: &'a Endpoint,
    call: &'a Call,
    candidate: &'a Candidate,
    /// True once another attempt has won.
    is_over: &'a AtomicBool,
}

impl Attempt<'_> {
    async fn open(&self) -> Result<(Session, Carrier), RelayError> {
        let Candidate { route, peer } = self.candidate;
        let late = || {
            if !self.is_over.load(Ordering::Relaxed) {
                self.call.late.report(route, SLOW);
            }
        };
        let chain = Arc::new(patiently(self.open_chain(route, &peer.entry), SLOW, late).await?);
        self.call.late.clear(route);
        if chain.is_guest() {
            return self.open_over(chain, None).await;
        }
        let mut last = RelayError::NoAddress;
        for address in &peer.addresses {
            match self.open_over(chain.clone(), Some(*address)).await {
                Err(error) => last = error,
                opened => return opened,
            }
        }
        Err(last)
    }

    /// Opens the sessions to the relays. The addresses that controllers report join after a head start, because the
    /// configured ones determine the route.
    async fn open_chain(&self, route: &RelayRoute, entry: &Entry) -> Result<RelayChain, RelayError> {
        let (named, unresolved) = route.resolve().await;
        let grants = entry.grants();
        let (first, others) = (grants.known(&named, false), grants.known(&named, true));
        if let Some(unresolved) = unresolved.filter(|_| first.iter().any(|relay| relay.addresses.is_empty()))
        {
            return Err(unresolved.into());
        }
        let opened = RelayChain::open(self.endpoint, &first, entry);
        if others == first {
            return opened.await;
        }
        let later = async {
            sleep(Duration::from_nanos(HEAD_START.as_nanos())).await;
            RelayChain::open(self.endpoint, &others, entry).await
        };
        select_ok([opened.boxed(), later.boxed()]).await.map(|(chain, _)| chain)
    }

    /// Opens the session through these relays, to an address of the node or, as a guest, to its host.
    async fn open_over(
        &self,
        chain: Arc<RelayChain>,
        address: Option<SocketAddr>,
    ) -> Result<(Session, Carrier), RelayError> {
        let Call { target, config, .. } = self.call;
        let own = self.endpoint.new_pid();
        let last = address.map(|address| (address, target.node));
        let mut prepared = chain.prepare(last, (Pid::HANDSHAKE, own), None).await?;
        // Another attempt has won, so the other end need not see this one.
        if self.is_over.load(Ordering::Relaxed) {
            return Err(RelayError::Gone);
        }
        let through = (own, prepared.chain.clone());
        let session = self.endpoint.connect_through(target, config.clone(), through).await?;
        prepared.lead_to(&session, PathId::FIRST).await?;
        Ok((session, Carrier { chain, prepared }))
    }
}

/// Waits for an outcome; calls `late` if it takes longer than `limit`.
async fn patiently<T>(outcome: impl Future<Output = T>, limit: Duration, late: impl FnOnce()) -> T {
    tokio::pin!(outcome);
    match timeout(limit, &mut outcome).await {
        Ok(outcome) => outcome,
        Err(_) => {
            late();
            outcome.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_late_outcome_is_reported_once_and_still_awaited() {
        for (takes, reported) in [(0, false), (60, true)] {
            let outcome = async {
                sleep(Duration::from_millis(takes)).await;
                7
            };
            let mut is_reported = false;
            assert_eq!(patiently(outcome, Duration::from_millis(20), || is_reported = true).await, 7);
            assert_eq!(is_reported, reported);
        }
    }

    #[test]
    fn a_ticket_is_overdue_after_its_end_and_one_without_end_never() {
        let node = anabranch_net::NodeKey::from_random([1; 32]).public();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let dial = Dial { expires: Some(100), ..Dial::node(node, Vec::new()) };
        assert_eq!(dial.overdue(at(100)), None);
        assert_eq!(dial.overdue(at(107)), Some(Duration::from_secs(7)));
        assert_eq!(Dial::node(node, Vec::new()).overdue(at(107)), None);
    }
}
