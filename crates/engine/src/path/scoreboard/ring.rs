//! A ring with little more room than it needs.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

/// Items that there is always room for, once there are several.
const LEAST: usize = 16;
/// Room that a ring begins with: what opening a path takes.
const IDLE: usize = 2;
/// Items that it grows by at least.
const STEP: usize = 6;

/// A ring is gone through from end to end again and again, however few it holds, and there are thousands of them. So it grows by
/// quarters, and gives back what a burst took when it was gone round twice since and never held half.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Ring<T> {
    items: VecDeque<T>,
    /// The most that there were since the room was looked at.
    most: u32,
    /// Items to come until it is looked at again.
    until: u32,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), most: 0, until: 0 }
    }
}

impl<T> Ring<T> {
    /// Puts an item behind all others.
    #[inline]
    pub(super) fn push(&mut self, item: T) {
        if self.items.len() == self.items.capacity() {
            self.grow();
        }
        self.items.push_back(item);
        self.most = self.most.max(self.items.len() as u32);
        self.until = self.until.saturating_sub(1);
    }

    #[cold]
    fn grow(&mut self) {
        let len = self.items.len();
        self.items.reserve_exact(if self.items.capacity() == 0 { IDLE } else { room_beyond(len) });
    }

    /// Gives room back that was not needed for long.
    #[inline]
    pub(super) fn settle(&mut self) {
        if self.until == 0 {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        let most = self.most as usize;
        if self.items.capacity() > LEAST && most < self.items.capacity() / 2 {
            self.items.shrink_to((most + room_beyond(most)).max(LEAST));
        }
        self.most = self.items.len() as u32;
        self.until = 2 * self.items.capacity().max(LEAST) as u32;
    }

    /// Gives all room back that is not in use.
    pub(super) fn rest(&mut self) {
        self.items.shrink_to_fit();
    }
}

fn room_beyond(len: usize) -> usize {
    (len / 4).max(STEP)
}

impl<T> Deref for Ring<T> {
    type Target = VecDeque<T>;

    fn deref(&self) -> &VecDeque<T> {
        &self.items
    }
}

impl<T> DerefMut for Ring<T> {
    fn deref_mut(&mut self) -> &mut VecDeque<T> {
        &mut self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many come and go, then so many others; returns the room there was after each.
    fn rooms(ring: &mut Ring<u32>, rounds: usize, all: u32) -> Vec<usize> {
        let round = |_| {
            (0..all).for_each(|item| ring.push(item));
            ring.clear();
            ring.settle();
            ring.capacity()
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn room_follows_what_is_needed() {
        let mut ring = Ring::default();
        ring.push(1);
        assert_eq!(ring.capacity(), IDLE);
        ring.clear();
        let wide = rooms(&mut ring, 1, 1_000)[0];
        assert!((1_000..1_300).contains(&wide), "{wide}");
        // What comes in bursts keeps its room, though there is nothing in between.
        assert!(rooms(&mut ring, 20, 1_000).iter().all(|room| *room == wide));
        // What does not come any more gives it back, but not at once.
        let rooms = rooms(&mut ring, 100, 50);
        assert!(rooms[..30].iter().all(|room| *room == wide), "{rooms:?}");
        assert!(rooms[90..].iter().all(|room| (50..64).contains(room)), "{rooms:?}");
        ring.rest();
        assert_eq!(ring.capacity(), 0);
    }
}
