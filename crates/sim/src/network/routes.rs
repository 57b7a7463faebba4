//! The routes of a network: lists of links in one table.

use anabranch_prefetch::prefetch_item;

use super::packets::LAST_HOP;

/// Links of all routes. The table is read at every hop of every packet; few networks have more than 65,535 links, so
/// entries usually need only two bytes.
#[derive(Debug)]
enum Hops {
    Short(Vec<u16>),
    Long(Vec<u32>),
}

/// All routes.
#[derive(Debug)]
pub(crate) struct Table {
    /// The links of each route, ended by [`LAST_HOP`].
    hops: Hops,
    /// For each link: whether routes begin with it, and whether routes reach it from another link.
    uses: Vec<(bool, bool)>,
}

impl Table {
    /// An empty table for this many links.
    pub(crate) fn new(links: usize) -> Self {
        let hops =
            if links < usize::from(u16::MAX) { Hops::Short(Vec::new()) } else { Hops::Long(Vec::new()) };
        Self { hops, uses: vec![(false, false); links] }
    }

    /// Adds a route; returns its index in the table.
    pub(crate) fn add(&mut self, links: &[u32]) -> u32 {
        let all = links.iter().copied().chain([LAST_HOP]);
        let start = match &mut self.hops {
            Hops::Short(hops) => append(hops, all.map(|link| link as u16)),
            Hops::Long(hops) => append(hops, all),
        };
        for (index, link) in links.iter().enumerate() {
            let (begins, goes_on) = &mut self.uses[*link as usize];
            *begins |= index == 0;
            *goes_on |= index > 0;
        }
        start
    }

    /// True if some link is the first of one route and a later one of another.
    pub(crate) fn is_mixed(&self) -> bool {
        self.uses.iter().any(|(begins, goes_on)| *begins && *goes_on)
    }

    /// Prefetches an entry of the table.
    #[inline]
    pub(crate) fn prefetch(&self, place: usize) {
        match &self.hops {
            Hops::Short(hops) => prefetch_item(hops, place),
            Hops::Long(hops) => prefetch_item(hops, place),
        }
    }

    /// The link at an index of the table; [`LAST_HOP`] at the end of the route.
    #[inline]
    pub(crate) fn link(&self, place: usize) -> u32 {
        match &self.hops {
            Hops::Short(hops) if hops[place] == u16::MAX => LAST_HOP,
            Hops::Short(hops) => u32::from(hops[place]),
            Hops::Long(hops) => hops[place],
        }
    }
}

/// Appends items to a list; returns the index of the first.
fn append<T>(list: &mut Vec<T>, items: impl Iterator<Item = T>) -> u32 {
    let start = list.len() as u32;
    list.extend(items);
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_few_links_and_of_many_say_the_same() {
        for links in [4, 65_534, 65_535, 100_000] {
            let mut table = Table::new(links);
            let last = links as u32 - 1;
            let starts = [table.add(&[last, 0]), table.add(&[]), table.add(&[1, last, 2])];
            assert_eq!(starts, [0, 3, 4]);
            let told: Vec<u32> = (0..8).map(|place| table.link(place)).collect();
            assert_eq!(told, [last, 0, LAST_HOP, LAST_HOP, 1, last, 2, LAST_HOP], "{links} links");
        }
    }
}
