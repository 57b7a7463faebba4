//! Who is behind an address.

use std::net::{IpAddr, Ipv6Addr};

/// Addresses that one party has at its disposal count as one: an IPv6 /64.
#[must_use]
pub fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}
