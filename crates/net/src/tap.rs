//! Lets the user of an endpoint see what its sockets send and receive, sealed, as a capture for a fault that is looked for.
//!
//! Without a tap this costs a look at an empty option a batch. Datagrams are shown as the system takes and gives them: a
//! received one whether or not it is for anybody, a sent one when the system took it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_engine::Ecn;

/// Datagrams of equal size (the last may be shorter) between two addresses.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// They leave; else they came.
    pub sent: bool,
    /// This end.
    pub local: SocketAddr,
    /// The other.
    pub remote: SocketAddr,
    /// The mark they carry.
    pub ecn: Ecn,
    /// All of them, one after the other.
    pub contents: &'a [u8],
    /// Size of each but the last in bytes.
    pub stride: usize,
}

/// Sees what an endpoint sends and receives. It is called between packets: it should be quick.
pub trait Tap: Send + Sync {
    /// Datagrams were sent or received.
    fn datagrams(&self, seen: &Seen<'_>);

    /// True when [`Tap::session_keys`] is to be called: whoever has what it is told reads all of every session.
    fn wants_keys(&self) -> bool {
        false
    }

    /// A session has keys now: a line for [`CapturedSession::from_line`](anabranch_secure::CapturedSession::from_line).
    fn session_keys(&self, line: &str) {
        let _ = line;
    }
}

/// A tap, or none.
#[derive(Clone, Default)]
pub(crate) struct Taps(pub(crate) Option<Arc<dyn Tap>>);

impl fmt::Debug for Taps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Tap" } else { "no tap" })
    }
}

impl Taps {
    /// Shows datagrams, where there is somebody to see them.
    pub(crate) fn show<'a>(&self, seen: impl FnOnce() -> Seen<'a>) {
        if let Some(tap) = &self.0 {
            tap.datagrams(&seen());
        }
    }

    /// Tells the keys of a session, where they are wanted.
    pub(crate) fn tell_keys(&self, keys: &anabranch_secure::SessionKeys) {
        if let Some(tap) = self.0.as_ref().filter(|tap| tap.wants_keys()) {
            tap.session_keys(&keys.to_line());
        }
    }
}
