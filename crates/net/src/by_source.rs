//! Items that wait for a scarce resource, counted by source, so that the source with the most can give way.
//!
//! Items are numbered in order of arrival. An ordered set finds the source with the most items quickly.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The number of a source's items, and its oldest item. Among equals, the source with the older item comes last.
type Rank = (usize, Reverse<u64>);

/// The items. Sources are addresses as [`anabranch_wire::source`] reduces them.
#[derive(Debug)]
pub(crate) struct BySource<T> {
    /// In order of arrival.
    members: BTreeMap<u64, (IpAddr, T)>,
    sources: BTreeMap<IpAddr, BTreeSet<u64>>,
    ranks: BTreeSet<Rank>,
    next: u64,
}

impl<T> Default for BySource<T> {
    fn default() -> Self {
        Self { members: BTreeMap::new(), sources: BTreeMap::new(), ranks: BTreeSet::new(), next: 0 }
    }
}

impl<T> BySource<T> {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn count(&self, source: &IpAddr) -> usize {
        self.sources.get(source).map_or(0, BTreeSet::len)
    }

    /// The source with the most items, and how many; of several, the one with the oldest item.
    pub(crate) fn most(&self) -> Option<(usize, IpAddr)> {
        let (count, Reverse(oldest)) = self.ranks.last()?;
        self.members.get(oldest).map(|(source, _)| (*count, *source))
    }

    /// The numbers of a source's oldest and newest item.
    pub(crate) fn ends(&self, source: &IpAddr) -> Option<[u64; 2]> {
        let numbers = self.sources.get(source)?;
        Some([*numbers.first()?, *numbers.last()?])
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.members.get_mut(&number).map(|(_, member)| member)
    }

    /// Adds an item; returns its number.
    pub(crate) fn push(&mut self, source: IpAddr, member: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.members.insert(number, (source, member));
        let numbers = self.sources.entry(source).or_default();
        let old = rank(numbers);
        numbers.insert(number);
        let new = rank(numbers);
        self.move_rank(old, new);
        number
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (source, member) = self.members.remove(&number)?;
        if let Entry::Occupied(mut entry) = self.sources.entry(source) {
            let old = rank(entry.get());
            entry.get_mut().remove(&number);
            let new = rank(entry.get());
            if new.is_none() {
                entry.remove();
            }
            self.move_rank(old, new);
        }
        Some(member)
    }

    fn move_rank(&mut self, old: Option<Rank>, new: Option<Rank>) {
        if let Some(old) = old {
            self.ranks.remove(&old);
        }
        self.ranks.extend(new);
    }

    /// Removes the oldest item.
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let (number, _) = self.members.first_key_value()?;
        self.remove(*number)
    }

    /// All items in order of arrival.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &IpAddr, &T)> {
        self.members.iter().map(|(number, (source, member))| (*number, source, member))
    }
}

fn rank(numbers: &BTreeSet<u64>) -> Option<Rank> {
    numbers.first().map(|oldest| (numbers.len(), Reverse(*oldest)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
                _ => drop(crowd.push(IpAddr::from([192, 0, 2, draw(6) as u8]), ())),
            }
            let mut counts: BTreeMap<IpAddr, (usize, Reverse<u64>)> = BTreeMap::new();
            for (number, source, ()) in crowd.iter() {
                counts.entry(*source).or_insert((0, Reverse(number))).0 += 1;
            }
            let most = counts.iter().max_by_key(|(_, rank)| **rank);
            assert_eq!(crowd.most(), most.map(|(source, (count, _))| (*count, *source)));
            assert!(counts.iter().all(|(source, (count, _))| crowd.count(source) == *count));
            assert_eq!((crowd.sources.len(), crowd.ranks.len()), (counts.len(), counts.len()));
        }
    }
}
