//! Limits the sessions of a relay, a controller or an exit, and decides which one ends when it is full.
//!
//! Sessions are counted by key and by source (an IPv4 address or an IPv6 /64). A key and a source each have a share that
//! they never exceed; sessions of keys that the operator named do not count against their source's. When all places are
//! taken, the largest consumer yields: the [`site`] with most sessions, within it the source with most, and within that
//! the key with most. A newcomer that would itself become the largest consumer is refused instead, so one that floods
//! displaces only its own sessions' successors.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anabranch_secure::PublicKey;
use anabranch_wire::{Crowd, site, source};

/// How many sessions are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    pub total: usize,
    pub per_key: usize,
    pub per_source: usize,
}

/// Sessions of one key in all. A machine opens one for each transfer and relay, so this is ample.
pub const SESSIONS_PER_KEY: usize = 64;
/// Sessions from one IPv4 address or IPv6 /64; several machines may share an address.
pub const SESSIONS_PER_SOURCE: usize = 512;
/// Total sessions, if memory allows.
pub const SESSIONS_TOTAL: usize = 8_192;

impl Default for SessionLimits {
    fn default() -> Self {
        Self { total: SESSIONS_TOTAL, per_key: SESSIONS_PER_KEY, per_source: SESSIONS_PER_SOURCE }
    }
}

/// The owner of a session, for counting shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The peer's key.
    pub key: PublicKey,
    /// The address from which its first path comes, if known.
    pub address: Option<IpAddr>,
}

/// Why a session is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// The key has its share.
    #[error("this key has {0} sessions here already: end some")]
    Key(usize),
    /// The source has its share.
    #[error("{0} sessions come from your address already: end some")]
    Source(usize),
    /// All places are taken, and no other consumer has more.
    #[error("all {0} places are taken: come again later")]
    Total(usize),
}

/// The sessions that are open. `Id` orders sessions by age.
#[derive(Debug)]
pub struct Sessions<Id> {
    limits: SessionLimits,
    owners: BTreeMap<Id, Owner>,
    by_key: BTreeMap<PublicKey, BTreeSet<Id>>,
    crowd: Crowd<Id, Party>,
    /// The sessions of keys that the operator named.
    named: BTreeSet<Id>,
}

/// An owner of sessions, from the widest kind to the narrowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Site(Option<IpAddr>),
    Source(Option<IpAddr>),
    Key(PublicKey),
}

impl Owner {
    fn parties(&self) -> [Party; 3] {
        let from = self.address.map(source);
        [Party::Site(from.map(site)), Party::Source(from), Party::Key(self.key)]
    }
}

impl<Id: Copy + Ord> Sessions<Id> {
    /// No session yet.
    pub fn new(limits: SessionLimits) -> Self {
        Self {
            limits,
            owners: BTreeMap::new(),
            by_key: BTreeMap::new(),
            crowd: Crowd::default(),
            named: BTreeSet::new(),
        }
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// True without any session.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Applies other limits; sessions beyond them stay until they end.
    pub fn set_limits(&mut self, limits: SessionLimits) {
        self.limits = limits;
    }

    /// Sessions of a key, the oldest first.
    pub fn of_key(&self, key: &PublicKey) -> impl Iterator<Item = Id> {
        self.by_key.get(key).into_iter().flatten().copied()
    }

    /// Whether a key may have a further session. The source is known only once the session is open.
    pub fn check_key(&self, key: &PublicKey) -> Result<(), Full> {
        let count = self.by_key.get(key).map_or(0, BTreeSet::len);
        if count < self.limits.per_key { Ok(()) } else { Err(Full::Key(count)) }
    }

    /// Adds a session if there is room, or room can be made. Returns the sessions of the consumer that must yield one:
    /// the caller ends one of them and [removes](Self::remove) it.
    ///
    /// # Errors
    /// Which share is used up; the session is not added then.
    pub fn admit(&mut self, id: Id, owner: Owner) -> Result<Vec<Id>, Full> {
        self.check_key(&owner.key)?;
        let [site, source, _] = owner.parties();
        let of_source = self.crowd.of(&[site, source]).into_iter().flatten();
        let count = of_source.filter(|id| !self.named.contains(*id)).count();
        if count >= self.limits.per_source && owner.address.is_some() {
            return Err(Full::Source(count));
        }
        self.add(id, owner)
    }

    /// As [`Self::admit`], for a key that the operator named. There are few of these, and many may come through one relay or
    /// NAT, so the share of a source is not for them.
    ///
    /// # Errors
    /// That the share of the key is used up, or that all places are taken.
    pub fn admit_named(&mut self, id: Id, owner: Owner) -> Result<Vec<Id>, Full> {
        self.check_key(&owner.key)?;
        let candidates = self.add(id, owner)?;
        self.named.insert(id);
        Ok(candidates)
    }

    fn add(&mut self, id: Id, owner: Owner) -> Result<Vec<Id>, Full> {
        let parties = owner.parties();
        let candidates = if self.owners.len() >= self.limits.total {
            let larger = self.crowd.larger_than(&parties).ok_or(Full::Total(self.limits.total))?;
            larger.iter().copied().collect()
        } else {
            Vec::new()
        };
        self.owners.insert(id, owner);
        self.by_key.entry(owner.key).or_default().insert(id);
        self.crowd.insert(id, &parties);
        Ok(candidates)
    }

    /// Removes a session; ignores an unknown one.
    pub fn remove(&mut self, id: Id) {
        let Some(owner) = self.owners.remove(&id) else { return };
        self.named.remove(&id);
        self.crowd.remove(id, &owner.parties());
        if let Some(ids) = self.by_key.get_mut(&owner.key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_key.remove(&owner.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_secure::NodeKey;

    use super::*;

    fn owner(key: u8, address: &str) -> Owner {
        let key = NodeKey::from_random([key; 32]).public();
        Owner { key, address: Some(address.parse().unwrap()) }
    }

    fn sessions(total: usize, per_key: usize, per_source: usize) -> Sessions<u64> {
        Sessions::new(SessionLimits { total, per_key, per_source })
    }

    #[test]
    fn a_key_never_has_more_sessions_than_its_share_wherever_it_comes_from() {
        let mut sessions = sessions(1_000, 4, 512);
        for id in 0..4 {
            assert_eq!(sessions.admit(id, owner(1, &format!("192.0.2.{id}"))), Ok(vec![]));
        }
        assert_eq!(sessions.admit(4, owner(1, "198.51.100.1")), Err(Full::Key(4)));
        assert_eq!(sessions.check_key(&owner(1, "::1").key), Err(Full::Key(4)));
        assert_eq!(sessions.admit(5, owner(2, "198.51.100.1")), Ok(vec![]));
        sessions.remove(0);
        assert_eq!(sessions.admit(6, owner(1, "198.51.100.1")), Ok(vec![]));
    }

    #[test]
    fn an_ipv6_network_is_one_source_and_never_exceeds_its_share_with_many_keys() {
        let mut sessions = sessions(1_000, 4, 8);
        for id in 0..8_u8 {
            assert_eq!(sessions.admit(id.into(), owner(id, &format!("2001:db8::{id:x}"))), Ok(vec![]));
        }
        assert_eq!(sessions.admit(8, owner(8, "2001:db8::99")), Err(Full::Source(8)));
        assert_eq!(sessions.admit(9, owner(9, "2001:db8:0:1::1")), Ok(vec![]));
    }

    #[test]
    fn keys_that_the_operator_named_do_not_use_up_the_share_of_their_source() {
        let mut sessions = sessions(1_000, 4, 2);
        for id in 0..8 {
            assert_eq!(sessions.admit_named(id, owner((id / 4) as u8, "192.0.2.1")), Ok(vec![]));
        }
        assert_eq!(sessions.admit_named(8, owner(1, "192.0.2.1")), Err(Full::Key(4)));
        for id in 8..10_u8 {
            assert_eq!(sessions.admit(id.into(), owner(id, "192.0.2.1")), Ok(vec![]));
        }
        assert_eq!(sessions.admit(10, owner(10, "192.0.2.1")), Err(Full::Source(2)));
        (0..10).for_each(|id| sessions.remove(id));
        assert!(sessions.is_empty() && sessions.named.is_empty());
    }

    #[test]
    fn when_all_places_are_taken_the_largest_consumer_yields_and_never_gains() {
        let mut sessions = sessions(8, 6, 8);
        for id in 0..6 {
            sessions.admit(id, owner(1, "192.0.2.1")).unwrap();
        }
        sessions.admit(6, owner(2, "192.0.2.2")).unwrap();
        sessions.admit(7, owner(3, "192.0.2.3")).unwrap();
        let hoard: Vec<u64> = (0..6).collect();
        assert_eq!(sessions.admit(8, owner(4, "192.0.2.4")), Ok(hoard.clone()));
        sessions.remove(0);
        assert_eq!(sessions.len(), 8);
        assert_eq!(sessions.admit(9, owner(1, "192.0.2.1")), Err(Full::Total(8)), "it has most itself");
        // Another key at the flood's address gets a place from the flood as well.
        assert_eq!(sessions.admit(9, owner(5, "192.0.2.1")), Ok(hoard[1..].to_vec()));
    }

    #[test]
    fn all_networks_of_one_ipv6_site_yield_to_others_and_the_largest_of_them_to_its_neighbours() {
        let mut sessions = sessions(8, 4, 8);
        for id in 0..6_u8 {
            sessions.admit(id.into(), owner(id, &format!("2001:db8:0:{id:x}::1"))).unwrap();
        }
        for id in 6..8_u8 {
            sessions.admit(id.into(), owner(id, &format!("2001:db8:0:6::{id:x}"))).unwrap();
        }
        let [yields] = sessions.admit(8, owner(8, "192.0.2.1")).unwrap()[..] else { panic!("one session") };
        assert!((6..8).contains(&yields), "the largest network of the site");
        sessions.remove(yields);
        assert_eq!(sessions.admit(9, owner(9, "2001:db8:0:7::1")), Err(Full::Total(8)), "all have as many");
        assert_eq!(sessions.admit(9, owner(9, "192.0.2.2")).map(|yields| yields.len()), Ok(1));
    }

    #[test]
    fn consumers_that_are_equally_large_do_not_displace_each_other() {
        let mut sessions = sessions(4, 4, 4);
        for id in 0..4_u8 {
            sessions.admit(id.into(), owner(id, &format!("192.0.2.{id}"))).unwrap();
        }
        assert_eq!(sessions.admit(4, owner(4, "192.0.2.4")), Err(Full::Total(4)));
        assert_eq!(sessions.len(), 4);
    }

    #[test]
    fn nothing_is_kept_of_sessions_that_are_gone() {
        let mut sessions = sessions(100, 10, 100);
        for id in 0..100_u8 {
            sessions.admit(id.into(), owner(id % 10, &format!("192.0.2.{}", id % 7))).unwrap();
        }
        (0..100).for_each(|id| sessions.remove(id));
        assert!(sessions.is_empty() && sessions.by_key.is_empty() && sessions.crowd.is_empty());
    }
}
