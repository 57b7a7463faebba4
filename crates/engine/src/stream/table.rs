//! The streams of a session, by id.

use anabranch_prefetch::prefetch;
use anabranch_wire::StreamId;
use smallvec::SmallVec;

use super::Stream;

/// Capacity that is always kept.
const MIN_CAPACITY: usize = 16;

/// Streams in order of their ids. Most sessions have one, which is found without a search.
pub(super) struct Table<P> {
    list: SmallVec<[(StreamId, Box<Stream<P>>); 1]>,
}

impl<P> Table<P> {
    pub(super) fn new() -> Self {
        Self { list: SmallVec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Prefetches the first stream.
    pub(super) fn prefetch(&self) {
        if let Some(stream) = self.first() {
            prefetch(stream, 0..usize::MAX);
        }
    }

    pub(super) fn first(&self) -> Option<&Stream<P>> {
        self.list.first().map(|(_, stream)| &**stream)
    }

    /// The index of a stream, or where it would be inserted.
    #[inline]
    fn index(&self, id: StreamId) -> Result<usize, usize> {
        match self.list.first() {
            Some((first, _)) if *first == id => Ok(0),
            _ => self.list.binary_search_by_key(&id, |(known, _)| *known),
        }
    }

    #[inline]
    pub(super) fn get(&self, id: StreamId) -> Option<&Stream<P>> {
        self.index(id).ok().map(|index| &*self.list[index].1)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream<P>> {
        self.index(id).ok().map(|index| &mut *self.list[index].1)
    }

    /// Inserts a stream, replacing one with the same id.
    pub(super) fn insert(&mut self, id: StreamId, stream: Stream<P>) {
        let stream = Box::new(stream);
        match self.index(id) {
            Ok(index) => self.list[index].1 = stream,
            Err(index) => self.list.insert(index, (id, stream)),
        }
    }

    pub(super) fn remove(&mut self, id: StreamId) -> Option<Box<Stream<P>>> {
        let (_, stream) = self.list.remove(self.index(id).ok()?);
        // The budget for its memory was returned with it.
        if self.list.capacity() > MIN_CAPACITY && self.list.len() < self.list.capacity() / 4 {
            self.list.shrink_to_fit();
        }
        Some(stream)
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.list.shrink_to_fit();
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = StreamId> {
        self.list.iter().map(|(id, _)| *id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream<P>> {
        self.list.iter().map(|(_, stream)| &**stream)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream<P>> {
        self.list.iter_mut().map(|(_, stream)| &mut **stream)
    }
}
