//! Groups interface addresses by router, from traceroutes seen from both ends (mTCP §3.3 [M9]).
//!
//! A traceroute shows the interface of each router that faces its source. Routers are often joined by a subnet of two
//! addresses (/31, or the inner two of a /30; /127 and /126 in IPv6). An address v that follows u on a trace has the
//! other address v′ on the same link. That link leaves u's router, so u and v′ belong to one router. v′ appears on
//! traces in the other direction. No packets are sent to routers for this: Linux routers do not answer the probes of
//! Ally and Mercator as needed.
//!
//! An inference that contradicts a trace is refused: no router occurs twice on a loop-free trace, and the two ends of a
//! link are different routers. Inferences that more traces support come first. Unresolved addresses are listed, because
//! "no shared router found" does not mean "no shared router".

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anabranch_wire::Span;

/// The routers that answered on the path from one host to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traceroute {
    /// The host that sent the probes.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
    /// For each hop in order, the address that answered and its round-trip time; `None` for silence. The destination
    /// is the last, if it answered.
    pub hops: Vec<Option<(IpAddr, Span)>>,
}

impl Traceroute {
    /// Source and hops in order, `None` for silence.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Option<IpAddr>> {
        std::iter::once(Some(self.from)).chain(self.hops.iter().map(|hop| hop.map(|(address, _)| address)))
    }
}

/// Two addresses that an inference joined, but a trace keeps apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// One address.
    pub a: IpAddr,
    /// The other.
    pub b: IpAddr,
}

/// Addresses grouped by router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases {
    /// For each address, the lowest one of its router.
    router: BTreeMap<IpAddr, IpAddr>,
    /// Addresses in the middle of a trace without a second address of the same router.
    pub unresolved: Vec<IpAddr>,
    /// Inferences that were refused.
    pub conflicts: Vec<Conflict>,
}

impl Aliases {
    /// The name of the router that has this address: its lowest known address.
    pub fn router_of(&self, address: IpAddr) -> IpAddr {
        self.router.get(&address).copied().unwrap_or(address)
    }

    /// All known routers with their addresses.
    pub fn routers(&self) -> BTreeMap<IpAddr, BTreeSet<IpAddr>> {
        let mut routers: BTreeMap<IpAddr, BTreeSet<IpAddr>> = BTreeMap::new();
        for (&address, &router) in &self.router {
            routers.entry(router).or_default().insert(address);
        }
        routers
    }
}

/// Groups all addresses on the traces by router.
pub fn resolve_aliases(traces: &[Traceroute]) -> Aliases {
    let mut seen: BTreeMap<IpAddr, BTreeSet<usize>> = BTreeMap::new();
    let mut crossed = seen.clone();
    for (index, trace) in traces.iter().enumerate() {
        for address in trace.addresses().flatten() {
            seen.entry(address).or_default().insert(index);
            crossed.entry(address).or_default();
        }
        for (address, _) in trace.hops.iter().flatten() {
            crossed.entry(*address).or_default().insert(index);
        }
    }
    let mut support: BTreeMap<(IpAddr, IpAddr), usize> = BTreeMap::new();
    let mut refused: BTreeSet<Conflict> = BTreeSet::new();
    for trace in traces {
        // Leave out the source: a host's neighbour may be on a wider net, and a host knows its own addresses.
        let hops: Vec<Option<IpAddr>> = trace.addresses().skip(1).collect();
        for pair in hops.windows(2) {
            let (Some(u), Some(v)) = (pair[0], pair[1]) else { continue };
            let Some(mate) = mate(v, &seen).filter(|mate| *mate != u) else { continue };
            if crossed[&v].is_disjoint(&crossed[&mate]) {
                *support.entry((u.min(mate), u.max(mate))).or_default() += 1;
            } else {
                refused.insert(Conflict { a: u.min(mate), b: u.max(mate) });
            }
        }
    }
    let mut groups = Groups::new(seen);
    let mut pairs: Vec<_> = support.into_iter().collect();
    pairs.sort_by_key(|((a, b), count)| (std::cmp::Reverse(*count), *a, *b));
    for ((a, b), _) in pairs {
        if !groups.merge(a, b) {
            refused.insert(Conflict { a, b });
        }
    }
    groups.finish(traces, refused)
}

/// The other address of the two-address subnet that `address` seems to be in, if a trace shows it.
fn mate(address: IpAddr, seen: &BTreeMap<IpAddr, BTreeSet<usize>>) -> Option<IpAddr> {
    let flip = |bits: u8| match address {
        IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() ^ u32::from(bits))),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() ^ u128::from(bits))),
    };
    let low = match address {
        IpAddr::V4(ip) => ip.to_bits() as u8 & 3,
        IpAddr::V6(ip) => ip.to_bits() as u8 & 3,
    };
    let next = flip(1);
    if seen.contains_key(&next) {
        return Some(next);
    }
    // In a /30 the outer addresses name the net and its broadcast. A host that answers from one is in a /31.
    let is_inner = low == 1 || low == 2;
    let outer_seen = seen.contains_key(&flip(low)) || seen.contains_key(&flip(low ^ 3));
    let inner = flip(3);
    (is_inner && !outer_seen && seen.contains_key(&inner)).then_some(inner)
}

/// Groups so far, each with the traces that it is on.
struct Groups {
    group_of: BTreeMap<IpAddr, usize>,
    groups: Vec<(BTreeSet<IpAddr>, BTreeSet<usize>)>,
}

impl Groups {
    fn new(seen: BTreeMap<IpAddr, BTreeSet<usize>>) -> Self {
        let mut groups = Self { group_of: BTreeMap::new(), groups: Vec::new() };
        for (address, traces) in seen {
            groups.group_of.insert(address, groups.groups.len());
            groups.groups.push((BTreeSet::from([address]), traces));
        }
        groups
    }

    /// Joins two addresses; false if a trace shows that they are different routers.
    fn merge(&mut self, a: IpAddr, b: IpAddr) -> bool {
        let (Some(&into), Some(&from)) = (self.group_of.get(&a), self.group_of.get(&b)) else { return false };
        if into == from {
            return true;
        }
        if !self.groups[into].1.is_disjoint(&self.groups[from].1) {
            return false;
        }
        let (addresses, traces) = std::mem::take(&mut self.groups[from]);
        for address in &addresses {
            self.group_of.insert(*address, into);
        }
        self.groups[into].0.extend(addresses);
        self.groups[into].1.extend(traces);
        true
    }

    fn finish(self, traces: &[Traceroute], refused: BTreeSet<Conflict>) -> Aliases {
        let ends: BTreeSet<IpAddr> = traces.iter().flat_map(|trace| [trace.from, trace.to]).collect();
        let mut aliases = Aliases { conflicts: refused.into_iter().collect(), ..Aliases::default() };
        for (addresses, _) in self.groups {
            let Some(&lowest) = addresses.first() else { continue };
            if addresses.len() == 1 && !ends.contains(&lowest) {
                aliases.unresolved.push(lowest);
            }
            aliases.router.extend(addresses.into_iter().map(|address| (address, lowest)));
        }
        aliases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
    }

    fn trace(from: u8, hops: &[u8]) -> Traceroute {
        let to = ip(*hops.last().unwrap());
        let hops = hops.iter().map(|last| Some((ip(*last), Span::from_millis(1)))).collect();
        Traceroute { from: ip(from), to, hops }
    }

    #[test]
    fn addresses_that_another_trace_passes_both_are_no_two_ends_of_a_link() {
        let aliases = resolve_aliases(&[trace(1, &[40, 8, 50]), trace(2, &[8, 9, 60])]);
        assert_ne!(aliases.router_of(ip(40)), aliases.router_of(ip(9)));
        assert_eq!(aliases.conflicts, [Conflict { a: ip(9), b: ip(40) }]);
    }

    #[test]
    fn where_an_outer_address_of_four_answers_they_are_two_links() {
        let traces = [trace(1, &[40, 9, 50]), trace(2, &[10, 60]), trace(3, &[11, 70])];
        assert_eq!(resolve_aliases(&traces[..2]).router_of(ip(40)), ip(10));
        assert_eq!(resolve_aliases(&traces).router_of(ip(40)), ip(40));
    }

    #[test]
    fn of_two_routers_that_an_address_could_belong_to_more_traces_decide() {
        let traces = [
            trace(1, &[40, 8, 50]),
            trace(1, &[44, 8, 54]),
            trace(2, &[44, 8, 58]),
            trace(3, &[9, 62]),
            trace(4, &[40, 44, 66]),
        ];
        let aliases = resolve_aliases(&traces);
        assert_eq!([9, 44, 40].map(|last| aliases.router_of(ip(last))), [9, 9, 40].map(ip));
        assert_eq!(aliases.conflicts, [Conflict { a: ip(9), b: ip(40) }]);
    }
}
