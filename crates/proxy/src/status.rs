//! The status of a running proxy or exit.

use anabranch_node::PathStatus;
use serde::{Deserialize, Serialize};

use crate::meter::{ConnectionStatus, Totals};

/// Most connections that are listed, those with most bytes.
pub(crate) const MOST_LISTED: usize = 100;

/// A running proxy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProxyStatus {
    /// Where it listens.
    pub listen: String,
    /// The exit's key; empty without a session.
    pub exit: String,
    /// Why there is no session.
    pub why: Option<String>,
    /// The paths to the exit, over which every connection is spread.
    pub paths: Vec<PathStatus>,
    /// Whether the firewall leads the TCP connections of this machine here; `None` if that is not wanted.
    pub redirecting: Option<bool>,
    /// Connections that are open.
    pub open: usize,
    /// The largest of them.
    pub connections: Vec<ConnectionStatus>,
    /// Counters of all connections.
    pub totals: Totals,
}

/// A running exit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExitStatus {
    /// Sessions that use it.
    pub clients: Vec<ClientStatus>,
    /// Connections that are open.
    pub open: usize,
    /// The largest of them.
    pub connections: Vec<ConnectionStatus>,
    /// Counters of all connections.
    pub totals: Totals,
}

/// A session that uses an exit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The node's key.
    pub node: String,
    /// It came by the ticket, not by its key.
    pub by_ticket: bool,
    /// Open connections of its account.
    pub connections: usize,
    /// Bytes that its account has used.
    pub used: u64,
    pub paths: Vec<PathStatus>,
}
