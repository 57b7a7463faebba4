//! Datagrams as received, and in transit.

use std::net::SocketAddr;

use anabranch_wire::Time;
use mio::Token;
use quinn_udp::EcnCodepoint;

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) at: Time,
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) ecn: Option<EcnCodepoint>,
}

/// A datagram in transit and the client's socket that it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) client: Token,
    pub(crate) bytes: Box<[u8]>,
    pub(crate) ecn: Option<EcnCodepoint>,
}
