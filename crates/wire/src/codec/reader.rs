//! Reads typed fields from the front of bytes from the network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;

use bytes::{Buf, Bytes};

use crate::varint::read_varint;
use crate::{DecodeError, PathId, Pid, ResetToken};

/// A position in bytes from the network. Every error names the field, which callers pass as `what`, and its position.
pub struct Reader<B> {
    bytes: B,
    /// At most the number of bytes.
    at: usize,
}

impl<B: Deref<Target = [u8]>> Reader<B> {
    /// Begins at the first byte.
    pub fn new(bytes: B) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes taken so far.
    #[inline]
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes left.
    #[inline]
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    /// A big-endian number of two bytes.
    #[inline]
    pub fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_be_bytes)
    }

    /// A big-endian number of four bytes.
    #[inline]
    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_be_bytes)
    }

    /// A big-endian number of eight bytes.
    #[inline]
    pub fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_be_bytes)
    }

    /// The next `N` bytes, copied.
    #[inline]
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        match self.bytes[self.at..].first_chunk::<N>() {
            Some(chunk) => {
                self.at += N;
                Ok(*chunk)
            }
            None => Err(self.truncated(what, N as u64)),
        }
    }

    #[inline]
    pub(super) fn varint(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        match read_varint(&self.bytes[self.at..]) {
            Some((value, len)) => {
                self.at += len;
                Ok(value)
            }
            None => Err(self.truncated(what, self.bytes.get(self.at).map_or(1, |first| 1 << (first >> 6)))),
        }
    }

    /// A variable-length integer within `min..=max`.
    #[inline]
    pub(super) fn varint_within(
        &mut self,
        what: &'static str,
        min: u64,
        max: u64,
    ) -> Result<u64, DecodeError> {
        let value = self.varint(what)?;
        if (min..=max).contains(&value) { Ok(value) } else { Err(self.out_of_range(what, value, min, max)) }
    }

    /// An address: family (1), IP address (4 or 16), port (2).
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when too few bytes are left, [`DecodeError::Unknown`] for another family.
    pub fn address(&mut self) -> Result<SocketAddr, DecodeError> {
        let ip = match self.u8("address family")? {
            4 => IpAddr::V4(Ipv4Addr::from(self.array::<4>("IPv4 address")?)),
            6 => IpAddr::V6(Ipv6Addr::from(self.array::<16>("IPv6 address")?)),
            value => {
                let at = self.at - 1;
                return Err(DecodeError::Unknown { what: "address family", at, value: value.into() });
            }
        };
        Ok(SocketAddr::new(ip, self.u16("port")?))
    }

    /// Checks that no bytes are left.
    pub fn end(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { at: self.at, left }),
        }
    }

    #[inline]
    pub(super) fn path(&mut self) -> Result<PathId, DecodeError> {
        self.varint_within("path id", 0, u32::MAX.into()).map(|id| PathId(id as u32))
    }

    /// A PID. 0 is refused: it is reserved for first handshake messages.
    pub(super) fn pid(&mut self) -> Result<Pid, DecodeError> {
        match self.u64("PID")? {
            0 => Err(DecodeError::Zero { what: "PID", at: self.at }),
            pid => Ok(Pid(pid)),
        }
    }

    /// A reset token. A token of zeroes is refused because anyone could guess it.
    pub(super) fn reset_token(&mut self) -> Result<ResetToken, DecodeError> {
        let token = self.array("reset token")?;
        if token == [0; 16] {
            return Err(DecodeError::Zero { what: "reset token", at: self.at });
        }
        Ok(ResetToken(token))
    }

    /// The next `len` bytes, borrowed.
    #[inline]
    pub(super) fn slice(&mut self, what: &'static str, len: usize) -> Result<&[u8], DecodeError> {
        if len > self.left() {
            return Err(self.truncated(what, len as u64));
        }
        let from = self.at;
        self.at += len;
        Ok(&self.bytes[from..self.at])
    }

    #[cold]
    pub(super) fn truncated(&self, what: &'static str, needed: u64) -> DecodeError {
        DecodeError::Truncated { what, at: self.at, needed, left: self.left() }
    }

    #[cold]
    pub(super) fn out_of_range(&self, what: &'static str, value: u64, min: u64, max: u64) -> DecodeError {
        DecodeError::OutOfRange { what, at: self.at, value, min, max }
    }
}

impl<'a> Reader<&'a [u8]> {
    /// The next `len` bytes, borrowed from the input.
    pub fn bytes(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], DecodeError> {
        let bytes = self.bytes;
        self.slice(what, len)?;
        Ok(&bytes[self.at - len..self.at])
    }

    /// All bytes left.
    pub fn rest(&mut self) -> &'a [u8] {
        let (_, rest) = self.bytes.split_at(self.at);
        self.at = self.bytes.len();
        rest
    }
}

impl Reader<Bytes> {
    /// The next `len` bytes, sharing the packet's memory. The last bytes take the packet's own handle, which saves a
    /// reference count.
    #[inline]
    pub(super) fn shared(&mut self, what: &'static str, len: u64) -> Result<Bytes, DecodeError> {
        let left = self.left();
        if len > left as u64 {
            return Err(self.truncated(what, len));
        }
        if len == left as u64 {
            let mut rest = std::mem::take(&mut self.bytes);
            rest.advance(self.at);
            self.at = 0;
            return Ok(rest);
        }
        let from = self.at;
        self.at += len as usize;
        Ok(self.bytes.slice(from..self.at))
    }
}
