//! Who is behind an address, and who has most of what is short.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Addresses that one party has at its disposal count as one: an IPv6 /64.
pub(crate) fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// Whoever has to make room for one more of `own`, places being held by `holders`: the source that has most
/// of them; `None` when that is `own` itself, which has to do without.
pub(crate) fn who_makes_room(own: IpAddr, holders: impl IntoIterator<Item = IpAddr>) -> Option<IpAddr> {
    let mut counts = BTreeMap::from([(own, 1_usize)]);
    for holder in holders {
        *counts.entry(holder).or_default() += 1;
    }
    let most = counts.iter().max_by_key(|(address, count)| (**count, **address == own));
    most.map(|(address, _)| *address).filter(|most| *most != own)
}
