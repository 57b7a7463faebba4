//! A FIFO queue of packet sizes.
//!
//! Short queues lie within the link itself. So once the link is in the cache, the next slot is known without another
//! memory access, and can be prefetched.

use anabranch_prefetch::prefetch_item;

/// Capacity in place; a power of two.
const NEAR: usize = 128;

/// A ring of sizes; see the module's documentation.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Sizes {
    /// The index of the first size, modulo the ring's length.
    first: u32,
    len: u32,
    /// The ring once there were more than [`NEAR`] sizes; its length is a power of two.
    far: Vec<u16>,
    near: [u16; NEAR],
}

impl Sizes {
    /// Bytes in front of the ring.
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

    /// How many sizes fit.
    pub(crate) fn capacity(&self) -> usize {
        self.far.len().max(NEAR)
    }

    /// The size at an index, modulo the ring's length.
    #[inline]
    fn at(&self, index: u32) -> &u16 {
        let index = index as usize;
        if self.far.is_empty() { &self.near[index % NEAR] } else { &self.far[index & (self.far.len() - 1)] }
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<u16> {
        (self.len > 0).then(|| *self.at(self.first))
    }

    /// Removes the first size.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<u16> {
        let front = self.front()?;
        self.first = self.first.wrapping_add(1);
        self.len -= 1;
        Some(front)
    }

    /// Appends a size. There must be room for it ([`Self::make_room`]).
    #[inline]
    pub(crate) fn push_back(&mut self, size: u16) {
        debug_assert!(self.len() < self.capacity(), "room was made");
        let index = self.first.wrapping_add(self.len) as usize;
        if self.far.is_empty() {
            self.near[index % NEAR] = size;
        } else {
            let mask = self.far.len() - 1;
            self.far[index & mask] = size;
        }
        self.len += 1;
    }

    pub(crate) fn make_room(&mut self, count: usize) {
        if count > self.capacity() {
            let mut far: Vec<u16> = (0..self.len).map(|at| *self.at(self.first.wrapping_add(at))).collect();
            far.resize(count.next_power_of_two(), 0);
            (self.first, self.far) = (0, far);
        }
    }

    /// Prefetches the slot of the next size.
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
    fn sizes_come_out_in_order_however_many_there_are() {
        let (mut sizes, mut known) = (Sizes::new(), VecDeque::new());
        for round in 0..3_000_u16 {
            // Up to some hundreds and down again, while the ring wraps around.
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
