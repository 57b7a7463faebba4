//! Which source sent which bytes of an unfinished file.
//!
//! An origin is a text: the address of the mirror, a space, and the name of the route. Addresses have no spaces. The route is missing
//! in journals of older versions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::ranges::RangeSet;

/// The origin of bytes from a mirror over a route.
pub fn origin(mirror: &str, route: &str) -> Arc<str> {
    format!("{mirror} {route}").into()
}

/// The address of an origin's mirror, and the name of its route.
pub fn mirror_and_route(origin: &str) -> (&str, &str) {
    origin.split_once(' ').unwrap_or((origin, ""))
}

/// The ranges of each origin. Every byte has at most one: the source that sent it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<Arc<str>, RangeSet>);

impl Origins {
    /// Notes the origin of these bytes.
    pub fn insert(&mut self, origin: &Arc<str>, range: Range<u64>) {
        let others = self.0.iter_mut().filter(|(other, _)| *other != origin);
        others.for_each(|(_, ranges)| ranges.remove(&range));
        self.0.entry(origin.clone()).or_default().insert(range);
    }

    /// Forgets the bytes of an origin.
    pub fn forget(&mut self, origin: &str) {
        self.0.remove(origin);
    }

    /// The ranges of all origins.
    pub fn all(&self) -> RangeSet {
        self.0.values().flat_map(RangeSet::iter).collect()
    }

    /// The origins and their ranges.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &RangeSet)> {
        self.0.iter().filter(|(_, ranges)| ranges.total() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_has_the_origin_that_sent_it_last() {
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let mut origins = Origins::default();
        origins.insert(&one, 0..10);
        origins.insert(&other, 4..6);
        let ranges = |origins: &Origins, name: &str| -> Vec<Range<u64>> {
            origins.iter().filter(|(mirror, _)| &***mirror == name).flat_map(|(_, set)| set.iter()).collect()
        };
        assert_eq!(ranges(&origins, "one"), [0..4, 6..10]);
        assert_eq!(ranges(&origins, "other"), [4..6]);
        assert_eq!(origins.all().iter().collect::<Vec<_>>(), [0..10]);
        origins.forget("one");
        assert_eq!(origins.all().iter().collect::<Vec<_>>(), [4..6]);
    }
}
