//! A rate limit for work that strangers can request, such as stateless resets.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use crate::{Span, Time};

/// The party behind an address: all addresses of an IPv6 /64 count as one.
pub fn source(address: IpAddr) -> IpAddr {
    network(address, 64)
}

/// The site behind an address: all addresses of an IPv6 /48, the largest network that one customer usually gets (RFC
/// 6177). Where the largest consumer yields, the site with the most comes first, and then the source with the most within it.
#[must_use]
pub fn site(address: IpAddr) -> IpAddr {
    network(address, 48)
}

/// The [`source`] that makes room for a newcomer when all places are taken, by the addresses of the items that have them:
/// the source with the most, in the site with the most. `None` if the newcomer's own would then have as many. Items
/// without an address count as one source.
#[must_use]
pub fn larger_source(items: &[Option<IpAddr>], newcomer: Option<IpAddr>) -> Option<Option<IpAddr>> {
    let [(largest_site, of_site), (largest, of_source)] = largest(items)?;
    let own = |reduce: fn(IpAddr) -> IpAddr| {
        items.iter().filter(|item| item.map(reduce) == newcomer.map(reduce)).count()
    };
    let is_larger = if largest_site == newcomer.map(site) {
        of_source > own(source) + 1
    } else {
        of_site > own(site) + 1
    };
    is_larger.then_some(largest)
}

/// The [`source`] with the most of these items, in the site with the most; of several, the one with the first item.
#[must_use]
pub fn largest_source(items: &[Option<IpAddr>]) -> Option<Option<IpAddr>> {
    largest(items).map(|[_, (source, _)]| source)
}

/// An owner of items, and how many it has.
type Owner = (Option<IpAddr>, usize);

/// The site with the most items, and the source with the most of them.
fn largest(items: &[Option<IpAddr>]) -> Option<[Owner; 2]> {
    let largest_site = most(items.iter().map(|item| item.map(site)))?;
    let neighbours = items.iter().filter(|item| item.map(site) == largest_site.0);
    Some([largest_site, most(neighbours.map(|item| item.map(source)))?])
}

/// The owner with the most items; of several, the one with the first item.
fn most(owners: impl Iterator<Item = Option<IpAddr>>) -> Option<Owner> {
    let mut counts = BTreeMap::<_, (usize, Reverse<usize>)>::new();
    owners.enumerate().for_each(|(at, owner)| counts.entry(owner).or_insert((0, Reverse(at))).0 += 1);
    counts.into_iter().max_by_key(|(_, rank)| *rank).map(|(owner, (count, _))| (owner, count))
}

fn network(address: IpAddr, ipv6_bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !(u128::MAX >> ipv6_bits)).into(),
    }
}

/// Sources are counted in this many buckets; some share one.
const BUCKETS: usize = 256;

/// How often something may be done in a second.
#[derive(Clone, Copy, Debug)]
pub struct PerSecond {
    /// For all sources together.
    pub all: u32,
    /// For each source.
    pub each: u8,
}

/// Limits how often something is done at the request of strangers. The limit of each source keeps one that floods from
/// using up the total, which is limited because sources can be forged.
#[derive(Debug)]
pub struct SourceLimit {
    most: PerSecond,
    key: u64,
    /// When the current second began.
    since: Time,
    all: u32,
    buckets: [u8; BUCKETS],
}

impl SourceLimit {
    /// An unused limit. Without its secret random `key`, strangers cannot find a source that shares a bucket with another.
    pub fn new(now: Time, most: PerSecond, key: u64) -> Self {
        Self { most, key, since: now, all: 0, buckets: [0; BUCKETS] }
    }

    /// Whether it may be done once more for this address.
    pub fn admit(&mut self, now: Time, from: IpAddr) -> bool {
        if now.since(self.since) >= Span::from_secs(1) {
            *self = Self::new(now, self.most, self.key);
        }
        let bucket = self.bucket_of(from);
        let bucket = &mut self.buckets[bucket];
        let admitted = self.all < self.most.all && *bucket < self.most.each;
        if admitted {
            *bucket += 1;
            self.all += 1;
        }
        admitted
    }

    fn bucket_of(&self, from: IpAddr) -> usize {
        let mut hasher = DefaultHasher::new();
        (self.key, source(from)).hash(&mut hasher);
        hasher.finish() as usize % BUCKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_sources_the_one_with_the_first_item_is_the_largest() {
        let items =
            |texts: &[&str]| -> Vec<Option<IpAddr>> { texts.iter().map(|text| text.parse().ok()).collect() };
        let largest = |texts: &[&str]| largest_source(&items(texts));
        assert_eq!(largest(&[]), None);
        assert_eq!(largest(&["192.0.2.9", "192.0.2.1"]), Some(items(&["192.0.2.9"])[0]));
        let all = ["192.0.2.9", "192.0.2.9", "2001:db8:0:9::1", "2001:db8::1", "2001:db8:0:9::2"];
        assert_eq!(largest(&all), Some(items(&["2001:db8:0:9::"])[0]), "the larger site comes first");
    }

    #[test]
    fn sources_that_share_a_bucket_under_one_key_do_not_under_another() {
        let [first, second] =
            [1, 2].map(|key| SourceLimit::new(Time::ZERO, PerSecond { all: 9, each: 1 }, key));
        let sources = (0..10_000_u32).map(|number| IpAddr::from(number.to_be_bytes()));
        let share =
            |limit: &SourceLimit, from| limit.bucket_of(from) == limit.bucket_of([192, 0, 2, 1].into());
        let sharing: Vec<IpAddr> = sources.filter(|from| share(&first, *from)).collect();
        assert!(!sharing.is_empty() && sharing.iter().any(|from| !share(&second, *from)));
    }
}
