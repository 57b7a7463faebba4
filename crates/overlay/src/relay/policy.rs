//! Where a relay forwards to: public addresses, and what its configuration allows beside them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

/// Which next hops are allowed.
#[derive(Clone, Debug, Default)]
pub struct NextHopPolicy {
    /// Networks that are allowed though they are not public (loopback, private, link-local). Multicast and
    /// broadcast never are.
    pub allow: Vec<IpNet>,
    /// Networks that are refused, whatever else is said.
    pub deny: Vec<IpNet>,
    /// The relay's own sockets: forwarding to itself is refused.
    pub own: Vec<SocketAddr>,
}

impl NextHopPolicy {
    /// Whether packets may be forwarded to this address.
    #[must_use]
    pub fn allows(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let canonical = SocketAddr::new(ip, address.port());
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&ip));
        let own = |own: &SocketAddr| SocketAddr::new(own.ip().to_canonical(), own.port()) == canonical;
        address.port() != 0
            && !is_never(ip)
            && !within(&self.deny)
            && !self.own.iter().any(own)
            && (is_public(ip) || within(&self.allow))
    }
}

/// Not one machine's address, whoever says so.
fn is_never(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_multicast() || ip.is_unspecified(),
    }
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// RFC 6890, the special-purpose blocks of IPv4.
fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    let shared = a == 100 && b & 0xc0 == 64;
    let benchmark = a == 198 && b & 0xfe == 18;
    let special = a == 0 || a >= 224 || shared || benchmark;
    !(special || ip.is_loopback() || ip.is_private() || ip.is_link_local() || ip.is_documentation())
}

/// Global unicast, 2000::/3, without documentation; addresses of transition mechanisms are judged by the IPv4 address in them.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    match segments {
        [0x2001, 0xdb8, ..] | [0x2001, 0, ..] => false,
        [0x2002, high, low, ..] => is_public_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))),
        [first, ..] => first & 0xe000 == 0x2000,
    }
}
