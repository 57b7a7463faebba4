//! Bytes of a stream that wait for earlier ones.
//!
//! With several paths the bytes of each come in long runs, and the runs come mixed. So what is kept in order by
//! offset are runs, not pieces: the next piece of a run goes behind the last one, which is found quickly among a few
//! dozen runs, and when the gap before a run closes its pieces leave together. No byte is kept twice, and runs
//! never overlap; two that touch become one, unless the later one is of so many pieces that moving them would cost much.

use std::ops::Range;

use anabranch_wire::Payload;
use smallvec::SmallVec;

use super::recv::is_crumb;
use super::runs::{Place, Runs};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Held<P> {
    /// By the offset of the first byte.
    runs: Runs<Run<P>>,
    /// Where the first run begins, [`NOWHERE`] without any: all that a piece in order asks for.
    first: u64,
    bytes: u64,
    pieces: usize,
}

/// Where a run begins that there is not.
const NOWHERE: u64 = u64::MAX;
/// Room for pieces that a run gets once it has a second one, and how many are moved behind those of another run at most.
const SOME: usize = 8;

/// Bytes that follow each other.
#[derive(Debug)]
struct Run<P> {
    /// One past the last byte.
    end: u64,
    /// How many pieces there are, crumbs not counted, and how long the last one is.
    count: u32,
    last: u32,
    /// In order; bare lengths are added up. One lies in place: a peer that sends one byte in two makes every run as short as that.
    pieces: SmallVec<[P; 1]>,
}

impl<P> Default for Held<P> {
    fn default() -> Self {
        Self { runs: Runs::default(), first: NOWHERE, bytes: 0, pieces: 0 }
    }
}

impl<P: Payload> Held<P> {
    /// How many bytes there are, and in how many pieces.
    pub(super) fn count(&self) -> (u64, usize) {
        (self.bytes, self.pieces)
    }

    /// Keeps those parts of `data` that are not here yet; how many bytes that are.
    pub(super) fn insert(&mut self, mut offset: u64, mut data: P) -> u64 {
        let bytes = self.bytes;
        while !data.is_empty() {
            let len = data.len() as u64;
            // A run that ends where the piece begins takes it, as far as the next run leaves room.
            let before = self.runs.at_or_before(offset);
            let end = before.map(|place| self.runs.get(place).end);
            let known = end.map_or(0, |end| end.saturating_sub(offset).min(len));
            if known > 0 {
                drop(data.split_to(known as usize));
                offset += known;
                continue;
            }
            let next = self.runs.after(before).map_or(NOWHERE, |(_, start)| start);
            let room = (next - offset).min(len);
            let piece = if room == len { std::mem::take(&mut data) } else { data.split_to(room as usize) };
            let place = match before {
                Some(place) if end == Some(offset) => {
                    self.pieces += self.runs.get_mut(place).push(piece);
                    place
                }
                _ => {
                    self.pieces += 1;
                    self.first = self.first.min(offset);
                    self.runs.insert_after(before, offset, Run::new(offset, piece))
                }
            };
            self.bytes += room;
            if offset + room == next {
                self.join(place);
            }
            offset += room;
        }
        self.bytes - bytes
    }

    /// Makes one of a run and the next one, which begins where it ends.
    fn join(&mut self, place: Place) {
        if let Some((next, _)) = self.runs.after(Some(place))
            && self.runs.get(next).pieces.len() <= SOME
        {
            let (_, later) = self.runs.remove(next);
            self.runs.get_mut(place).append(later);
        }
    }

    /// Has fetched where a piece is looked for.
    pub(super) fn prefetch(&self) {
        self.runs.prefetch();
    }

    /// Has the run fetched that a piece at `offset` comes behind, when where it is looked for is at hand.
    pub(super) fn prefetch_run(&self, offset: u64) {
        if let Some(place) = self.runs.at_or_before(offset) {
            self.runs.prefetch_thing(place);
        }
    }

    /// How many bytes of a range are not here.
    pub(super) fn missing(&self, range: Range<u64>) -> u64 {
        let mut place = self.runs.at_or_before(range.start);
        let mut at = place.map_or(range.start, |place| self.runs.get(place).end.max(range.start));
        let mut missing = 0;
        while let Some((next, start)) = self.runs.after(place)
            && start < range.end
        {
            missing += start - at;
            (at, place) = (self.runs.get(next).end, Some(next));
        }
        missing + range.end.saturating_sub(at)
    }

    /// Takes the first run out if it begins at or before `offset`: where it begins, and its pieces.
    pub(super) fn take_until(&mut self, offset: u64) -> Option<(u64, SmallVec<[P; 1]>)> {
        if self.first > offset {
            return None;
        }
        let (start, run) = self.runs.remove(self.runs.after(None)?.0);
        debug_assert_eq!(start, self.first);
        self.first = self.runs.after(None).map_or(NOWHERE, |(_, start)| start);
        self.bytes -= run.end - start;
        self.pieces -= run.count as usize;
        Some((start, run.pieces))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<P: Payload> Run<P> {
    /// A run of one piece.
    fn new(offset: u64, piece: P) -> Self {
        let len = piece.len();
        let (end, last) = (offset + len as u64, len as u32);
        Self { end, count: 1, last, pieces: SmallVec::from_iter([piece]) }
    }

    /// Adds the bytes that come next; by how many pieces it grows.
    fn push(&mut self, piece: P) -> usize {
        let len = piece.len();
        let is_crumb = is_crumb(self.last as usize, len);
        match self.pieces.last_mut() {
            Some(last) if is_crumb || !P::HAS_BYTES => last.append(&piece),
            _ => {
                if self.pieces.len() == 2 {
                    self.pieces.reserve_exact(SOME - 2);
                }
                self.pieces.push(piece);
            }
        }
        self.end += len as u64;
        self.last = if is_crumb { self.last + len as u32 } else { len as u32 };
        self.count += u32::from(!is_crumb);
        usize::from(!is_crumb)
    }

    /// Adds the run that comes next.
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
    fn the_pieces_of_two_paths_make_two_runs() {
        let mut held = Held::default();
        for at in 0..50 {
            assert_eq!(held.insert(10_000 + at * 10, Length(10)), 10);
            assert_eq!(held.insert(90_000 + at * 10, Length(10)), 10);
        }
        assert_eq!(held.runs.len(), 2);
        assert_eq!(held.count().0, 1_000);
        assert!(held.take_until(9_999).is_none());
        let (start, pieces) = held.take_until(10_000).unwrap();
        assert_eq!((start, pieces.iter().map(Payload::len).sum::<usize>()), (10_000, 500));
        assert_eq!(held.count().0, 500);
    }

    #[test]
    fn runs_that_touch_become_one_unless_much_would_be_moved() {
        let (mut lengths, mut bytes) = (Held::default(), Held::default());
        let data = bytes::Bytes::from_static(&[0; 1_000]);
        // Behind the last gap are as many pieces as are moved, behind the first one more.
        let late = (12..=20).chain(22..30);
        for at in late.chain([10, 21, 11]).map(|place| place * 1_000) {
            lengths.insert(at, Length(1_000));
            bytes.insert(at, data.clone());
            assert_eq!(lengths.count(), bytes.count());
        }
        assert_eq!((lengths.runs.len(), bytes.runs.len()), (1, 2));
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
        let (mut lengths, mut bytes) = (Held::default(), Held::default());
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
    fn what_is_missing_of_a_range_is_what_inserting_it_would_add() {
        let mut held = Held::default();
        for (at, len) in [(100, 50), (150, 10), (200, 100)] {
            held.insert(at, Length(len));
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
            assert_eq!(held.missing(range.clone()), missing, "{range:?}");
        }
    }

    #[test]
    fn no_byte_is_kept_twice_whatever_overlaps() {
        let mut held = Held::default();
        let pieces = [(100, 10), (120, 10), (105, 40), (90, 200), (0, 300), (289, 1), (290, 3)];
        let new: Vec<u64> = pieces.iter().map(|(at, len)| held.insert(*at, Length(*len))).collect();
        assert_eq!(new, [10, 10, 25, 155, 100, 0, 0]);
        assert_eq!(held.count().0, 300);
        let mut next = 0;
        while let Some((start, pieces)) = held.take_until(next) {
            assert_eq!(start, next);
            next += pieces.iter().map(Payload::len).sum::<usize>() as u64;
        }
        assert_eq!((next, held.count()), (300, (0, 0)));
    }
}
