//! Sets of numbers kept as ranges: received packet numbers, acknowledged bytes, losses to mend.

use std::collections::VecDeque;
use std::ops::Range;

use smallvec::SmallVec;

/// Ranges of packet numbers in an acknowledgement, highest first, end exclusive, never touching.
pub type Ranges = SmallVec<[Range<u64>; 3]>;

/// A set of `u64` held as disjoint, sorted, non-touching ranges.
///
/// Appending at the end and removing from the front cost O(1), other changes O(log n) to find and
/// O(n) to shift in the worst case; sets here stay short or change near their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ranges: VecDeque<Range<u64>>,
}

impl RangeSet {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many ranges the set needs.
    #[must_use]
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// True when the set holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many numbers the set holds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The ranges, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + ExactSizeIterator + '_ {
        self.ranges.iter().cloned()
    }

    /// The lowest range.
    #[must_use]
    pub fn first(&self) -> Option<Range<u64>> {
        self.ranges.front().cloned()
    }

    /// The highest range.
    #[must_use]
    pub fn last(&self) -> Option<Range<u64>> {
        self.ranges.back().cloned()
    }

    /// True when `number` is in the set.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        match self.ranges.back() {
            Some(last) if number >= last.start => number < last.end,
            _ => {
                let index = self.ranges.partition_point(|range| range.end <= number);
                self.ranges.get(index).is_some_and(|range| range.start <= number)
            }
        }
    }

    /// Adds `range`; returns how many of its numbers were new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        if let Some(last) = self.ranges.back_mut()
            && last.end == range.start
        {
            last.end = range.end;
            return range.end - range.start;
        }
        let from = self.ranges.partition_point(|held| held.end < range.start);
        let to = from + self.ranges.range(from..).take_while(|held| held.start <= range.end).count();
        if from == to {
            let added = range.end - range.start;
            if self.ranges.capacity() == 0 {
                // Most sets never hold more than one range.
                self.ranges.reserve_exact(1);
            }
            self.ranges.insert(from, range);
            return added;
        }
        let merged = self.ranges[from].start.min(range.start)..self.ranges[to - 1].end.max(range.end);
        let before: u64 = self.ranges.range(from..to).map(|held| held.end - held.start).sum();
        let added = merged.end - merged.start - before;
        self.ranges[from] = merged;
        if to > from + 1 {
            self.ranges.drain(from + 1..to);
        }
        added
    }

    /// Takes `range` out of the set; returns how many numbers that removed.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mut removed = 0;
        let mut index = self.ranges.partition_point(|held| held.end <= range.start);
        while let Some(held) = self.ranges.get(index).cloned() {
            if held.start >= range.end {
                break;
            }
            let (left, right) = (held.start..range.start, range.end..held.end);
            removed += held.end.min(range.end) - held.start.max(range.start);
            match (left.is_empty(), right.is_empty()) {
                (true, true) => {
                    self.ranges.remove(index);
                }
                (false, true) => {
                    self.ranges[index] = left;
                    index += 1;
                }
                (true, false) => {
                    self.ranges[index] = right;
                    index += 1;
                }
                (false, false) => {
                    self.ranges[index] = left;
                    self.ranges.insert(index + 1, right);
                    index += 2;
                }
            }
        }
        removed
    }

    /// Removes and returns the lowest run of at most `most` numbers.
    pub fn pop_first(&mut self, most: u64) -> Option<Range<u64>> {
        let first = self.ranges.front_mut()?;
        if first.end - first.start > most {
            let run = first.start..first.start + most;
            first.start = run.end;
            return Some(run);
        }
        self.ranges.pop_front()
    }

    /// Removes every number below `limit`.
    pub fn remove_below(&mut self, limit: u64) {
        while let Some(first) = self.ranges.front_mut() {
            if first.end <= limit {
                self.ranges.pop_front();
            } else {
                first.start = first.start.max(limit);
                return;
            }
        }
    }

    /// Drops the lowest range, to keep a set from a peer bounded.
    pub fn forget_first(&mut self) -> Option<Range<u64>> {
        self.ranges.pop_front()
    }

    /// The parts of `range` that are not in the set, lowest first.
    pub fn gaps_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = range.start;
        let mut index = self.ranges.partition_point(|held| held.end <= range.start);
        std::iter::from_fn(move || {
            while from < range.end {
                let Some(held) = self.ranges.get(index).filter(|held| held.start < range.end) else {
                    let gap = from..range.end;
                    from = range.end;
                    return Some(gap);
                };
                let gap = from..held.start;
                from = held.end.max(from);
                index += 1;
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        let mut set = RangeSet::new();
        for range in ranges {
            set.insert(range.clone());
        }
        set
    }

    #[test]
    fn touching_and_overlapping_ranges_merge() {
        let mut set = set(&[10..20, 30..40, 50..60]);
        assert_eq!(set.insert(20..30), 10);
        assert_eq!(set.insert(5..55), 15);
        assert_eq!(set.iter().collect::<Vec<_>>(), vec![5..60]);
        assert_eq!(set.insert(7..9), 0);
    }

    #[test]
    fn removing_the_middle_leaves_both_ends() {
        let mut set = set(&[0..10, 20..30]);
        assert_eq!(set.remove(5..25), 10);
        assert_eq!(set.remove(1..2), 1);
        assert_eq!(set.iter().collect::<Vec<_>>(), vec![0..1, 2..5, 25..30]);
    }

    #[test]
    fn gaps_are_what_is_missing() {
        let set = set(&[2..4, 6..8]);
        assert_eq!(set.gaps_in(0..10).collect::<Vec<_>>(), vec![0..2, 4..6, 8..10]);
        assert_eq!(set.gaps_in(2..4).count(), 0);
        assert_eq!(set.gaps_in(3..7).collect::<Vec<_>>(), vec![4..6]);
    }

    #[test]
    fn popping_takes_at_most_what_was_asked() {
        let mut set = set(&[0..10, 20..21]);
        assert_eq!(set.pop_first(4), Some(0..4));
        assert_eq!(set.pop_first(100), Some(4..10));
        assert_eq!(set.pop_first(100), Some(20..21));
        assert_eq!(set.pop_first(1), None);
    }
}
