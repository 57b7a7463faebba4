//! A proxy over a session: programs connect to a port of their own machine, and an exit connects for them.
//!
//! ```text
//! program ─ SOCKS, HTTP, forwarded port ─▶ client ═ a stream for each connection ═▶ exit ─ TCP ─▶ destination
//! ```
//!
//! | module | job |
//! |---|---|
//! | `socks4`, `socks5`, `http`, `body` | what programs ask for, without I/O |
//! | `target` | destinations: addresses and names |
//! | `message`, `head`, `control` | what client and exit say to each other |
//! | `client` | the port on the user's machine |
//! | `redirect` | connections that the firewall leads to the client |
//! | `exit` | the other end: names, connections |
//! | `policy` | destinations that an exit allows, without I/O |
//! | `race` | attempts to connect to one of several addresses |
//! | `copy` | the bytes of a connection, both ways |
//! | `datagrams` | datagrams of associations over the session |
//! | `account`, `meter` | bounds and counters |
//! | `status` | what a running proxy or exit reports |

mod account;
pub mod body;
mod client;
mod control;
mod copy;
mod datagrams;
mod error;
mod exit;
mod head;
pub mod http;
pub mod message;
mod meter;
mod policy;
mod race;
mod redirect;
pub mod socks4;
pub mod socks5;
pub mod status;
mod target;

use anabranch_net::{Config, Span};

pub use anabranch_node::OTHER_COMMAND;
pub use anabranch_overlay::admission::SessionLimits;

pub use account::{Account, Limits};
pub use client::{ExitDialer, Forward, Notice as ProxyNotice, Proxy, ProxyOptions};
pub use control::Control;
pub use copy::{End, carry, reset};
pub use error::ProxyError;
pub use exit::{Connector, Exit, ExitOptions, Notice as ExitNotice, Record, Resolver, Resolving, dial};
pub use head::{read_head, read_outcome};
pub use meter::{ConnectionName, ConnectionStatus, Connections, Entered, Meter, Totals};
pub use policy::{AddressRange, Policy, Verdict};
pub use race::race;
pub use redirect::{
    FIRST as FIRST_PACKET, Method, RedirectError, Redirection, Taker, forwarded as forwarded_families,
};
pub use target::{HostName, NotATarget, Target};

/// Connections of one session at the same time.
pub const MOST_CONNECTIONS: usize = 16_384;

/// Largest packets, where interfaces and paths take them: jumbo frames, and this machine itself. Four fill what the system
/// splits or joins at once.
const LARGEST_PACKET: u16 = 16_200;

/// Settings of sessions that carry a proxy's connections, both ends alike.
pub fn session_config() -> Config {
    let mut config = Config {
        // A laptop may lose all its networks for a while.
        idle_timeout: Span::from_secs(120),
        keep_alive: Some(Span::from_secs(15)),
        max_streams: MOST_CONNECTIONS as u64,
        ..Config::default()
    };
    config.mtu.max = LARGEST_PACKET;
    config.memory.datagrams = 4096;
    config.memory.independent_streams = true;
    // So many bytes wait for each of the clients and destinations that stop reading.
    config.memory.initial_window = 256 << 10;
    config.datagrams.ordered_classes = 1 << datagrams::CLASS;
    config
}
