//! Datagrams that are not for this endpoint's sessions, for a relay that forwards them.

use anabranch_engine::{Ecn, Route};
use anabranch_wire::{Pid, Time};

use crate::shared::Shared;
use crate::socket::Batch;

/// Datagrams that came together from one sender.
#[derive(Clone, Copy, Debug)]
pub struct ForeignRun {
    /// The socket they came in by and who sent them.
    pub from: Route,
    /// Bytes of each but the last, which may be shorter.
    pub stride: usize,
    /// The mark they came with.
    pub ecn: Ecn,
}

/// Takes what is not for the endpoint's own sessions. Called on the tasks that receive; it must not block for long.
pub trait Foreign: Send + Sync + 'static {
    /// Whether a data packet with this PID is its affair; what is nobody's is answered with a reset.
    fn knows(&self, pid: Pid) -> bool;

    /// Takes datagrams, which it may change where they lie and send on through `outlet`.
    fn handle(&self, now: Time, run: ForeignRun, datagrams: &mut [u8], outlet: &Outlet<'_>);
}

/// Sends datagrams of others from the endpoint's sockets.
pub struct Outlet<'a> {
    pub(crate) shared: &'a Shared,
}

impl std::fmt::Debug for Outlet<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet").finish_non_exhaustive()
    }
}

impl Outlet<'_> {
    /// Sends datagrams of `segment` bytes each but the last. What the socket has no room for is lost, as in any
    /// full queue; false then.
    pub fn send(&self, to: Route, (contents, segment): (&[u8], usize), ecn: Ecn) -> bool {
        let Some(socket) = self.shared.socket(to.socket) else { return false };
        let mut all = true;
        let at_once = socket.udp.max_segments(to.remote).max(1) * segment.max(1);
        for contents in contents.chunks(at_once.min(MOST_AT_ONCE / segment.max(1) * segment.max(1)).max(1)) {
            all &= socket.udp.send(&Batch { remote: to.remote, contents, segment, ecn }).is_ok();
        }
        all
    }
}

/// Bytes that the system takes in one send.
const MOST_AT_ONCE: usize = 65_000;
