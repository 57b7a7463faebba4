//! Messages between a proxy and an exit over the streams of their session.
//!
//! The first stream is the control stream: [`Head::Control`], then lines of JSON ([`Request`], [`Answer`]). Every other stream is one
//! connection: its opener sends a [`Head`], the other end answers with one byte ([`Outcome`]), and then both carry bytes. An end of
//! stream is a half-close. A stream for [`Head::Datagrams`] carries frames instead: length (2), destination or source, payload.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::target::{NotATarget, Target};

/// Version of these messages.
pub const VERSION: u32 = 1;

const CONTROL: u8 = 0;
const DATAGRAMS: u8 = 1;
const ACCEPTED: u8 = 2;

/// The first bytes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// The control stream.
    Control,
    /// UDP datagrams to and from many destinations.
    Datagrams,
    /// The exit accepted a connection at a listener that the proxy asked for.
    Accepted {
        /// The listener's number.
        listener: u16,
        /// The caller.
        from: SocketAddr,
    },
    /// A TCP connection to this destination.
    Connect(Target),
}

impl Head {
    /// The head's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Control => bytes.push(CONTROL),
            Self::Datagrams => bytes.push(DATAGRAMS),
            Self::Accepted { listener, from } => {
                bytes.push(ACCEPTED);
                bytes.extend(listener.to_be_bytes());
                Target::Address(*from).write(&mut bytes);
            }
            Self::Connect(target) => target.write(&mut bytes),
        }
        bytes
    }

    /// How many bytes a head has that begins with these, as far as they tell: when it is more, read so many and ask again.
    pub fn length(bytes: &[u8]) -> Result<usize, NotATarget> {
        match bytes {
            [CONTROL | DATAGRAMS, ..] => Ok(1),
            [ACCEPTED, rest @ ..] => Ok(3 + Target::length(rest.get(2..).unwrap_or_default())?),
            _ => Target::length(bytes),
        }
    }

    /// Reads a whole head.
    pub fn read(bytes: &[u8]) -> Result<Self, NotATarget> {
        let whole = |(target, rest): (Target, &[u8])| rest.is_empty().then_some(target).ok_or(NotATarget);
        match bytes {
            [CONTROL] => Ok(Self::Control),
            [DATAGRAMS] => Ok(Self::Datagrams),
            [ACCEPTED, high, low, rest @ ..] => match whole(Target::read(rest)?)? {
                Target::Address(from) => {
                    Ok(Self::Accepted { listener: u16::from_be_bytes([*high, *low]), from })
                }
                Target::Name(..) => Err(NotATarget),
            },
            _ => Ok(Self::Connect(whole(Target::read(bytes)?)?)),
        }
    }
}

/// The result of a request for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Open,
    /// The destination refused it.
    Refused,
    /// There is no route to the destination.
    Unreachable,
    /// The exit does not allow this destination.
    Denied,
    /// Too many connections, or the exit has no descriptor left.
    Busy,
    /// The name has no address.
    UnknownName,
    /// The destination did not answer in time.
    Silent,
    /// The bytes allowed for this key or ticket are used up.
    UsedUp,
}

impl Outcome {
    /// All outcomes, each at its number.
    pub const ALL: [Self; 8] = [
        Self::Open,
        Self::Refused,
        Self::Unreachable,
        Self::Denied,
        Self::Busy,
        Self::UnknownName,
        Self::Silent,
        Self::UsedUp,
    ];

    /// The answer's byte.
    pub fn to_byte(self) -> u8 {
        self as u8
    }

    /// Reads the answer.
    pub fn read(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// The result for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Open => "connected",
            Self::Refused => "the destination refused the connection",
            Self::Unreachable => "the exit has no route to the destination",
            Self::Denied => "the exit does not allow this destination",
            Self::Busy => "the exit has too many connections",
            Self::UnknownName => "the exit finds no address for this name",
            Self::Silent => "the destination did not answer",
            Self::UsedUp => "the bytes that the exit allows are used up",
        }
    }
}

/// A message from the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum Request {
    /// Opens the use of the exit.
    Hello {
        /// [`VERSION`] of the proxy.
        version: u32,
    },
    /// Asks the exit to accept connections at one of its ports.
    Listen {
        /// The proxy's number for this listener.
        listener: u16,
        /// Where to listen.
        address: SocketAddr,
    },
}

/// A message from the exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "type")]
pub enum Answer {
    /// The exit may be used.
    Welcome {
        /// [`VERSION`] of the exit.
        version: u32,
    },
    /// The exit may not be used.
    Refused {
        /// Why, for people.
        reason: String,
    },
    /// The exit accepts connections at this port.
    Listening {
        /// The proxy's number for this listener.
        listener: u16,
        /// Where.
        address: SocketAddr,
    },
    /// The exit does not accept connections at this port.
    NotListening {
        /// The proxy's number for this listener.
        listener: u16,
        /// Why, for people.
        reason: String,
    },
}

/// Bytes before a datagram's destination or source and payload: their length.
pub const FRAME_HEAD: usize = 2;

/// Appends a datagram with its destination or source as a frame; false and unchanged if it is too long for one.
pub fn write_frame(peer: &Target, payload: &[u8], out: &mut Vec<u8>) -> bool {
    let start = out.len();
    out.extend([0; FRAME_HEAD]);
    peer.write(out);
    out.extend_from_slice(payload);
    match u16::try_from(out.len() - start - FRAME_HEAD) {
        Ok(length) => {
            out[start..start + FRAME_HEAD].copy_from_slice(&length.to_be_bytes());
            true
        }
        Err(_) => {
            out.truncate(start);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_tunnel::message::{read, write};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_outcome_survives_its_byte() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::read(outcome.to_byte()), Some(outcome));
        }
        assert_eq!(Outcome::read(Outcome::ALL.len() as u8), None);
    }

    #[test]
    fn messages_survive_their_lines() {
        let address = "[::1]:8080".parse().unwrap();
        let listen = Request::Listen { listener: 3, address };
        assert_eq!(read::<Request>(&write(&listen)), Ok(listen));
        let welcome = read::<Answer>(br#"{"type":"welcome","version":1}"#);
        assert_eq!(welcome, Ok(Answer::Welcome { version: 1 }));
    }

    #[test]
    fn a_frame_has_its_length_and_none_is_too_long() {
        let (to, mut out) = (Target::from_host("192.0.2.1", 53).unwrap(), vec![7]);
        assert!(write_frame(&to, b"query", &mut out));
        assert_eq!((&out[1..3], out.len()), (&[0, 12][..], 1 + 2 + 7 + 5));
        assert!(!write_frame(&to, &[0; 65_530], &mut out));
        assert_eq!(out.len(), 15);
    }

    proptest! {
        #[test]
        fn heads_survive_their_bytes(kind in 0..4, listener: u16, ip: [u8; 16], port: u16, name in "[a-z]{1,60}") {
            let from = SocketAddr::from((ip, port));
            let head = match kind {
                0 => Head::Control,
                1 => Head::Datagrams,
                2 => Head::Accepted { listener, from },
                _ => Head::Connect(Target::Name(name.parse().unwrap(), port)),
            };
            let bytes = head.to_bytes();
            prop_assert_eq!(Head::length(&bytes), Ok(bytes.len()));
            for cut in 0..bytes.len() {
                prop_assert!(Head::length(&bytes[..cut]).unwrap() > cut);
            }
            prop_assert_eq!(Head::read(&bytes), Ok(head));
        }

        #[test]
        fn hostile_heads_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Head::length(&bytes);
            let _ = Head::read(&bytes);
        }
    }
}
