//! The key and locations of a node as people write them: `KEY@HOST:PORT,HOST:PORT`, with addresses or names as hosts.
//!
//! Names are stored as written and resolved each time the node is called ([`NodeAt::resolve`]), so a node whose
//! address changes is found again. All addresses of a name are used, IPv6 and IPv4 alike.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anabranch_net::PublicKey;
use anabranch_secure::RelayHint;
use futures_util::future::join_all;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// How long the system may take to resolve a name.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest name of a host, and longest part of one (RFC 1035 §2.3.4).
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// An address, or a host's name and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Address(SocketAddr),
    /// A host's name, to be resolved.
    Name(String, u16),
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = &*without_zone(text);
        if let Ok(address) = text.parse::<SocketAddr>() {
            // No packet can be sent to port 0.
            return if address.port() > 0 { Ok(Self::Address(address)) } else { Err(()) };
        }
        let (name, port) = text.rsplit_once(':').ok_or(())?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(())?;
        if is_host_name(name) { Ok(Self::Name(name.to_ascii_lowercase(), port)) } else { Err(()) }
    }
}

impl Place {
    /// Its addresses now.
    pub async fn addresses(&self) -> Result<Vec<SocketAddr>, Unresolved> {
        match self {
            Self::Address(address) => Ok(vec![*address]),
            Self::Name(name, port) => {
                resolved(name, *port).await.map_err(|why| Unresolved { name: name.clone(), why })
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

/// The text without the zone of a link-local address, such as `[fe80::1%eth0]:4600`: every interface that has such an
/// address tries it.
fn without_zone(text: &str) -> Cow<'_, str> {
    let zone = text.find('%').zip(text.find(']')).filter(|_| text.starts_with('['));
    match zone {
        Some((from, to)) if from < to => format!("{}{}", &text[..from], &text[to..]).into(),
        _ => text.into(),
    }
}

/// Whether a text can be a host name (RFC 1123 §2.1). A name that ends in a number counts as an invalid IPv4 address.
fn is_host_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        let is_within = (1..=LONGEST_LABEL).contains(&label.len());
        let is_usual = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        is_within && is_usual && !label.starts_with('-') && !label.ends_with('-')
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= LONGEST_NAME
        && name.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// A name for which the system has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name {name} cannot be resolved ({why}): is it right, and does this machine reach its name server?"
)]
pub struct Unresolved {
    /// The name.
    pub name: String,
    /// The resolver's error.
    pub why: String,
}

/// A node's key and its possible locations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAt {
    pub node: PublicKey,
    /// Its possible locations.
    pub places: Vec<Place>,
}

impl NodeAt {
    /// A node at these addresses.
    pub fn new(node: PublicKey, addresses: &[SocketAddr]) -> Self {
        Self { node, places: addresses.iter().copied().map(Place::Address).collect() }
    }

    /// Resolves its names and returns all its addresses, in order.
    pub async fn resolve(&self) -> Result<RelayHint, Unresolved> {
        let (mut addresses, mut failed) = (Vec::new(), None);
        for found in join_all(self.places.iter().map(Place::addresses)).await {
            match found {
                Ok(found) => addresses.extend(found),
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        addresses.retain(|address| seen.insert(*address));
        match failed.filter(|_| addresses.is_empty()) {
            Some(failed) => Err(failed),
            None => Ok(RelayHint { node: self.node, addresses }),
        }
    }
}

/// Resolves a name to at least one address.
async fn resolved(name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found: io::Result<Vec<SocketAddr>> = match timeout(PATIENCE, lookup_host((name, port))).await {
        Ok(found) => found.map(Iterator::collect),
        Err(_) => return Err(format!("no answer within {} s", PATIENCE.as_secs())),
    };
    match found {
        Ok(found) if found.is_empty() => Err("it has no address".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => {
            let why = error.to_string();
            Err(why.strip_prefix("failed to lookup address information: ").unwrap_or(&why).to_owned())
        }
    }
}

impl From<RelayHint> for NodeAt {
    fn from(hint: RelayHint) -> Self {
        Self::new(hint.node, &hint.addresses)
    }
}

impl FromStr for NodeAt {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (key, places) = text.split_once('@').ok_or(())?;
        let places: Result<_, ()> = places.split(',').map(|word| word.trim().parse()).collect();
        Ok(Self { node: key.trim().parse().map_err(|_| ())?, places: places? })
    }
}

impl fmt::Display for NodeAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.node)?;
        for (index, place) in self.places.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{place}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_or_a_name_with_a_port() {
        for text in ["192.0.2.1:4600", "[2001:db8::1]:4600"] {
            assert!(matches!(text.parse(), Ok(Place::Address(_))), "{text}");
        }
        for text in ["relay:4600", "fra-1.relays.example.net:4600", "a_b.example.:1", "4600.example:1"] {
            let place: Place = text.parse().unwrap();
            assert_eq!((matches!(place, Place::Name(..)), place.to_string()), (true, text.to_owned()));
        }
        assert_eq!("Relay.Example:1".parse(), Ok(Place::Name("relay.example".into(), 1)));
        let long = format!("{}:1", ["a"; 128].join("."));
        for text in [
            "relay",
            "relay:0",
            "192.0.2.1:0",
            "[2001:db8::1]:0",
            "relay:70000",
            "relay:",
            ":4600",
            "300.0.2.1:1",
            "192.0.2:1",
            "-a:1",
            "a-:1",
            "a..b:1",
            "a b:1",
            "a/b:1",
            "[relay]:1",
            "2001:db8::1:4600",
            &long,
            &format!("{}:1", "a".repeat(64)),
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_link_local_address_may_have_a_zone() {
        for text in ["[fe80::1%eth0]:4600", "[fe80::1%2]:4600", "[fe80::1]:4600"] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place, Place::Address("[fe80::1]:4600".parse().unwrap()), "{text}");
        }
        for text in ["[relay%eth0]:4600", "relay:4600%eth0", "[fe80::1%eth0:4600", "%eth0]:4600"] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_gives_all_its_addresses_and_one_without_any_is_named() {
        let node = anabranch_net::NodeKey::from_random([5; 32]).public();
        let at: NodeAt = format!("{node}@localhost:4600,127.0.0.1:4600,192.0.2.1:9").parse().unwrap();
        let hint = at.resolve().await.unwrap();
        assert!(hint.addresses.contains(&"127.0.0.1:4600".parse().unwrap()), "{hint:?}");
        assert_eq!(hint.addresses.last(), Some(&"192.0.2.1:9".parse().unwrap()));
        assert_eq!(hint.addresses.iter().filter(|at| at.to_string() == "127.0.0.1:4600").count(), 1);
        // Reserved (RFC 6761): it never resolves.
        let nowhere: NodeAt = format!("{node}@relay.invalid:4600").parse().unwrap();
        let why = nowhere.resolve().await.unwrap_err();
        assert_eq!(why.name, "relay.invalid");
        assert!(!why.why.is_empty() && why.to_string().contains("is it right"), "{why}");
        let either: NodeAt = format!("{node}@relay.invalid:4600,192.0.2.1:9").parse().unwrap();
        assert_eq!(either.resolve().await.unwrap().addresses.len(), 1);
    }
}
