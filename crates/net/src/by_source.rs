//! Items that wait for a scarce resource, counted by source, so that the source with the most can give way.
//!
//! Items are numbered in order of arrival. They are counted by [`site`], and within a site by source: who has an IPv6 /48
//! has 65,536 sources, and neighbours in a shared one must not give way for each other. Ordered sets find the one with
//! the most items quickly.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anabranch_wire::site;

/// The items. Sources are addresses as [`anabranch_wire::source`] reduces them.
#[derive(Debug)]
pub(crate) struct BySource<T> {
    /// In order of arrival.
    members: BTreeMap<u64, (IpAddr, T)>,
    sites: Ranking,
    /// The sources of each site.
    sources: BTreeMap<IpAddr, Ranking>,
    next: u64,
}

/// The numbers of items by their owners, which are sites or sources.
#[derive(Debug, Default)]
struct Ranking {
    owners: BTreeMap<IpAddr, BTreeSet<u64>>,
    ranks: BTreeSet<Rank>,
}

/// The number of an owner's items, its oldest item, and the owner. Among equals, the owner with the older item comes last.
type Rank = (usize, Reverse<u64>, IpAddr);

impl<T> Default for BySource<T> {
    fn default() -> Self {
        Self { members: BTreeMap::new(), sites: Ranking::default(), sources: BTreeMap::new(), next: 0 }
    }
}

impl<T> BySource<T> {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The numbers of the oldest and the newest item of the source with the most, in the site with the most; of several,
    /// of the one with the oldest item.
    pub(crate) fn most(&self) -> Option<[u64; 2]> {
        let sources = self.sources.get(&self.sites.most()?)?;
        sources.ends(&sources.most()?)
    }

    /// As [`Self::most`], if that site has more items than `own` would have with another one, or that source if both are
    /// of one site.
    pub(crate) fn more_than(&self, own: IpAddr) -> Option<[u64; 2]> {
        let (theirs, ours) = (self.sites.most()?, site(own));
        let sources = self.sources.get(&theirs)?;
        let largest = sources.most()?;
        let is_more = if theirs == ours {
            sources.count(&largest) > sources.count(&own) + 1
        } else {
            self.sites.count(&theirs) > self.sites.count(&ours) + 1
        };
        if is_more { sources.ends(&largest) } else { None }
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.members.get_mut(&number).map(|(_, member)| member)
    }

    /// Adds an item; returns its number.
    pub(crate) fn push(&mut self, source: IpAddr, member: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.members.insert(number, (source, member));
        self.sites.insert(site(source), number);
        self.sources.entry(site(source)).or_default().insert(source, number);
        number
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (source, member) = self.members.remove(&number)?;
        self.sites.remove(site(source), number);
        if let Entry::Occupied(mut sources) = self.sources.entry(site(source)) {
            sources.get_mut().remove(source, number);
            if sources.get().owners.is_empty() {
                sources.remove();
            }
        }
        Some(member)
    }

    /// Removes the oldest item.
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let (number, _) = self.members.first_key_value()?;
        self.remove(*number)
    }

    /// How many items a source has.
    #[cfg(test)]
    pub(crate) fn count(&self, source: &IpAddr) -> usize {
        self.sources.get(&site(*source)).map_or(0, |sources| sources.count(source))
    }
}

impl Ranking {
    fn count(&self, owner: &IpAddr) -> usize {
        self.owners.get(owner).map_or(0, BTreeSet::len)
    }

    fn most(&self) -> Option<IpAddr> {
        self.ranks.last().map(|(.., owner)| *owner)
    }

    /// The numbers of an owner's oldest and newest item.
    fn ends(&self, owner: &IpAddr) -> Option<[u64; 2]> {
        let numbers = self.owners.get(owner)?;
        Some([*numbers.first()?, *numbers.last()?])
    }

    fn insert(&mut self, owner: IpAddr, number: u64) {
        self.change(owner, |numbers| numbers.insert(number));
    }

    fn remove(&mut self, owner: IpAddr, number: u64) {
        self.change(owner, |numbers| numbers.remove(&number));
    }

    fn change(&mut self, owner: IpAddr, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let numbers = self.owners.entry(owner).or_default();
        let old = rank(numbers, owner);
        change(numbers);
        let new = rank(numbers, owner);
        if let Some(old) = old {
            self.ranks.remove(&old);
        }
        if new.is_none() {
            self.owners.remove(&owner);
        }
        self.ranks.extend(new);
    }
}

fn rank(numbers: &BTreeSet<u64>, owner: IpAddr) -> Option<Rank> {
    numbers.first().map(|oldest| (numbers.len(), Reverse(*oldest), owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The owner with the most of these items, and its oldest and newest item.
    fn largest(items: impl Iterator<Item = (u64, IpAddr)>) -> Option<(IpAddr, [u64; 2])> {
        let mut owners: BTreeMap<IpAddr, Vec<u64>> = BTreeMap::new();
        items.for_each(|(number, owner)| owners.entry(owner).or_default().push(number));
        let most = owners.iter().max_by_key(|(_, numbers)| (numbers.len(), Reverse(numbers[0])))?;
        Some((*most.0, [most.1[0], most.1[most.1.len() - 1]]))
    }

    #[test]
    fn whoever_has_most_is_told_whatever_comes_and_goes() {
        let mut crowd = BySource::default();
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..5_000 {
            match draw(5) {
                0 => drop(crowd.pop_first()),
                1 => drop(crowd.remove(draw(crowd.next + 1))),
                _ => {
                    let (site, network) = (draw(3) as u16, draw(4) as u16);
                    crowd.push(IpAddr::from([0x2001, 0xdb8, site, network, 0, 0, 0, 0]), ());
                }
            }
            let all = || crowd.members.iter().map(|(number, (source, ()))| (*number, *source));
            let of_site = largest(all().map(|(number, source)| (number, site(source))));
            let expected =
                of_site.and_then(|(of, _)| largest(all().filter(|(_, source)| site(*source) == of)));
            assert_eq!(crowd.most(), expected.map(|(_, ends)| ends));
            let sources: BTreeSet<IpAddr> = all().map(|(_, source)| source).collect();
            let is_right = |of: &IpAddr| crowd.count(of) == all().filter(|(_, source)| source == of).count();
            assert!(sources.iter().all(is_right));
            assert_eq!(crowd.sources.values().map(|site| site.ranks.len()).sum::<usize>(), sources.len());
            assert_eq!(crowd.sites.ranks.len(), crowd.sources.len());
        }
    }
}
