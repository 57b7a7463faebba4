//! Routes of packets, as the engine sees them.

use std::net::SocketAddr;

use anabranch_wire::{Message, Params, PathId, Pid, Span};

/// A route to the peer: a local socket and a remote address.
///
/// The driver numbers its sockets; each is bound to one local address on one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// Which local socket.
    pub socket: u32,
    /// The destination.
    pub remote: SocketAddr,
}

/// A peer's INIT.
#[derive(Clone, Debug)]
pub struct Init {
    /// The peer's parameters.
    pub params: Params,
    /// The route on which it arrived.
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
    /// The local socket at which it arrived, and its source address.
    pub route: Route,
    /// Its UDP payload in bytes, sealed.
    pub size: usize,
    /// Its ECN codepoint.
    pub ecn: Ecn,
    /// How long it had waited in the socket when it was read, as far as the driver knows.
    pub waited: Span,
}

/// A message to send.
#[derive(Clone, Debug)]
pub struct Transmit<P> {
    /// The destination.
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
