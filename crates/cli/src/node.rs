//! This machine as a node: what every command that talks to another one begins with.

use std::net::SocketAddr;

use anabranch_net::{Endpoint, Route, Session};
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
    sockets.retain(|socket| !socket.ruled_out);
    sockets.sort_by_key(|socket| !socket.place.has_default_route());
    sockets.iter().map(|socket| socket.local).collect()
}

/// True when these addresses lead to this very machine only.
#[must_use]
pub fn only_here(addresses: &[SocketAddr]) -> bool {
    addresses.iter().all(|address| address.ip().is_loopback())
}

/// What is said when [`only_here`] is so.
pub const ONLY_HERE: &str = "no network is up: only programs on this very machine can use the ticket; connect to a network and start again";

/// What people call this end of a path: its interface, or its address where that has no name.
#[must_use]
pub fn local_name(session: &Session, route: &Route) -> Option<String> {
    let interface = session.interface(route).filter(|name| !name.is_empty());
    interface.or_else(|| Some(session.local_address(route)?.ip().to_string()))
}
