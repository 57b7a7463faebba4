//! The ids that appear on the wire, each with its own type.

use std::fmt;
use std::hash::Hasher;

/// Which end of a session this is: the one that opened it or the one that accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The end that sent INIT.
    Client,
    /// The end that answered it.
    Server,
}

impl Side {
    /// The other end.
    pub fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A path of one session. The client opens even ids, the server odd ones. An id is never used twice under the same keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

impl PathId {
    /// The path that the handshake runs over.
    pub const FIRST: Self = Self(0);

    /// The end that may open this path.
    pub fn opener(self) -> Side {
        if self.0.is_multiple_of(2) { Side::Client } else { Side::Server }
    }
}

/// A stream of one session: bidirectional, reliable, ordered. The client opens even ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The end that may open this stream.
    pub fn opener(self) -> Side {
        if self.0.is_multiple_of(2) { Side::Client } else { Side::Server }
    }
}

/// A flow sequence number: a path's packet number, counted from 0 and never reused (MPMTP-AR [R4]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fsn(pub u64);

/// A path identity, chosen at random by the node that receives packets carrying it (MPMTP-AR [R1]).
///
/// [`Pid::HANDSHAKE`] is that of first handshake messages, and of a relay's question whether they may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(pub u64);

impl Pid {
    /// The value that means "no session yet".
    pub const HANDSHAKE: Self = Self(0);
}

/// Hashes a [`Pid`] to itself. PIDs need no mixing: they are random, and only we choose those in our tables.
#[derive(Default)]
pub struct PidHasher(u64);

impl Hasher for PidHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}", self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
