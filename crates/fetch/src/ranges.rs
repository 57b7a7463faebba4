//! Sets of byte ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Byte ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&low, &high)) = self.0.range(..=end).next_back().filter(|(_, high)| **high >= start) {
            (start, end) = (start.min(low), end.max(high));
            self.0.remove(&low);
        }
        self.0.insert(start, end);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&low, &high)) =
            self.0.range(..range.end).next_back().filter(|(_, high)| **high > range.start)
        {
            self.0.remove(&low);
            self.insert(low..range.start);
            self.insert(range.end..high);
        }
    }

    /// Whether every byte of a range is in the set.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self.0.range(..=range.start).next_back().is_some_and(|(_, high)| *high >= range.end)
    }

    /// Bytes in the set.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(low, high)| high - low).sum()
    }

    /// The ranges, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(low, high)| *low..*high)
    }

    /// The ranges below `size` that are not in the set.
    pub fn gaps(&self, size: u64) -> Vec<Range<u64>> {
        let (mut gaps, mut from) = (Vec::new(), 0);
        for range in self.iter() {
            if from < range.start.min(size) {
                gaps.push(from..range.start.min(size));
            }
            from = range.end;
        }
        if from < size {
            gaps.push(from..size);
        }
        gaps
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_lacks_the_bytes_that_were_taken_out(
            ranges in proptest::collection::vec((0_u64..64, 0_u64..16), 0..20),
            (from, len) in (0_u64..64, 0_u64..16),
        ) {
            let mut set: RangeSet = ranges.iter().map(|(low, len)| *low..low + len).collect();
            let before = set.clone();
            set.remove(&(from..from + len));
            for byte in 0..90 {
                let has = before.covers(&(byte..byte + 1)) && !(from..from + len).contains(&byte);
                prop_assert_eq!(set.covers(&(byte..byte + 1)), has);
            }
        }

        #[test]
        fn a_set_holds_the_bytes_that_were_added(ranges in proptest::collection::vec((0_u64..64, 0_u64..16), 0..20)) {
            let set: RangeSet = ranges.iter().map(|(low, len)| *low..low + len).collect();
            let has = |byte: u64| ranges.iter().any(|(low, len)| (*low..low + len).contains(&byte));
            for byte in 0..90 {
                prop_assert_eq!(set.covers(&(byte..byte + 1)), has(byte));
            }
            let gaps: u64 = set.gaps(100).iter().map(|gap| gap.end - gap.start).sum();
            prop_assert_eq!(gaps + set.total(), 100);
            let held: Vec<_> = set.iter().collect();
            prop_assert!(held.windows(2).all(|two| two[0].end < two[1].start));
        }
    }
}
