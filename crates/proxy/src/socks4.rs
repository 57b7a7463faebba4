//! SOCKS4 and SOCKS4a, without I/O.
//!
//! A request is one message: version 4, command, port, address, user, and for SOCKS4a (address 0.0.0.x) a name.

use std::net::{Ipv4Addr, SocketAddr};

use crate::message::Outcome;
use crate::target::Target;

/// The first byte of a request.
pub const VERSION: u8 = 4;
const CONNECT: u8 = 1;
const GRANTED: u8 = 90;
const REJECTED: u8 = 91;
/// Version, command, port and address.
const FIXED: usize = 8;
/// Longest user name; it is ignored.
const LONGEST_USER: usize = 255;

/// A request that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is not a SOCKS4 request.
    #[error("not a SOCKS4 request")]
    Syntax,
    /// It asks for something other than a connection.
    #[error("SOCKS4 is served for connections only")]
    Command,
}

/// Reads a request; returns its destination and length, or `None` while bytes are missing.
pub fn request(bytes: &[u8]) -> Result<Option<(Target, usize)>, Malformed> {
    match bytes {
        [] | [VERSION] | [VERSION, CONNECT, ..] => {}
        [VERSION, ..] => return Err(Malformed::Command),
        _ => return Err(Malformed::Syntax),
    }
    let Some(([_, _, high, low, ip @ ..], rest)) = bytes.split_first_chunk::<FIXED>() else {
        return Ok(None);
    };
    let port = u16::from_be_bytes([*high, *low]);
    let Some(user) = until_null(rest, LONGEST_USER)? else { return Ok(None) };
    let length = FIXED + user.len() + 1;
    if !matches!(ip, [0, 0, 0, last] if *last > 0) {
        let address = SocketAddr::from((Ipv4Addr::from(*ip), port));
        return Ok(Some((address.into(), length)));
    }
    let Some(name) = until_null(&bytes[length..], LONGEST_USER)? else { return Ok(None) };
    let host = std::str::from_utf8(name).map_err(|_| Malformed::Syntax)?;
    let target = Target::from_host(host, port).ok_or(Malformed::Syntax)?;
    Ok(Some((target, length + name.len() + 1)))
}

/// The bytes before the next null; `None` before it has arrived.
fn until_null(bytes: &[u8], longest: usize) -> Result<Option<&[u8]>, Malformed> {
    let end = bytes.iter().take(longest + 1).position(|byte| *byte == 0);
    match end {
        Some(end) => Ok(Some(&bytes[..end])),
        None if bytes.len() > longest => Err(Malformed::Syntax),
        None => Ok(None),
    }
}

/// The reply for an outcome. SOCKS4 has one code for all failures.
pub fn reply(outcome: Option<Outcome>) -> [u8; FIXED] {
    let code = if outcome == Some(Outcome::Open) { GRANTED } else { REJECTED };
    [0, code, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_and_names_are_read() {
        let plain = b"\x04\x01\x00\x50\xc0\x00\x02\x01me\x00rest";
        let (target, length) = request(plain).unwrap().unwrap();
        assert_eq!((target.to_string().as_str(), &plain[length..]), ("192.0.2.1:80", &b"rest"[..]));
        let named = b"\x04\x01\x01\xbb\x00\x00\x00\x07\x00example.org\x00";
        let (target, length) = request(named).unwrap().unwrap();
        assert_eq!((target.to_string().as_str(), length), ("example.org:443", named.len()));
        for cut in 0..named.len() {
            assert_eq!(request(&named[..cut]), Ok(None), "{cut}");
        }
    }

    #[test]
    fn other_commands_and_endless_users_are_refused() {
        assert_eq!(request(b"\x04\x02"), Err(Malformed::Command));
        assert_eq!(request(b"\x05\x01"), Err(Malformed::Syntax));
        let endless = [&b"\x04\x01\x00\x50\xc0\x00\x02\x01"[..], &[b'x'; 256]].concat();
        assert_eq!(request(&endless), Err(Malformed::Syntax));
        let nameless = b"\x04\x01\x01\xbb\x00\x00\x00\x07\x00a b\x00";
        assert_eq!(request(nameless), Err(Malformed::Syntax));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), fixed: bool) {
            if fixed && bytes.len() > 1 {
                (bytes[0], bytes[1]) = (VERSION, CONNECT);
            }
            if let Ok(Some((_, length))) = request(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
