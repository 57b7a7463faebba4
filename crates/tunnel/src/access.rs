//! Access by address: prefixes to peers, the longest first [S1], and the destinations that a client may reach.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

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

impl FromIterator<IpNet> for PrefixTable<()> {
    fn from_iter<I: IntoIterator<Item = IpNet>>(prefixes: I) -> Self {
        let mut table = Self::default();
        for prefix in prefixes {
            table.insert(prefix, ());
        }
        table
    }
}

/// Input for [`Destinations`]: the operator's wishes and the exit's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Networks that clients may reach besides public addresses.
    pub allowed: Vec<IpNet>,
    /// The exit's addresses in the tunnel: clients reach its services there, as far as its firewall lets them.
    pub gateways: Vec<IpAddr>,
    /// All of the exit's addresses.
    pub own: BTreeSet<IpAddr>,
    /// Networks of other clients, which may be public.
    pub clients: Vec<IpNet>,
    /// The machine is no exit: public addresses are not reached either.
    pub inside_only: bool,
}

/// Which destinations clients may reach through an exit.
///
/// Denied by default: addresses of the exit's own networks and services, so that a client reaches the Internet and
/// nothing behind the exit.
#[derive(Clone, Debug, Default)]
pub struct Destinations {
    rules: PrefixTable<Verdict>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Denied,
    /// A connection of the stream lane would come from the exit itself, past its firewall.
    PacketsOnly,
    Allowed,
}

impl Destinations {
    /// Everything public but the exit's own addresses and its clients', and what is allowed besides; without an exit, only
    /// what is allowed. An own address has to be allowed by itself, not by a network that holds it.
    pub fn new(reach: &Reach) -> Self {
        let mut rules = PrefixTable::default();
        let everything: &[&str] = if reach.inside_only { &["0.0.0.0/0", "::/0"] } else { &[] };
        for denied in everything.iter().chain(&DENIED) {
            if let Ok(prefix) = denied.parse() {
                rules.insert(prefix, Verdict::Denied);
            }
        }
        let is_named = |network: &&IpNet| reach.allowed.iter().any(|allowed| allowed.contains(*network));
        for network in reach.clients.iter().filter(|network| !is_named(network)) {
            rules.insert(*network, Verdict::Denied);
        }
        let hosts = |addresses: &mut dyn Iterator<Item = &IpAddr>, verdict| {
            addresses.map(move |address| (IpNet::from(address.to_canonical()), verdict)).collect::<Vec<_>>()
        };
        let is_host = |prefix: &&IpNet| prefix.prefix_len() == prefix.max_prefix_len();
        let allowed = |prefixes: &mut dyn Iterator<Item = &IpNet>| {
            prefixes.map(|prefix| (*prefix, Verdict::Allowed)).collect::<Vec<_>>()
        };
        // The later one counts.
        let all = [
            allowed(&mut reach.allowed.iter()),
            hosts(&mut reach.own.iter(), Verdict::Denied),
            hosts(&mut reach.gateways.iter(), Verdict::PacketsOnly),
            allowed(&mut reach.allowed.iter().filter(is_host)),
        ];
        for (prefix, verdict) in all.into_iter().flatten() {
            rules.insert(prefix, verdict);
        }
        Self { rules }
    }

    /// Whether a client may send packets to this address.
    pub fn allow(&self, address: IpAddr) -> bool {
        self.verdict(address) != Verdict::Denied
    }

    /// Whether the exit may open a connection to this address for a client.
    pub fn allow_stream(&self, address: IpAddr) -> bool {
        self.verdict(address) == Verdict::Allowed
    }

    fn verdict(&self, address: IpAddr) -> Verdict {
        // An IPv4 address within an IPv6 one is judged as what it is.
        let address = address.to_canonical();
        if embedded(address).any(|v4| self.verdict(v4.into()) != Verdict::Allowed) {
            return Verdict::Denied;
        }
        let usual = if address.is_multicast() { Verdict::Denied } else { Verdict::Allowed };
        self.rules.find(address).copied().unwrap_or(usual)
    }
}

/// The IPv4 addresses that routers, translators and tunnels find inside an IPv6 address. One inside a mapped address counts as IPv4
/// itself: [`IpAddr::to_canonical`].
pub fn embedded(address: IpAddr) -> impl Iterator<Item = Ipv4Addr> {
    let IpAddr::V6(v6) = address else { return [None, None].into_iter().flatten() };
    let segments = v6.segments();
    let at = |index: usize| {
        let ([a, b], [c, d]) = (segments[index].to_be_bytes(), segments[index + 1].to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    let found = match segments {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None],
        // IPv4-compatible (RFC 4291 §2.5.5.1) and IPv4-translated (RFC 2765 §2.1).
        [0, 0, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _]
        // NAT64 (RFC 6052, RFC 8215).
        | [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0x64, 0xff9b, 1, _, _, _, _, _]
        // ISATAP (RFC 5214 §6.1).
        | [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => [Some(at(6)), None],
        // 6to4 (RFC 3056).
        [0x2002, ..] => [Some(at(1)), None],
        // Teredo (RFC 4380 §4): the server, and the client with all bits inverted.
        [0x2001, 0, ..] => [Some(at(2)), Some(Ipv4Addr::from_bits(!at(6).to_bits()))],
        _ => [None, None],
    };
    found.into_iter().flatten()
}

/// Special-purpose addresses (RFC 6890 and its registries), and the metadata service of a cloud outside them: no public
/// destination among them.
pub const DENIED: [&str; 30] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    // Azure's metadata and machine configuration.
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    // IPv4-translated addresses (RFC 2765).
    "::ffff:0:0:0/96",
    "::1/128",
    "fec0::/10",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "5f00::/16",
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
    fn forbidden_ipv4_addresses_are_denied_in_every_ipv6_form() {
        let usual = Destinations::new(&Reach::default());
        // Even where the form itself is allowed.
        let forms =
            ["::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "2002::/16", "2001::/23", "2606:4700::/32"];
        let allowed = forms.map(|form| form.parse().unwrap()).into();
        let lenient = Destinations::new(&Reach { allowed, ..Reach::default() });
        for (private, public) in [
            ("::ffff:169.254.169.254", "::ffff:1.1.1.1"),
            ("::169.254.169.254", "::1.1.1.1"),
            ("::ffff:0:127.0.0.1", "::ffff:0:1.1.1.1"),
            ("64:ff9b::10.0.0.1", "64:ff9b::1.1.1.1"),
            ("64:ff9b:1::10.0.0.1", "64:ff9b:1::1.1.1.1"),
            ("2002:a9fe:a9fe::1", "2002:101:101::1"),
            // The client, then the server.
            ("2001:0:101:101::f5ff:fffe", "2001:0:101:101::fefe:fefe"),
            ("2001:0:a00:1::fefe:fefe", "2001:0:101:101::fefe:fefe"),
            ("2606:4700::5efe:10.0.0.1", "2606:4700::5efe:1.1.1.1"),
            ("2606:4700::200:5efe:192.168.0.1", "2606:4700::200:5efe:1.1.1.1"),
        ] {
            assert!(!usual.allow(address(private)) && !usual.allow_stream(address(private)), "{private}");
            assert!(!lenient.allow(address(private)), "{private}");
            assert!(lenient.allow(address(public)), "{public}");
        }
        for denied in ["::ffff:0:1.1.1.1", "2002:101:101::1", "2001:0:101:101::fefe:fefe", "::1.1.1.1"] {
            assert!(!usual.allow(address(denied)), "{denied}");
        }
    }

    #[test]
    fn private_and_special_destinations_are_denied_unless_allowed() {
        let public = Destinations::new(&Reach::default());
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
            "64:ff9b::10.0.0.1",
            "::10.0.0.1",
            "168.63.129.16",
            "192.88.99.1",
            "5f00::1",
        ] {
            assert!(!public.allow(address(denied)), "{denied}");
        }
        for allowed in ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"] {
            assert!(public.allow(address(allowed)), "{allowed}");
        }
        let allowed = vec!["10.20.0.0/16".parse().unwrap()];
        let office = Destinations::new(&Reach { allowed, ..Reach::default() });
        assert!(office.allow(address("10.20.1.1")) && !office.allow(address("10.21.1.1")));
    }

    #[test]
    fn other_clients_are_denied_unless_allowed_also_at_public_addresses() {
        let clients: Vec<IpNet> = vec!["2606:4700:1::/64".parse().unwrap(), "9.9.9.0/24".parse().unwrap()];
        let reach = |allowed: &[&str]| {
            let allowed = allowed.iter().map(|network| network.parse().unwrap()).collect();
            Destinations::new(&Reach {
                allowed,
                clients: clients.clone(),
                gateways: vec![address("9.9.9.1")],
                ..Reach::default()
            })
        };
        let usual = reach(&[]);
        for client in ["2606:4700:1::2", "9.9.9.2"] {
            assert!(!usual.allow(address(client)) && !usual.allow_stream(address(client)), "{client}");
        }
        assert!(usual.allow(address("9.9.9.1")) && usual.allow(address("2606:4700:2::2")));
        assert!(reach(&["9.9.9.0/24"]).allow(address("9.9.9.2")));
        assert!(reach(&["9.9.9.7/32"]).allow(address("9.9.9.7")));
    }

    #[test]
    fn without_an_exit_only_what_is_allowed_is_reached() {
        let inside = Destinations::new(&Reach {
            allowed: vec!["10.20.0.0/16".parse().unwrap()],
            gateways: vec![address("10.77.0.1")],
            inside_only: true,
            ..Reach::default()
        });
        for denied in ["1.1.1.1", "2606:4700::1111", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1", "10.21.0.1"] {
            assert!(!inside.allow(address(denied)) && !inside.allow_stream(address(denied)), "{denied}");
        }
        assert!(inside.allow_stream(address("10.20.1.1")) && inside.allow(address("10.77.0.1")));
    }

    #[test]
    fn the_exits_own_addresses_are_denied_unless_each_is_allowed_by_itself() {
        let own = ["8.8.4.4", "8.8.4.5", "2606:4700::5", "10.77.0.1", "10.20.0.1"].map(address);
        let destinations = Destinations::new(&Reach {
            allowed: vec!["8.8.4.5/32".parse().unwrap(), "10.20.0.0/16".parse().unwrap()],
            gateways: vec![address("10.77.0.1")],
            own: own.into(),
            ..Reach::default()
        });
        for denied in ["8.8.4.4", "::ffff:8.8.4.4", "64:ff9b::8.8.4.4", "2606:4700::5", "10.20.0.1"] {
            assert!(!destinations.allow(address(denied)), "{denied}");
            assert!(!destinations.allow_stream(address(denied)), "{denied}");
        }
        assert!(destinations.allow_stream(address("8.8.4.5")), "the operator says so");
        assert!(destinations.allow_stream(address("10.20.0.2")));
        // A connection from the exit to itself would pass its firewall.
        assert!(destinations.allow(address("10.77.0.1")) && !destinations.allow_stream(address("10.77.0.1")));
    }
}
