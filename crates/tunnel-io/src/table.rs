//! A server's clients, their networks, and the packets that wait for them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use anabranch_net::{PublicKey, Span, Time};
use anabranch_tunnel::access::PrefixTable;
use anabranch_wire::{close_code, larger_source, source};
use ipnet::IpNet;

use crate::hosts::Hosts;
use crate::pump::Link;

/// Packets wait for a client's next session for this long.
const PATIENCE: Span = Span::from_secs(60);
/// A client that is listed by its key keeps its place; another one keeps it for this long after its session.
const KEPT: Span = Span::from_secs(300);
/// Most bytes that wait for all clients together. Beyond them, the client with most of them loses its own.
const MOST_WAITING: usize = 512 << 20;

/// A client with an address.
pub(crate) struct Client {
    pub(crate) link: Arc<Link>,
    pub(crate) networks: Vec<IpNet>,
    /// The number of its last session, which alone may attach or detach the link.
    pub(crate) session: u64,
    /// The address from which that came, if known.
    pub(crate) address: Option<IpAddr>,
    /// When it came or left last.
    pub(crate) seen: Time,
}

/// A client that asks for a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newcomer {
    pub(crate) node: PublicKey,
    pub(crate) address: Option<IpAddr>,
    pub(crate) now: Time,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) clients: BTreeMap<PublicKey, Client>,
    pub(crate) routes: PrefixTable<Arc<Link>>,
    pub(crate) hosts: Hosts,
    /// Counts the sessions of all clients.
    pub(crate) sessions: u64,
}

impl Client {
    /// Without a session for longer than this.
    fn is_away(&self, now: Time, span: Span) -> bool {
        self.link.session().is_none() && now.since(self.seen) > span
    }
}

impl Table {
    /// Forgets a client, so that a newcomer gets its place and perhaps its addresses. First comes the one that has been away
    /// for longest, but at least for [`KEPT`]: others may soon be back, and the newcomer would take over their connections.
    /// Without such a client, the [larger source](larger_source) loses one. Clients that are listed by their keys stay.
    pub(crate) fn forget_one(
        &mut self,
        newcomer: Newcomer,
        listed: &BTreeMap<PublicKey, Vec<IpNet>>,
    ) -> Result<(), String> {
        let unlisted = || self.clients.iter().filter(move |(node, _)| !listed.contains_key(*node));
        let away = unlisted().filter(|(_, client)| client.is_away(newcomer.now, KEPT));
        let of_largest = || {
            let addresses: Vec<Option<IpAddr>> = unlisted().map(|(_, client)| client.address).collect();
            let larger = larger_source(&addresses, newcomer.address)?;
            let clients = unlisted().filter(|(_, client)| client.address.map(source) == larger);
            clients.min_by_key(|(_, client)| (client.link.session().is_some(), client.seen))
        };
        let node = away.min_by_key(|(_, client)| client.seen).or_else(of_largest).map(|(node, _)| *node);
        let node = node.ok_or("this server has as many clients as it takes; try again later")?;
        if let Some(client) = self.clients.remove(&node) {
            client.networks.iter().for_each(|network| drop(self.routes.remove(network)));
            if let Some(session) = client.link.session() {
                session.abort(close_code::BUSY, "all places are taken, and your address has the most");
            }
        }
        self.hosts.forget(node);
        Ok(())
    }

    /// A client's addresses. If none is left, it gets those of a client that is [forgotten](Self::forget_one).
    pub(crate) fn addresses_of(
        &mut self,
        newcomer: Newcomer,
        networks: &[IpNet],
        listed: &BTreeMap<PublicKey, Vec<IpNet>>,
    ) -> Result<Vec<IpNet>, String> {
        match self.hosts.addresses_of(newcomer.node, networks) {
            Err(none_left) => {
                self.forget_one(newcomer, listed).map_err(|_| none_left)?;
                self.hosts.addresses_of(newcomer.node, networks)
            }
            addresses => addresses,
        }
    }

    /// Drops packets for clients that have been away for long, and those beyond what may wait for all clients together.
    pub(crate) fn bound_waiting(&self, now: Time) {
        for client in self.clients.values().filter(|client| client.is_away(now, PATIENCE)) {
            client.link.clear();
        }
        let links = self.clients.values().map(|client| (client.link.waiting(), &client.link));
        let mut links: Vec<_> = links.filter(|(waiting, _)| *waiting > 0).collect();
        links.sort_by_key(|(waiting, _)| std::cmp::Reverse(*waiting));
        let mut all: usize = links.iter().map(|(waiting, _)| waiting).sum();
        for (waiting, link) in links {
            if all <= MOST_WAITING {
                return;
            }
            link.clear();
            all -= waiting;
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_net::{Clock, NodeKey};

    use super::*;

    fn node(number: u8) -> PublicKey {
        NodeKey::from_random([number; 32]).public()
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    /// A table whose client with number 1 is listed by its key, and in whose network five clients find room.
    #[derive(Default)]
    struct Full(Table);

    impl Full {
        fn join(&mut self, number: u8, address: &str, now: Time) -> Result<Vec<IpNet>, String> {
            let networks: [IpNet; 1] = ["10.77.0.1/29".parse().unwrap()];
            let listed = BTreeMap::from([(node(1), Vec::new())]);
            let address = Some(address.parse().unwrap());
            let newcomer = Newcomer { node: node(number), address, now };
            let addresses = self.0.addresses_of(newcomer, &networks, &listed)?;
            let link = Link::new(Clock::start(), (0, 1280));
            let client = Client { link, networks: addresses.clone(), session: 1, address, seen: now };
            self.0.clients.insert(node(number), client);
            Ok(addresses)
        }
    }

    #[test]
    fn a_client_that_has_been_away_for_long_gives_its_address_up_when_none_is_left() {
        let mut table = Full::default();
        let mut join = |number: u8, now: Time| table.join(number, &format!("192.0.2.{number}"), now);
        let given: Vec<Vec<IpNet>> =
            (1_u8..=5).map(|number| join(number, at(u64::from(number))).unwrap()).collect();
        assert_eq!(join(6, at(60)).unwrap_err(), "this server has no address left for you");
        // The first is listed by its key.
        assert_eq!(join(6, at(400)).unwrap(), given[1]);
        assert!(join(2, at(401)).unwrap() != given[0]);
    }

    #[test]
    fn clients_of_one_site_with_many_keys_make_room_for_those_of_others() {
        let mut table = Full::default();
        let mut join = |number: u8, address: &str| table.join(number, address, at(u64::from(number)));
        join(1, "192.0.2.1").unwrap();
        join(2, "192.0.2.2").unwrap();
        let given: Vec<Vec<IpNet>> =
            (3..=5).map(|number| join(number, &format!("2001:db8:0:{number}::1")).unwrap()).collect();
        assert!(join(6, "2001:db8:0:6::1").is_err(), "its own site has most");
        let first = join(7, "192.0.2.7").unwrap();
        assert!(given.contains(&first), "one of the site with most");
        assert!(join(8, "192.0.2.8").is_ok_and(|second| given.contains(&second) && second != first));
        assert!(join(9, "192.0.2.9").is_err(), "all have as many");
    }
}
