//! Sessions to relays, and paths through them.
//!
//! | file | what |
//! |---|---|
//! | `connection` | a session to one relay |
//! | `requests` | the stream of requests to one relay, and the flows there |
//! | `chain` | a series of relays, prepared for one path |
//! | `keeper` | keeps paths through relays open in a session while it lives |
//! | `entries` | keeps a path at the best address of the first relay |
//! | `open_path` | an open path through relays, and when it is closed |
//! | `tries` | why routes through relays have not given a path so far |
//! | `trouble` | failures of relays that are worth a warning, with advice |
//! | `spares` | keeps paths through some of many candidates, as the path agent chooses |
//! | `host` | lets the holders of a ticket reach this node through a relay |

pub(crate) mod chain;
mod connection;
mod entries;
mod host;
mod keeper;
pub(crate) mod open_path;
mod requests;
mod spares;
mod tries;
mod trouble;

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use anabranch_net::{AbandonReason, ConnectError, PathError, PublicKey, TicketSecret};
use anabranch_overlay::relay::{FlowState, Refused};
use anabranch_secure::RelayHint;
use futures_util::future::join_all;

use crate::address::{NodeAt, Unresolved};
use crate::grants::Grants;

pub use chain::RelayChain;
pub use connection::RelayConnection;
pub use host::Hosting;
pub(crate) use keeper::Begun;
pub use keeper::{Peer, RelayPaths};
pub use requests::{Flow, Wanted};
pub(crate) use spares::Candidates as RelayCandidates;

/// How relays admit a node.
#[derive(Clone, Debug)]
pub enum Entry {
    /// By its own key, which relays list or a controller's grant names.
    Member(Grants),
    /// As the guest of a ticket's maker; it can reach only the maker.
    Guest(TicketSecret),
}

impl Entry {
    /// The grants for this entry.
    pub(crate) fn grants(&self) -> Grants {
        match self {
            Self::Member(grants) => grants.clone(),
            Self::Guest(_) => Grants::default(),
        }
    }
}

impl Default for Entry {
    fn default() -> Self {
        Self::Member(Grants::default())
    }
}

/// Why a relay cannot be used now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// No session with it.
    #[error("the relay cannot be reached: {0}")]
    Connect(#[from] ConnectError),
    /// Its name has no address.
    #[error("the relay cannot be reached: {0}")]
    Unresolved(#[from] Unresolved),
    #[error("the relay refused: {0}")]
    Refused(Refused),
    /// It does not forward to this address.
    #[error("{}", not_forwarded(*to, *why))]
    NextHop {
        /// The destination of the packets.
        to: SocketAddr,
        /// Its reason.
        why: Refused,
    },
    /// The next hop does not confirm that it wants the packets.
    #[error("the relay gets no answer from {0}")]
    Unanswered(SocketAddr),
    /// A path through it ended.
    #[error("the path through the relay is {0}")]
    Over(FlowState),
    /// The session with it is over.
    #[error("the relay is gone")]
    Gone,
    /// It did not answer in time.
    #[error("the relay has not answered the {0} within 10 s")]
    Silent(&'static str),
    /// The session does not accept the path.
    #[error("no path through the relay: {0}")]
    Path(#[from] PathError),
    /// The session gave the path up before it was open.
    #[error("no path through the relay: {}", not_opened(.0))]
    NotOpened(AbandonReason),
    /// No address is known at which the relay could reach the node.
    #[error("no address is known at which the relay could reach the node")]
    NoAddress,
}

impl RelayError {
    /// Whether another address of the next hop may work.
    fn is_about_next_hop(&self) -> bool {
        let is_silent = matches!(self, Self::Connect(ConnectError::TimedOut(_)));
        is_silent || matches!(self, Self::NextHop { .. } | Self::Unanswered(_))
    }

    /// Whether the relay may have moved or be gone.
    fn is_lost(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Unresolved(_) | Self::Gone | Self::Silent(_))
    }
}

/// The address to which a relay does not forward, and the remedy.
fn not_forwarded(to: SocketAddr, why: Refused) -> String {
    let ip = to.ip().to_canonical();
    let what_to_do = match why {
        Refused::NoExit => {
            let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            format!("it has no {family} address itself; choose one that has")
        }
        Refused::NextHopOwn => {
            "that is the relay itself; the node has to be known by an address of its own".to_owned()
        }
        Refused::NextHopExcluded => {
            "its operator excludes that by `deny` in the configuration; choose another relay, or have that changed".to_owned()
        }
        _ => format!(
            "it is not a public address; if it is meant, have the relay's operator add \"{ip}\", or its network, to `next_hops` in the configuration"
        ),
    };
    format!("the relay does not forward to {to}: {what_to_do}")
}

/// Why a path did not open.
fn not_opened(why: &AbandonReason) -> &'static str {
    match why {
        AbandonReason::Refused => "rules for paths exclude it, here or at the node",
        AbandonReason::AddressGone => "this machine lost the address at which it began",
        _ => "the node does not answer over it",
    }
}

/// A route through relays, in the order in which packets pass them, written `KEY@ADDRESS:PORT` joined by `+`.
///
/// A host name may stand for an address; it is resolved each time the relay is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayRoute(pub Vec<NodeAt>);

impl RelayRoute {
    /// The relays' keys, in order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = PublicKey> {
        self.0.iter().map(|relay| relay.node)
    }

    /// The relays with their current addresses, and the error of the first relay without a resolved name.
    pub(crate) async fn resolve(&self) -> (Vec<RelayHint>, Option<Unresolved>) {
        let (mut relays, mut failed) = (Vec::new(), None);
        let resolved = join_all(self.0.iter().map(NodeAt::resolve)).await;
        for (relay, resolved) in self.0.iter().zip(resolved) {
            relays.push(resolved.unwrap_or_else(|why| {
                failed.get_or_insert(why);
                RelayHint { node: relay.node, addresses: Vec::new() }
            }));
        }
        (relays, failed)
    }

    /// The same route with the current addresses of the first relay added, for comparison with others.
    pub(crate) async fn with_addresses(&self) -> Self {
        let mut route = self.clone();
        if let Some(first) = route.0.first_mut()
            && let Ok(hint) = first.resolve().await
        {
            first.places.extend(NodeAt::from(hint).places);
        }
        route
    }

    /// Whether both lead through the same relays and start at the same address of the first one.
    pub fn is_way_of(&self, other: &Self) -> bool {
        let entries = |route: &Self| route.0.first().map(|relay| relay.places.clone()).unwrap_or_default();
        let known = entries(self);
        self.nodes().eq(other.nodes()) && entries(other).iter().any(|place| known.contains(place))
    }
}

/// Most relays in a chain.
pub const MOST_RELAYS: usize = 4;

impl FromStr for RelayRoute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let relays = text.split('+').map(relay).collect::<Result<Vec<_>, _>>()?;
        if relays.len() > MOST_RELAYS {
            return Err(format!("at most {MOST_RELAYS} relays can be one behind the other"));
        }
        let twice =
            (1..relays.len()).find(|at| relays[..*at].iter().any(|other| other.node == relays[*at].node));
        if let Some(at) = twice {
            return Err(format!(
                "packets would pass the relay {} twice; name each relay of a way once",
                relays[at].node
            ));
        }
        Ok(Self(relays))
    }
}

fn relay(text: &str) -> Result<NodeAt, String> {
    text.parse().map_err(|()| {
        format!(
            "`{text}` is no relay; write KEY@ADDRESS:PORT as `anabranch relay` prints it, or a host's name instead of the address, several joined by commas"
        )
    })
}

impl fmt::Display for RelayRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, relay) in self.0.iter().enumerate() {
            write!(f, "{}{relay}", if index == 0 { "" } else { "+" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_a_relay_does_not_forward_to_is_named_with_what_to_do() {
        let told = |to: &str, why| RelayError::NextHop { to: to.parse().unwrap(), why }.to_string();
        let private = told("10.1.2.3:4433", Refused::NextHopDenied);
        assert!(private.contains("10.1.2.3:4433") && private.contains("\"10.1.2.3\""), "{private}");
        assert!(private.contains("`next_hops`"), "{private}");
        for (why, says) in [(Refused::NextHopOwn, "the relay itself"), (Refused::NextHopExcluded, "`deny`")] {
            let other = told("10.1.2.3:4433", why);
            assert!(other.contains("10.1.2.3:4433") && other.contains(says), "{other}");
            assert!(!other.contains("next_hops"), "{other}");
        }
        let family = told("[2001:db8::1]:1", Refused::NoExit);
        assert!(family.contains("[2001:db8::1]:1") && family.contains("no IPv6 address"), "{family}");
    }

    #[test]
    fn relays_are_written_as_key_and_addresses_and_read_again() {
        let [key, other] = [5, 6].map(|byte| anabranch_net::NodeKey::from_random([byte; 32]).public());
        let text = format!("{key}@203.0.113.7:4600,[2001:db8::1]:4600+{other}@fra-1.example.net:9");
        let route: RelayRoute = text.parse().unwrap();
        assert_eq!((route.0.len(), route.0[0].places.len()), (2, 2));
        assert_eq!(route.to_string(), text);
        for wrong in ["", "x@1.2.3.4:5", &format!("{key}"), &format!("{key}@1.2.3.4"), &[&*text; 3].join("+")]
        {
            assert!(wrong.parse::<RelayRoute>().is_err(), "{wrong}");
        }
        let twice = format!("{text}+{key}@203.0.113.8:1").parse::<RelayRoute>().unwrap_err();
        assert!(twice.contains(&key.to_string()) && twice.contains("twice"), "{twice}");
    }
}
