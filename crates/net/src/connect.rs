//! Opens a session, and explains failures.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anabranch_agent::{Direct, Named, may_try};
use anabranch_engine::{CloseReason, Config, Meter, PathRule, Route, Session as Engine};
use anabranch_secure::{Dial, HandshakeError, Initiator, Refusal};
use anabranch_wire::{Pid, bytes_in_words};

use crate::endpoint::Target;
use crate::endpoint::inner::EndpointInner;
use crate::endpoint::sockets::BoundSocket;
use crate::handshake::encoded;
use crate::obstacle::Obstacle;
use crate::pids::random;
use crate::relayed::{Chain, is_chain};
use crate::session::Session;
use crate::session::core::Core;
use crate::session::greeting::{Dialing, Handshake};
use crate::session::inner::{Handle, Identity, SessionInner};
use crate::socket::{SendRefusal, without_zone};

/// Pairs of local and remote address, to be printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// The pairs.
    pub pairs: Vec<(SocketAddr, SocketAddr)>,
    /// Why packets did not leave this machine, if they did not.
    pub obstacle: Option<Obstacle>,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (local, remote)) in self.pairs.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} to {remote}", local.ip())?;
        }
        Ok(())
    }
}

/// Why a session could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No local address reaches an address of the node.
    #[error("{}", no_route(.remotes, .locals))]
    NoRoute {
        /// The node's addresses.
        remotes: Vec<SocketAddr>,
        /// This machine's.
        locals: Vec<IpAddr>,
    },
    /// The node's addresses are not public, and do not fit this machine's.
    #[error(
        "none of the node's addresses ({}) is tried: loopback, link-local and private addresses from a ticket are tried only where they fit this machine's; name the address on the command line if it is meant",
        join(.0)
    )]
    NotTried(Vec<SocketAddr>),
    /// Rules for paths exclude every route.
    #[error("the rules for paths exclude every route to the node ({ways})")]
    RuledOut {
        /// How many routes there are.
        ways: usize,
    },
    /// A cap of the rules is used up, and no other route is left.
    #[error("{caps}; no other path leads to the node")]
    CapUsedUp {
        /// The patterns and sizes of the caps.
        caps: String,
    },
    /// A cap of the node is used up, and no other route to it works.
    #[error("the node's data caps are used up; it needs another path, a higher cap or a new period")]
    PeerCapUsedUp,
    /// A pinned path begins at an address that this endpoint does not use.
    #[error("cannot pin a path to {local}: this endpoint uses {}", join(.locals))]
    NoSuchLocal {
        /// The pinned address.
        local: IpAddr,
        /// The addresses in use.
        locals: Vec<IpAddr>,
    },
    /// There was no answer.
    #[error("no answer from the node{}; {}", attempts(.0), advice(.0))]
    TimedOut(Tried),
    /// The node answered, but the ticket's secret does not fit.
    #[error(
        "the node answered, but not to this ticket: its secret is wrong or was changed; ask for a new ticket"
    )]
    WrongTicket,
    /// The node refused.
    #[error("the node refused: {0}")]
    Refused(Refusal),
    /// The node speaks another version of the protocol.
    #[error(
        "the node speaks version {0} of the protocol and this program another: update the older of the two"
    )]
    Version(u8),
    /// The node's key is unusable.
    #[error("the node's key is not usable: {0}")]
    Key(HandshakeError),
    /// The session ended during the handshake.
    #[error("the session ended while it was being opened: {0}")]
    Closed(CloseReason),
}

impl From<ConnectError> for std::io::Error {
    fn from(error: ConnectError) -> Self {
        use std::io::ErrorKind;
        let kind = match error {
            ConnectError::NoRoute { .. } => ErrorKind::NetworkUnreachable,
            ConnectError::NoSuchLocal { .. } | ConnectError::RuledOut { .. } | ConnectError::NotTried(_) => {
                ErrorKind::AddrNotAvailable
            }
            ConnectError::TimedOut(_) => ErrorKind::TimedOut,
            ConnectError::CapUsedUp { .. } | ConnectError::PeerCapUsedUp => ErrorKind::QuotaExceeded,
            ConnectError::WrongTicket | ConnectError::Refused(_) => ErrorKind::PermissionDenied,
            ConnectError::Version(_) | ConnectError::Key(_) => ErrorKind::InvalidData,
            ConnectError::Closed(_) => ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}

fn join<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Opens a session.
pub(crate) async fn connect(
    endpoint: &Arc<EndpointInner>,
    target: &Target,
    config: Config,
    through: Option<(Pid, Chain)>,
) -> Result<Session, ConnectError> {
    let own = through.as_ref().map(|(own, _)| *own);
    let begun = begin(endpoint, target, config, through);
    if let (Err(_), Some(own)) = (&begun, own) {
        // Otherwise only the end of a session removes the chain.
        endpoint.sockets.relayed.remove(own);
    }
    let (inner, routes) = begun?;
    tokio::spawn(inner.clone().drive());
    inner.pump();
    let session = Session::new(Handle { inner: inner.clone() });
    if session.established().await {
        return Ok(session);
    }
    Err(explain(&inner, tried(endpoint, &routes)))
}

/// Chooses routes, and makes a session that calls over them.
fn begin(
    endpoint: &Arc<EndpointInner>,
    target: &Target,
    mut config: Config,
    through: Option<(Pid, Chain)>,
) -> Result<(Arc<SessionInner>, Vec<Route>), ConnectError> {
    let agent = agent_for(endpoint, target)?;
    if let Some(count) = agent.pin_count() {
        // Neither end may open more paths than the user asked for.
        config.max_paths = (count as u32 + target.relayed).clamp(1, config.max_paths);
    }
    if config.rules.is_empty() {
        config.rules = endpoint.config.rules.clone();
    }
    let own = through.as_ref().map(|(own, chain)| (*own, chain.back));
    if !target.pins.is_empty() {
        // There may be room for paths through relays, but not for others that the peer wants.
        config.max_peer_paths = 0;
    }
    let routes = match through {
        Some((own, chain)) => vec![endpoint.sockets.relayed.add(own, chain).route()],
        None => agent.first_routes(&endpoint.sockets.locals()),
    };
    let allowed =
        |route: &&Route| config.rules.terms(&endpoint.rule_place(route.socket), route.remote).allow();
    let found = routes.len();
    let (routes, excluded): (Vec<Route>, Vec<Route>) = routes.iter().partition(|route| allowed(route));
    if routes.is_empty() && found > 0 {
        let caps = used_up_caps(endpoint, &config, &excluded);
        let ruled_out = ConnectError::RuledOut { ways: found };
        return Err(if caps.is_empty() {
            ruled_out
        } else {
            ConnectError::CapUsedUp { caps: caps.join(", ") }
        });
    }
    let listed = || target.typed.iter().chain(&target.addresses).copied().collect::<Vec<_>>();
    if routes.is_empty() && !listed().is_empty() && agent.has_no_address() {
        return Err(ConnectError::NotTried(listed()));
    }
    if routes.is_empty() {
        let locals = endpoint.sockets.all().iter().map(|socket| socket.udp.local_addr().ip()).collect();
        return Err(ConnectError::NoRoute { remotes: listed(), locals });
    }
    let inner = dial(endpoint, target, Opening { config, agent, routes: &routes, relayed: own })?;
    Ok((inner, routes))
}

fn no_route(remotes: &[SocketAddr], locals: &[IpAddr]) -> String {
    if remotes.is_empty() {
        return "the node named no address that may be used; does it allow paths through relays?".to_owned();
    }
    let (remotes, locals) = (join(remotes), join(locals));
    format!(
        "no route to {remotes}: none of this machine's addresses ({locals}) leads there; is the network up, and is the address \
         right?"
    )
}

/// The attempts that got no answer.
fn attempts(tried: &Tried) -> String {
    // Relays have no addresses here.
    if tried.pairs.is_empty() { " through relays".to_owned() } else { format!(": tried {tried}") }
}

/// Advice for a user who got no answer.
fn advice(tried: &Tried) -> String {
    let there = || match tried.pairs.is_empty() {
        true => "do its rules allow such paths, is it running there, and is its key the right one?",
        false => "is it running there, is the UDP port open, and is its key the right one?",
    };
    tried.obstacle.as_ref().map_or_else(|| there().to_owned(), ToString::to_string)
}

/// The caps that exclude routes, in words.
fn used_up_caps(endpoint: &EndpointInner, config: &Config, excluded: &[Route]) -> Vec<String> {
    let mut caps: Vec<String> = Vec::new();
    for route in excluded {
        let place = endpoint.rule_place(route.socket);
        let Some(rule) = config.rules.rule_for(&place, route.remote) else { continue };
        let Some(meter) = rule.terms.meter.as_ref().filter(|meter| meter.is_used_up()) else { continue };
        let cap = used_up_cap(rule, meter);
        if !caps.contains(&cap) {
            caps.push(cap);
        }
    }
    caps
}

/// The used-up cap of a rule, in words.
pub(crate) fn used_up_cap(rule: &PathRule, meter: &Meter) -> String {
    let until = meter.resets_on().map_or(String::new(), |day| format!(" until day {day} of the month"));
    format!("the cap of {} for {} is used up{until}", bytes_in_words(meter.cap()), rule.pattern)
}

/// The pairs of addresses that were tried, and the obstacle of the last packet to one of them.
fn tried(endpoint: &EndpointInner, routes: &[Route]) -> Tried {
    let sockets =
        || routes.iter().filter_map(|route| Some((endpoint.sockets.get(route.socket)?, route.remote)));
    let obstacle_of = |socket: &BoundSocket, remote: SocketAddr| {
        let (refusal, place) = (socket.udp.refusal(remote)?, socket.place());
        Some(match refusal {
            SendRefusal::Firewall => Obstacle::Firewall(place.address),
            SendRefusal::TooLong => {
                Obstacle::SmallMtu { interface: place.interface.to_string(), mtu: place.mtu }
            }
        })
    };
    Tried {
        pairs: sockets().map(|(socket, remote)| (socket.udp.local_addr(), remote)).collect(),
        obstacle: sockets().find_map(|(socket, remote)| obstacle_of(&socket, remote)),
    }
}

/// The path agent of a session with the target, with the addresses that may be tried.
fn agent_for(endpoint: &EndpointInner, target: &Target) -> Result<Direct, ConnectError> {
    let own: Vec<IpAddr> = endpoint.sockets.all().iter().map(|socket| socket.udp.local_addr().ip()).collect();
    if let Some((local, _)) = target.pins.iter().find(|(local, _)| !own.contains(local)) {
        return Err(ConnectError::NoSuchLocal { local: *local, locals: own });
    }
    let (locals, mut given) = (endpoint.sockets.reaches(), Vec::new());
    let listed = target.addresses.iter().filter(|address| may_try(**address, target.named, locals));
    let typed = target.typed.iter().filter(|address| may_try(**address, Named::ByUser, locals));
    for address in typed.chain(listed) {
        given.push(without_zone(*address));
        // If the node runs on this machine, packets to it take loopback.
        if own.contains(&address.ip()) && !address.ip().is_loopback() {
            let loopback: IpAddr =
                if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
            given.push(SocketAddr::new(loopback, address.port()));
        }
    }
    Ok(match target.pins.is_empty() {
        true => Direct::client(given),
        false => Direct::pinned(target.pins.clone(), given),
    })
}

/// How a session begins.
struct Opening<'a> {
    config: Config,
    agent: Direct,
    routes: &'a [Route],
    /// The PIDs for packets that come back through relays: for the first relay and for the last.
    relayed: Option<(Pid, Pid)>,
}

fn dial(
    endpoint: &Arc<EndpointInner>,
    target: &Target,
    opening: Opening<'_>,
) -> Result<Arc<SessionInner>, ConnectError> {
    let Opening { config, agent, routes, relayed } = opening;
    let now = endpoint.clock.now();
    let pids = match relayed {
        Some((own, _)) => Box::new(endpoint.new_pids().beginning_with(own)),
        None => endpoint.new_pids(),
    };
    let mut engine = Engine::connect(endpoint.share(config), routes, pids, endpoint.budget.clone(), now);
    if let Some((_, back)) = relayed {
        engine.set_first_reply_pid(back);
    }
    endpoint.describe_sockets(now, &mut engine);
    for route in routes.iter().filter(|route| is_chain(route.socket)) {
        engine.describe_socket(now, route.socket, endpoint.rule_place(route.socket));
    }
    let params = engine.local_params();
    let dial = Dial { remote: target.node, credential: target.credential.clone() };
    let initiator = Initiator::new(&endpoint.key, &dial, params.pid, &encoded(params), random());
    let initiator = initiator.map_err(ConnectError::Key)?;
    let handshake = Handshake::Client(Box::new(Dialing { initiator, cookies: Vec::new() }));
    let identity = Identity { peer: target.node, share: target.credential.as_ref().map(|(share, _)| *share) };
    Ok(SessionInner::new(endpoint.clone(), identity, Core::new(engine, handshake, agent), None))
}

fn explain(inner: &SessionInner, tried: Tried) -> ConnectError {
    let core = inner.core();
    let trouble = core.trouble;
    if let Some(refusal) = trouble.refused {
        return ConnectError::Refused(refusal);
    }
    if let Some(version) = trouble.version {
        return ConnectError::Version(version);
    }
    if trouble.unauthentic {
        return ConnectError::WrongTicket;
    }
    match core.closed.clone() {
        Some(CloseReason::ConnectTimeout) | None if trouble.over_cap => ConnectError::PeerCapUsedUp,
        Some(CloseReason::ConnectTimeout) | None => ConnectError::TimedOut(tried),
        Some(reason) => ConnectError::Closed(reason),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_engine::{Arrival, Ecn, PathRule, PathRules, Pattern, Priority, Terms};
    use anabranch_secure::{INIT_BODY_LEN, NodeKey, PublicKey, ShareId};
    use anabranch_wire::{Span, Time};

    use super::*;
    use crate::authorize::Verdict;
    use crate::endpoint::{Addresses, Endpoint, EndpointConfig};
    use crate::handshake::handle_init;

    #[test]
    fn where_packets_do_not_leave_this_machine_the_other_end_is_not_blamed() {
        let told = |obstacle| ConnectError::TimedOut(Tried { pairs: Vec::new(), obstacle }).to_string();
        assert!(told(None).ends_with("is its key the right one?"));
        let small = told(Some(Obstacle::SmallMtu { interface: "eth1".to_owned(), mtu: 900 }));
        assert!(small.contains("eth1 carries packets of 900 bytes") && !small.contains("running"), "{small}");
        assert!(told(None).contains("from the node through relays; do its rules allow such paths"));
        let own = told(Some(Obstacle::Firewall([192, 0, 2, 1].into())));
        assert!(own.contains("own firewall refuses packets from 192.0.2.1") && !own.contains("running"));
    }

    #[test]
    fn a_node_that_named_no_address_is_not_a_route_to_nothing() {
        let told =
            ConnectError::NoRoute { remotes: Vec::new(), locals: vec![[192, 0, 2, 1].into()] }.to_string();
        assert!(told.starts_with("the node named no address that may be used; "), "{told}");
    }

    #[tokio::test]
    async fn a_chain_of_relays_over_which_no_session_begins_is_forgotten() {
        let here = EndpointConfig::new(NodeKey::from_random([1; 32]));
        let here = here.addresses(Addresses::Exactly(vec![[127, 0, 0, 1].into()]));
        let endpoint = Endpoint::bind(here).await.expect("it binds");
        let relay = NodeKey::from_random([2; 32]).public();
        let entry = Route { socket: endpoint.sockets()[0].id, remote: ([127, 0, 0, 9], 9).into() };
        let chain = Chain { entry, forward: Pid(5), back: Pid(6), relays: vec![relay] };
        let never = Terms { priority: Priority::Never, ..Terms::default() };
        let rules = PathRules::new(vec![PathRule { pattern: Pattern::Any, terms: never }]);
        let config = Config { rules, ..Config::default() };
        let own = endpoint.new_pid();
        let target = Target::new(NodeKey::from_random([3; 32]).public(), Vec::new());
        let refused = endpoint.connect_through(&target, config, (own, chain)).await;
        assert!(matches!(refused, Err(ConnectError::RuledOut { ways: 1 })));
        assert_eq!(endpoint.inner.sockets.relayed.arrival(own, entry), entry);
    }

    /// A server at 127.0.0.1 and 127.0.0.2 whose cap for the first is used up, but for `left` bytes.
    async fn server_with_cap(left: u64) -> (Endpoint, Meter) {
        let meter = Meter::new(Meter::SMALLEST);
        assert!(meter.charge(meter.left() - left));
        let terms = Terms { meter: Some(meter.clone()), ..Terms::default() };
        let rule = PathRule { pattern: "127.0.0.1".parse().expect("an address"), terms };
        let here = EndpointConfig::new(NodeKey::from_random([2; 32]));
        let addresses = [1, 2].map(|last| IpAddr::from([127, 0, 0, last])).to_vec();
        let here = here.addresses(Addresses::Exactly(addresses)).path_rules(PathRules::new(vec![rule]));
        let anybody = |_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None };
        (Endpoint::bind(here.authorize(anybody)).await.expect("it binds"), meter)
    }

    async fn open_a_session(server: &Endpoint, addresses: usize) -> Result<(), ConnectError> {
        let here = EndpointConfig::new(NodeKey::from_random([1; 32]));
        let here = here.addresses(Addresses::Exactly(vec![[127, 0, 0, 3].into()]));
        let client = Endpoint::bind(here).await.expect("it binds");
        let config = Config { connect_timeout: Span::from_millis(800), ..Config::default() };
        let target = Target::new(server.node(), server.local_addresses()[..addresses].to_vec());
        client.connect(&target, config).await.map(drop)
    }

    #[tokio::test]
    async fn a_used_up_cap_is_named_while_bytes_for_an_answer_are_left() {
        let (server, _) = server_with_cap(10_000).await;
        let refused = open_a_session(&server, 1).await;
        assert_eq!(refused, Err(ConnectError::PeerCapUsedUp));
        let (server, _) = server_with_cap(100).await;
        let silent = open_a_session(&server, 1).await;
        assert!(matches!(silent, Err(ConnectError::TimedOut(_))), "{silent:?}");
    }

    #[tokio::test]
    async fn strangers_do_not_use_up_the_rest_of_a_cap() {
        let (server, meter) = server_with_cap(10_000).await;
        let route = Route { socket: server.sockets()[0].id, remote: ([127, 0, 0, 1], 9).into() };
        let arrival = Arrival { route, size: 1_200, ecn: Ecn::NotEct, waited: Span::ZERO };
        // It has the shape of an INIT, but its sender does not know the server's key.
        handle_init(&server.inner, Time::ZERO, arrival, &[1; INIT_BODY_LEN]);
        handle_init(&server.inner, Time::ZERO, arrival, &[0; INIT_BODY_LEN]);
        assert_eq!(meter.left(), 10_000);
    }

    #[tokio::test]
    async fn a_used_up_cap_of_one_route_leaves_the_other() {
        for _ in 0..4 {
            let (server, _) = server_with_cap(10_000).await;
            assert_eq!(open_a_session(&server, 2).await, Ok(()));
        }
    }
}
