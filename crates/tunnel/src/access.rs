//! Access by address: prefixes to peers, the longest first [S1], and the destinations that a client may reach.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// Prefixes with a value each; the longest that holds an address counts.
#[derive(Clone, Debug)]
pub struct PrefixTable<T> {
    /// By length, longest first, then by network.
    prefixes: BTreeMap<(std::cmp::Reverse<u8>, IpNet), T>,
    /// The lengths in use of IPv4 and IPv6, longest first, with the number of prefixes.
    lengths: [BTreeMap<std::cmp::Reverse<u8>, usize>; 2],
}

impl<T> Default for PrefixTable<T> {
    fn default() -> Self {
        Self { prefixes: BTreeMap::new(), lengths: [BTreeMap::new(), BTreeMap::new()] }
    }
}

impl<T> PrefixTable<T> {
    /// Sets the value of a prefix; returns the previous one.
    pub fn insert(&mut self, prefix: IpNet, value: T) -> Option<T> {
        let prefix = prefix.trunc();
        let length = std::cmp::Reverse(prefix.prefix_len());
        let before = self.prefixes.insert((length, prefix), value);
        if before.is_none() {
            *self.lengths[family(&prefix.addr())].entry(length).or_default() += 1;
        }
        before
    }

    /// Removes a prefix; returns its value.
    pub fn remove(&mut self, prefix: &IpNet) -> Option<T> {
        let prefix = prefix.trunc();
        let length = std::cmp::Reverse(prefix.prefix_len());
        let value = self.prefixes.remove(&(length, prefix))?;
        let lengths = &mut self.lengths[family(&prefix.addr())];
        if let Some(count) = lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&length);
            }
        }
        Some(value)
    }

    /// The value of the longest prefix that holds the address.
    #[must_use]
    pub fn find(&self, address: IpAddr) -> Option<&T> {
        self.lengths[family(&address)].keys().find_map(|length| {
            let prefix = IpNet::new(address, length.0).ok()?.trunc();
            self.prefixes.get(&(*length, prefix))
        })
    }

    /// Every prefix with its value, the longest first.
    pub fn iter(&self) -> impl Iterator<Item = (&IpNet, &T)> {
        self.prefixes.iter().map(|((_, prefix), value)| (prefix, value))
    }
}

fn family(address: &IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

/// Which destinations clients may reach through an exit.
///
/// Denied by default: addresses of the exit's own networks and services, so that a client reaches the Internet and nothing behind the exit.
#[derive(Clone, Debug, Default)]
pub struct Destinations {
    rules: PrefixTable<bool>,
}

impl Destinations {
    /// Everything public, and these prefixes besides.
    #[must_use]
    pub fn public_and(allowed: &[IpNet]) -> Self {
        let mut rules = PrefixTable::default();
        for denied in DENIED {
            if let Ok(prefix) = denied.parse() {
                rules.insert(prefix, false);
            }
        }
        for prefix in allowed {
            rules.insert(*prefix, true);
        }
        Self { rules }
    }

    /// Whether a client may send to this address.
    #[must_use]
    pub fn allow(&self, address: IpAddr) -> bool {
        // Judge an IPv4 address mapped into IPv6 as IPv4.
        let address = address.to_canonical();
        self.rules.find(address).copied().unwrap_or(!address.is_multicast())
    }
}

/// Special-purpose addresses (RFC 6890 and its registries): no public destination among them.
const DENIED: [&str; 25] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/128",
    "::1/128",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "fc00::/7",
    "fe80::/10",
    "ff00::/8",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_longest_prefix_counts() {
        let mut table = PrefixTable::default();
        table.insert("0.0.0.0/0".parse().unwrap(), 1);
        table.insert("10.0.0.0/8".parse().unwrap(), 2);
        table.insert("10.1.2.3/16".parse().unwrap(), 3);
        let found = ["192.0.2.1", "10.9.9.9", "10.1.9.9"].map(|text| table.find(address(text)).copied());
        assert_eq!(found, [Some(1), Some(2), Some(3)]);
        assert_eq!(table.find(address("2001:db8::1")), None);
        assert_eq!(table.remove(&"10.1.0.0/16".parse().unwrap()), Some(3));
        assert_eq!(table.find(address("10.1.9.9")), Some(&2));
    }

    #[test]
    fn private_and_special_destinations_are_denied_unless_allowed() {
        let public = Destinations::public_and(&[]);
        for denied in [
            "10.1.2.3",
            "192.168.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "2002:a00:1::1",
        ] {
            assert!(!public.allow(address(denied)), "{denied}");
        }
        for allowed in ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(public.allow(address(allowed)), "{allowed}");
        }
        let office = Destinations::public_and(&["10.20.0.0/16".parse().unwrap()]);
        assert!(office.allow(address("10.20.1.1")) && !office.allow(address("10.21.1.1")));
    }
}
