//! Types of the relay's interface that several of its files use.

use std::net::{IpAddr, SocketAddr};

use anabranch_secure::{PublicKey, ShareId, TicketSecret};

use crate::admission::Owner;
use crate::grant::{ClockVerdict, GrantId, UnixTime};

/// Names a flow of a relay: a pair of PIDs, one for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// Names a session of the service with a client; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// An address, and the socket through which it is reached. IPv4 addresses are never mapped into IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The service's number of the socket.
    pub socket: u32,
    /// The address.
    pub address: SocketAddr,
}

/// Whether a peer may open a session to the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// By its key: it is listed, or may show a grant.
    ByKey,
    /// As a guest, if it knows this.
    Guest(TicketSecret),
    /// Not now: its key has the most sessions allowed.
    Busy,
    /// No.
    Refused,
}

/// The peer of a new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// The peer's key, and the address of its first path.
    pub owner: Owner,
    /// The share of the ticket that it showed, for a guest.
    pub share: Option<ShareId>,
    /// True for a node that may measure this relay: until it asks for something, its session needs no right to use the
    /// relay.
    pub measures: bool,
}

impl Newcomer {
    /// A peer that is neither a guest nor a measurer.
    pub fn new(key: PublicKey, address: Option<IpAddr>) -> Self {
        Self { owner: Owner { key, address }, share: None, measures: false }
    }
}

/// A controller's heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// The controller's time.
    pub time: UnixTime,
    /// Grants that do not count any more.
    pub revoked: Vec<GrantId>,
}

/// Usage of one grant, as a relay remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantUse {
    pub grant: GrantId,
    /// Bytes forwarded on it.
    pub bytes: u64,
    /// When it ends; it can be shown until then.
    pub until: UnixTime,
    /// True once it is revoked.
    pub revoked: bool,
}

/// Usage of a listed key, as a relay remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedUse {
    pub key: PublicKey,
    pub bytes: u64,
}

/// The outcome of a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// How the controller's time compares with the relay's.
    pub clock: ClockVerdict,
    /// The revoked grants that the relay remembers. A controller must repeat the others.
    pub remembered: Vec<GrantId>,
}
