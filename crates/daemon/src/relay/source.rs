//! Finds the source address that the operating system would use for a next hop.
//!
//! The system is asked once for each path that a client requests. Unlike a list of routes, its answer reflects metrics,
//! preferred sources, several addresses of an interface, and rules. The core selects the socket with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anabranch_overlay::relay::{Request, Target};

/// The source address for a request; `None` if it requests no path to an address, or no route leads there.
pub(super) fn of_request(request: &Request) -> Option<IpAddr> {
    match request {
        Request::Allocate { target: Target::Address { address, .. }, .. } => towards(*address),
        _ => None,
    }
}

fn towards(to: SocketAddr) -> Option<IpAddr> {
    let ip = to.ip().to_canonical();
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a UDP socket sends nothing; it finds the route.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((ip, to.port())).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_a_loopback_address_leave_from_a_loopback_address() {
        let towards = |to: &str| towards(to.parse().unwrap());
        assert_eq!(towards("127.0.0.1:9"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(towards("[::ffff:127.0.0.1]:9"), Some(Ipv4Addr::LOCALHOST.into()));
    }
}
