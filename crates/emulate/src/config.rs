//! The configuration of an emulated path.

use std::net::{Ipv4Addr, SocketAddr};

use anabranch_link::LinkConfig;

#[derive(Clone, Debug)]
pub struct EmulatedPath {
    /// Where clients send to; port 0 takes a free one. On Linux any address of 127.0.0.0/8 works, so that paths can have
    /// different addresses. The server sees clients at the same IP address.
    pub listen: SocketAddr,
    /// The server's address.
    pub server: SocketAddr,
    /// From client to server.
    pub forward: LinkConfig,
    /// From server to client.
    pub reverse: LinkConfig,
}

impl EmulatedPath {
    /// A path on 127.0.0.1 with equal links in both directions, except for their seeds.
    pub fn symmetric(server: SocketAddr, link: LinkConfig) -> Self {
        let reverse = LinkConfig { seed: link.seed.wrapping_add(1), ..link.clone() };
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), server, forward: link, reverse }
    }
}

/// One of a path's two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From client to server.
    Forward,
    /// From server to client.
    Reverse,
}
