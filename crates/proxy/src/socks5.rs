//! SOCKS5 (RFC 1928), without I/O.
//!
//! A client greets with its methods of authentication, the server chooses one, and the client sends its request. The datagrams of an
//! association have a header of their own in front.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::message::Outcome;
use crate::target::Target;

/// The first byte of all messages.
pub const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NONE_ACCEPTABLE: u8 = 0xff;
const V4: u8 = 1;
const NAME: u8 = 3;
const V6: u8 = 4;

/// The answer to a greeting that offers to go without authentication.
pub const WELCOME: [u8; 2] = [VERSION, NO_AUTHENTICATION];
/// The answer to any other greeting.
pub const UNWELCOME: [u8; 2] = [VERSION, NONE_ACCEPTABLE];

/// Bytes that are no SOCKS5 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They break the syntax.
    #[error("not a SOCKS5 request")]
    Syntax,
    /// The kind of address is unknown, or the name cannot be one.
    #[error("the address in a SOCKS5 request is not understood")]
    Address,
    /// A command other than CONNECT and UDP ASSOCIATE.
    #[error("SOCKS5 is served for connections and UDP associations only")]
    Command,
    /// A datagram in fragments.
    #[error("datagrams in fragments are not carried")]
    Fragment,
}

/// Reads a greeting; returns whether it offers to go without authentication, and its length. `None` while bytes are missing.
pub fn greeting(bytes: &[u8]) -> Result<Option<(bool, usize)>, Malformed> {
    match bytes {
        [] | [VERSION] => Ok(None),
        [VERSION, count, methods @ ..] => {
            let methods = methods.get(..usize::from(*count));
            Ok(methods.map(|methods| (methods.contains(&NO_AUTHENTICATION), 2 + methods.len())))
        }
        _ => Err(Malformed::Syntax),
    }
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A connection.
    Connect(Target),
    /// An association for datagrams. The address is where the client says they come from; many clients name their destination
    /// instead, so it is ignored.
    Associate,
}

/// Reads a request and its length; `None` while bytes are missing.
pub fn request(bytes: &[u8]) -> Result<Option<(Request, usize)>, Malformed> {
    let (command, rest) = match bytes {
        [] | [VERSION] | [VERSION, _] | [VERSION, _, _] => return Ok(None),
        [VERSION, command, _reserved, rest @ ..] => (*command, rest),
        _ => return Err(Malformed::Syntax),
    };
    let found = match command {
        1 => address(rest)?
            .map(|(target, length)| Ok((Request::Connect(target.ok_or(Malformed::Address)?), length))),
        3 => address(rest)?.map(|(_, length)| Ok((Request::Associate, length))),
        _ => Some(Err(Malformed::Command)),
    };
    Ok(found.transpose()?.map(|(request, length)| (request, 3 + length)))
}

/// Reads a kind of address, an address and a port. `None` inside for a name that cannot be one, `None` outside while bytes are missing.
fn address(bytes: &[u8]) -> Result<Option<(Option<Target>, usize)>, Malformed> {
    let host = match bytes {
        [] => return Ok(None),
        [V4, rest @ ..] => rest.first_chunk::<4>().map(|ip| (Ok(IpAddr::from(*ip)), 5)),
        [V6, rest @ ..] => rest.first_chunk::<16>().map(|ip| (Ok(IpAddr::from(*ip)), 17)),
        [NAME] => None,
        [NAME, length, rest @ ..] => {
            rest.get(..usize::from(*length)).map(|name| (Err(name), 2 + usize::from(*length)))
        }
        _ => return Err(Malformed::Address),
    };
    let Some((host, length)) = host else { return Ok(None) };
    let Some(port) = bytes[length..].first_chunk::<2>().map(|port| u16::from_be_bytes(*port)) else {
        return Ok(None);
    };
    let target = match host {
        Ok(ip) => Some(SocketAddr::new(ip, port).into()),
        Err(name) => std::str::from_utf8(name).ok().and_then(|name| Target::from_host(name, port)),
    };
    Ok(Some((target, length + 2)))
}

/// The code of a reply (RFC 1928 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The request is granted.
    Succeeded = 0,
    /// Any other failure.
    GeneralFailure = 1,
    /// Refused by the rules.
    NotAllowed = 2,
    /// The exit itself is not reached.
    NetworkUnreachable = 3,
    /// No route to the host, or its name has no address.
    HostUnreachable = 4,
    /// The host refused the connection.
    ConnectionRefused = 5,
    /// The host did not answer in time.
    TtlExpired = 6,
    /// The command is not served.
    CommandNotSupported = 7,
    /// The kind of address is not known.
    AddressNotSupported = 8,
}

impl From<Option<Outcome>> for Reply {
    /// The code for an outcome; `None` when the exit is not reached.
    fn from(outcome: Option<Outcome>) -> Self {
        match outcome {
            None => Self::NetworkUnreachable,
            Some(Outcome::Open) => Self::Succeeded,
            Some(Outcome::Refused) => Self::ConnectionRefused,
            Some(Outcome::Unreachable | Outcome::UnknownName) => Self::HostUnreachable,
            Some(Outcome::Denied | Outcome::UsedUp) => Self::NotAllowed,
            Some(Outcome::Busy) => Self::GeneralFailure,
            Some(Outcome::Silent) => Self::TtlExpired,
        }
    }
}

impl From<Malformed> for Reply {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::Command => Self::CommandNotSupported,
            Malformed::Address => Self::AddressNotSupported,
            Malformed::Syntax | Malformed::Fragment => Self::GeneralFailure,
        }
    }
}

/// A reply. `bound` is where to send the datagrams of an association; nothing depends on it for a connection.
pub fn reply(code: Reply, bound: Option<SocketAddr>) -> Vec<u8> {
    let mut bytes = vec![VERSION, code as u8, 0];
    write_address(bound.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into()), &mut bytes);
    bytes
}

fn write_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(V4);
            out.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(V6);
            out.extend(ip.octets());
        }
    }
    out.extend(address.port().to_be_bytes());
}

/// Reads the header of a client's datagram; returns its destination and payload.
///
/// # Errors
/// When there is no such header, or the datagram is a fragment.
pub fn datagram(bytes: &[u8]) -> Result<(Target, &[u8]), Malformed> {
    let [_, _, fragment, rest @ ..] = bytes else { return Err(Malformed::Syntax) };
    if *fragment != 0 {
        return Err(Malformed::Fragment);
    }
    let (target, length) = address(rest)?.ok_or(Malformed::Syntax)?;
    Ok((target.ok_or(Malformed::Address)?, &rest[length..]))
}

/// Writes the header of a datagram for a client: `from` is its source.
pub fn write_datagram_header(from: SocketAddr, out: &mut Vec<u8>) {
    out.extend([0, 0, 0]);
    write_address(from, out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_greeting_is_read_when_it_is_whole() {
        assert_eq!(greeting(b"\x05"), Ok(None));
        assert_eq!(greeting(b"\x05\x02\x02"), Ok(None));
        assert_eq!(greeting(b"\x05\x02\x02\x00x"), Ok(Some((true, 4))));
        assert_eq!(greeting(b"\x05\x01\x02"), Ok(Some((false, 3))));
        assert_eq!(greeting(b"\x05\x00"), Ok(Some((false, 2))));
        assert_eq!(greeting(b"G"), Err(Malformed::Syntax));
    }

    #[test]
    fn requests_are_read_when_they_are_whole() {
        let connect = |bytes: &[u8]| match request(bytes) {
            Ok(Some((Request::Connect(target), length))) => (target.to_string(), length),
            other => panic!("{other:?}"),
        };
        assert_eq!(connect(b"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50"), ("192.0.2.1:80".into(), 10));
        let v6 = [&b"\x05\x01\x00\x04"[..], &[0; 15], &[1, 1, 0xbb]].concat();
        assert_eq!(connect(&v6), ("[::1]:443".into(), 22));
        let name = b"\x05\x01\x00\x03\x0bexample.org\x01\xbb";
        assert_eq!(connect(name), ("example.org:443".into(), name.len()));
        for cut in 0..name.len() {
            assert_eq!(request(&name[..cut]), Ok(None), "{cut}");
        }
        // A client that names an address as text means the address.
        assert_eq!(connect(b"\x05\x01\x00\x03\x0810.0.0.1\x00\x50").0, "10.0.0.1:80");
    }

    #[test]
    fn what_is_not_served_has_its_own_code() {
        let bind = request(b"\x05\x02\x00\x01\xc0\x00\x02\x01\x00\x50").unwrap_err();
        assert_eq!(Reply::from(bind), Reply::CommandNotSupported);
        let kind = request(b"\x05\x01\x00\x09\xc0\x00").unwrap_err();
        assert_eq!(Reply::from(kind), Reply::AddressNotSupported);
        let name = request(b"\x05\x01\x00\x03\x03a b\x00\x50").unwrap_err();
        assert_eq!(Reply::from(name), Reply::AddressNotSupported);
    }

    #[test]
    fn an_association_may_name_any_address() {
        for bytes in [&b"\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00"[..], b"\x05\x03\x00\x03\x03a b\x00\x50"] {
            assert_eq!(request(bytes), Ok(Some((Request::Associate, bytes.len()))));
        }
    }

    #[test]
    fn datagrams_have_a_destination_and_fragments_are_refused() {
        let (to, payload) = datagram(b"\0\0\0\x01\xc0\x00\x02\x01\x00\x35query").unwrap();
        assert_eq!((to.to_string().as_str(), payload), ("192.0.2.1:53", &b"query"[..]));
        assert_eq!(datagram(b"\0\0\x01\x01\xc0\x00\x02\x01\x00\x35query"), Err(Malformed::Fragment));
        assert_eq!(datagram(b"\0\0\0\x01\xc0\x00"), Err(Malformed::Syntax));
    }

    #[test]
    fn every_outcome_has_a_code() {
        let codes = Outcome::ALL.map(|outcome| Reply::from(Some(outcome)) as u8);
        assert_eq!(codes, [0, 5, 4, 2, 1, 4, 6, 2]);
        assert_eq!(Reply::from(None), Reply::NetworkUnreachable);
        assert_eq!(reply(Reply::NotAllowed, None), b"\x05\x02\x00\x01\0\0\0\0\0\0");
    }

    proptest! {
        #[test]
        fn a_source_survives_its_header(ip: [u8; 16], port: u16, v6: bool) {
            let from: SocketAddr = match v6 {
                true => (ip, port).into(),
                false => ([ip[0], ip[1], ip[2], ip[3]], port).into(),
            };
            let mut bytes = Vec::new();
            write_datagram_header(from, &mut bytes);
            bytes.push(1);
            prop_assert_eq!(datagram(&bytes), Ok((from.into(), &[1][..])));
        }

        #[test]
        fn hostile_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0_u8..9) {
            let _ = (greeting(&bytes), request(&bytes), datagram(&bytes));
            if bytes.len() > 4 {
                bytes[..4].copy_from_slice(&[VERSION, kind % 3 + 1, 0, kind]);
            }
            if let Ok(Some((_, length))) = request(&bytes) {
                prop_assert!(length <= bytes.len());
            }
            bytes.drain(..bytes.len().min(1));
            let _ = datagram(&bytes);
        }
    }
}
