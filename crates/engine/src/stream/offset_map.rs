//! A sorted map from offsets to values.
//!
//! ```text
//! chunks: | offsets, values | offsets, values | ..     each of at most 64
//! ```
//! Usually there are a few dozen entries: one chunk, with adjacent offsets. A lookup reads a few cache lines and then
//! the value, and both can be prefetched. The standard library's tree has nodes of eleven entries, and each lookup
//! depends on the one before: with it simulations took 2 to 3 % longer. However many entries a peer causes, an
//! insertion moves at most a chunk and, if that is full, the pointers to the others.

use std::mem::offset_of;

use anabranch_prefetch::{prefetch, prefetch_item};
use smallvec::SmallVec;

/// Most entries in a chunk.
const CHUNK_LEN: usize = 64;

/// A map from offsets to values.
#[derive(Debug)]
pub(super) struct OffsetMap<T> {
    /// No chunk is empty, except a single one.
    chunks: SmallVec<[Box<Chunk<T>>; 1]>,
    len: usize,
}

#[derive(Debug)]
#[repr(C)]
struct Chunk<T> {
    values: Vec<T>,
    /// Ascending.
    offsets: SmallVec<[u64; CHUNK_LEN]>,
}

/// The position of an entry, valid until an entry is inserted or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    chunk: usize,
    index: usize,
}

impl<T> Default for OffsetMap<T> {
    fn default() -> Self {
        Self { chunks: SmallVec::new(), len: 0 }
    }
}

impl<T> OffsetMap<T> {
    /// Prefetches what [`Self::at_or_before`] reads when there is one chunk.
    pub(super) fn prefetch(&self) {
        if let [chunk] = &self.chunks[..] {
            let offsets = offset_of!(Chunk<T>, offsets) + size_of::<usize>() * 2;
            prefetch(&**chunk, 0..offsets + self.len * size_of::<u64>());
        }
    }

    pub(super) fn prefetch_value(&self, position: Position) {
        prefetch_item(&self.chunks[position.chunk].values, position.index);
    }

    /// The last entry at or before `offset`.
    pub(super) fn at_or_before(&self, offset: u64) -> Option<Position> {
        let begins = |first: Option<&u64>| first.is_some_and(|first| *first <= offset);
        let chunk = self.chunks.partition_point(|chunk| begins(chunk.offsets.first())).checked_sub(1)?;
        let index = self.chunks[chunk].offsets.partition_point(|known| *known <= offset).checked_sub(1)?;
        Some(Position { chunk, index })
    }

    /// The entry after another one, or the first, and its offset.
    pub(super) fn after(&self, position: Option<Position>) -> Option<(Position, u64)> {
        let Position { chunk, index } = self.next(position);
        let next = [Position { chunk, index }, Position { chunk: chunk + 1, index: 0 }];
        next.into_iter().find_map(|position| Some((position, self.offset(position)?)))
    }

    /// The position after another one, where there may be no entry.
    fn next(&self, position: Option<Position>) -> Position {
        position.map_or(Position { chunk: 0, index: 0 }, |position| Position {
            index: position.index + 1,
            ..position
        })
    }

    /// The offset of an entry, if it exists.
    fn offset(&self, position: Position) -> Option<u64> {
        self.chunks.get(position.chunk)?.offsets.get(position.index).copied()
    }

    pub(super) fn get(&self, position: Position) -> &T {
        &self.chunks[position.chunk].values[position.index]
    }

    pub(super) fn get_mut(&mut self, position: Position) -> &mut T {
        &mut self.chunks[position.chunk].values[position.index]
    }

    /// Inserts an entry after another one, or in front of all; returns its position.
    pub(super) fn insert_after(&mut self, position: Option<Position>, offset: u64, value: T) -> Position {
        let Position { mut chunk, mut index } = self.next(position);
        if self.chunks.is_empty() {
            self.chunks.push(Box::new(Chunk { values: Vec::new(), offsets: SmallVec::new() }));
        }
        let full = &mut *self.chunks[chunk];
        if full.offsets.len() == CHUNK_LEN {
            // Entries are appended more often than inserted between others.
            let half = if index == CHUNK_LEN { CHUNK_LEN - 1 } else { CHUNK_LEN / 2 };
            let offsets = full.offsets.drain(half..).collect();
            let back = Chunk { values: full.values.split_off(half), offsets };
            self.chunks.insert(chunk + 1, Box::new(back));
            if index > half {
                (chunk, index) = (chunk + 1, index - half);
            }
        }
        let Chunk { values, offsets } = &mut *self.chunks[chunk];
        debug_assert!(offsets[..index].last().is_none_or(|before| *before < offset));
        debug_assert!(offsets.get(index).is_none_or(|after| offset < *after));
        offsets.insert(index, offset);
        values.insert(index, value);
        self.len += 1;
        Position { chunk, index }
    }

    /// Removes an entry; returns its offset and value.
    pub(super) fn remove(&mut self, position: Position) -> (u64, T) {
        let chunk = &mut self.chunks[position.chunk];
        self.len -= 1;
        let taken = (chunk.offsets.remove(position.index), chunk.values.remove(position.index));
        if chunk.offsets.is_empty() && self.chunks.len() > 1 {
            self.chunks.remove(position.chunk);
        }
        taken
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let len = self.chunks.iter().map(|chunk| chunk.offsets.len()).sum();
        assert_eq!(self.len, len);
        len
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn after_any_operations_it_holds_the_same_as_a_tree() {
        let (mut map, mut tree) = (OffsetMap::default(), BTreeMap::new());
        let mut state = 7_u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for round in 0..20_000_u64 {
            // Grows to some hundreds, then shrinks to none.
            let grows = round / 1_000 % 2 == 0;
            let offset = draw(2_000);
            let before = map.at_or_before(offset);
            let known = tree.range(..=offset).next_back();
            assert_eq!(
                before.map(|position| (map.offset(position).unwrap(), *map.get(position))),
                known.map(|(a, b)| (*a, *b))
            );
            let next = map.after(before).map(|(_, offset)| offset);
            assert_eq!(next, tree.range(offset + 1..).next().map(|(offset, _)| *offset));
            match before {
                Some(position) if !grows || map.offset(position) == Some(offset) => {
                    let (offset, value) = map.remove(position);
                    assert_eq!(tree.remove(&offset), Some(value));
                }
                before => {
                    let position = map.insert_after(before, offset, round);
                    assert_eq!(map.at_or_before(offset), Some(position));
                    *map.get_mut(position) += 1;
                    tree.insert(offset, round + 1);
                }
            }
            assert_eq!(map.len(), tree.len());
            assert!(map.chunks.len() == 1 || map.chunks.iter().all(|chunk| !chunk.offsets.is_empty()));
        }
    }

    #[test]
    fn entries_in_order_fill_chunks() {
        let mut map = OffsetMap::default();
        let mut last = None;
        for offset in 0..10_000 {
            last = Some(map.insert_after(last, offset, ()));
        }
        assert!(map.chunks.len() < 10_000 / (CHUNK_LEN - 2), "{}", map.chunks.len());
    }
}
