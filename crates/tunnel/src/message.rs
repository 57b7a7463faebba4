//! The tunnel's messages over its control stream.
//!
//! The client opens a stream with the head of a control stream (`anabranch-proxy`), then sends messages; each is a line of JSON of at most
//! [`LONGEST`] bytes. The first is [`Request::Hello`], with the policy for packets to it; the server answers with [`Answer::Welcome`] or
//! [`Answer::Refused`]. The stream stays open: its end is the end of the tunnel.
//!
//! A connection of the stream lane is a stream like those between a proxy and its exit.

use std::net::IpAddr;

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
pub fn read<'a, M: Deserialize<'a>>(line: &'a [u8]) -> Result<M, MessageError> {
    if line.len() > LONGEST {
        return Err(MessageError::TooLong);
    }
    serde_json::from_slice(line).map_err(|error| MessageError::Syntax(error.to_string()))
}

/// The line for a message, with its end.
pub fn write<M: Serialize>(message: &M) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
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

    proptest! {
        #[test]
        fn hostile_lines_never_panic(rest in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = read::<Request>(&rest);
            let _ = read::<Answer>(&rest);
        }
    }
}
