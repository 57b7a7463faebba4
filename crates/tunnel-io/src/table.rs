//! A server's clients, their networks, and the packets that wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_net::{PublicKey, Span, Time};
use anabranch_tunnel::access::PrefixTable;
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
    /// Counts its sessions: only the last one may attach or detach the link.
    pub(crate) sessions: u64,
    /// When it came or left last.
    pub(crate) seen: Time,
}

#[derive(Default)]
pub(crate) struct Table {
    pub(crate) clients: BTreeMap<PublicKey, Client>,
    pub(crate) routes: PrefixTable<Arc<Link>>,
    pub(crate) hosts: Hosts,
}

impl Client {
    /// Without a session for longer than this.
    fn is_away(&self, now: Time, span: Span) -> bool {
        self.link.session().is_none() && now.since(self.seen) > span
    }
}

impl Table {
    /// Forgets the client that has been away for longest, so that another gets its place and perhaps its addresses: not
    /// one that may soon be back, whose connections the other would take over, and none of those listed by their keys.
    pub(crate) fn forget_one(
        &mut self,
        now: Time,
        listed: &BTreeMap<PublicKey, Vec<IpNet>>,
    ) -> Result<(), String> {
        let away = self
            .clients
            .iter()
            .filter(|(node, client)| !listed.contains_key(*node) && client.is_away(now, KEPT));
        let node = away.min_by_key(|(_, client)| client.seen).map(|(node, _)| *node);
        let node = node.ok_or("this server has as many clients as it takes; try again later")?;
        if let Some(client) = self.clients.remove(&node) {
            client.networks.iter().for_each(|network| drop(self.routes.remove(network)));
        }
        self.hosts.forget(node);
        Ok(())
    }

    /// A client's addresses. If none is left, it gets those of the client that has been away for longest.
    pub(crate) fn addresses_of(
        &mut self,
        node: PublicKey,
        networks: &[IpNet],
        now: Time,
        listed: &BTreeMap<PublicKey, Vec<IpNet>>,
    ) -> Result<Vec<IpNet>, String> {
        match self.hosts.addresses_of(node, networks) {
            Err(none_left) => {
                self.forget_one(now, listed).map_err(|_| none_left)?;
                self.hosts.addresses_of(node, networks)
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

    #[test]
    fn a_client_that_has_been_away_for_long_gives_its_address_up_when_none_is_left() {
        // Five clients find room in it.
        let networks: [IpNet; 1] = ["10.77.0.1/29".parse().unwrap()];
        let node = |byte: u8| NodeKey::from_random([byte; 32]).public();
        let at = |seconds: u64| Time::ZERO + Span::from_secs(seconds);
        let listed = BTreeMap::from([(node(1), Vec::new())]);
        let mut table = Table::default();
        let mut join = |byte: u8, now: Time| {
            let addresses = table.addresses_of(node(byte), &networks, now, &listed)?;
            let link = Link::new(Clock::start(), (0, 1280));
            let client = Client { link, networks: addresses.clone(), sessions: 1, seen: now };
            table.clients.insert(node(byte), client);
            Ok::<_, String>(addresses)
        };
        let given: Vec<Vec<IpNet>> =
            (1_u8..=5).map(|byte| join(byte, at(u64::from(byte))).unwrap()).collect();
        assert_eq!(join(6, at(60)).unwrap_err(), "this server has no address left for you");
        // The first is listed by its key.
        assert_eq!(join(6, at(400)).unwrap(), given[1]);
        assert!(join(2, at(401)).unwrap() != given[0]);
    }
}
