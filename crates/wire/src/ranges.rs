//! Sets of numbers stored as ranges: received packet numbers, acknowledged bytes, losses to repair.

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_prefetch::{prefetch, prefetch_room};
use smallvec::SmallVec;

/// Ranges of packet numbers in an acknowledgement, highest first, end exclusive, never touching. Most have one or two.
/// More inline room would make every message larger, and messages are moved often.
pub type Ranges = SmallVec<[Range<u64>; 2]>;

/// A set of `u64`, stored as disjoint, sorted, non-touching ranges.
///
/// The highest range lies in the struct itself: most sets hold one growing range and need no allocation. Appending at
/// the end and removing from the front take O(1). Other changes take O(log n) to find the range and at worst O(n) to
/// shift the others; sets stay short or change near their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// All ranges but the highest.
    before: VecDeque<Range<u64>>,
    /// The highest range; empty when the set is, and then so is `before`.
    last: Range<u64>,
}

impl RangeSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of ranges in the set.
    pub fn range_count(&self) -> usize {
        self.before.len() + usize::from(!self.is_empty())
    }

    /// True when the set is empty.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// How many numbers the set holds.
    pub fn total(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// The ranges, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.before.iter().cloned().chain(self.last())
    }

    /// The lowest range.
    pub fn first(&self) -> Option<Range<u64>> {
        self.before.front().cloned().or_else(|| self.last())
    }

    /// The highest range.
    pub fn last(&self) -> Option<Range<u64>> {
        Some(self.last.clone()).filter(|last| !last.is_empty())
    }

    /// True when `number` is in the set.
    pub fn contains(&self, number: u64) -> bool {
        if number >= self.last.start {
            return number < self.last.end;
        }
        let index = self.before.partition_point(|range| range.end <= number);
        self.before.get(index).is_some_and(|range| range.start <= number)
    }

    /// Prefetches the middle of the set, where a search begins, and the highest ranges.
    pub fn prefetch(&self) {
        if let Some(middle) = self.before.get(self.before.len() / 2) {
            prefetch(middle, 0..usize::MAX);
            prefetch_room(&self.before);
        }
    }

    /// Adds `range`; returns how many of its numbers were new.
    #[inline]
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let added = range.end - range.start;
        if self.is_empty() {
            self.last = range;
        } else if self.last.end == range.start {
            self.last.end = range.end;
        } else if self.last.end < range.start {
            self.before.push_back(std::mem::replace(&mut self.last, range));
        } else {
            return self.insert_below(range);
        }
        added
    }

    /// Adds a non-empty range that begins below the set's end. Most such ranges fill a gap from one of its ends.
    fn insert_below(&mut self, range: Range<u64>) -> u64 {
        let index = self.before.partition_point(|held| held.end < range.start);
        let start = self.before.get(index).filter(|held| held.end == range.start).map(|held| held.start);
        let above = index + usize::from(start.is_some());
        let above = self.before.get_mut(above).unwrap_or(&mut self.last);
        if range.end > above.start {
            return self.in_one_ring(|ring| insert(ring, range));
        }
        let added = range.end - range.start;
        match (start, range.end == above.start) {
            (None, false) => self.before.insert(index, range),
            (None, true) => above.start = range.start,
            (Some(_), false) => self.before[index].end = range.end,
            (Some(start), true) => {
                above.start = start;
                self.before.remove(index);
            }
        }
        added
    }

    /// Removes `range` from the set; returns how many numbers that removed.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() || range.start >= self.last.end {
            return 0;
        }
        self.in_one_ring(|ring| remove(ring, &range))
    }

    /// Removes every number below `limit`.
    pub fn remove_below(&mut self, limit: u64) {
        while self.before.front().is_some_and(|first| first.end <= limit) {
            self.before.pop_front();
        }
        let first = self.before.front_mut().unwrap_or(&mut self.last);
        if first.end <= limit {
            *first = 0..0;
        } else {
            first.start = first.start.max(limit);
        }
    }

    /// Removes and returns the lowest range; bounds a set that a peer fills.
    pub fn forget_first(&mut self) -> Option<Range<u64>> {
        self.before
            .pop_front()
            .or_else(|| Some(std::mem::take(&mut self.last)).filter(|last| !last.is_empty()))
    }

    /// The parts of `range` that are not in the set, lowest first.
    pub fn gaps_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = range.start;
        let index = self.before.partition_point(|held| held.end <= range.start);
        let mut held = self.before.range(index..).chain(Some(&self.last)).filter(move |held| held.end > from);
        std::iter::from_fn(move || {
            while from < range.end {
                let Some(held) = held.next().filter(|held| held.start < range.end) else {
                    let gap = from..range.end;
                    from = range.end;
                    return Some(gap);
                };
                let gap = from..held.start;
                from = held.end.max(from);
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
            None
        })
    }

    /// The first part of `range` that is not in the set.
    pub fn first_gap_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        if range.start >= self.last.start {
            let start = range.start.max(self.last.end);
            return (start < range.end).then_some(start..range.end);
        }
        // Most often one range holds all of it.
        let index = self.before.partition_point(|held| held.end < range.end);
        let holds = |held: &Range<u64>| held.start <= range.start;
        if self.before.get(index).is_some_and(holds) { None } else { self.gaps_in(range).next() }
    }

    /// The members of `ranges`, given highest first, that the set does not hold in full. Walks both lists once.
    pub fn not_held<'a>(
        &'a self,
        ranges: impl Iterator<Item = Range<u64>> + 'a,
    ) -> impl Iterator<Item = Range<u64>> + 'a {
        let mut held = self.iter().rev().peekable();
        ranges.filter(move |range| {
            while held.next_if(|held| held.start >= range.end).is_some() {}
            !held.peek().is_some_and(|held| held.start <= range.start && range.end <= held.end)
        })
    }

    /// Applies a change with all ranges in one ring, the highest included.
    fn in_one_ring(&mut self, change: impl FnOnce(&mut VecDeque<Range<u64>>) -> u64) -> u64 {
        self.before.extend(self.last());
        let count = change(&mut self.before);
        self.last = self.before.pop_back().unwrap_or_default();
        count
    }
}

/// Adds a non-empty range; returns how many of its numbers were new.
fn insert(ranges: &mut VecDeque<Range<u64>>, range: Range<u64>) -> u64 {
    let from = ranges.partition_point(|held| held.end < range.start);
    let to = from + ranges.range(from..).take_while(|held| held.start <= range.end).count();
    if from == to {
        let added = range.end - range.start;
        ranges.insert(from, range);
        return added;
    }
    let merged = ranges[from].start.min(range.start)..ranges[to - 1].end.max(range.end);
    let before: u64 = ranges.range(from..to).map(|held| held.end - held.start).sum();
    let added = merged.end - merged.start - before;
    ranges[from] = merged;
    if to > from + 1 {
        ranges.drain(from + 1..to);
    }
    added
}

/// Removes a non-empty range; returns how many numbers that removed.
fn remove(ranges: &mut VecDeque<Range<u64>>, range: &Range<u64>) -> u64 {
    let mut removed = 0;
    let mut index = ranges.partition_point(|held| held.end <= range.start);
    while let Some(held) = ranges.get(index).cloned() {
        if held.start >= range.end {
            break;
        }
        let (left, right) = (held.start..range.start, range.end..held.end);
        removed += held.end.min(range.end) - held.start.max(range.start);
        match (left.is_empty(), right.is_empty()) {
            (true, true) => {
                ranges.remove(index);
            }
            (false, true) => {
                ranges[index] = left;
                index += 1;
            }
            (true, false) => {
                ranges[index] = right;
                index += 1;
            }
            (false, false) => {
                ranges[index] = left;
                ranges.insert(index + 1, right);
                index += 2;
            }
        }
    }
    removed
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
    fn ranges_that_are_not_held_in_full_are_found_for_any_two_lists() {
        // Each bit of a pattern is a number.
        let ranges = |bits: u32| -> Vec<Range<u64>> {
            let numbers = (0..10).filter(|number| bits >> number & 1 == 1);
            numbers
                .fold(RangeSet::new(), |mut set, number| (set.insert(number..number + 1), set).1)
                .iter()
                .collect()
        };
        for (held, told) in
            (0..1 << 10).flat_map(|held| (0..1 << 10).step_by(7).map(move |told| (held, told)))
        {
            let (held, told) = (set(&ranges(held)), ranges(told));
            let found: Vec<_> = held.not_held(told.iter().rev().cloned()).collect();
            let expected = told.iter().rev().filter(|range| held.first_gap_in((*range).clone()).is_some());
            assert_eq!(found, expected.cloned().collect::<Vec<_>>(), "{held:?} and {told:?}");
        }
    }

    #[test]
    fn gaps_are_what_is_missing() {
        let set = set(&[2..4, 6..8]);
        assert_eq!(set.gaps_in(0..10).collect::<Vec<_>>(), vec![0..2, 4..6, 8..10]);
        assert_eq!(set.gaps_in(2..4).count(), 0);
        assert_eq!(set.gaps_in(3..7).collect::<Vec<_>>(), vec![4..6]);
    }

    #[test]
    fn whatever_is_done_to_a_set_it_holds_what_a_plain_list_of_numbers_would() {
        let (mut set, mut plain) = (RangeSet::new(), std::collections::BTreeSet::new());
        let mut state = 1_u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for _ in 0..20_000 {
            let start = draw(60);
            let range = start..start + draw(9);
            match draw(8) {
                0..4 => {
                    let added = range.clone().filter(|number| plain.insert(*number)).count();
                    assert_eq!(set.insert(range.clone()), added as u64);
                }
                4 | 5 => {
                    let removed = range.clone().filter(|number| plain.remove(number)).count();
                    assert_eq!(set.remove(range.clone()), removed as u64);
                }
                6 => {
                    set.remove_below(start / 2);
                    plain.retain(|number| *number >= start / 2);
                }
                _ => set.forget_first().into_iter().flatten().for_each(|number| {
                    assert!(plain.remove(&number) && plain.first().is_none_or(|first| *first > number));
                }),
            }
            assert!(set.iter().flatten().eq(plain.iter().copied()));
            assert!(set.iter().zip(set.iter().skip(1)).all(|(low, high)| low.end < high.start));
            assert_eq!((set.total(), set.is_empty()), (plain.len() as u64, plain.is_empty()));
            assert!((0..70).all(|number| set.contains(number) == plain.contains(&number)));
            let missing = range.clone().filter(|number| !plain.contains(number));
            assert!(set.gaps_in(range.clone()).flatten().eq(missing));
            assert_eq!(set.first_gap_in(range.clone()), set.gaps_in(range).next());
        }
    }
}
