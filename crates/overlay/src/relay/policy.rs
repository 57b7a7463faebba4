//! Addresses to which a relay forwards: public addresses of other networks, and those that its configuration allows.
//!
//! An address is public unless IANA's registries of special-purpose addresses (RFC 6890) list it, or it is anycast to
//! the nearest server. The relay's own addresses, with any port, and the networks of its interfaces are internal:
//! services there may trust this machine by its address. An IPv6 address that embeds an IPv4 address is allowed only if
//! both are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::message::Refused;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The next hops that are allowed.
#[derive(Clone, Debug, Default)]
pub struct NextHopPolicy {
    /// Networks that are allowed in addition to public ones (loopback, private, link-local). Multicast and broadcast never
    /// are.
    pub allow: Vec<IpNet>,
    /// Networks that are refused even if they are public or allowed.
    pub deny: Vec<IpNet>,
    /// The relay's own sockets: forwarding to itself is refused.
    pub own: Vec<SocketAddr>,
    /// Addresses at which others see the relay: those that it announces, and those that its controllers report.
    pub public: Vec<IpAddr>,
    /// Networks that its interfaces belong to: their machines trust each other more than the Internet.
    pub neighbours: Vec<IpNet>,
}

impl NextHopPolicy {
    /// Whether packets may be forwarded to this address.
    pub fn allows(&self, address: SocketAddr) -> bool {
        self.check(address).is_ok()
    }

    /// Checks whether packets may be forwarded to this address.
    ///
    /// # Errors
    /// The reason why they may not, for the client.
    pub(super) fn check(&self, address: SocketAddr) -> Result<(), Refused> {
        let ip = address.ip().to_canonical();
        let canonical = SocketAddr::new(ip, address.port());
        let within = |nets: &[IpNet], ip: &IpAddr| nets.iter().any(|net| net.contains(ip));
        let is_socket = |own: &SocketAddr| SocketAddr::new(own.ip().to_canonical(), own.port()) == canonical;
        let is_own = |ip: &IpAddr| {
            let mut own = self.own.iter().map(SocketAddr::ip).chain(self.public.iter().copied());
            own.any(|own| own.to_canonical() == *ip) && !within(&self.allow, ip)
        };
        let may = |ip: &IpAddr| {
            let is_elsewhere = is_public(*ip) && !within(&self.neighbours, ip);
            !is_never(*ip) && (is_elsewhere || within(&self.allow, ip))
        };
        if self.own.iter().any(is_socket) || forms(ip).any(|ip| is_own(&ip)) {
            Err(Refused::NextHopOwn)
        } else if forms(ip).any(|ip| within(&self.deny, &ip)) {
            Err(Refused::NextHopExcluded)
        } else if address.port() == 0 || !forms(ip).all(|ip| may(&ip)) {
            Err(Refused::NextHopDenied)
        } else {
            Ok(())
        }
    }
}

/// True unless it is the address of a single machine.
fn is_never(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unspecified(),
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(first: u16, second: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0), bits)
}

/// Not public, or anycast to the nearest server (192.0.0.0/24). 224.0.0.0/3 is multicast and unassigned space.
const SPECIAL_V4: [Ipv4Net; 14] = [
    v4(0, 0, 0, 0, 8),
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(127, 0, 0, 0, 8),
    v4(169, 254, 0, 0, 16),
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24),
    v4(192, 0, 2, 0, 24),
    v4(192, 88, 99, 0, 24),
    v4(192, 168, 0, 0, 16),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
    v4(224, 0, 0, 0, 3),
];

/// The ranges of public IPv6 addresses: global unicast, and IPv4 behind a translator (RFC 6052).
const UNICAST_V6: [Ipv6Net; 2] = [v6(0x2000, 0, 3), NAT64];
/// The well-known prefix of translators.
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 96);
/// Tunnels over IPv4.
const TEREDO: Ipv6Net = v6(0x2001, 0, 32);
const SIX_TO_FOUR: Ipv6Net = v6(0x2002, 0, 16);
/// Special ranges within [`UNICAST_V6`]: protocols' own addresses with Teredo, two blocks for documentation, 6to4.
const SPECIAL_V6: [Ipv6Net; 4] = [v6(0x2001, 0, 23), v6(0x2001, 0xdb8, 32), SIX_TO_FOUR, v6(0x3fff, 0, 20)];

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => SPECIAL_V4.iter().all(|net| !net.contains(&ip)),
        IpAddr::V6(ip) => {
            UNICAST_V6.iter().any(|net| net.contains(&ip)) && SPECIAL_V6.iter().all(|net| !net.contains(&ip))
        }
    }
}

/// An address, and the IPv4 addresses that it embeds.
fn forms(ip: IpAddr) -> impl Iterator<Item = IpAddr> {
    let inner = match ip {
        IpAddr::V4(_) => [None; 2],
        IpAddr::V6(ip) => {
            let [tunnel, server, end] = [80, 64, 0].map(|shift| (ip.to_bits() >> shift) as u32);
            match ip {
                _ if NAT64.contains(&ip) => [Some(end), None],
                _ if SIX_TO_FOUR.contains(&ip) => [Some(tunnel), None],
                // The client's address has its bits inverted (RFC 4380 §4).
                _ if TEREDO.contains(&ip) => [Some(server), Some(!end)],
                _ => [None; 2],
            }
        }
    };
    [Some(ip)]
        .into_iter()
        .chain(inner.map(|bits| bits.map(|bits| Ipv4Addr::from_bits(bits).into())))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str], deny: &[&str]) -> NextHopPolicy {
        let nets = |words: &[&str]| words.iter().map(|word| word.parse().unwrap()).collect();
        NextHopPolicy { allow: nets(allow), deny: nets(deny), ..NextHopPolicy::default() }
    }

    fn allows(policy: &NextHopPolicy, ip: &str) -> bool {
        policy.allows(SocketAddr::new(ip.parse().unwrap(), 4433))
    }

    #[test]
    fn blocks_with_a_special_purpose_are_not_public_from_end_to_end_and_their_neighbours_are() {
        let public = policy(&[], &[]);
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
        ] {
            let [first, last]: [u32; 2] = [first, last].map(|ip| ip.parse::<Ipv4Addr>().unwrap().to_bits());
            let is_public = |bits: u32| allows(&public, &Ipv4Addr::from_bits(bits).to_string());
            assert!(!is_public(first) && !is_public(last), "{}", Ipv4Addr::from_bits(first));
            assert!(first == 0 || is_public(first - 1), "{}", Ipv4Addr::from_bits(first));
            assert!(last == u32::MAX || is_public(last + 1), "{}", Ipv4Addr::from_bits(last));
        }
        for special in [
            "::1",
            "100::1",
            "2001::1",
            "2001:1::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:808:808::1",
            "3fff::1",
            "3fff:fff:ffff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fe80::1",
            "fec0::1",
            "64:ff9b:1::808:808",
            "::808:808",
        ] {
            assert!(!allows(&public, special), "{special}");
        }
        for node in
            ["2001:200::1", "2001:db7::1", "2606:4700::1", "2003::1", "3fff:1000::1", "2620:4f:8000::1"]
        {
            assert!(allows(&public, node), "{node}");
        }
    }

    #[test]
    fn a_relays_own_addresses_and_its_neighbours_are_refused_whatever_the_port() {
        let check = |allow: &[&str], to: &str| {
            let policy = NextHopPolicy {
                own: vec!["9.9.9.1:4600".parse().unwrap(), "[2606:4700::1]:4600".parse().unwrap()],
                public: vec!["8.8.4.4".parse().unwrap()],
                neighbours: vec!["9.9.9.0/24".parse().unwrap(), "2606:4700::/64".parse().unwrap()],
                ..policy(allow, &[])
            };
            policy.check(to.parse().unwrap())
        };
        for own in [
            "9.9.9.1:4600",
            "9.9.9.1:22",
            "8.8.4.4:22",
            "[::ffff:9.9.9.1]:22",
            "[2606:4700::1]:22",
            "[64:ff9b::808:404]:22",
        ] {
            assert_eq!(check(&[], own), Err(Refused::NextHopOwn), "{own}");
        }
        for neighbour in ["9.9.9.2:22", "[::ffff:9.9.9.2]:22", "[2606:4700::2]:22", "[64:ff9b::909:902]:22"] {
            assert_eq!(check(&[], neighbour), Err(Refused::NextHopDenied), "{neighbour}");
        }
        for elsewhere in ["9.9.8.1:22", "8.8.8.8:22", "[2606:4700:0:1::1]:22"] {
            assert_eq!(check(&[], elsewhere), Ok(()), "{elsewhere}");
        }
        let allow = ["9.9.9.0/24", "8.8.4.4/32"];
        assert_eq!(
            check(&allow, "9.9.9.1:22"),
            Ok(()),
            "another service of this machine, where that is allowed"
        );
        assert_eq!(check(&allow, "8.8.4.4:22"), Ok(()));
        assert_eq!(check(&allow, "9.9.9.2:22"), Ok(()));
        assert_eq!(check(&allow, "9.9.9.1:4600"), Err(Refused::NextHopOwn), "never its own socket");
    }

    #[test]
    fn what_stands_for_an_ipv4_address_is_allowed_where_that_is() {
        let public = policy(&[], &[]);
        assert!(allows(&public, "::ffff:8.8.8.8") && allows(&public, "64:ff9b::808:808"));
        // 10.0.0.1, also as the client (upside down) or the server of a tunnel.
        let inner = ["::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "2001:0:a00:1::f7f7:f7f7"];
        let inner = inner.into_iter().chain(["2001:0:808:808::f5ff:fffe"]).collect::<Vec<_>>();
        let tunnels = policy(&["64:ff9b::/96", "2002::/16", "2001::/32"], &[]);
        let denied = policy(&["64:ff9b::/96", "2002::/16", "2001::/32", "10.0.0.0/8"], &["10.0.0.0/24"]);
        let allowed = policy(&["64:ff9b::/96", "2002::/16", "2001::/32", "10.0.0.0/8"], &[]);
        for ip in inner {
            assert!(!allows(&public, ip) && !allows(&tunnels, ip) && !allows(&denied, ip), "{ip}");
            assert!(allows(&allowed, ip), "{ip}");
        }
        for ip in ["2002:808:808::1", "2001:0:808:808::f7f7:f7f7"] {
            assert!(!allows(&public, ip) && allows(&tunnels, ip), "{ip}");
        }
    }
}
