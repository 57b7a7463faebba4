//! The routes of a network: lists of links, one after the other in one table.

use super::packets::LAST_HOP;

/// All routes.
#[derive(Debug)]
pub(crate) struct Table {
    /// The links of each route, ended by [`LAST_HOP`].
    hops: Vec<u32>,
    /// Of each link, whether routes begin with it, and whether they come to it from another.
    uses: Vec<(bool, bool)>,
}

impl Table {
    /// No routes over so many links.
    pub(crate) fn new(links: usize) -> Self {
        Self { hops: Vec::new(), uses: vec![(false, false); links] }
    }

    /// Notes a route; returns where it begins.
    pub(crate) fn add(&mut self, links: &[u32]) -> u32 {
        let start = self.hops.len() as u32;
        self.hops.extend_from_slice(links);
        self.hops.push(LAST_HOP);
        for (index, link) in links.iter().enumerate() {
            let (begins, goes_on) = &mut self.uses[*link as usize];
            *begins |= index == 0;
            *goes_on |= index > 0;
        }
        start
    }

    /// True when a link both begins routes and goes on with others.
    pub(crate) fn is_mixed(&self) -> bool {
        self.uses.iter().any(|(begins, goes_on)| *begins && *goes_on)
    }

    /// The link at a place of the table; [`LAST_HOP`] when the route is over.
    #[inline]
    pub(crate) fn link(&self, place: usize) -> u32 {
        self.hops[place]
    }
}
