//! By which socket a next hop is reached, where a relay has several networks.
//!
//! The operating system knows best, since it knows metrics and preferred sources as well: who hands a request in tells the address that it
//! would send to the next hop from, and the socket bound to that is used. An address whose interface does not lead there, as one of a
//! loopback interface, is of no use to a socket that sends by that interface only; then, and where nothing is told, the longest prefix that
//! a route leads to decides. A flow is given its socket when it is allocated; packets look nothing up.

use std::cmp::Reverse;
use std::net::IpAddr;

use ipnet::IpNet;

/// A socket, and where its interface leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The service's number of the socket.
    pub socket: u32,
    /// What it is bound to.
    pub local: IpAddr,
    /// Its own network, and those that routes over its interface lead to; one of 0 bits is a default route.
    pub networks: Vec<IpNet>,
    /// Largest UDP payload that leaves by it: one datagram above the interface's MTU would cost its whole batch.
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

/// The socket for an address, to which the operating system would send from `source`. Without that, where several fit alike or none does,
/// what leads furthest out of the machine, then the first. `None` when there is none of the address's family.
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
