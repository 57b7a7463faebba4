//! Many lists in chunks of one size, which are reused when a list is emptied.

use anabranch_prefetch::prefetch;

/// Items in a chunk.
const PIECE: usize = 32;
const NONE: u32 = u32::MAX;

/// A list: its first and last chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkedList {
    first: u32,
    last: u32,
    /// Items in the last chunk.
    filled: u32,
}

impl ChunkedList {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE, filled: PIECE as u32 };

    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

#[derive(Debug)]
pub(crate) struct ChunkedLists<T> {
    pieces: Vec<[T; PIECE]>,
    /// The chunk that follows each chunk in its list.
    next: Vec<u32>,
    free: Vec<u32>,
}

impl<T: Copy + Default> ChunkedLists<T> {
    pub(crate) fn new() -> Self {
        Self { pieces: Vec::new(), next: Vec::new(), free: Vec::new() }
    }

    /// Appends an item to a list.
    #[inline]
    pub(crate) fn push(&mut self, pile: &mut ChunkedList, item: T) {
        if pile.filled as usize == PIECE {
            self.add_piece(pile);
        }
        self.pieces[pile.last as usize][pile.filled as usize] = item;
        pile.filled += 1;
    }

    #[cold]
    fn add_piece(&mut self, pile: &mut ChunkedList) {
        let piece = self.free.pop().unwrap_or_else(|| {
            self.pieces.push([T::default(); PIECE]);
            self.next.push(NONE);
            self.pieces.len() as u32 - 1
        });
        match self.next.get_mut(pile.last as usize) {
            Some(next) => *next = piece,
            None => pile.first = piece,
        }
        (pile.last, pile.filled) = (piece, 0);
    }

    /// The items of a list from the first to the last.
    pub(crate) fn iter(&self, pile: &ChunkedList) -> impl Iterator<Item = &T> {
        let filled = pile.filled as usize;
        let pieces = std::iter::successors(self.piece(pile.first), |(_, next)| self.piece(*next));
        pieces.flat_map(move |(items, next)| &items[..if next == NONE { filled } else { PIECE }])
    }

    fn piece(&self, index: u32) -> Option<(&[T; PIECE], u32)> {
        Some((self.pieces.get(index as usize)?, self.next[index as usize]))
    }

    /// Removes the items of a list in order. They are rarely in the cache, so each chunk is prefetched during the one
    /// before.
    pub(crate) fn empty(&mut self, pile: ChunkedList, mut take: impl FnMut(T)) {
        let mut piece = pile.first;
        while piece != NONE {
            let next = std::mem::replace(&mut self.next[piece as usize], NONE);
            if let Some(next) = self.pieces.get(next as usize) {
                prefetch(next, 0..usize::MAX);
            }
            let filled = if next == NONE { pile.filled as usize } else { PIECE };
            self.pieces[piece as usize][..filled].iter().for_each(|item| take(*item));
            self.free.push(piece);
            piece = next;
        }
    }
}

#[cfg(test)]
impl<T> ChunkedLists<T> {
    /// Whether all lists are empty.
    pub(crate) fn all_free(&self) -> bool {
        self.free.len() == self.pieces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_give_up_their_room() {
        let mut piles = ChunkedLists::new();
        let mut lists = [ChunkedList::EMPTY; 3];
        for round in 0..4_usize {
            for item in 0..300 {
                piles.push(&mut lists[(item * 7 + round) % 3], item);
            }
            let mut all = 0;
            for list in &mut lists {
                let mut items = Vec::new();
                piles.empty(std::mem::replace(list, ChunkedList::EMPTY), |item| items.push(item));
                assert!(items.is_sorted() && items.len() == 100, "{items:?}");
                all += items.len();
            }
            assert_eq!((all, piles.pieces.len(), piles.free.len()), (300, 12, 12));
        }
    }
}
