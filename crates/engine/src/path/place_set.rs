//! Sets of paths, one word each, for questions about all paths that every packet asks.

use std::ops::{BitAnd, BitOr, BitOrAssign};

/// A set of places in the list of paths. Places from the 64th on share a bit, so the set may contain more
/// than was put in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlaceSet(u64);

impl PlaceSet {
    pub(super) const ALL: Self = Self(u64::MAX);

    #[inline]
    pub(super) fn of(index: usize) -> Self {
        Self(1 << index.min(63))
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(super) fn has(self, index: usize) -> bool {
        self.0 & Self::of(index).0 != 0
    }

    /// Adds or removes a place. A place that shares its bit with others is not removed.
    #[inline]
    pub(super) fn put(&mut self, index: usize, wanted: bool) {
        if wanted {
            self.0 |= Self::of(index).0;
        } else if index < 63 {
            self.0 &= !Self::of(index).0;
        }
    }

    /// The first place from `index` on, below `end`.
    #[inline]
    pub(super) fn next(self, index: usize, end: usize) -> Option<usize> {
        let beyond = self.0 & (u64::MAX << index.min(63));
        let first = (beyond.trailing_zeros() as usize).max(index);
        (beyond != 0 && first < end).then_some(first)
    }
}

impl BitAnd for PlaceSet {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for PlaceSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for PlaceSet {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_beyond_the_last_bit_are_never_missed() {
        let mut places = PlaceSet::default();
        for index in [3, 70] {
            places.put(index, true);
        }
        let found: Vec<_> = (0..4).chain(62..72).filter(|index| places.has(*index)).collect();
        assert_eq!(found, [3, 63, 64, 65, 66, 67, 68, 69, 70, 71]);
        assert_eq!(
            (places.next(0, 72), places.next(4, 72), places.next(68, 72)),
            (Some(3), Some(63), Some(68))
        );
        assert_eq!((places.next(72, 72), places.next(4, 60)), (None, None));
        places.put(3, false);
        places.put(70, false);
        assert_eq!((places.has(3), places.has(65)), (false, true));
    }
}
