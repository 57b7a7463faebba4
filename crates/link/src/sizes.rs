//! Sizes of packets, first in, first out.
//!
//! As many as most queues are long lie in place, and with that in the link that they are a part of: so who has the link at
//! hand knows where the next one goes without a look elsewhere, and can have it fetched.

use anabranch_prefetch::prefetch_item;

/// Sizes that there is room for in place; a power of two.
const NEAR: usize = 128;

/// See the module's documentation.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Sizes {
    /// Where the first is in the ring, but for whole turns.
    first: u32,
    len: u32,
    /// The ring, once there were more than [`NEAR`]; as long as a power of two.
    far: Vec<u16>,
    near: [u16; NEAR],
}

impl Sizes {
    /// Bytes in front of the sizes.
    #[cfg(test)]
    pub(crate) const HEAD: usize = std::mem::offset_of!(Self, near);

    pub(crate) fn new() -> Self {
        Self { first: 0, len: 0, far: Vec::new(), near: [0; NEAR] }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.first, self.len) = (0, 0);
    }

    /// How many there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.far.len().max(NEAR)
    }

    /// The size at a place, counted as `first` is.
    #[inline]
    fn at(&self, place: u32) -> &u16 {
        let place = place as usize;
        if self.far.is_empty() { &self.near[place % NEAR] } else { &self.far[place & (self.far.len() - 1)] }
    }

    /// The first.
    #[inline]
    pub(crate) fn front(&self) -> Option<u16> {
        (self.len > 0).then(|| *self.at(self.first))
    }

    /// Takes the first out.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<u16> {
        let front = self.front()?;
        self.first = self.first.wrapping_add(1);
        self.len -= 1;
        Some(front)
    }

    /// Adds one behind the others. There is room for it ([`Self::make_room`]).
    #[inline]
    pub(crate) fn push_back(&mut self, size: u16) {
        debug_assert!(self.len() < self.capacity(), "room was made");
        let place = self.first.wrapping_add(self.len) as usize;
        if self.far.is_empty() {
            self.near[place % NEAR] = size;
        } else {
            let mask = self.far.len() - 1;
            self.far[place & mask] = size;
        }
        self.len += 1;
    }

    /// Makes room for so many.
    pub(crate) fn make_room(&mut self, count: usize) {
        if count > self.capacity() {
            let mut far: Vec<u16> = (0..self.len).map(|at| *self.at(self.first.wrapping_add(at))).collect();
            far.resize(count.next_power_of_two(), 0);
            (self.first, self.far) = (0, far);
        }
    }

    /// Has fetched where the next one goes.
    #[inline]
    pub(crate) fn prefetch_room(&self) {
        prefetch_item(std::slice::from_ref(self.at(self.first.wrapping_add(self.len))), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn they_come_out_as_they_went_in_however_many_there_are() {
        let (mut sizes, mut known) = (Sizes::new(), VecDeque::new());
        for round in 0..3_000_u16 {
            // Up to some hundreds and down again, the ring turning meanwhile.
            let (more, fewer) = if round % 600 < 400 { (5, 4) } else { (3, 5) };
            for at in 0..more {
                sizes.make_room(sizes.len() + 1);
                sizes.push_back(round + at);
                known.push_back(round + at);
            }
            for _ in 0..fewer {
                assert_eq!((sizes.len(), sizes.front()), (known.len(), known.front().copied()));
                assert_eq!(sizes.pop_front(), known.pop_front());
            }
            if round % 700 == 0 {
                sizes.clear();
                known.clear();
            }
        }
        assert_eq!(sizes.capacity(), 512);
    }
}
