//! Shows an endpoint's sealed datagrams to the application, as for a packet capture.
//!
//! Without a tap this costs one check for each batch. All received datagrams are shown, and sent ones that the system took.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use anabranch_engine::Ecn;

/// Datagrams of equal size (the last may be shorter) between two addresses.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// True for sent datagrams, false for received ones.
    pub sent: bool,
    /// This end's address.
    pub local: SocketAddr,
    /// The other end's address.
    pub remote: SocketAddr,
    /// Their ECN mark.
    pub ecn: Ecn,
    /// All datagrams, one after the other.
    pub contents: &'a [u8],
    /// Size of each but the last in bytes.
    pub stride: usize,
}

/// Observes all sent and received datagrams. Called between packets, so it should be quick.
pub trait Tap: Send + Sync {
    /// Datagrams were sent or received.
    fn datagrams(&self, seen: &Seen<'_>);

    /// True to have [`Tap::session_keys`] called. With these keys, all data of every session can be read.
    fn wants_keys(&self) -> bool {
        false
    }

    /// Receives the keys of a new session, and of each fresh exchange, as a line for
    /// [`CapturedSession::read_all`](anabranch_secure::CapturedSession::read_all).
    fn session_keys(&self, line: &str) {
        let _ = line;
    }
}

/// An optional tap.
#[derive(Clone, Default)]
pub(crate) struct Taps(pub(crate) Option<Arc<dyn Tap>>);

impl fmt::Debug for Taps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Tap" } else { "no tap" })
    }
}

impl Taps {
    /// Shows datagrams to the tap, if any.
    pub(crate) fn show<'a>(&self, seen: impl FnOnce() -> Seen<'a>) {
        if let Some(tap) = &self.0 {
            tap.datagrams(&seen());
        }
    }

    /// Passes a line of keys to the tap, if it wants them.
    pub(crate) fn tell_keys<L: Deref<Target = String>>(&self, line: impl FnOnce() -> L) {
        if let Some(tap) = self.0.as_ref().filter(|tap| tap.wants_keys()) {
            tap.session_keys(&line());
        }
    }
}
