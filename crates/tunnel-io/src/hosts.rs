//! The addresses that a server gives its clients.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anabranch_net::PublicKey;
use ipnet::IpNet;

/// The host number of each client. The number follows from the client's key, so a restarted server assigns the same
/// one.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    by_node: BTreeMap<PublicKey, u32>,
    by_number: BTreeMap<u32, PublicKey>,
}

impl Hosts {
    pub(crate) fn forget(&mut self, node: PublicKey) {
        if let Some(number) = self.by_node.remove(&node) {
            self.by_number.remove(&number);
        }
    }

    /// Keeps the numbers of clients that are listed by their keys: no other key may be made for one of them.
    pub(crate) fn reserve(&mut self, nodes: impl Iterator<Item = PublicKey>, networks: &[IpNet]) {
        for node in nodes {
            // Without room for all, the rest get what is free when they come.
            let _ = self.addresses_of(node, networks);
        }
    }

    /// The client's addresses, one in each network.
    pub(crate) fn addresses_of(&mut self, node: PublicKey, networks: &[IpNet]) -> Result<Vec<IpNet>, String> {
        let bits = networks.iter().map(|network| network.max_prefix_len() - network.prefix_len()).min();
        // Usable numbers are 2 to all but the last: not the network, the server (by convention) or broadcast.
        let hosts = (1_u64 << bits.unwrap_or(0).min(24)).saturating_sub(3) as u32;
        let number = match self.by_node.get(&node) {
            Some(number) => *number,
            None => self.free(node, hosts, networks).ok_or("this server has no address left for you")?,
        };
        self.by_node.insert(node, number);
        self.by_number.insert(number, node);
        Ok(networks.iter().filter_map(|network| host(network, number)).collect())
    }

    fn free(&self, node: PublicKey, hosts: u32, networks: &[IpNet]) -> Option<u32> {
        let key = node.to_string();
        let start = key
            .bytes()
            .fold(2_166_136_261_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
        let is_servers = |number: &u32| {
            networks
                .iter()
                .any(|network| host(network, *number).is_some_and(|host| host.addr() == network.addr()))
        };
        (0..hosts)
            .map(|step| 2 + (start % hosts + step) % hosts)
            .find(|number| !self.by_number.contains_key(number) && !is_servers(number))
    }
}

/// The address with this number in a network.
fn host(network: &IpNet, number: u32) -> Option<IpNet> {
    let address = match network.network() {
        IpAddr::V4(first) => IpAddr::from((u32::from(first) + number).to_be_bytes()),
        IpAddr::V6(first) => IpAddr::from((u128::from(first) + u128::from(number)).to_be_bytes()),
    };
    IpNet::new(address, network.prefix_len()).ok()
}

#[cfg(test)]
mod tests {
    use anabranch_net::NodeKey;

    use super::*;

    fn node(byte: u8) -> PublicKey {
        NodeKey::from_random([byte; 32]).public()
    }

    fn networks() -> Vec<IpNet> {
        vec!["10.77.0.1/24".parse().unwrap(), "fd77::1/64".parse().unwrap()]
    }

    #[test]
    fn a_client_gets_the_same_addresses_from_a_restarted_server() {
        let (mut first, mut second) = (Hosts::default(), Hosts::default());
        let before = first.addresses_of(node(1), &networks()).unwrap();
        assert_eq!(before.len(), 2);
        second.addresses_of(node(2), &networks()).unwrap();
        assert_eq!(second.addresses_of(node(1), &networks()).unwrap(), before);
    }

    #[test]
    fn no_key_takes_the_address_of_a_listed_client_that_is_not_there_yet() {
        let networks: [IpNet; 1] = ["10.77.0.1/29".parse().unwrap()];
        let first_choice = |node| Hosts::default().addresses_of(node, &networks).unwrap();
        let listed = node(1);
        let mut others = (2..=255).map(node);
        let other = others.find(|other| first_choice(*other) == first_choice(listed)).unwrap();
        let mut hosts = Hosts::default();
        hosts.reserve([listed].into_iter(), &networks);
        assert_ne!(hosts.addresses_of(other, &networks).unwrap(), first_choice(listed));
        assert_eq!(hosts.addresses_of(listed, &networks).unwrap(), first_choice(listed));
    }

    #[test]
    fn no_two_clients_share_an_address_and_none_gets_the_servers() {
        let mut hosts = Hosts::default();
        let mut given: Vec<IpNet> = (0..253)
            .filter_map(|byte| hosts.addresses_of(node(byte), &networks()[..1]).ok())
            .flatten()
            .collect();
        let all = given.len();
        given.sort();
        given.dedup();
        assert_eq!(given.len(), all);
        assert!(all >= 250, "{all} of 253");
        let reserved = ["10.77.0.0", "10.77.0.1", "10.77.0.255"];
        assert!(!given.iter().any(|host| reserved.contains(&host.addr().to_string().as_str())));
        assert!(hosts.addresses_of(node(254), &networks()[..1]).is_err());
    }
}
