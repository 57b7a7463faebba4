//! The configuration of an endpoint, and the target of a session.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anabranch_agent::{Named, Reaches};
use anabranch_engine::{Config, PathRules};
use anabranch_secure::{Limits as KeyLimits, NodeKey, PublicKey, ResetKey, ShareId, TicketSecret};

use crate::address_policy::AddressPolicy;
use crate::authorize::{Authorize, DenyAll};
use crate::tap::Tap;

/// Which local addresses an endpoint uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    /// All addresses that lead out of this machine, and loopback, as they come and go.
    #[default]
    All,
    /// The addresses of these interfaces, as they come and go.
    Interfaces(Vec<String>),
    /// Exactly these addresses.
    Exactly(Vec<IpAddr>),
}

/// Limits of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most sessions at the same time, with those that have ended and answer late packets: at most a sixteenth.
    pub sessions: usize,
    /// Most sessions at the same time whose client has not confirmed the handshake.
    pub half_open: usize,
    /// Most sessions that wait for [`Endpoint::accept`].
    pub backlog: usize,
    /// Most bytes that all receive windows together may promise.
    pub memory: u64,
    /// After how much use the keys of a session change.
    pub keys: KeyLimits,
}

impl Limits {
    /// Most sessions that may answer late packets after their end.
    pub(crate) fn lingering(&self) -> usize {
        (self.sessions / 16).max(1)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 20_000,
            half_open: 1_000,
            backlog: 1_000,
            memory: 1 << 30,
            keys: KeyLimits::default(),
        }
    }
}

/// The configuration of an endpoint. Start with [`EndpointConfig::new`] and change what you need.
pub struct EndpointConfig {
    /// This node's identity.
    pub key: NodeKey,
    /// The UDP port, the same on every address; 0 for any free one.
    pub port: u16,
    /// The addresses to listen on and send from.
    pub addresses: Addresses,
    /// Settings of accepted sessions.
    pub session: Config,
    /// Decides who may open a session; by default no one may.
    pub authorize: Arc<dyn Authorize>,
    /// Judges the addresses that peers announce; the rule alone by default.
    pub address_policy: Option<Arc<dyn AddressPolicy>>,
    pub limits: Limits,
    /// Made of random bytes kept across restarts. With it, a restarted node informs its old peers that their sessions are
    /// gone. Without it they find out by timeout.
    pub reset_key: Option<ResetKey>,
    /// Sees everything sent and received, if set.
    pub tap: Option<Arc<dyn Tap>>,
}

impl EndpointConfig {
    /// Any free port on all addresses; no one may open a session.
    pub fn new(key: NodeKey) -> Self {
        Self {
            key,
            port: 0,
            addresses: Addresses::All,
            session: Config::default(),
            authorize: Arc::new(DenyAll),
            address_policy: None,
            limits: Limits::default(),
            reset_key: None,
            tap: None,
        }
    }

    /// Uses this port on every address.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Listens on and sends from these addresses.
    #[must_use]
    pub fn addresses(mut self, addresses: Addresses) -> Self {
        self.addresses = addresses;
        self
    }

    /// Sets who may open a session.
    #[must_use]
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize = Arc::new(authorize);
        self
    }

    /// Sets the policy for addresses that peers announce.
    #[must_use]
    pub fn address_policy(mut self, policy: impl AddressPolicy) -> Self {
        self.address_policy = Some(Arc::new(policy));
        self
    }

    /// Sets the settings of accepted sessions.
    #[must_use]
    pub fn session(mut self, session: Config) -> Self {
        self.session = session;
        self
    }

    /// Shows everything sent and received to `tap`.
    #[must_use]
    pub fn tap(mut self, tap: Arc<dyn Tap>) -> Self {
        self.tap = Some(tap);
        self
    }

    /// Sets the path rules of all sessions without rules of their own. Call it after [`Self::session`]. Caps count all these
    /// sessions together.
    #[must_use]
    pub fn path_rules(mut self, rules: PathRules) -> Self {
        self.session.rules = rules;
        self
    }
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("EndpointConfig");
        debug.field("node", &self.key.public()).field("port", &self.port).finish_non_exhaustive()
    }
}

/// A node to connect to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The node's identity; no other node can answer.
    pub node: PublicKey,
    /// Known addresses; the node announces others later.
    pub addresses: Vec<SocketAddr>,
    /// Further addresses that the user typed for this call; all of them are tried.
    pub typed: Vec<SocketAddr>,
    /// Where the known addresses come from, which decides whether private ones are tried.
    pub named: Named,
    /// Share and secret of a ticket, if any.
    pub credential: Option<(ShareId, TicketSecret)>,
    /// Use exactly these pairs of local address and remote address as paths.
    pub pins: Vec<(IpAddr, SocketAddr)>,
    /// How many paths through relays may be opened in addition to the pinned ones.
    pub relayed: u32,
}

impl Target {
    /// A node by its key, without a secret; the addresses are from a ticket or a configuration.
    pub fn new(node: PublicKey, addresses: Vec<SocketAddr>) -> Self {
        let named = Named::InList(Reaches::from_iter(addresses.iter().copied()));
        Self { node, addresses, typed: Vec::new(), named, credential: None, pins: Vec::new(), relayed: 0 }
    }
}
