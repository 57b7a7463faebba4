//! A destination: an address or a name with a port, and its bytes on the wire.
//!
//! ```text
//! kind (1) ─ 4: address (4), port (2) ─ 6: address (16), port (2) ─ 3: length (1), name, port (2)
//! ```

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Longest name of a host (RFC 1035 §2.3.4).
const LONGEST_NAME: usize = 253;

const NAME: u8 = 3;
const V4: u8 = 4;
const V6: u8 = 6;

/// Where a connection or a datagram goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    Address(SocketAddr),
    /// A name that the exit resolves.
    Name(HostName, u16),
}

/// The name of a host: at most 253 letters, digits, dots, hyphens and underscores.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(String);

impl HostName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let is_name = (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(is_usual);
        is_name.then(|| Self(text.to_ascii_lowercase())).ok_or(())
    }
}

impl Target {
    /// A host that is an address, with or without brackets, or a name.
    pub fn from_host(host: &str, port: u16) -> Option<Self> {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        match bare.unwrap_or(host).parse::<IpAddr>() {
            Ok(address) => Some(Self::Address(SocketAddr::new(address, port))),
            Err(_) if bare.is_some() => None,
            Err(_) => Some(Self::Name(host.parse().ok()?, port)),
        }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Name(_, port) => *port,
        }
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Address(address) => match address.ip() {
                IpAddr::V4(ip) => {
                    out.push(V4);
                    out.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.push(V6);
                    out.extend(ip.octets());
                }
            },
            Self::Name(name, _) => {
                // A name has at most 253 bytes.
                out.extend([NAME, name.0.len() as u8]);
                out.extend(name.0.as_bytes());
            }
        }
        out.extend(self.port().to_be_bytes());
    }

    /// How many bytes a destination has that begins with these; as far as they tell, more may be needed to tell.
    pub fn length(bytes: &[u8]) -> Result<usize, NotATarget> {
        match bytes {
            [] => Ok(1),
            [V4, ..] => Ok(7),
            [V6, ..] => Ok(19),
            [NAME] => Ok(2),
            [NAME, length, ..] => Ok(4 + usize::from(*length)),
            _ => Err(NotATarget),
        }
    }

    /// Reads a destination and returns the bytes behind it.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8]), NotATarget> {
        let (own, rest) = bytes.split_at_checked(Self::length(bytes)?).ok_or(NotATarget)?;
        let (host, port) = own.split_last_chunk::<2>().ok_or(NotATarget)?;
        let port = u16::from_be_bytes(*port);
        let target = match host {
            [V4, ip @ ..] => Self::Address((<[u8; 4]>::try_from(ip).map_err(|_| NotATarget)?, port).into()),
            [V6, ip @ ..] => Self::Address((<[u8; 16]>::try_from(ip).map_err(|_| NotATarget)?, port).into()),
            [NAME, _, name @ ..] => {
                let name = std::str::from_utf8(name).map_err(|_| NotATarget)?;
                Self::Name(name.parse().map_err(|()| NotATarget)?, port)
            }
            _ => return Err(NotATarget),
        };
        Ok((target, rest))
    }
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(name, port) => write!(f, "{}:{port}", name.0),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no destination; write HOST:PORT, such as db.example.org:5432");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
        // An IPv6 address needs brackets, or its last group would be taken for the port.
        Self::from_host(host, port).filter(|_| !host.contains(':') || host.starts_with('[')).ok_or_else(wrong)
    }
}

/// Bytes that are no destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a destination")]
pub struct NotATarget;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_destination_is_an_address_or_a_name_with_a_port() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:80", "example.org:443", "a_b.example.:1", "localhost:1"] {
            assert_eq!(text.parse::<Target>().map(|target| target.to_string()), Ok(text.to_owned()));
        }
        for text in ["", ":1", "a", "a:0", "a:70000", "2001:db8::1:80", "[a]:1", "a b:1", "a/b:1", "[::1:1"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        assert!(matches!(Target::from_host("10.0.0.1", 1), Some(Target::Address(_))));
        assert!(matches!(Target::from_host("::1", 1), Some(Target::Address(_))));
        assert!(HostName::from_str(&"a".repeat(254)).is_err());
    }

    proptest! {
        #[test]
        fn destinations_survive_their_bytes(name in "[a-z0-9._-]{1,253}", v6: Option<bool>, ip: [u8; 16], port: u16) {
            let target = match v6 {
                None => Target::Name(name.parse().unwrap(), port),
                Some(true) => Target::Address((ip, port).into()),
                Some(false) => Target::Address(([ip[0], ip[1], ip[2], ip[3]], port).into()),
            };
            let mut bytes = Vec::new();
            target.write(&mut bytes);
            prop_assert_eq!(Target::length(&bytes), Ok(bytes.len()));
            for cut in 0..bytes.len() {
                prop_assert!(Target::length(&bytes[..cut]).unwrap() > cut);
                prop_assert!(Target::read(&bytes[..cut]).is_err());
            }
            bytes.push(9);
            prop_assert_eq!(Target::read(&bytes), Ok((target, &[9][..])));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Target::length(&bytes);
            let _ = Target::read(&bytes);
        }
    }
}
