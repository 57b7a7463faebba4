//! The addresses at which peers may get in behind a NAT: as relays see the sockets, and as routers map them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anabranch_engine::Route;

/// Most reports that are remembered.
const MOST: usize = 64;
/// Ids of these addresses begin here; lower ones are numbers of sockets.
const FIRST_ID: u64 = 1 << 32;

/// The latest report of each relay, and what routers map.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// By the route to the relay: an id, never used again, and the reported address.
    reports: BTreeMap<Route, (u64, SocketAddr)>,
    reported: u64,
    /// By socket: an id, and the address that its router maps to it.
    mapped: BTreeMap<u32, (u64, SocketAddr)>,
}

impl Outside {
    /// Records a report; true if it is new.
    pub(super) fn learn(&mut self, relay: Route, seen: SocketAddr) -> bool {
        if self.reports.get(&relay).is_some_and(|(_, known)| *known == seen) {
            return false;
        }
        if self.reports.len() >= MOST && !self.reports.contains_key(&relay) {
            let oldest = self.reports.iter().min_by_key(|(_, (id, _))| *id).map(|(route, _)| *route);
            oldest.map(|route| self.reports.remove(&route));
        }
        let id = self.new_id();
        self.reports.insert(relay, (id, seen));
        true
    }

    /// Records which address a router maps to a socket now; true if that is new.
    pub(super) fn map(&mut self, socket: u32, outer: Option<SocketAddr>) -> bool {
        if self.mapped.get(&socket).map(|(_, known)| *known) == outer {
            return false;
        }
        self.mapped.remove(&socket);
        if let Some(outer) = outer {
            let id = self.new_id();
            self.mapped.insert(socket, (id, outer));
        }
        true
    }

    /// The addresses of a socket: what its router maps, and of each reported IP address the latest. A NAT that maps each
    /// destination to another port gives several of one IP address, and none of them is of use for longer than its relay.
    pub(super) fn of(&self, socket: u32) -> impl Iterator<Item = (u64, SocketAddr)> {
        let mapped = self.mapped.get(&socket).copied();
        let mut latest = BTreeMap::new();
        for (_, report) in self.reports.iter().filter(|(route, _)| route.socket == socket) {
            let kept = latest.entry(report.1.ip()).or_insert(*report);
            *kept = (*kept).max(*report);
        }
        let others =
            latest.into_values().filter(move |(_, seen)| mapped.is_none_or(|(_, outer)| outer != *seen));
        mapped.into_iter().chain(others)
    }

    /// All of these IP addresses.
    pub(super) fn ips(&self) -> Vec<IpAddr> {
        self.reports.values().chain(self.mapped.values()).map(|(_, address)| address.ip()).collect()
    }

    /// True for a route to a relay with a report.
    pub(super) fn is_from(&self, route: Route) -> bool {
        self.reports.contains_key(&route)
    }

    /// Forgets a closed socket.
    pub(super) fn forget(&mut self, socket: u32) {
        self.reports.retain(|route, _| route.socket != socket);
        self.mapped.remove(&socket);
    }

    fn new_id(&mut self) -> u64 {
        self.reported += 1;
        FIRST_ID + self.reported - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([203, 0, 113, host], port))
    }

    #[test]
    fn of_several_reports_about_one_nat_the_latest_is_announced_under_a_new_id() {
        let mut outside = Outside::default();
        let relay = |socket, host| Route { socket, remote: at(host, 4600) };
        assert!(outside.learn(relay(1, 7), at(1, 50)) && !outside.learn(relay(1, 7), at(1, 50)));
        assert!(outside.learn(relay(1, 8), at(1, 51)) && outside.learn(relay(2, 8), at(2, 52)));
        assert_eq!(outside.of(1).collect::<Vec<_>>(), [(FIRST_ID + 1, at(1, 51))]);
        assert!(outside.learn(relay(1, 7), at(1, 53)));
        assert_eq!(outside.of(1).collect::<Vec<_>>(), [(FIRST_ID + 3, at(1, 53))]);
        assert!(outside.is_from(relay(2, 8)) && !outside.is_from(relay(2, 7)));
        outside.forget(1);
        assert_eq!((outside.of(1).count(), outside.of(2).count()), (0, 1));
    }

    #[test]
    fn a_mapped_address_is_announced_once_next_to_reports_until_it_is_gone() {
        let mut outside = Outside::default();
        let relay = Route { socket: 1, remote: at(7, 4600) };
        assert!(outside.map(1, Some(at(1, 80))) && !outside.map(1, Some(at(1, 80))));
        assert!(outside.learn(relay, at(1, 50)));
        assert_eq!(outside.of(1).collect::<Vec<_>>(), [(FIRST_ID, at(1, 80)), (FIRST_ID + 1, at(1, 50))]);
        assert!(outside.learn(relay, at(1, 80)));
        assert_eq!(outside.of(1).collect::<Vec<_>>(), [(FIRST_ID, at(1, 80))]);
        assert!(outside.map(1, None) && !outside.map(1, None));
        assert_eq!(outside.of(1).collect::<Vec<_>>(), [(FIRST_ID + 2, at(1, 80))]);
        assert!(outside.map(1, Some(at(1, 81))));
        outside.forget(1);
        assert_eq!(outside.of(1).count(), 0);
    }

    #[test]
    fn a_relay_that_reports_ever_new_addresses_and_many_relays_take_bounded_memory() {
        let mut outside = Outside::default();
        for number in 0..1_000 {
            outside.learn(Route { socket: 1, remote: at(1, number + 1) }, at(2, number + 1));
            outside.learn(Route { socket: 1, remote: at(1, 1) }, at(3, number + 1));
        }
        assert!(outside.reports.len() <= MOST);
    }
}
