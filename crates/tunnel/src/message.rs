//! The tunnel's messages: those over the control stream, and the head of each connection of the stream lane.
//!
//! The client opens a stream and sends [`StreamHead::Control`], then messages; each is a line of JSON of at most [`LONGEST`] bytes. It begins with
//! [`Request::Hello`], with the policy for packets to it; the server answers with [`Answer::Welcome`] or [`Answer::Refused`]. The stream stays open: its end is the end of the tunnel.
//!
//! In the stream lane the end that took a TCP connection opens a stream with [`StreamHead::Connect`]. The other end connects, answers with one byte
//! ([`Connected`]), and from then on both carry bytes; an end of stream is a half-close.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::policy::Policy;
use serde::{Deserialize, Serialize};

/// Version of these messages.
pub const VERSION: u32 = 1;
/// Longest line of the control stream, in bytes.
pub const LONGEST: usize = 16 << 10;

/// A message from the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum Request {
    /// Opens the tunnel.
    Hello {
        /// [`VERSION`] of the client.
        version: u32,
        /// The client's own networks that the server should route to it.
        #[serde(default)]
        networks: Vec<IpNet>,
        /// How packets to the client travel.
        #[serde(default)]
        policy: Policy,
    },
    /// From now on packets to the client travel like this.
    Policy {
        /// The new policy.
        policy: Policy,
    },
}

/// A message from the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum Answer {
    /// The tunnel is open.
    Welcome {
        /// [`VERSION`] of the server.
        version: u32,
        /// The client's addresses, with the length of the tunnel's network.
        addresses: Vec<IpNet>,
        /// The server's addresses in the tunnel.
        gateways: Vec<IpAddr>,
        /// Name servers that the client may use through the tunnel.
        #[serde(default)]
        dns: Vec<IpAddr>,
        /// Prefixes that the server reaches; everything when it is an exit.
        routes: Vec<IpNet>,
        /// Largest inner packet.
        mtu: u16,
        /// The server accepts TCP connections in the stream lane.
        #[serde(default)]
        streams: bool,
    },
    /// The tunnel stays closed.
    Refused {
        /// Why, for people.
        reason: String,
    },
}

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The line is too long.
    #[error("a message has more than {LONGEST} bytes")]
    TooLong,
    /// It is not JSON of the right shape.
    #[error("a message is not understood: {0}")]
    Syntax(String),
}

/// Reads one line of the control stream.
///
/// # Errors
/// [`MessageError`] for anything but a message.
pub fn read<'a, M: Deserialize<'a>>(line: &'a [u8]) -> Result<M, MessageError> {
    if line.len() > LONGEST {
        return Err(MessageError::TooLong);
    }
    serde_json::from_slice(line).map_err(|error| MessageError::Syntax(error.to_string()))
}

/// The line for a message, with its end.
#[must_use]
pub fn write<M: Serialize>(message: &M) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The first bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamHead {
    /// The control stream.
    Control,
    /// A TCP connection to this destination.
    Connect(SocketAddr),
}

const CONTROL: u8 = 0;
const CONNECT_V4: u8 = 4;
const CONNECT_V6: u8 = 6;

impl StreamHead {
    /// The head's bytes.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Control => vec![CONTROL],
            Self::Connect(to) => {
                let mut bytes = match to.ip() {
                    IpAddr::V4(address) => [&[CONNECT_V4][..], &address.octets()].concat(),
                    IpAddr::V6(address) => [&[CONNECT_V6][..], &address.octets()].concat(),
                };
                bytes.extend(to.port().to_be_bytes());
                bytes
            }
        }
    }

    /// How many bytes follow this first one; `None` if no head begins with it.
    #[must_use]
    pub fn rest(first: u8) -> Option<usize> {
        match first {
            CONTROL => Some(0),
            CONNECT_V4 => Some(6),
            CONNECT_V6 => Some(18),
            _ => None,
        }
    }

    /// Reads a head from its first byte and [`Self::rest`].
    #[must_use]
    pub fn read(first: u8, rest: &[u8]) -> Option<Self> {
        if Self::rest(first)? != rest.len() {
            return None;
        }
        if first == CONTROL {
            return Some(Self::Control);
        }
        let (address, port) = rest.split_at(rest.len() - 2);
        let port = u16::from_be_bytes(port.try_into().ok()?);
        let address = match first {
            CONNECT_V4 => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(address).ok()?),
        };
        Some(Self::Connect(SocketAddr::new(address, port)))
    }
}

/// The outcome of a connection in the stream lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connected {
    /// The connection is open.
    Yes,
    /// The destination refused it.
    Refused,
    /// The destination cannot be reached, or did not answer.
    Unreachable,
    /// The exit does not allow it.
    Denied,
    /// The exit has too many connections.
    Busy,
}

impl Connected {
    const ALL: [Self; 5] = [Self::Yes, Self::Refused, Self::Unreachable, Self::Denied, Self::Busy];

    /// The answer's byte.
    #[must_use]
    pub fn to_byte(self) -> u8 {
        self as u8
    }

    /// Reads the answer.
    #[must_use]
    pub fn read(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_survive_their_lines() {
        let welcome = Answer::Welcome {
            version: VERSION,
            addresses: vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()],
            gateways: vec!["10.77.0.1".parse().unwrap()],
            dns: vec![],
            routes: vec!["0.0.0.0/0".parse().unwrap()],
            mtu: 1280,
            streams: true,
        };
        let line = write(&welcome);
        assert_eq!(read::<Answer>(&line), Ok(welcome));
        let hello = read::<Request>(br#"{"type":"hello","version":1}"#);
        assert_eq!(hello, Ok(Request::Hello { version: 1, networks: vec![], policy: Policy::default() }));
        assert!(read::<Request>(b"{}").is_err() && read::<Request>(&vec![b' '; LONGEST + 1]).is_err());
    }

    #[test]
    fn every_answer_to_a_connection_survives_its_byte() {
        for answer in Connected::ALL {
            assert_eq!(Connected::read(answer.to_byte()), Some(answer));
        }
        assert_eq!(Connected::read(200), None);
    }

    proptest! {
        #[test]
        fn heads_survive_their_bytes(v6: bool, bytes: [u8; 16], port: u16) {
            let address = if v6 { IpAddr::from(bytes) } else { IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]) };
            let head = StreamHead::Connect(SocketAddr::new(address, port));
            let written = head.to_bytes();
            prop_assert_eq!(StreamHead::rest(written[0]), Some(written.len() - 1));
            prop_assert_eq!(StreamHead::read(written[0], &written[1..]), Some(head));
        }

        #[test]
        fn hostile_heads_and_lines_never_panic(first: u8, rest in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = StreamHead::read(first, &rest);
            let _ = read::<Request>(&rest);
            let _ = read::<Answer>(&rest);
        }
    }
}
