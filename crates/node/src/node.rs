//! A node: key, sockets, relays and rules in one place, to open and accept sessions.
//!
//! [`Node::builder`] takes all settings of an application or a command line. [`Node::dial`] opens a session to a
//! ticket's maker, and [`Node::redial`] opens it again after a loss. On the other side [`Node::invite`] makes a ticket,
//! and [`Node::accept`] waits for sessions. If there is a control socket, it lists every session.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{
    Addresses, Authorize, Config, DenyAll, Endpoint, EndpointConfig, NodeKey, PathRules, Prefix, PublicKey,
    ResetKey, Route, Session, Span, Tap,
};
use anabranch_service::control::Socket;
use anabranch_service::process::memory;

use crate::access::TicketShare;
use crate::controllers::{ControllerHint, LinkError};
use crate::dial::{self, Dial, Means};
use crate::error::Error;
use crate::grants::{GrantWanted, Grants, USUAL_PATHS};
use crate::invitation::Invitation;
use crate::keyfile;
use crate::late::Late;
use crate::paths::{NodeSession, RunningSessions, warn_of_idle_rules};
use crate::port_mapping::{PortMappings, PortOwner};
use crate::relay::{Entry, Peer, RelayRoute};

/// Relays to request from controllers by default.
pub const USUAL_RELAYS: u8 = 3;
/// How long a closed session may repeat its last packet for a peer that did not receive it.
const LAST_WORDS: Duration = Duration::from_millis(700);
/// Longest time for a handshake, unless a session may be silent for less.
const CONNECT_TIMEOUT: Span = Span::from_secs(10);
/// Relay paths that a user may add to a session with pinned direct paths.
const MOST_ADDED: usize = 8;

/// The source of a node's key.
#[derive(Debug, Default)]
pub enum KeySource {
    /// The default file if relays, controllers or users of a control socket must know the key, otherwise a new key for this
    /// run.
    #[default]
    Usual,
    /// This file, which must exist.
    File(PathBuf),
    /// This key.
    Given(NodeKey),
}

impl KeySource {
    /// The key, and the file for its grants if there is one; `is_known` if relays or controllers must know the key.
    fn load(self, is_known: bool) -> Result<(NodeKey, Option<PathBuf>), Error> {
        Ok(match self {
            Self::Given(key) => (key, None),
            Self::File(file) => (keyfile::load(&file)?, Some(grants_file(&file))),
            Self::Usual if is_known => {
                let file = keyfile::default_path()?;
                (keyfile::load_or_create(&file)?, Some(grants_file(&file)))
            }
            Self::Usual => (keyfile::fresh()?, None),
        })
    }
}

impl From<Option<PathBuf>> for KeySource {
    fn from(file: Option<PathBuf>) -> Self {
        file.map_or(Self::Usual, Self::File)
    }
}

impl From<NodeKey> for KeySource {
    fn from(key: NodeKey) -> Self {
        Self::Given(key)
    }
}

/// The description of a node. Everything has a default.
pub struct NodeBuilder {
    key: KeySource,
    relays: Vec<RelayRoute>,
    controllers: Vec<ControllerHint>,
    most_relays: u8,
    rules: PathRules,
    addresses: Addresses,
    port: u16,
    map_port: bool,
    session: Config,
    access: Arc<dyn Authorize>,
    control: Option<PathBuf>,
    tap: Option<Arc<dyn Tap>>,
    device: Option<String>,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self {
            key: KeySource::default(),
            relays: Vec::new(),
            controllers: Vec::new(),
            most_relays: USUAL_RELAYS,
            rules: PathRules::default(),
            addresses: Addresses::All,
            port: 0,
            map_port: false,
            session: Config::default(),
            access: Arc::new(DenyAll),
            control: None,
            tap: None,
            device: None,
        }
    }
}

impl NodeBuilder {
    /// Sets the key, which identifies this node.
    #[must_use]
    pub fn key(mut self, key: impl Into<KeySource>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets relays that list this node's key. Each adds a path to every session, and makes this node reachable.
    #[must_use]
    pub fn relays(mut self, relays: Vec<RelayRoute>) -> Self {
        self.relays = relays;
        self
    }

    /// Sets controllers that list this node's key and grant it relays; any of them may answer.
    #[must_use]
    pub fn controllers(mut self, controllers: Vec<ControllerHint>) -> Self {
        self.controllers = controllers;
        self
    }

    /// Sets the most relays to request from controllers.
    #[must_use]
    pub fn most_relays(mut self, count: u8) -> Self {
        self.most_relays = count;
        self
    }

    /// Sets the rules for the paths of all sessions.
    #[must_use]
    pub fn path_rules(mut self, rules: PathRules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets the local addresses or interfaces to use. By default all are used, as they come and go.
    #[must_use]
    pub fn addresses(mut self, addresses: Addresses) -> Self {
        self.addresses = addresses;
        self
    }

    /// Sets the UDP port to listen on; any free one by default.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets whether to ask this machine's routers, by PCP or NAT-PMP, to let packets in to the port while the node runs.
    #[must_use]
    pub fn map_port(mut self, is_wanted: bool) -> Self {
        self.map_port = is_wanted;
        self
    }

    /// Sets the configuration of all sessions, such as the idle timeout.
    #[must_use]
    pub fn session(mut self, config: Config) -> Self {
        self.session = config;
        self
    }

    /// Sets how long a session may be silent on every path before it is lost. Pings keep it alive while both ends are
    /// idle.
    #[must_use]
    pub fn silence(mut self, limit: Span) -> Self {
        self.session.connect_timeout = CONNECT_TIMEOUT.min(limit);
        self.session.idle_timeout = limit;
        self.session.keep_alive = Some(limit / 3);
        self
    }

    /// Sets who may open sessions, usually an [`Access`](crate::Access); no one by default.
    #[must_use]
    pub fn access(mut self, access: impl Authorize) -> Self {
        self.access = Arc::new(access);
        self
    }

    /// Sets a Unix socket at which `anabranch path` lists and changes the paths of this node's sessions.
    #[must_use]
    pub fn control(mut self, socket: Option<PathBuf>) -> Self {
        self.control = socket;
        self
    }

    /// Shows every sent and received datagram to `tap`.
    #[must_use]
    pub fn tap(mut self, tap: Option<Arc<dyn Tap>>) -> Self {
        self.tap = tap;
        self
    }

    /// Names a network device that the program makes later: a rule for it is no mistake.
    #[must_use]
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Reads the key, opens the sockets, and gets a grant if there are controllers. If none of them grants anything, the node
    /// starts without a grant, and they are asked again while it runs.
    ///
    /// # Errors
    /// When a relay is named twice, the key cannot be used, the port is taken, or another program listens at the control
    /// socket.
    pub async fn start(self) -> Result<Node, Error> {
        check(&self.relays)?;
        let has_key = !matches!(self.key, KeySource::Usual);
        let has_relays = !self.relays.is_empty() || !self.controllers.is_empty();
        // At a control socket, others add relays that list the key.
        let is_known = has_key || has_relays || self.control.is_some();
        let (key, grants_file) = self.key.load(is_known)?;
        let (reset_key, port_owner) = (reset_key(&key), PortOwner::of(&key));
        let mut config = EndpointConfig::new(key)
            .port(self.port)
            .addresses(self.addresses)
            .session(self.session.clone())
            .path_rules(self.rules.clone());
        (config.authorize, config.tap, config.reset_key) = (self.access, self.tap, Some(reset_key));
        // Data within the windows may take twice its size when it comes in pieces.
        config.limits.memory = memory::limit().map_or(u64::MAX, |limit| limit / 3).min(config.limits.memory);
        let endpoint = Endpoint::bind(config).await.map_err(|error| Error::bind(&error))?;
        warn_of_idle_rules(&endpoint, &self.rules, self.device.as_deref());
        let endpoint = Arc::new(endpoint);
        let ports = if self.map_port { Some(PortMappings::start(&endpoint, port_owner).await) } else { None };
        let grants = if self.controllers.is_empty() {
            Grants::default()
        } else {
            let wanted = GrantWanted { relays: (self.most_relays, 1), paths: USUAL_PATHS };
            let (grants, problem) = Grants::seek(&endpoint, &self.controllers, wanted, grants_file).await;
            if let Some(error) = problem {
                tracing::warn!("{}", not_granted(&error, &endpoint.node()));
            }
            grants
        };
        let sessions = RunningSessions::default();
        let control = self.control.as_deref().map(|file| Socket::open(file, sessions.clone())).transpose();
        let control = control.map_err(|error| Error::local(error.to_string()))?;
        let (relays, config) = (self.relays, self.session);
        let late = Late::default();
        Ok(Node(Arc::new(Inner {
            endpoint,
            ports,
            relays,
            grants,
            sessions,
            config,
            is_known,
            control,
            late,
        })))
    }
}

/// The key of reset tokens. It is derived from the node's key, so a restarted node can end sessions of its earlier run.
fn reset_key(key: &NodeKey) -> ResetKey {
    let text = key.to_file_text();
    ResetKey::from_random(blake3::derive_key("anabranch 2026 node reset key", text.as_bytes()))
}

/// Checks that no route through relays occurs twice: two paths over the same route would share everything.
fn check(routes: &[RelayRoute]) -> Result<(), Error> {
    let again =
        (1..routes.len()).find(|at| routes[..*at].iter().any(|before| before.is_way_of(&routes[*at])));
    again.map_or(Ok(()), |at| {
        Err(Error::usage(format!("`--relay` names {} twice: that would be one path", routes[at]))
            .hint("name each relay once; at another address of it there may be another path"))
    })
}

/// The warning without a grant. A controller that refused has already given its reason and a remedy.
fn not_granted(error: &LinkError, own: &PublicKey) -> String {
    let problem = format!("no relays of controllers yet: {error}");
    match error {
        LinkError::Denied { .. } => problem,
        _ => format!(
            "{problem}; is `anabranch controller` running there, and does it list this node's key, {own}, as a client? Is the \
             key in `--controller` the one that it prints? A node that has another does not answer"
        ),
    }
}

fn grants_file(key: &Path) -> PathBuf {
    let mut name = key.as_os_str().to_owned();
    name.push(".grants");
    name.into()
}

/// A running node; clones are handles to the same one. With the last handle, the sessions close that no one else holds,
/// and with the last session the sockets.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    endpoint: Arc<Endpoint>,
    ports: Option<PortMappings>,
    relays: Vec<RelayRoute>,
    grants: Grants,
    sessions: RunningSessions,
    config: Config,
    /// True if others may know this node's key: the user chose it, or relays and controllers list it.
    is_known: bool,
    control: Option<Socket>,
    late: Late,
}

impl Node {
    /// Starts the description of a node.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::default()
    }

    /// A node over an existing endpoint, without relays and control socket. `session` configures the sessions that it
    /// opens.
    pub fn over(endpoint: Arc<Endpoint>, session: Config) -> Self {
        Self(Arc::new(Inner {
            endpoint,
            ports: None,
            relays: Vec::new(),
            grants: Grants::default(),
            sessions: RunningSessions::default(),
            config: session,
            is_known: false,
            control: None,
            late: Late::default(),
        }))
    }

    /// The public key that identifies this node.
    pub fn id(&self) -> PublicKey {
        self.0.endpoint.node()
    }

    /// The endpoint, for functions that this type does not have.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0.endpoint
    }

    /// The relays that this node was started with.
    pub fn relays(&self) -> &[RelayRoute] {
        &self.0.relays
    }

    /// The grants of this node.
    pub fn grants(&self) -> &Grants {
        &self.0.grants
    }

    /// Opens a session to a ticket's maker, or to a node by its key, directly or through relays. Until the session is
    /// closed, further paths use the ticket's relays, this node's relays and granted ones.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unreachable`] when no route led there, [`crate::ErrorKind::Refused`] when the node does not admit this
    /// one.
    pub async fn dial(&self, dial: &Dial) -> Result<NodeSession, Error> {
        let Inner { endpoint, relays, grants, sessions, config, is_known, control, late, .. } = &*self.0;
        let entry = match dial.secret() {
            Some(secret) if !is_known => Entry::Guest(secret.clone()),
            _ => Entry::Member(grants.clone()),
        };
        let addable = if control.is_some() { MOST_ADDED } else { 0 };
        let means = Means { endpoint, config, relays, entry, addable, late };
        let session = dial::dial(means, dial).await?;
        sessions.add(session.clone());
        Ok(session)
    }

    /// Waits for a session that another node opens. `None` after the node was closed.
    pub async fn accept(&self) -> Option<NodeSession> {
        let session = self.0.endpoint.accept().await?;
        let peer = Peer { addresses: Vec::new(), entry: Entry::Member(self.0.grants.clone()) };
        let session = NodeSession::new(&self.0.endpoint, &session, &[], &peer);
        self.0.sessions.add(session.clone());
        Some(session)
    }

    /// The addresses for other nodes, best first: those with a default route, then the others. Loopback addresses are
    /// included only without others, because local programs find the node anyway.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        addresses_to_tell(&self.0.endpoint)
    }

    /// The public addresses at which routers let packets in to this node now, if [`NodeBuilder::map_port`] asked for that.
    pub fn mapped_addresses(&self) -> Vec<SocketAddr> {
        self.0.ports.as_ref().map(PortMappings::addresses).unwrap_or_default()
    }

    /// Makes a ticket for `share`. While the invitation exists, this node is reachable through its own relays and
    /// granted ones. `outside` are addresses to put first, such as those of a router that forwards a port.
    ///
    /// # Errors
    /// When a configured relay does not admit this node, or none of the granted relays does.
    pub async fn invite(&self, share: &TicketShare, outside: &[SocketAddr]) -> Result<Invitation, Error> {
        Invitation::make(self, share, outside).await
    }

    /// Accepts no more sessions and ends all. Aborted sessions repeat their last packet for a moment, because the first
    /// one is easily lost during a transfer. The sockets close with the last handle.
    pub async fn close(&self) {
        let endpoint = &self.0.endpoint;
        endpoint.close().await;
        let all_gone = async {
            while endpoint.stats().sessions > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // A peer that has not received it by then notices by its idle timeout.
        let _ = tokio::time::timeout(LAST_WORDS, all_gone).await;
        self.0.ports.iter().for_each(PortMappings::end);
    }
}

/// The addresses of an endpoint for other nodes, best first; loopback addresses only without others.
fn addresses_to_tell(endpoint: &Endpoint) -> Vec<SocketAddr> {
    let mut sockets = endpoint.sockets();
    if sockets.iter().any(|socket| !socket.place.loopback) {
        sockets.retain(|socket| !socket.place.loopback);
    }
    sockets.retain(|socket| !socket.ruled_out);
    sockets.sort_by_key(|socket| !socket.place.has_default_route());
    one_per_network_first(sockets.iter().map(|socket| {
        let network = Prefix { address: socket.place.address, bits: socket.place.prefix };
        (socket.local, (socket.place.index, network))
    }))
}

/// Puts the first address of each network before the second of any, because a ticket has room for few. A network is an
/// interface's number and a prefix there.
fn one_per_network_first(all: impl Iterator<Item = (SocketAddr, (u32, Prefix))>) -> Vec<SocketAddr> {
    let mut seen: Vec<(u32, Prefix)> = Vec::new();
    let (first, more): (Vec<_>, Vec<_>) = all.partition(|(address, (interface, network))| {
        let is_new = !seen.iter().any(|(on, known)| on == interface && known.contains(address.ip()));
        seen.push((*interface, *network));
        is_new
    });
    first.into_iter().chain(more).map(|(address, _)| address).collect()
}

/// True if these addresses lead only to this machine.
pub fn only_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().is_loopback())
}

/// The warning for [`only_here`].
pub const ONLY_HERE: &str = "no network is up: only programs on this very machine can use the ticket; connect to a network and start again";

/// The local end of a path for users: its interface, or its address if the interface has no name.
pub fn local_name(session: &Session, route: &Route) -> Option<String> {
    let interface = session.interface(route).filter(|name| !name.is_empty());
    interface.or_else(|| Some(session.local_address(route)?.ip().to_string()))
}

#[cfg(test)]
mod tests {
    use anabranch_overlay::controller::message::Again;

    use super::*;

    #[test]
    fn a_route_that_is_named_twice_is_refused_and_another_address_of_its_relay_is_not() {
        let [one, other] = [1, 2].map(|byte| NodeKey::from_random([byte; 32]).public());
        let routes = |texts: &[String]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let (first, second) = (format!("{one}@192.0.2.1:4600"), format!("{one}@192.0.2.2:4600"));
        let behind = format!("{first}+{other}@192.0.2.3:4600");
        assert!(check(&routes(&[first.clone(), second, behind])).is_ok());
        let twice = check(&routes(&[first.clone(), first.clone()])).unwrap_err();
        assert!(twice.message.contains(&first) && twice.hint.is_some(), "{twice:?}");
    }

    #[test]
    fn a_refusal_by_a_controller_has_no_hint_that_it_may_not_run() {
        let own = NodeKey::from_random([1; 32]).public();
        let why = "the quota allows 2 grants, and 2 are in use: there is room in 60 s";
        let denied = |why: &str| LinkError::Denied { why: why.into(), again: Again::Never };
        let refused = not_granted(&denied(why), &own);
        assert!(refused.ends_with(&format!("\"{why}\"")), "{refused:?}");
        let steering = not_granted(&denied("no\u{1b}[2J\n  hint    run `rm`"), &own);
        assert!(steering.ends_with("said \"no\\u{1b}[2J\\u{a}  hint    run `rm`\""), "{steering}");
        let silent = not_granted(&LinkError::Silent, &own);
        assert!(silent.contains(&own.to_string()), "{silent}");
        // A controller is silent towards a wrong key, too.
        assert!(silent.contains("Is the key in `--controller` the one"), "{silent}");
    }

    #[test]
    fn a_session_is_pinged_before_it_is_given_up() {
        let config = Node::builder().silence(Span::from_secs(6)).session;
        assert_eq!(config.connect_timeout, Span::from_secs(6));
        assert_eq!((config.idle_timeout, config.keep_alive), (Span::from_secs(6), Some(Span::from_secs(2))));
        assert_eq!(Node::builder().silence(Span::from_secs(60)).session.connect_timeout, CONNECT_TIMEOUT);
    }
    #[test]
    fn each_network_has_an_address_before_any_has_two() {
        let at = |text: &str, interface, bits| {
            let address: SocketAddr = format!("{text}:9").parse().unwrap();
            (address, (interface, Prefix { address: address.ip(), bits }))
        };
        let all = vec![
            at("192.0.2.1", 1, 24),
            at("192.0.2.2", 1, 24),
            at("198.51.100.1", 2, 24),
            at("192.0.2.3", 3, 24),
            at("203.0.113.7", 1, 24),
        ];
        let sorted: Vec<_> =
            one_per_network_first(all.into_iter()).iter().map(|address| address.ip().to_string()).collect();
        assert_eq!(sorted, ["192.0.2.1", "198.51.100.1", "192.0.2.3", "203.0.113.7", "192.0.2.2"]);
    }
}
