//! The bytes of a stream: real ones in the deployed program, a bare length in the simulator.

use bytes::{Bytes, BytesMut};

/// A run of stream bytes that can be cut without copying.
///
/// The engine never looks inside; it only cuts and forwards. The deployed program uses [`Bytes`], the simulator
/// [`Length`]: both run the same engine.
pub trait Payload: Clone + Default + std::fmt::Debug {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// True when it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes and returns the first `at` bytes.
    ///
    /// # Panics
    /// When `at > self.len()`.
    #[must_use]
    fn split_to(&mut self, at: usize) -> Self;

    /// The `len` bytes that begin at `start`, without copying them.
    ///
    /// # Panics
    /// When `start + len > self.len()`.
    fn slice(&self, start: usize, len: usize) -> Self;

    /// Appends a copy of `other`: only worth it for small pieces.
    fn append(&mut self, other: &Self);

    /// Whether it holds real bytes, of which parity can be computed.
    const HAS_BYTES: bool;

    /// The bytes; empty for a bare length.
    fn bytes(&self) -> &[u8];

    /// A payload with its own copy of the first `len` bytes of `bytes`.
    ///
    /// # Panics
    /// When the payload holds real bytes and `bytes` is shorter than `len`.
    fn copied(bytes: &[u8], len: usize) -> Self;
}

impl Payload for Bytes {
    fn len(&self) -> usize {
        Self::len(self)
    }
    fn split_to(&mut self, at: usize) -> Self {
        Self::split_to(self, at)
    }
    fn slice(&self, start: usize, len: usize) -> Self {
        Self::slice(self, start..start + len)
    }
    fn append(&mut self, other: &Self) {
        let own = std::mem::take(self);
        let mut joined = own.try_into_mut().unwrap_or_else(|shared| {
            let mut copy = BytesMut::with_capacity((shared.len() + other.len()).next_power_of_two());
            copy.extend_from_slice(&shared);
            copy
        });
        joined.extend_from_slice(other);
        *self = joined.freeze();
    }
    const HAS_BYTES: bool = true;
    fn bytes(&self) -> &[u8] {
        self
    }
    fn copied(bytes: &[u8], len: usize) -> Self {
        Self::copy_from_slice(&bytes[..len])
    }
}

/// A payload that is only a length, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length(pub usize);

impl Payload for Length {
    fn len(&self) -> usize {
        self.0
    }
    fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.0, "cannot take {at} of {} bytes", self.0);
        self.0 -= at;
        Self(at)
    }
    fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.0, "cannot take {start}+{len} of {} bytes", self.0);
        Self(len)
    }
    fn append(&mut self, other: &Self) {
        self.0 += other.0;
    }
    const HAS_BYTES: bool = false;
    fn bytes(&self) -> &[u8] {
        &[]
    }
    fn copied(_: &[u8], len: usize) -> Self {
        Self(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appending_leaves_other_holders_of_the_bytes_alone() {
        let mut joined = Bytes::from_static(b"ab");
        let held = joined.clone();
        joined.append(&Bytes::from_static(b"cd"));
        joined.append(&Bytes::from_static(b"ef"));
        assert_eq!((&held[..], &joined[..]), (&b"ab"[..], &b"abcdef"[..]));
    }
}
