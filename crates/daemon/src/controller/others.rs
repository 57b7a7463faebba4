//! Limits grants for keys that the configuration does not list, but admits by `others`. Such keys are free, and each has a
//! record in the store, so one machine could fill it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_net::PublicKey;
use anabranch_overlay::controller::{Denied, REQUEST_AGE};
use anabranch_wire::{site, source};

use crate::pace::{PaceLimits, Paces};

/// Of an IPv4 address or IPv6 /64.
const OF_A_SOURCE: PaceLimits = PaceLimits { burst: 64, every: Duration::from_secs(10) };
/// Of an IPv6 /48.
const OF_A_SITE: PaceLimits = PaceLimits { burst: 256, every: Duration::from_secs(1) };
const OF_ALL: PaceLimits = PaceLimits { burst: 1_024, every: Duration::from_millis(125) };

/// An admitted key is not counted again for so long: its record is there. After that it is counted anew, however often it
/// asked: a source could keep ever more records otherwise.
const KNOWN: Duration = Duration::from_secs(REQUEST_AGE);

/// The keys that asked for a grant.
pub(super) struct Others {
    /// Until when they are not counted again.
    known: Mutex<BTreeMap<PublicKey, Instant>>,
    sources: Paces<IpAddr>,
    sites: Paces<IpAddr>,
    all: Paces<()>,
}

impl Others {
    /// None yet.
    pub(super) fn new() -> Self {
        let (sources, sites) = (Paces::new(OF_A_SOURCE), Paces::new(OF_A_SITE));
        Self { known: Mutex::default(), sources, sites, all: Paces::new(OF_ALL) }
    }

    /// Admits a request for a grant by a key from this address.
    pub(super) fn admit(&self, key: PublicKey, address: Option<IpAddr>, now: Instant) -> Result<(), Denied> {
        let mut known = self.known();
        if known.get(&key).is_some_and(|until| now < *until) {
            return Ok(());
        }
        if !self.count(address, now) {
            return Err(Denied::Crowded);
        }
        known.retain(|_, until| now < *until);
        known.insert(key, now + KNOWN);
        Ok(())
    }

    /// True when there may be another key. A source or site that has used up its own share takes nothing from others.
    fn count(&self, address: Option<IpAddr>, now: Instant) -> bool {
        let address = address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
        self.sources.of(source(address), now).take(1, now).is_ok()
            && self.sites.of(site(address), now).take(1, now).is_ok()
            && self.all.of((), now).take(1, now).is_ok()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<PublicKey, Instant>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(others: &Others, addresses: impl Iterator<Item = IpAddr>, now: Instant) -> usize {
        addresses.filter(|address| others.count(Some(*address), now)).count()
    }

    #[test]
    fn unlisted_keys_that_ask_for_grants_are_bounded_by_source_site_and_in_all() {
        let (others, begin) = (Others::new(), Instant::now());
        let one = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(admitted(&others, std::iter::repeat_n(one, 100), begin), 64);
        let of_site = (0..1_000_u16).map(|net| IpAddr::from([0x2001, 0xdb8, 0, net, 0, 0, 0, 1]));
        assert_eq!(admitted(&others, of_site, begin), 256);
        let all = (0..2_000_u16).map(|site| IpAddr::from([0x2001, 0xdb8, 1 + site, 0, 0, 0, 0, 1]));
        assert_eq!(admitted(&others, all, begin), 1_024 - 256 - 64);
        let later = begin + OF_A_SOURCE.every * 2;
        assert_eq!(admitted(&others, std::iter::repeat_n(one, 100), later), 2);
    }

    #[test]
    fn a_key_that_asks_again_is_counted_once() {
        let (others, begin) = (Others::new(), Instant::now());
        let key = |byte: u8| anabranch_net::NodeKey::from_random([byte; 32]).public();
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        for _ in 0..100 {
            assert_eq!(others.admit(key(1), address, begin), Ok(()));
        }
        let further = (2..=100).filter(|byte| others.admit(key(*byte), address, begin).is_ok()).count();
        assert_eq!(further, 63);
        assert_eq!(others.admit(key(100), address, begin), Err(Denied::Crowded));
        assert_eq!(others.admit(key(1), address, begin), Ok(()));
        let later = begin + KNOWN;
        let again = (1..=100).filter(|byte| others.admit(key(*byte), address, later).is_ok()).count();
        assert_eq!(again, 60, "they are counted again");
        assert_eq!(others.known().len(), 60, "nothing is kept of the others");
    }
}
