//! Bytes of a stream that arrived before earlier ones.
//!
//! With several paths, the bytes of each arrive in long segments, and the segments interleave. So segments rather than
//! pieces are sorted by offset. The next piece of a segment goes behind its last one, found quickly among a few dozen
//! segments. When the gap before a segment closes, all its pieces are released. No byte is stored twice and segments
//! never overlap. Adjacent segments are joined, unless the later one has so many pieces that moving them would be
//! expensive.

use std::ops::Range;

use anabranch_wire::Payload;
use smallvec::SmallVec;

use super::offset_map::{OffsetMap, Position};
use super::recv::is_crumb;

/// The bytes of a stream that wait for earlier ones; see the module's documentation.
#[derive(Debug)]
pub(super) struct OutOfOrder<P> {
    /// By the offset of the first byte.
    segments: OffsetMap<Segment<P>>,
    /// The offset of the first segment, or [`NOWHERE`]: all that a piece in order needs to read.
    first: u64,
    bytes: u64,
    pieces: usize,
}

/// The offset of a segment that does not exist.
const NOWHERE: u64 = u64::MAX;
/// Capacity for pieces of a segment with more than one, and most pieces moved when two segments join.
const FEW_PIECES: usize = 8;

/// Consecutive bytes.
#[derive(Debug)]
struct Segment<P> {
    /// One past the last byte.
    end: u64,
    /// How many pieces there are, not counting crumbs, and the length of the last one.
    count: u32,
    last: u32,
    /// The pieces in order; bare lengths are added up. One piece is stored inline: a peer that sends only every other
    /// byte makes all segments that short.
    pieces: SmallVec<[P; 1]>,
}

impl<P> Default for OutOfOrder<P> {
    fn default() -> Self {
        Self { segments: OffsetMap::default(), first: NOWHERE, bytes: 0, pieces: 0 }
    }
}

impl<P: Payload> OutOfOrder<P> {
    /// How many bytes wait, and in how many pieces.
    pub(super) fn count(&self) -> (u64, usize) {
        (self.bytes, self.pieces)
    }

    /// Stores the parts of `data` that are new; returns how many bytes that are.
    pub(super) fn insert(&mut self, mut offset: u64, mut data: P) -> u64 {
        let bytes = self.bytes;
        while !data.is_empty() {
            let len = data.len() as u64;
            // A segment that ends where the piece begins takes it, up to the next segment.
            let before = self.segments.at_or_before(offset);
            let end = before.map(|position| self.segments.get(position).end);
            let known = end.map_or(0, |end| end.saturating_sub(offset).min(len));
            if known > 0 {
                drop(data.split_to(known as usize));
                offset += known;
                continue;
            }
            let next = self.segments.after(before).map_or(NOWHERE, |(_, start)| start);
            let room = (next - offset).min(len);
            let piece = if room == len { std::mem::take(&mut data) } else { data.split_to(room as usize) };
            let position = match before {
                Some(position) if end == Some(offset) => {
                    self.pieces += self.segments.get_mut(position).push(piece);
                    position
                }
                _ => {
                    self.pieces += 1;
                    self.first = self.first.min(offset);
                    self.segments.insert_after(before, offset, Segment::new(offset, piece))
                }
            };
            self.bytes += room;
            if offset + room == next {
                self.join(position);
            }
            offset += room;
        }
        self.bytes - bytes
    }

    /// Joins a segment with the next one, which begins where it ends.
    fn join(&mut self, position: Position) {
        if let Some((next, _)) = self.segments.after(Some(position))
            && self.segments.get(next).pieces.len() <= FEW_PIECES
        {
            let (_, later) = self.segments.remove(next);
            self.segments.get_mut(position).append(later);
        }
    }

    /// Prefetches the index of segments.
    pub(super) fn prefetch(&self) {
        self.segments.prefetch();
    }

    /// Prefetches the segment before `offset`; the index must be in the cache.
    pub(super) fn prefetch_segment(&self, offset: u64) {
        if let Some(position) = self.segments.at_or_before(offset) {
            self.segments.prefetch_value(position);
        }
    }

    /// Bytes of `range` not yet received.
    pub(super) fn missing(&self, range: Range<u64>) -> u64 {
        let mut position = self.segments.at_or_before(range.start);
        let mut at =
            position.map_or(range.start, |position| self.segments.get(position).end.max(range.start));
        let mut missing = 0;
        while let Some((next, start)) = self.segments.after(position)
            && start < range.end
        {
            missing += start - at;
            (at, position) = (self.segments.get(next).end, Some(next));
        }
        missing + range.end.saturating_sub(at)
    }

    /// Removes the first segment if it begins at or before `offset`; returns its offset and its pieces.
    pub(super) fn take_until(&mut self, offset: u64) -> Option<(u64, SmallVec<[P; 1]>)> {
        if self.first > offset {
            return None;
        }
        let (start, segment) = self.segments.remove(self.segments.after(None)?.0);
        debug_assert_eq!(start, self.first);
        self.first = self.segments.after(None).map_or(NOWHERE, |(_, start)| start);
        self.bytes -= segment.end - start;
        self.pieces -= segment.count as usize;
        Some((start, segment.pieces))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<P: Payload> Segment<P> {
    fn new(offset: u64, piece: P) -> Self {
        let len = piece.len();
        let (end, last) = (offset + len as u64, len as u32);
        Self { end, count: 1, last, pieces: SmallVec::from_iter([piece]) }
    }

    /// Appends the next bytes; returns by how many pieces the segment grows.
    fn push(&mut self, piece: P) -> usize {
        let len = piece.len();
        let is_crumb = is_crumb(self.last as usize, len);
        match self.pieces.last_mut() {
            Some(last) if is_crumb || !P::HAS_BYTES => last.append(&piece),
            _ => {
                if self.pieces.len() == 2 {
                    self.pieces.reserve_exact(FEW_PIECES - 2);
                }
                self.pieces.push(piece);
            }
        }
        self.end += len as u64;
        self.last = if is_crumb { self.last + len as u32 } else { len as u32 };
        self.count += u32::from(!is_crumb);
        usize::from(!is_crumb)
    }

    /// Appends the next segment.
    fn append(&mut self, later: Self) {
        match (self.pieces.last_mut(), later.pieces.first()) {
            (Some(last), Some(first)) if !P::HAS_BYTES => last.append(first),
            _ => self.pieces.extend(later.pieces),
        }
        (self.end, self.last) = (later.end, later.last);
        self.count += later.count;
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Length;

    use super::*;

    #[test]
    fn the_pieces_of_two_paths_make_two_segments() {
        let mut waiting = OutOfOrder::default();
        for at in 0..50 {
            assert_eq!(waiting.insert(10_000 + at * 10, Length(10)), 10);
            assert_eq!(waiting.insert(90_000 + at * 10, Length(10)), 10);
        }
        assert_eq!(waiting.segments.len(), 2);
        assert_eq!(waiting.count().0, 1_000);
        assert!(waiting.take_until(9_999).is_none());
        let (start, pieces) = waiting.take_until(10_000).unwrap();
        assert_eq!((start, pieces.iter().map(Payload::len).sum::<usize>()), (10_000, 500));
        assert_eq!(waiting.count().0, 500);
    }

    #[test]
    fn segments_that_touch_are_joined_unless_too_much_would_be_moved() {
        let (mut lengths, mut bytes) = (OutOfOrder::default(), OutOfOrder::default());
        let data = bytes::Bytes::from_static(&[0; 1_000]);
        // After the last gap there are as many pieces as can be moved, after the first gap one more.
        let late = (12..=20).chain(22..30);
        for at in late.chain([10, 21, 11]).map(|place| place * 1_000) {
            lengths.insert(at, Length(1_000));
            bytes.insert(at, data.clone());
            assert_eq!(lengths.count(), bytes.count());
        }
        assert_eq!((lengths.segments.len(), bytes.segments.len()), (1, 2));
        for until in [10_000, 12_000] {
            let taken = bytes.take_until(until).unwrap();
            assert_eq!(taken.0, until);
            assert_eq!(taken.1.len(), if until == 10_000 { 2 } else { 18 });
        }
        assert_eq!(lengths.take_until(10_000).unwrap().1.as_slice(), [Length(20_000)]);
        assert_eq!((lengths.count(), bytes.count()), ((0, 0), (0, 0)));
    }

    #[test]
    fn bare_lengths_count_as_many_pieces_as_bytes_do() {
        let (mut lengths, mut bytes) = (OutOfOrder::default(), OutOfOrder::default());
        let data = bytes::Bytes::from_static(&[0; 1_000]);
        let pieces = [
            (0, 1_000),
            (1_000, 100),
            (1_100, 300),
            (1_400, 256),
            (5_000, 1_000),
            (6_000, 257),
            (4_000, 1_000),
        ];
        for (at, len) in pieces {
            lengths.insert(at, Length(len));
            bytes.insert(at, data.slice(..len));
            assert_eq!(lengths.count(), bytes.count());
        }
        let (lengths, bytes) = (lengths.take_until(0).unwrap().1, bytes.take_until(0).unwrap().1);
        assert_eq!((lengths.as_slice(), bytes.len()), (&[Length(1_656)][..], 2));
    }

    #[test]
    fn the_missing_bytes_of_a_range_are_those_that_inserting_it_would_add() {
        let mut waiting = OutOfOrder::default();
        for (at, len) in [(100, 50), (150, 10), (200, 100)] {
            waiting.insert(at, Length(len));
        }
        for (range, missing) in [
            (0..50, 50),
            (0..120, 100),
            (100..160, 0),
            (120..130, 0),
            (90..310, 60),
            (250..400, 100),
            (400..500, 100),
        ] {
            assert_eq!(waiting.missing(range.clone()), missing, "{range:?}");
        }
    }

    #[test]
    fn no_byte_is_stored_twice_whatever_overlaps() {
        let mut waiting = OutOfOrder::default();
        let pieces = [(100, 10), (120, 10), (105, 40), (90, 200), (0, 300), (289, 1), (290, 3)];
        let new: Vec<u64> = pieces.iter().map(|(at, len)| waiting.insert(*at, Length(*len))).collect();
        assert_eq!(new, [10, 10, 25, 155, 100, 0, 0]);
        assert_eq!(waiting.count().0, 300);
        let mut next = 0;
        while let Some((start, pieces)) = waiting.take_until(next) {
            assert_eq!(start, next);
            next += pieces.iter().map(Payload::len).sum::<usize>() as u64;
        }
        assert_eq!((next, waiting.count()), (300, (0, 0)));
    }
}
