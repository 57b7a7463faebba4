//! Where packets go and where they came from, as the engine sees it.

use std::net::SocketAddr;

use anabranch_wire::{Message, Params, PathId, Pid};

/// One way to reach the peer: a local socket and a far address.
///
/// The socket is a number that the driver gives; each stands for one local address on one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// Which local socket.
    pub socket: u32,
    /// Where the packets go.
    pub remote: SocketAddr,
}

/// A peer's INIT.
#[derive(Clone, Debug)]
pub struct Init {
    /// The peer's parameters.
    pub params: Params,
    /// The route that it came over.
    pub route: Route,
}

/// The ECN codepoint of a received datagram (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not use ECN.
    #[default]
    NotEct,
    /// ECT(0): the sender understands marks.
    Ect0,
    /// ECT(1).
    Ect1,
    /// Congestion experienced.
    Ce,
}

/// How a message arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The local socket it arrived at and the address it came from.
    pub route: Route,
    /// Its UDP payload in bytes, sealed.
    pub size: usize,
    /// Its ECN codepoint.
    pub ecn: Ecn,
}

/// A message to send.
#[derive(Clone, Debug)]
pub struct Transmit<P> {
    /// Where to.
    pub route: Route,
    /// The PID to put into the header: [`Pid::HANDSHAKE`] on INIT.
    pub pid: Pid,
    /// The path it belongs to.
    pub path: PathId,
    /// The message itself.
    pub message: Message<P>,
    /// UDP payload in bytes once it is encoded and sealed.
    pub size: usize,
    /// Mark the datagram ECT(0).
    pub ecn: bool,
}
