//! How an endpoint is set up, and whom it is to call.

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
    /// All that lead out of this machine, loopback too, as they come and go.
    #[default]
    All,
    /// The addresses of these interfaces, as they come and go.
    Interfaces(Vec<String>),
    /// Exactly these.
    Exactly(Vec<IpAddr>),
}

/// What an endpoint holds at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions at the same time.
    pub sessions: usize,
    /// Sessions at the same time whose peer has not proven that it has our answer.
    pub half_open: usize,
    /// Sessions that wait for [`Endpoint::accept`].
    pub backlog: usize,
    /// Bytes that all receive windows together may promise.
    pub memory: u64,
    /// When the keys of a session change.
    pub keys: KeyLimits,
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

/// How an endpoint is set up. Start with [`EndpointConfig::new`] and change what you need.
pub struct EndpointConfig {
    /// This node's identity.
    pub key: NodeKey,
    /// The UDP port, the same on every address; 0 for any free one.
    pub port: u16,
    /// Where to listen and send from.
    pub addresses: Addresses,
    /// Settings of the sessions that are accepted.
    pub session: Config,
    /// Who may open one; nobody by default.
    pub authorize: Arc<dyn Authorize>,
    /// Judges the addresses that peers announce; the rule alone by default.
    pub address_policy: Option<Arc<dyn AddressPolicy>>,
    /// What is held at most.
    pub limits: Limits,
    /// Of random bytes kept across restarts: with it a restarted node tells its old peers that their
    /// sessions are gone; without it they find out by timeout.
    pub reset_key: Option<ResetKey>,
    /// Who sees what is sent and received; nobody by default.
    pub tap: Option<Arc<dyn Tap>>,
}

impl EndpointConfig {
    /// Any free port on all addresses, and nobody is let in.
    #[must_use]
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

    /// Lets in whom `authorize` says.
    #[must_use]
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorize = Arc::new(authorize);
        self
    }

    /// Has `policy` judge the addresses that peers announce.
    #[must_use]
    pub fn address_policy(mut self, policy: impl AddressPolicy) -> Self {
        self.address_policy = Some(Arc::new(policy));
        self
    }

    /// Settings of the sessions that are accepted.
    #[must_use]
    pub fn session(mut self, session: Config) -> Self {
        self.session = session;
        self
    }

    /// Shows all that is sent and received to `tap`.
    #[must_use]
    pub fn tap(mut self, tap: Arc<dyn Tap>) -> Self {
        self.tap = Some(tap);
        self
    }

    /// What is wanted of paths, in all sessions that have no rules of their own; to be said after their settings. Caps hold
    /// for all of them together.
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

/// Whom to connect to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The node's identity: nobody else can answer.
    pub node: PublicKey,
    /// Where it may be; more are learned from it.
    pub addresses: Vec<SocketAddr>,
    /// Who named these addresses, which decides whether private ones are tried.
    pub named: Named,
    /// Share and secret of a ticket, if one is used.
    pub credential: Option<(ShareId, TicketSecret)>,
    /// Use exactly these pairs of local address and remote address as paths.
    pub pins: Vec<(IpAddr, SocketAddr)>,
    /// How many paths through relays are to be opened beside the pinned ones.
    pub relayed: u32,
}

impl Target {
    /// A node by its key, without a secret; the addresses are from a ticket or a configuration.
    #[must_use]
    pub fn new(node: PublicKey, addresses: Vec<SocketAddr>) -> Self {
        let named = Named::InList(Reaches::from_iter(addresses.iter().copied()));
        Self { node, addresses, named, credential: None, pins: Vec::new(), relayed: 0 }
    }
}
