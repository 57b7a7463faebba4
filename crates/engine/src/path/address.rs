//! Where a path's packets go.

use anabranch_wire::Pid;

use crate::route::Route;

/// The route of a path's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    /// The peer's PID, once it has assigned one.
    pub(super) remote_pid: Option<Pid>,
    pub(super) route: Route,
}
