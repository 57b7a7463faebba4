//! Things in order of where they begin.
//!
//! ```text
//! chunks: | starts, things | starts, things | ..     each of at most 64
//! ```
//! Most often there are a few dozen, so one chunk, whose starts lie together: who looks for a place reads a few lines of memory
//! and then the thing, and can have both fetched beforehand. A tree of the standard library has its keys in nodes of eleven
//! things each, in which one look leads to the next: with it simulations took 2 to 3 % longer. However many things a peer makes
//! there be, one more moves no more than a chunk and, when that is full, the pointers to the others.

use std::mem::offset_of;

use anabranch_prefetch::{prefetch, prefetch_item};
use smallvec::SmallVec;

/// Things in a chunk at most.
const MOST: usize = 64;

/// A map from a start to a thing.
#[derive(Debug)]
pub(super) struct Runs<T> {
    /// None is empty but one that is alone.
    chunks: SmallVec<[Box<Chunk<T>>; 1]>,
    len: usize,
}

#[derive(Debug)]
#[repr(C)]
struct Chunk<T> {
    /// What begins at each of the starts.
    things: Vec<T>,
    /// Ascending.
    starts: SmallVec<[u64; MOST]>,
}

/// Where a thing is, until one is put in or taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    chunk: usize,
    index: usize,
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Self { chunks: SmallVec::new(), len: 0 }
    }
}

impl<T> Runs<T> {
    /// Has fetched what [`Self::at_or_before`] looks at, where that is most often.
    pub(super) fn prefetch(&self) {
        if let [chunk] = &self.chunks[..] {
            let starts = offset_of!(Chunk<T>, starts) + size_of::<usize>() * 2;
            prefetch(&**chunk, 0..starts + self.len * size_of::<u64>());
        }
    }

    /// Has a thing fetched.
    pub(super) fn prefetch_thing(&self, place: Place) {
        prefetch_item(&self.chunks[place.chunk].things, place.index);
    }

    /// The last thing that begins at `start` or before.
    pub(super) fn at_or_before(&self, start: u64) -> Option<Place> {
        let begins = |first: Option<&u64>| first.is_some_and(|first| *first <= start);
        let chunk = self.chunks.partition_point(|chunk| begins(chunk.starts.first())).checked_sub(1)?;
        let index = self.chunks[chunk].starts.partition_point(|known| *known <= start).checked_sub(1)?;
        Some(Place { chunk, index })
    }

    /// The thing after another one, the first with `None`, and where it begins.
    pub(super) fn after(&self, place: Option<Place>) -> Option<(Place, u64)> {
        let Place { chunk, index } = self.next(place);
        let next = [Place { chunk, index }, Place { chunk: chunk + 1, index: 0 }];
        next.into_iter().find_map(|place| Some((place, self.start(place)?)))
    }

    /// The place behind another one, of which there may be no thing.
    fn next(&self, place: Option<Place>) -> Place {
        place.map_or(Place { chunk: 0, index: 0 }, |place| Place { index: place.index + 1, ..place })
    }

    /// Where a thing begins; `None` when there is none.
    fn start(&self, place: Place) -> Option<u64> {
        self.chunks.get(place.chunk)?.starts.get(place.index).copied()
    }

    pub(super) fn get(&self, place: Place) -> &T {
        &self.chunks[place.chunk].things[place.index]
    }

    pub(super) fn get_mut(&mut self, place: Place) -> &mut T {
        &mut self.chunks[place.chunk].things[place.index]
    }

    /// Puts a thing behind another one, in front of all with `None`; returns where it is.
    pub(super) fn insert_after(&mut self, place: Option<Place>, start: u64, thing: T) -> Place {
        let Place { mut chunk, mut index } = self.next(place);
        if self.chunks.is_empty() {
            self.chunks.push(Box::new(Chunk { things: Vec::new(), starts: SmallVec::new() }));
        }
        let full = &mut *self.chunks[chunk];
        if full.starts.len() == MOST {
            // Things come behind the last one more often than between others.
            let half = if index == MOST { MOST - 1 } else { MOST / 2 };
            let starts = full.starts.drain(half..).collect();
            let back = Chunk { things: full.things.split_off(half), starts };
            self.chunks.insert(chunk + 1, Box::new(back));
            if index > half {
                (chunk, index) = (chunk + 1, index - half);
            }
        }
        let Chunk { things, starts } = &mut *self.chunks[chunk];
        debug_assert!(starts[..index].last().is_none_or(|before| *before < start));
        debug_assert!(starts.get(index).is_none_or(|after| start < *after));
        starts.insert(index, start);
        things.insert(index, thing);
        self.len += 1;
        Place { chunk, index }
    }

    /// Takes a thing out: where it begins, and the thing.
    pub(super) fn remove(&mut self, place: Place) -> (u64, T) {
        let chunk = &mut self.chunks[place.chunk];
        self.len -= 1;
        let taken = (chunk.starts.remove(place.index), chunk.things.remove(place.index));
        if chunk.starts.is_empty() && self.chunks.len() > 1 {
            self.chunks.remove(place.chunk);
        }
        taken
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let len = self.chunks.iter().map(|chunk| chunk.starts.len()).sum();
        assert_eq!(self.len, len);
        len
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn whatever_is_put_in_and_taken_out_it_is_what_a_tree_has() {
        let (mut runs, mut tree) = (Runs::default(), BTreeMap::new());
        let mut state = 7_u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for round in 0..20_000_u64 {
            // Up to some hundreds, and down to none again.
            let grows = round / 1_000 % 2 == 0;
            let start = draw(2_000);
            let before = runs.at_or_before(start);
            let known = tree.range(..=start).next_back();
            assert_eq!(
                before.map(|place| (runs.start(place).unwrap(), *runs.get(place))),
                known.map(|(a, b)| (*a, *b))
            );
            let next = runs.after(before).map(|(_, start)| start);
            assert_eq!(next, tree.range(start + 1..).next().map(|(start, _)| *start));
            match before {
                Some(place) if !grows || runs.start(place) == Some(start) => {
                    let (start, thing) = runs.remove(place);
                    assert_eq!(tree.remove(&start), Some(thing));
                }
                before => {
                    let place = runs.insert_after(before, start, round);
                    assert_eq!(runs.at_or_before(start), Some(place));
                    *runs.get_mut(place) += 1;
                    tree.insert(start, round + 1);
                }
            }
            assert_eq!(runs.len(), tree.len());
            assert!(runs.chunks.len() == 1 || runs.chunks.iter().all(|chunk| !chunk.starts.is_empty()));
        }
    }

    #[test]
    fn what_comes_in_order_fills_chunks() {
        let mut runs = Runs::default();
        let mut last = None;
        for start in 0..10_000 {
            last = Some(runs.insert_after(last, start, ()));
        }
        assert!(runs.chunks.len() < 10_000 / (MOST - 2), "{}", runs.chunks.len());
    }
}
