//! This machine as a node: what every command that talks to another one begins with.

use std::net::SocketAddr;

use anabranch_net::{Endpoint, SocketInfo};
use tokio::runtime::{Builder, Runtime};

use crate::errors::Failure;

/// The threads that sessions run on.
///
/// # Errors
/// When the system gives no threads.
pub fn runtime() -> Result<Runtime, Failure> {
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::local(format!("cannot start the network threads: {error}")))
}

/// The addresses to tell others, best first: those that a default route leads to, other addresses of this
/// machine, loopback.
#[must_use]
pub fn addresses_to_tell(endpoint: &Endpoint) -> Vec<SocketAddr> {
    let mut sockets = endpoint.sockets();
    sockets.sort_by_key(|socket| (socket.place.loopback, !socket.place.has_default_route()));
    sockets.iter().map(|socket: &SocketInfo| socket.local).collect()
}
