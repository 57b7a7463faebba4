//! What a stream carries: real bytes in the world, a bare length in the simulator.

use bytes::Bytes;

/// A run of stream bytes that can be cut without copying.
///
/// The engine never looks inside; it only cuts and forwards. [`Bytes`] is the payload of the deployed
/// program, [`Length`] that of the simulator, so that both run the same engine code.
pub trait Payload: Clone + Default + std::fmt::Debug {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// True when there is nothing in it.
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
    #[must_use]
    fn slice(&self, start: usize, len: usize) -> Self;
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
}
