//! Chooses the socket for a next hop, for relays with several networks.
//!
//! The operating system knows best, because it also has metrics and preferred sources. So the service passes the
//! address that the system would send from, and the socket bound to it is used. A socket sends only on its own
//! interface, so an address whose interface does not lead to the next hop, such as a loopback address, is skipped.
//! Without such a socket, the longest prefix that the next hop's address matches decides.
//!
//! A flow's socket is chosen when the flow is allocated; packets need no lookup.

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;

/// A socket, and the networks behind its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The service's number of the socket.
    pub socket: u32,
    /// The address that it is bound to.
    pub local: IpAddr,
    /// Its own network, and those of routes over its interface; a network of 0 bits is a default route.
    pub networks: Vec<IpNet>,
    /// Largest UDP payload that leaves by it. One datagram above the interface's MTU would fail its whole batch.
    pub largest: usize,
}

impl Exit {
    /// Bits of the longest prefix in which the address lies.
    fn fit(&self, to: IpAddr) -> Option<u8> {
        self.networks.iter().filter(|network| network.contains(&to)).map(IpNet::prefix_len).max()
    }
}

/// Largest UDP payload that leaves by a socket.
pub(super) fn largest(exits: &[Exit], socket: u32) -> usize {
    exits.iter().find(|exit| exit.socket == socket).map_or(usize::MAX, |exit| exit.largest)
}

/// The socket for an address to which the operating system would send from `source`. Otherwise the longest prefix
/// decides, then a socket that is not on loopback, then the first. `None` without a socket of the address's family.
pub(super) fn socket_for(exits: &[Exit], to: IpAddr, source: Option<IpAddr>) -> Option<u32> {
    let is_source = |exit: &Exit| source == Some(exit.local) && exit.fit(to).is_some();
    let alike = exits.iter().filter(|exit| exit.local.is_ipv4() == to.is_ipv4());
    let best = alike
        .min_by_key(|exit| (!is_source(exit), Reverse(exit.fit(to)), exit.local.is_loopback(), exit.socket));
    best.map(|exit| exit.socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::exit;

    #[test]
    fn the_longest_prefix_decides_and_the_default_route_is_the_shortest() {
        let exits = [
            exit(0, "127.0.0.1", &["127.0.0.0/8"]),
            exit(1, "192.0.2.1", &["192.0.2.0/24", "10.0.0.0/8"]),
            exit(2, "198.51.100.1", &["198.51.100.0/24", "0.0.0.0/0"]),
            exit(3, "10.7.0.1", &["10.7.0.0/16"]),
            exit(4, "2001:db8::1", &["2001:db8::/64"]),
        ];
        let chosen = |to: &str| socket_for(&exits, to.parse().unwrap(), None);
        for (to, socket) in [
            ("127.0.0.9", 0),
            ("192.0.2.7", 1),
            ("10.1.2.3", 1),
            ("10.7.2.3", 3),
            ("203.0.113.9", 2),
            ("2001:db8:1::1", 4),
        ] {
            assert_eq!(chosen(to), Some(socket), "{to}");
        }
        assert_eq!(socket_for(&exits[..4], "2001:db8::1".parse().unwrap(), None), None);
    }

    #[test]
    fn of_several_addresses_that_lead_there_the_one_that_the_system_sends_from_is_taken() {
        let both = ["10.19.0.0/16", "192.0.2.0/24", "0.0.0.0/0"];
        let exits = [
            exit(0, "10.19.0.5", &both),
            exit(1, "192.0.2.1", &both),
            exit(2, "198.51.100.1", &["198.51.100.1/32"]),
        ];
        let chosen =
            |source: &str| socket_for(&exits, "203.0.113.9".parse().unwrap(), Some(source.parse().unwrap()));
        assert_eq!(chosen("10.19.0.5"), Some(0));
        assert_eq!(chosen("192.0.2.1"), Some(1));
        assert_eq!(chosen("198.51.100.1"), Some(0), "its interface does not lead there");
        assert_eq!(chosen("192.0.2.77"), Some(0), "no socket has it");
    }

    #[test]
    fn where_no_route_is_known_one_that_leaves_the_machine_is_tried() {
        let exits = [exit(0, "127.0.0.1", &["127.0.0.0/8"]), exit(1, "192.0.2.1", &["192.0.2.0/24"])];
        assert_eq!(socket_for(&exits, "203.0.113.9".parse().unwrap(), None), Some(1));
    }
}
