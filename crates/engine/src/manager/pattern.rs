//! Patterns that select the paths of a rule.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use super::Prefix;

/// The origin that a driver gives for one of its socket numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathOrigin {
    /// The interface that packets leave by.
    pub interface: String,
    /// The address that packets leave from.
    pub local: Option<IpAddr>,
    /// The keys of the relays, in order, as text; empty for a direct route.
    pub relays: Vec<String>,
    /// Addresses of relays through which peers reach this end, with the relays' keys: the remote address of a path that
    /// a peer opened through one.
    pub entrances: Arc<[(SocketAddr, String)]>,
}

/// A pattern for paths, as text:
///
/// | text | fits |
/// |---|---|
/// | `*` | every path |
/// | `wwan0`, `wlan*` | paths that leave by this interface, or by one whose name fits |
/// | `10.0.0.0/8`, `203.0.113.9` | paths with such an address at either end |
/// | `from:…`, `to:…` | paths with such an address here, or there |
/// | `relay:*`, `relay:ab1…` | paths through relays, or through that relay |
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every path.
    Any,
    /// Those that leave by an interface of this name, in which `*` stands for anything.
    Interface(String),
    /// Those with a matching address at either end.
    Either(Prefix),
    /// Those with a matching address at this end.
    From(Prefix),
    /// Those with a matching address at the far end: for paths through relays, the first relay's.
    To(Prefix),
    /// Those through a relay whose key begins with this text.
    Relay(String),
    /// Exactly this route.
    Way {
        /// The local address.
        local: Option<IpAddr>,
        /// The remote address.
        remote: SocketAddr,
        /// The relays, in order.
        relays: Vec<String>,
    },
}

impl Pattern {
    /// True if a path from `place` to `remote` fits.
    pub fn fits(&self, place: &PathOrigin, remote: SocketAddr) -> bool {
        let from = |prefix: &Prefix| place.local.is_some_and(|local| prefix.contains(local));
        match self {
            Self::Any => true,
            Self::Interface(name) => matches_glob(name, &place.interface),
            Self::Either(prefix) => from(prefix) || prefix.contains(remote.ip()),
            Self::From(prefix) => from(prefix),
            Self::To(prefix) => prefix.contains(remote.ip()),
            Self::Relay(key) => {
                let entrances = place.entrances.iter().filter(|(address, _)| *address == remote);
                let relays = place.relays.iter().chain(entrances.map(|(_, relay)| relay));
                relays.into_iter().any(|relay| relay.starts_with(key.as_str()))
            }
            Self::Way { local, remote: to, relays } => {
                (*local, *to) == (place.local, remote) && *relays == place.relays
            }
        }
    }
}

/// True if `name` fits a pattern in which `*` stands for any text, even none.
fn matches_glob(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(head) else { return false };
    if rest.is_empty() {
        return true;
    }
    let ends = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    ends.into_iter().any(|at| matches_glob(rest, &name[at..]))
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(prefix) = text.strip_prefix("from:") {
            return prefix.parse().map(Self::From);
        }
        if let Some(prefix) = text.strip_prefix("to:") {
            return prefix.parse().map(Self::To);
        }
        if let Some(key) = text.strip_prefix("relay:") {
            return Ok(Self::Relay(key.strip_suffix('*').unwrap_or(key).to_owned()));
        }
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Ok(prefix) = text.parse() {
            return Ok(Self::Either(prefix));
        }
        let is_name = |c: char| !c.is_whitespace() && !matches!(c, '=' | ':' | '/');
        if text.is_empty() || !text.chars().all(is_name) {
            return Err(format!(
                "`{text}` fits no paths; write an interface (wwan*), an address (10.0.0.0/8), from:ADDRESS, to:ADDRESS, \
                 relay:KEY, relay:* or *"
            ));
        }
        Ok(Self::Interface(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Interface(name) => f.write_str(name),
            Self::Either(prefix) => prefix.fmt(f),
            Self::From(prefix) => write!(f, "from:{prefix}"),
            Self::To(prefix) => write!(f, "to:{prefix}"),
            Self::Relay(key) => write!(f, "relay:{key}*"),
            Self::Way { local, remote, relays } => {
                local.map_or(Ok(()), |local| write!(f, "{local} → "))?;
                write!(f, "{remote}")?;
                relays.iter().try_for_each(|relay| write!(f, " through {relay}"))
            }
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.address.is_ipv4() { 32 } else { 128 };
        if self.bits == whole { self.address.fmt(f) } else { write!(f, "{}/{}", self.address, self.bits) }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted =
            || format!("`{text}` is no range of addresses; write 10.0.0.0/8, 203.0.113.9 or 2001:db8::/32");
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wanted())?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(whole), |bits| bits.parse().map_err(|_| wanted()))?;
        if bits > whole { Err(wanted()) } else { Ok(Self { address, bits }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(interface: &str, local: &str, relays: &[&str]) -> PathOrigin {
        PathOrigin {
            interface: interface.into(),
            local: Some(local.parse().unwrap()),
            relays: relays.iter().map(ToString::to_string).collect(),
            ..PathOrigin::default()
        }
    }

    fn fits(pattern: &str, place: &PathOrigin) -> bool {
        pattern.parse::<Pattern>().unwrap().fits(place, "203.0.113.9:4433".parse().unwrap())
    }

    #[test]
    fn interfaces_are_named_with_stars() {
        let wwan = place("wwan0", "10.1.2.3", &[]);
        for (pattern, expected) in
            [("wwan0", true), ("wwan*", true), ("*", true), ("*an0", true), ("w*n*", true), ("wwan", false)]
        {
            assert_eq!(fits(pattern, &wwan), expected, "{pattern}");
        }
        assert!(!fits("wlan*", &wwan) && !fits("w*1", &wwan));
    }

    #[test]
    fn addresses_are_of_either_end_unless_it_is_said_which() {
        let path = place("eth0", "10.1.2.3", &[]);
        for (pattern, expected) in [
            ("10.0.0.0/8", true),
            ("203.0.113.9", true),
            ("from:10.1.2.3", true),
            ("from:203.0.113.9", false),
            ("to:203.0.0.0/16", true),
            ("to:10.0.0.0/8", false),
            ("2001:db8::/32", false),
        ] {
            assert_eq!(fits(pattern, &path), expected, "{pattern}");
        }
    }

    #[test]
    fn a_path_that_a_peer_opened_through_a_relay_goes_by_the_relays_key() {
        let remote = |text: &str| text.parse::<SocketAddr>().unwrap();
        let entrances = [(remote("203.0.113.9:4433"), "ab1relay".to_owned())].into();
        let here = PathOrigin { entrances, ..place("eth0", "10.1.2.3", &[]) };
        for (pattern, expected) in [("relay:*", true), ("relay:ab1r", true), ("relay:ab2", false)] {
            let pattern: Pattern = pattern.parse().unwrap();
            assert_eq!(pattern.fits(&here, remote("203.0.113.9:4433")), expected, "{pattern}");
            assert!(!pattern.fits(&here, remote("203.0.113.9:4434")), "{pattern}");
        }
    }

    #[test]
    fn relays_go_by_their_keys_or_all_together() {
        let relayed = place("eth0", "10.1.2.3", &["ab1xyz", "ab1uvw"]);
        assert!(fits("relay:*", &relayed) && fits("relay:ab1uvw", &relayed) && !fits("relay:ab1q", &relayed));
        assert!(!fits("relay:*", &place("eth0", "10.1.2.3", &[])));
    }

    #[test]
    fn what_is_no_pattern_is_refused_and_patterns_read_as_they_are_written() {
        for text in ["", "a b", "from:eth0", "10.0.0.0/33", "to:", "what:ever", "10.0.0.0/x"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
        for text in
            ["*", "wwan*", "10.0.0.0/8", "203.0.113.9", "from:10.0.0.0/8", "to:2001:db8::/32", "relay:ab1*"]
        {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
    }
}
