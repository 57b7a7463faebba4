//! A position in bytes from the network, from which fields are taken and every failure names its field.

use std::ops::Deref;

use bytes::{Buf, Bytes};

use crate::varint::read_varint;
use crate::{DecodeError, PathId, Pid, ResetToken};

/// Invariant: `at <= bytes.len()`.
pub(super) struct Reader<B> {
    bytes: B,
    at: usize,
}

impl<B: Deref<Target = [u8]>> Reader<B> {
    pub(super) fn new(bytes: B) -> Self {
        Self { bytes, at: 0 }
    }

    #[inline]
    pub(super) fn at(&self) -> usize {
        self.at
    }

    #[inline]
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[inline]
    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    #[inline]
    pub(super) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_be_bytes)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
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

    #[inline]
    pub(super) fn path(&mut self) -> Result<PathId, DecodeError> {
        self.varint_within("path id", 0, u32::MAX.into()).map(|id| PathId(id as u32))
    }

    /// PID 0 is refused: it belongs to first handshake messages alone.
    pub(super) fn pid(&mut self) -> Result<Pid, DecodeError> {
        match self.u64("PID")? {
            0 => Err(DecodeError::Zero { what: "PID", at: self.at }),
            pid => Ok(Pid(pid)),
        }
    }

    /// A token of zeroes is refused: anybody could guess it.
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

impl Reader<Bytes> {
    /// The next `len` bytes, sharing the packet's memory. When they are the last, the packet itself is
    /// handed over, which spares a count of its users.
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
