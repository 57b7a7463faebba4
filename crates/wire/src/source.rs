//! A rate limit for work that strangers can request, such as stateless resets.

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
    /// When the current second began.
    since: Time,
    all: u32,
    buckets: [u8; BUCKETS],
}

impl SourceLimit {
    /// An unused limit.
    pub fn new(now: Time, most: PerSecond) -> Self {
        Self { most, since: now, all: 0, buckets: [0; BUCKETS] }
    }

    /// Whether it may be done once more for this address.
    pub fn admit(&mut self, now: Time, from: IpAddr) -> bool {
        if now.since(self.since) >= Span::from_secs(1) {
            *self = Self::new(now, self.most);
        }
        let bucket = &mut self.buckets[bucket_of(from)];
        let admitted = self.all < self.most.all && *bucket < self.most.each;
        if admitted {
            *bucket += 1;
            self.all += 1;
        }
        admitted
    }
}

fn bucket_of(from: IpAddr) -> usize {
    let mut hasher = DefaultHasher::new();
    source(from).hash(&mut hasher);
    hasher.finish() as usize % BUCKETS
}
