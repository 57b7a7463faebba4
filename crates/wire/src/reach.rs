//! How far an address reaches: the whole Internet, one site, one link, one machine, or no single machine at all.
//!
//! Follows IANA's registries of special-purpose addresses (RFC 6890). Packets to some IPv6 addresses end at an IPv4
//! address: mapped, translated (RFC 6052), 6to4 and Teredo addresses. Such an address reaches as far as the narrower
//! of the two.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How far an address reaches, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reach {
    /// Not one machine's address: unspecified, multicast or broadcast.
    Nowhere,
    /// This machine.
    Loopback,
    /// One link: 169.254.0.0/16 (cloud metadata services among them) and fe80::/10.
    Link,
    /// One site: private and shared addresses, and all others that are not public.
    Site,
    /// The whole Internet.
    Public,
}

impl Reach {
    /// How far packets to `ip` go.
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => of_v4(ip),
            IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
                Some(mapped) => of_v4(mapped),
                None => embedded(ip).into_iter().flatten().map(of_v4).fold(of_v6(ip), Self::min),
            },
        }
    }
}

/// The IPv4 addresses at which packets to an IPv6 address end: behind a translator, or at both ends of a tunnel.
pub fn embedded(ip: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let part = |shift: u32| Ipv4Addr::from_bits((ip.to_bits() >> shift) as u32);
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => [Some(part(0)), None],
        [0x2002, ..] => [Some(part(80)), None],
        // A Teredo client's address is written with all bits inverted (RFC 4380 §4).
        [0x2001, 0, ..] => [Some(part(64)), Some(Ipv4Addr::from_bits(!part(0).to_bits()))],
        _ => [None; 2],
    }
}

fn of_v4(ip: Ipv4Addr) -> Reach {
    match ip.octets() {
        [0, ..] | [224..=239, ..] | [255, 255, 255, 255] => Reach::Nowhere,
        [127, ..] => Reach::Loopback,
        [169, 254, ..] => Reach::Link,
        // Private use, and addresses shared behind a provider's NAT.
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Reach::Site,
        // Addresses of protocols, for documentation, anycast to the nearest server, and reserved.
        [192, 0, 0 | 2, _] | [198, 51, 100, _] | [203, 0, 113, _] | [192, 88, 99, _] | [240..=255, ..] => {
            Reach::Site
        }
        // Benchmarks between devices of one laboratory.
        [198, 18 | 19, ..] => Reach::Site,
        _ => Reach::Public,
    }
}

fn of_v6(ip: Ipv6Addr) -> Reach {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] | [0xff00..=0xffff, ..] => Reach::Nowhere,
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Loopback,
        [0xfe80..=0xfebf, ..] => Reach::Link,
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => Reach::Public,
        // Protocols' own with Teredo (2001::/23), documentation, and 6to4.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x2002, ..] | [0x3fff, 0..=0xfff, ..] => Reach::Site,
        [0x2000..=0x3fff, ..] => Reach::Public,
        // Unique local (fc00::/7), and everything that was never given out.
        _ => Reach::Site,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_of_address_reaches_as_far_as_the_registries_say() {
        let table: [(Reach, &[&str]); 5] = [
            (
                Reach::Nowhere,
                &["0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.250", "255.255.255.255", "::", "ff02::1"],
            ),
            (Reach::Loopback, &["127.0.0.1", "127.255.255.255", "::1"]),
            (Reach::Link, &["169.254.0.1", "169.254.169.254", "fe80::1", "febf::1"]),
            (
                Reach::Site,
                &[
                    "10.0.0.1",
                    "172.16.0.1",
                    "172.31.255.255",
                    "192.168.1.1",
                    "100.64.0.1",
                    "100.127.255.255",
                    "192.0.0.8",
                    "192.0.2.1",
                    "198.18.0.1",
                    "198.51.100.1",
                    "203.0.113.1",
                    "192.88.99.1",
                    "240.0.0.1",
                    "fc00::1",
                    "fd12::1",
                    "fec0::1",
                    "2001:db8::1",
                    "3fff::1",
                    "100::1",
                    "64:ff9b:1::808:808",
                ],
            ),
            (
                Reach::Public,
                &[
                    "1.1.1.1",
                    "9.255.255.255",
                    "100.63.255.255",
                    "100.128.0.1",
                    "172.15.0.1",
                    "172.32.0.1",
                    "169.253.0.1",
                    "223.255.255.255",
                    "2606:4700::1",
                    "2001:200::1",
                    "2003::1",
                    "3fff:1000::1",
                ],
            ),
        ];
        for (reach, addresses) in table {
            for address in addresses {
                assert_eq!(Reach::of(address.parse().unwrap()), reach, "{address}");
            }
        }
    }

    #[test]
    fn an_address_that_leads_to_an_ipv4_address_reaches_no_farther_than_that() {
        for (address, reach) in [
            ("::ffff:8.8.8.8", Reach::Public),
            ("::ffff:169.254.169.254", Reach::Link),
            ("::ffff:127.0.0.1", Reach::Loopback),
            ("::ffff:224.0.0.1", Reach::Nowhere),
            ("64:ff9b::808:808", Reach::Public),
            ("64:ff9b::a9fe:a9fe", Reach::Link),
            ("64:ff9b::7f00:1", Reach::Loopback),
            ("2002:7f00:1::1", Reach::Loopback),
            ("2002:808:808::1", Reach::Site),
            ("2001:0:a9fe:a9fe::f7f7:f7f7", Reach::Link),
            // The client, 127.0.0.1, inverted.
            ("2001:0:808:808::80ff:fffe", Reach::Loopback),
        ] {
            assert_eq!(Reach::of(address.parse().unwrap()), reach, "{address}");
        }
    }
}
