//! Encodes and decodes the fields of messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Why bytes from a peer are no valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// They end inside a field.
    #[error("message ends inside {0}")]
    Truncated(&'static str),
    /// Bytes follow the last field.
    #[error("message has {0} bytes too many")]
    Trailing(usize),
    /// Longer than any message.
    #[error("message of {0} bytes")]
    TooLong(usize),
    /// An unknown kind.
    #[error("message of unknown kind {0:#04x}")]
    Unknown(u8),
    /// A field outside its limits.
    #[error("{0} is not allowed")]
    Invalid(&'static str),
}

/// Takes fields off the front of a message; never panics.
pub(crate) struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    pub fn bytes(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], MessageError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(MessageError::Truncated(what))?;
        self.0 = tail;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], MessageError> {
        let (head, tail) = self.0.split_first_chunk().ok_or(MessageError::Truncated(what))?;
        self.0 = tail;
        Ok(*head)
    }

    pub fn u8(&mut self, what: &'static str) -> Result<u8, MessageError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub fn u16(&mut self, what: &'static str) -> Result<u16, MessageError> {
        self.array(what).map(u16::from_be_bytes)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, MessageError> {
        self.array(what).map(u32::from_be_bytes)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, MessageError> {
        self.array(what).map(u64::from_be_bytes)
    }

    /// Family (1), address (4 or 16), port (2), as in `docs/reference/protocol.md`.
    pub fn address(&mut self) -> Result<SocketAddr, MessageError> {
        let ip = match self.u8("address")? {
            4 => IpAddr::V4(Ipv4Addr::from(self.array::<4>("address")?)),
            6 => IpAddr::V6(Ipv6Addr::from(self.array::<16>("address")?)),
            _ => return Err(MessageError::Invalid("address family")),
        };
        Ok(SocketAddr::new(ip, self.u16("port")?))
    }

    pub fn end(&self) -> Result<(), MessageError> {
        if self.0.is_empty() { Ok(()) } else { Err(MessageError::Trailing(self.0.len())) }
    }
}

pub(crate) fn put_address(out: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(6);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}
