//! Items that take part of something scarce, counted by their owners, so that the largest owner can give way.
//!
//! Owners are nested, such as the sources of a [`site`](crate::site): who has an IPv6 /48 has 65,536 sources, and
//! neighbours in a shared one must not give way for each other. The largest owner is the one with the most items within
//! the largest owner of the level before. Of several, it is the one with the oldest item. Ordered sets find it quickly.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The items. Their ids grow in order of arrival. All have as many owners, given from the widest to the narrowest.
#[derive(Debug)]
pub struct Crowd<Id, Owner> {
    ids: BTreeSet<Id>,
    parts: BTreeMap<Owner, Self>,
    ranks: BTreeSet<Rank<Id, Owner>>,
}

/// The number of an owner's items, its oldest item, and the owner.
type Rank<Id, Owner> = (usize, Reverse<Id>, Owner);

impl<Id, Owner> Default for Crowd<Id, Owner> {
    fn default() -> Self {
        Self { ids: BTreeSet::new(), parts: BTreeMap::new(), ranks: BTreeSet::new() }
    }
}

impl<Id: Copy + Ord, Owner: Copy + Ord> Crowd<Id, Owner> {
    /// Adds an item.
    pub fn insert(&mut self, id: Id, owners: &[Owner]) {
        self.change(owners, |ids| {
            ids.insert(id);
        });
    }

    /// Removes an item, of the same owners.
    pub fn remove(&mut self, id: Id, owners: &[Owner]) {
        self.change(owners, |ids| {
            ids.remove(&id);
        });
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The items of the last of these owners.
    pub fn of(&self, owners: &[Owner]) -> Option<&BTreeSet<Id>> {
        match owners {
            [] => Some(&self.ids),
            [owner, within @ ..] => self.parts.get(owner)?.of(within),
        }
    }

    /// The items of the largest owner; none if there are none.
    pub fn largest(&self) -> &BTreeSet<Id> {
        self.largest_part().map_or(&self.ids, |(_, part)| part.largest())
    }

    /// The items of the largest owner if it makes room for a newcomer with these owners: on the first level where the two
    /// differ, the largest has more items than the newcomer's owner would then have.
    pub fn larger_than(&self, owners: &[Owner]) -> Option<&BTreeSet<Id>> {
        let (own, within) = owners.split_first()?;
        let (owner, part) = self.largest_part()?;
        if owner == *own {
            return part.larger_than(within);
        }
        let of_own = self.parts.get(own).map_or(0, |own| own.ids.len());
        (part.ids.len() > of_own + 1).then(|| part.largest())
    }

    fn largest_part(&self) -> Option<(Owner, &Self)> {
        let (.., owner) = self.ranks.last()?;
        Some((*owner, self.parts.get(owner)?))
    }

    fn change(&mut self, owners: &[Owner], change: impl Fn(&mut BTreeSet<Id>) + Copy) {
        change(&mut self.ids);
        let Some((owner, within)) = owners.split_first() else { return };
        let part = self.parts.entry(*owner).or_default();
        let before = part.rank(*owner);
        part.change(within, change);
        let after = part.rank(*owner);
        if after.is_none() {
            self.parts.remove(owner);
        }
        if let Some(before) = before {
            self.ranks.remove(&before);
        }
        self.ranks.extend(after);
    }

    fn rank(&self, owner: Owner) -> Option<Rank<Id, Owner>> {
        self.ids.first().map(|oldest| (self.ids.len(), Reverse(*oldest), owner))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::{larger_source, largest_source, site, source};

    #[test]
    fn the_largest_owner_is_the_same_as_in_a_list_whatever_comes_and_goes() {
        let (mut crowd, mut items) = (Crowd::default(), BTreeMap::new());
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let owners = |address: IpAddr| [site(address), source(address)];
        for id in 0..1_000 {
            let (third, fourth) = (draw(3) as u16, draw(4) as u16);
            let newcomer = IpAddr::from([0x2001, 0xdb8, third, fourth, 0, 0, 0, 0]);
            if draw(5) < 2 {
                let gone = draw(id + 1);
                if let Some(address) = items.remove(&gone) {
                    crowd.remove(gone, &owners(address));
                }
            } else {
                items.insert(id, newcomer);
                crowd.insert(id, &owners(newcomer));
            }
            let all: Vec<Option<IpAddr>> = items.values().copied().map(Some).collect();
            let of = |ids: &BTreeSet<u64>| ids.first().map(|id| source(items[id]));
            assert_eq!(of(crowd.largest()), largest_source(&all).flatten());
            let larger = crowd.larger_than(&owners(newcomer)).and_then(of);
            assert_eq!(larger, larger_source(&all, Some(newcomer)).flatten());
            let own = items.values().filter(|address| **address == newcomer).count();
            assert_eq!(crowd.of(&owners(newcomer)).map_or(0, BTreeSet::len), own);
        }
        items.iter().for_each(|(id, address)| crowd.remove(*id, &owners(*address)));
        assert!(crowd.is_empty() && crowd.parts.is_empty() && crowd.ranks.is_empty());
    }
}
