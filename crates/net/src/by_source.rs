//! Items that wait for a scarce resource, counted by source, so that the source with the most can give way.
//!
//! Items are numbered in order of arrival.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anabranch_wire::{Crowd, site};

/// The items. Sources are addresses as [`anabranch_wire::source`] reduces them.
#[derive(Debug)]
pub(crate) struct BySource<T> {
    /// In order of arrival.
    members: BTreeMap<u64, (IpAddr, T)>,
    crowd: Crowd<u64, IpAddr>,
    next: u64,
}

impl<T> Default for BySource<T> {
    fn default() -> Self {
        Self { members: BTreeMap::new(), crowd: Crowd::default(), next: 0 }
    }
}

impl<T> BySource<T> {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The numbers of the oldest and the newest item of the source with the most, in the site with the most; of several,
    /// of the one with the oldest item.
    pub(crate) fn most(&self) -> Option<[u64; 2]> {
        ends(self.crowd.largest())
    }

    /// As [`Self::most`], if that site has more items than `own` would have with another one, or that source if both are
    /// of one site.
    pub(crate) fn more_than(&self, own: IpAddr) -> Option<[u64; 2]> {
        self.crowd.larger_than(&owners(own)).and_then(ends)
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.members.get_mut(&number).map(|(_, member)| member)
    }

    /// Adds an item; returns its number.
    pub(crate) fn push(&mut self, source: IpAddr, member: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.members.insert(number, (source, member));
        self.crowd.insert(number, &owners(source));
        number
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (source, member) = self.members.remove(&number)?;
        self.crowd.remove(number, &owners(source));
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
        self.crowd.of(&owners(*source)).map_or(0, BTreeSet::len)
    }
}

fn owners(source: IpAddr) -> [IpAddr; 2] {
    [site(source), source]
}

/// The first and the last of these numbers.
fn ends(numbers: &BTreeSet<u64>) -> Option<[u64; 2]> {
    Some([*numbers.first()?, *numbers.last()?])
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

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
        }
    }
}
