//! A node: opens sessions to other nodes directly and through relays, and keeps their paths open.
//!
//! | module | content |
//! |---|---|
//! | `address` | where a node is: its key, with addresses or host names |
//! | `dial` | opens a session to a node that may be reachable directly or only through relays |
//! | `relay` | sessions to relays, and paths through them |
//! | `controllers` | requests to controllers, of which any may answer |
//! | `grants` | the relays that controllers allow this node to use, kept up to date |
//! | `paths` | rules for paths; the paths of running sessions, listed and changed |
//! | `trace` | which routers lie on the route to a host |

mod address;
mod controllers;
mod dial;
pub mod file;
mod grants;
mod paths;
mod relay;
mod trace;

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_overlay::grant::UnixTime;

pub use address::{NodeAt, Place, Unresolved};
pub use controllers::{ControllerHint, Controllers, Granted, Link, LinkError};
pub use dial::connect;
pub use grants::{GrantWanted, Grants, USUAL_PATHS};
pub use paths::{
    CapStatus, PathStatus, RunningPaths, RunningSessions, SessionPath, parse_rule, parse_rules, parse_terms,
};
pub use relay::{
    Entry, Flow, Hosting, MOST_RELAYS, Peer, RelayChain, RelayConnection, RelayError, RelayPaths, RelayRoute,
    Wanted,
};
pub use trace::trace;

/// The addresses at which other machines may reach this one; loopback addresses only if there are no others.
#[must_use]
pub fn reachable(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if addresses.iter().any(|address| !address.ip().is_loopback()) {
        addresses.retain(|address| !address.ip().is_loopback());
    }
    addresses
}

/// The time of day by the operating system's clock.
#[must_use]
pub fn wall() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Random bytes from the operating system.
///
/// # Errors
/// When the system has none to give.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
