//! Lets the application judge the addresses that peers announce.

use std::net::SocketAddr;

use anabranch_agent::Permission;
use anabranch_secure::PublicKey;

/// Judges the addresses that peers announce, before anything is sent there. Without one, the rule of
/// [`may_try`](anabranch_agent::may_try) decides.
///
/// Closures implement it. It is asked often and must not block, nor call into a session.
pub trait AddressPolicy: Send + Sync + 'static {
    /// Says whether `address`, which `peer` announced, may be tried.
    fn judge(&self, peer: &PublicKey, address: SocketAddr) -> Permission;
}

impl<F: Fn(&PublicKey, SocketAddr) -> Permission + Send + Sync + 'static> AddressPolicy for F {
    fn judge(&self, peer: &PublicKey, address: SocketAddr) -> Permission {
        self(peer, address)
    }
}
