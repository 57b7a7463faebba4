//! A node: opens sessions to other nodes directly and through relays, and keeps their paths open.
//!
//! | module | content |
//! |---|---|
//! | `node` | [`Node`]: key, sockets, relays and rules in one place; dials and accepts sessions |
//! | `access`, `invitation` | who may open sessions; tickets, and the relays that they name |
//! | `dial` | opens a session to a node that may be reachable directly or only through relays |
//! | `hold` | redials whenever a session is lost |
//! | `keyfile` | key files, readable by their owner only |
//! | `address` | where a node is: its key, with addresses or host names |
//! | `relay` | sessions to relays, and paths through them |
//! | `controllers` | requests to controllers, of which any may answer |
//! | `grants` | the relays that controllers allow this node to use, kept up to date |
//! | `port_mapping` | keeps ports of this machine's routers open |
//! | `paths` | rules for paths; the paths of running sessions, listed and changed |
//! | `trace` | which routers lie on the route to a host |

mod access;
mod address;
mod controllers;
mod dial;
mod error;
pub mod file;
mod grants;
mod hold;
mod invitation;
pub mod keyfile;
mod late;
mod node;
mod paths;
mod port_mapping;
mod relay;
mod threads;
mod trace;

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_overlay::grant::UnixTime;

pub use access::{Access, TicketShare};
pub use address::{NodeAt, Place, Unresolved};
pub use controllers::{ControllerHint, Controllers, Granted, Link, LinkError};
pub use dial::Dial;
pub use error::{Error, ErrorKind, describe};
pub use grants::{GrantWanted, Grants, USUAL_PATHS};
pub use hold::{Held, Holding};
pub use invitation::{Invitation, MOST_RELAYS_IN_TICKET};
pub use node::{KeySource, Node, NodeBuilder, USUAL_RELAYS, local_name};
pub use paths::{
    CapStatus, LastingCap, LeaveOutTable, NodeSession, PathStatus, RuleTable, RunningSessions, SessionPath,
    caps_directory, has_lasting_cap, keep_caps, parse_rule, parse_rules, parse_terms, read_rules,
    read_tables, settle_caps, warn_of_idle_rules, warn_of_rules_beyond,
};
pub use relay::{
    Entry, Flow, Hosting, MOST_RELAYS, Peer, RelayChain, RelayConnection, RelayError, RelayPaths, RelayRoute,
    Wanted,
};
pub use threads::Threads;
pub use trace::trace;

/// Close code for a session whose ticket is for another command; the protocol uses 0x100 and above.
pub const OTHER_COMMAND: u64 = 5;

/// The addresses at which other machines may reach this one; loopback addresses only if there are no others.
pub fn reachable(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    if addresses.iter().any(|address| !address.ip().is_loopback()) {
        addresses.retain(|address| !address.ip().is_loopback());
    }
    addresses
}

/// The time of day by the operating system's clock.
pub fn wall() -> UnixTime {
    UnixTime(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Random bytes from the operating system.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
