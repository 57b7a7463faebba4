//! Who is behind an address.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use crate::{Span, Time};

/// Addresses that one party has at its disposal count as one: an IPv6 /64.
#[must_use]
pub fn source(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// Sources are told apart by so many numbers; some share one.
const NUMBERS: usize = 256;

/// How often something is done in a second for whoever asks: each source has a few, so that one that floods does not use up what
/// others need, and all together have a bounded number, since sources can be forged.
#[derive(Debug)]
pub struct SourceLimit {
    /// Of all sources and of one in a second.
    most: (u32, u8),
    /// When counting began.
    since: Time,
    all: u32,
    of_one: [u8; NUMBERS],
}

impl SourceLimit {
    /// So many a second for all sources and for one.
    #[must_use]
    pub fn new(now: Time, most: (u32, u8)) -> Self {
        Self { most, since: now, all: 0, of_one: [0; NUMBERS] }
    }

    /// Whether it may be done once more for this address.
    pub fn admit(&mut self, now: Time, from: IpAddr) -> bool {
        if now.since(self.since) >= Span::from_secs(1) {
            *self = Self::new(now, self.most);
        }
        let of_one = &mut self.of_one[number_of(from)];
        let admitted = self.all < self.most.0 && *of_one < self.most.1;
        if admitted {
            *of_one += 1;
            self.all += 1;
        }
        admitted
    }
}

fn number_of(from: IpAddr) -> usize {
    let mut hasher = DefaultHasher::new();
    source(from).hash(&mut hasher);
    hasher.finish() as usize % NUMBERS
}
