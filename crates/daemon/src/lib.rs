//! Services of the overlay: sockets, tasks and files around the cores in `anabranch-overlay`.
//!
//! | module | what |
//! |---|---|
//! | [`relay`] | `anabranch relay`: forwards for users whose keys it lists |
//! | [`client`] | the other side: a node's sessions to relays, and paths through them |
//! | [`controller`] | `anabranch controller`: knows the relays and grants their use; and its other side |
//! | `control` | sockets by which people and programs of the same machine ask the services |
//! | [`http`] | the HTTP API of services, and their metrics |
//! | [`sensing`] | a node measures relays, and relays each other |
//! | [`store`] | where controllers keep what they know |
//! | [`trace`] | which routers are on the way to a host |

pub mod client;
#[cfg(unix)]
pub mod control;
pub mod controller;
mod file;
pub mod http;
pub mod place;
pub mod relay;
pub mod sensing;
mod settings;
pub mod store;
pub mod trace;

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_overlay::grant::UnixTime;

/// Of a service's addresses those by which other machines may reach it; loopback when it has nothing else.
#[must_use]
pub fn reachable(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if addresses.iter().any(|address| !address.ip().is_loopback()) {
        addresses.retain(|address| !address.ip().is_loopback());
    }
    addresses
}

/// What the operating system says that time it is.
pub(crate) fn wall() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// From the operating system.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
