//! Obstacles between this machine and the network.

use std::net::IpAddr;

/// Why packets do not leave this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The system refuses them (EPERM).
    #[error("this machine's own firewall refuses packets from {0}: let UDP out there")]
    Firewall(IpAddr),
    /// The interface cannot carry the first packets (EMSGSIZE).
    #[error(
        "{interface} carries packets of {mtu} bytes at most, too small for the first packet: raise its MTU to 1280"
    )]
    SmallMtu {
        /// The interface.
        interface: String,
        /// Its largest packet, in bytes.
        mtu: u32,
    },
}
