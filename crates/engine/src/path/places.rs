//! Sets of paths, as one word: what is asked of all paths for every packet is asked of a set.

use std::ops::{BitAnd, BitOr, BitOrAssign};

/// A set of places in the list. From the 64th on all share a bit: the set may then name more than was put in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Places(u64);

impl Places {
    pub(super) const ALL: Self = Self(u64::MAX);

    pub(super) fn of(index: usize) -> Self {
        Self(1 << index.min(63))
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn has(self, index: usize) -> bool {
        self.0 & Self::of(index).0 != 0
    }

    /// Puts a place in or takes it out; where a bit is shared, it is not taken out.
    pub(super) fn put(&mut self, index: usize, wanted: bool) {
        if wanted {
            self.0 |= Self::of(index).0;
        } else if index < 63 {
            self.0 &= !Self::of(index).0;
        }
    }

    /// The first place from `index` on, below `end`.
    pub(super) fn next(self, index: usize, end: usize) -> Option<usize> {
        let beyond = self.0 & (u64::MAX << index.min(63));
        let first = (beyond.trailing_zeros() as usize).max(index);
        (beyond != 0 && first < end).then_some(first)
    }
}

impl BitAnd for Places {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Places {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Places {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_beyond_the_last_bit_are_never_missed() {
        let mut places = Places::default();
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
