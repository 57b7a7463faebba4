//! Which mirror sent which bytes of an unfinished file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::ranges::RangeSet;

/// The ranges of each mirror, by its address. Every byte has at most one origin: the mirror that sent it last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<Arc<str>, RangeSet>);

impl Origins {
    /// Notes that these bytes came from a mirror.
    pub fn insert(&mut self, mirror: &Arc<str>, range: Range<u64>) {
        let others = self.0.iter_mut().filter(|(other, _)| *other != mirror);
        others.for_each(|(_, ranges)| ranges.remove(&range));
        self.0.entry(mirror.clone()).or_default().insert(range);
    }

    /// Forgets the bytes of a mirror.
    pub fn forget(&mut self, mirror: &str) {
        self.0.remove(mirror);
    }

    /// The ranges of all mirrors.
    pub fn all(&self) -> RangeSet {
        self.0.values().flat_map(RangeSet::iter).collect()
    }

    /// The mirrors and their ranges.
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
