//! Connections of programs without proxy settings: the firewall leads them here.
//!
//! | module | job |
//! |---|---|
//! | `taker` | the port that accepts them, and where each wanted to go; the tunnel's stream lane uses it, too |
//! | `rules` | the text of the firewall's rules, without I/O |
//! | `keeper` | the process that owns the rules, so that they end with this program, even when it is killed |

mod keeper;
mod rules;
mod taker;

use std::net::IpAddr;

use anabranch_net::Prefix;
use ipnet::IpNet;

pub(crate) use keeper::Keeper;
pub use keeper::{RedirectError, forwarded};
pub use rules::FIRST;
pub(crate) use rules::OWN_MARK;
pub use taker::Taker;

/// How connections are led to the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Their destination is rewritten (NAT).
    #[default]
    Redirect,
    /// They are handed over as they are, without NAT, by a routing rule for marked packets.
    Tproxy,
}

/// Leads the TCP connections of this machine, and of those it forwards for, through the proxy.
#[derive(Clone, Debug)]
pub struct Redirection {
    /// How.
    pub method: Method,
    /// The exit and relays: connections to them stay direct.
    pub nodes: Vec<IpAddr>,
    /// The families whose packets from neighbours are led there, too, as the firewall names them.
    pub forwarded: Vec<&'static str>,
}

/// The networks to which this machine has routes of their own: they stay direct. Halves of all addresses, by which some
/// programs replace a default route, do not.
fn networks(routes: &[Prefix]) -> Vec<IpNet> {
    let specific = routes.iter().filter(|route| route.bits > 1);
    let mut networks: Vec<IpNet> =
        specific.filter_map(|route| IpNet::new(route.address, route.bits).ok()).collect();
    networks.sort_unstable();
    networks.dedup();
    networks
}
