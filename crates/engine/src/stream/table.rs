//! The streams of a session, by number.

use anabranch_prefetch::prefetch;
use anabranch_wire::StreamId;
use smallvec::SmallVec;

use super::Stream;

/// Room for so many streams is kept whatever becomes of them.
const FEW: usize = 16;

/// Streams in order of their numbers. Most sessions have one: where that lies is known from here.
pub(super) struct Table<P> {
    list: SmallVec<[(StreamId, Box<Stream<P>>); 1]>,
}

impl<P> Table<P> {
    pub(super) fn new() -> Self {
        Self { list: SmallVec::new() }
    }

    /// Has the first stream fetched.
    pub(super) fn prefetch(&self) {
        if let Some(stream) = self.first() {
            prefetch(stream, 0..usize::MAX);
        }
    }

    pub(super) fn first(&self) -> Option<&Stream<P>> {
        self.list.first().map(|(_, stream)| &**stream)
    }

    /// Where a stream is, or where it belongs.
    #[inline]
    fn place(&self, id: StreamId) -> Result<usize, usize> {
        match self.list.first() {
            Some((first, _)) if *first == id => Ok(0),
            _ => self.list.binary_search_by_key(&id, |(known, _)| *known),
        }
    }

    #[inline]
    pub(super) fn get(&self, id: StreamId) -> Option<&Stream<P>> {
        self.place(id).ok().map(|place| &*self.list[place].1)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream<P>> {
        self.place(id).ok().map(|place| &mut *self.list[place].1)
    }

    /// Puts a stream in, in place of one of that number.
    pub(super) fn insert(&mut self, id: StreamId, stream: Stream<P>) {
        let stream = Box::new(stream);
        match self.place(id) {
            Ok(place) => self.list[place].1 = stream,
            Err(place) => self.list.insert(place, (id, stream)),
        }
    }

    pub(super) fn remove(&mut self, id: StreamId) -> Option<Box<Stream<P>>> {
        let (_, stream) = self.list.remove(self.place(id).ok()?);
        // What keeping a stream takes was given back with it.
        if self.list.capacity() > FEW && self.list.len() < self.list.capacity() / 4 {
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
