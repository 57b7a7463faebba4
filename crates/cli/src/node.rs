//! This machine as a node: what every command that talks to another one begins with.

use std::net::SocketAddr;

use anabranch_net::Endpoint;
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

/// The addresses to tell others, best first: those that a default route leads to, then other addresses of this
/// machine. Loopback is for a machine that has nothing else; who connects from this very machine finds it anyway.
#[must_use]
pub fn addresses_to_tell(endpoint: &Endpoint) -> Vec<SocketAddr> {
    let mut sockets = endpoint.sockets();
    if sockets.iter().any(|socket| !socket.place.loopback) {
        sockets.retain(|socket| !socket.place.loopback);
    }
    sockets.sort_by_key(|socket| !socket.place.has_default_route());
    sockets.iter().map(|socket| socket.local).collect()
}
