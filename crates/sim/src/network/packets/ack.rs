//! A packet with one acknowledgement, as numbers: in one cache line with up to four ranges, and with more in further ones.

use std::ops::Range;

use anabranch_prefetch::prefetch_item;
use anabranch_wire::{Ack, Frame, Fsn, Length, Message, Packet, PathId, Ranges, Span};
use smallvec::{SmallVec, smallvec};

/// Lengths in the packet's own line, and in each further one.
const FIRST: usize = 7;
const FURTHER: usize = 15;

/// Ranges that lie in place in a message.
const IN_PLACE: usize = 2;

/// All lengths of one acknowledgement: those of 32 ranges lie in place.
type Lengths = SmallVec<[u32; 64]>;

/// A packet with one acknowledgement, in numbers that are small enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckPacket {
    fsn: u32,
    largest: u32,
    /// Nanoseconds.
    delay: u32,
    /// From the largest number down: how many are acknowledged, how many are missing, and so on; 0 at the end. The last
    /// entry of a long acknowledgement is the number of its next line.
    lengths: [u32; FIRST],
    /// The path that carries it, and the one that it is about.
    paths: [u16; 2],
}

impl AckPacket {
    /// A packet whose ranges lie in one line.
    pub(super) fn of(message: &Message<Length>) -> Option<Self> {
        let (mut told, ranges) = Self::head(message)?;
        if ranges.len() > FIRST.div_ceil(2) {
            return None;
        }
        let mut places = told.lengths.iter_mut();
        lengths_of(ranges, |length| {
            *places.next()? = length;
            Some(())
        })?;
        Some(told)
    }

    /// A packet whose ranges take further lines.
    #[inline(never)]
    pub(super) fn of_many(message: &Message<Length>, lines: &mut Lines) -> Option<Self> {
        let (mut told, ranges) = Self::head(message)?;
        let mut lengths = Lengths::new();
        lengths_of(ranges, |length| {
            lengths.push(length);
            Some(())
        })?;
        let (first, further) = lengths.split_at_checked(FIRST - 1)?;
        told.lengths[..FIRST - 1].copy_from_slice(first);
        told.lengths[FIRST - 1] = lines.keep(further);
        Some(told)
    }

    /// All but the lengths, and the ranges.
    fn head(message: &Message<Length>) -> Option<(Self, &Ranges)> {
        let Message::Packet(Packet { path, fsn, frames }) = message else { return None };
        let [Frame::Ack(Ack { path: about, delay, ranges, arrived: None, ecn: None })] = frames.as_slice()
        else {
            return None;
        };
        let largest = ranges.first()?.end.checked_sub(1)?;
        let paths = [u16::try_from(path.0).ok()?, u16::try_from(about.0).ok()?];
        let delay = u32::try_from(delay.as_nanos()).ok()?;
        let (fsn, largest) = (u32::try_from(fsn.0).ok()?, u32::try_from(largest).ok()?);
        Some((Self { fsn, largest, delay, lengths: [0; FIRST], paths }, ranges))
    }

    /// True when not all of its ranges lie in place in a message.
    pub(super) fn has_list(&self) -> bool {
        self.lengths[IN_PLACE * 2] > 0
    }

    /// The path that it is about.
    pub(super) fn about(&self) -> PathId {
        PathId(u32::from(self.paths[1]))
    }

    /// As it was, with a list from `room` for ranges that do not lie in place.
    pub(super) fn into_message(self, room: &mut Vec<Range<u64>>) -> Message<Length> {
        self.with(&self.lengths, room)
    }

    /// The same of one that goes on in lines, which are free then.
    #[inline(never)]
    pub(super) fn into_long_message(self, lines: &mut Lines, room: &mut Vec<Range<u64>>) -> Message<Length> {
        let mut lengths = Lengths::from_slice(&self.lengths[..FIRST - 1]);
        lines.take(self.lengths[FIRST - 1], |further| lengths.extend_from_slice(further));
        self.with(&lengths, room)
    }

    /// Has fetched where a long one goes on.
    pub(super) fn prefetch(&self, lines: &Lines) {
        prefetch_item(&lines.lines, self.lengths[FIRST - 1] as usize);
    }

    /// Frees the lines of a long one.
    pub(super) fn discard(&self, lines: &mut Lines) {
        lines.take(self.lengths[FIRST - 1], |_| {});
    }

    fn with(&self, lengths: &[u32], room: &mut Vec<Range<u64>>) -> Message<Length> {
        let [path, about] = self.paths.map(|path| PathId(u32::from(path)));
        let mut end = u64::from(self.largest) + 1;
        let mut ranges = Ranges::new();
        if lengths[IN_PLACE * 2] > 0 {
            room.reserve(lengths.len().div_ceil(2));
            ranges = Ranges::from_vec(std::mem::take(room));
        }
        for (place, length) in lengths.iter().take_while(|length| **length > 0).enumerate() {
            let start = end - u64::from(*length);
            if place % 2 == 0 {
                ranges.push(start..end);
            }
            end = start;
        }
        let delay = Span::from_nanos(u64::from(self.delay));
        let frame = Frame::Ack(Ack { path: about, delay, arrived: None, ranges, ecn: None });
        Message::Packet(Packet { path, fsn: Fsn(u64::from(self.fsn)), frames: smallvec![frame] })
    }
}

/// Gives the lengths of ranges and of what lies between them, if each is small enough and is taken.
fn lengths_of(ranges: &Ranges, mut take: impl FnMut(u32) -> Option<()>) -> Option<()> {
    let mut end = ranges.first()?.end;
    for (place, range) in ranges.iter().enumerate() {
        if place > 0 {
            take(u32::try_from(end - range.end).ok()?)?;
        }
        take(u32::try_from(range.end - range.start).ok()?)?;
        end = range.start;
    }
    Some(())
}

/// Further lines of long acknowledgements.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Vec<Line>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line {
    lengths: [u32; FURTHER],
    /// Where it goes on, [`NOWHERE`] at the end.
    next: u32,
}

const NOWHERE: u32 = u32::MAX;

impl Lines {
    /// Keeps lengths; returns the place of the first line.
    fn keep(&mut self, lengths: &[u32]) -> u32 {
        let mut next = NOWHERE;
        for part in lengths.rchunks(FURTHER) {
            let mut line = Line { lengths: [0; FURTHER], next };
            line.lengths[..part.len()].copy_from_slice(part);
            next = super::put(&mut self.lines, &mut self.free, line);
        }
        next
    }

    /// Gives the lengths that begin at a line, part by part, and frees the lines.
    fn take(&mut self, mut place: u32, mut give: impl FnMut(&[u32])) {
        while place != NOWHERE {
            let line = self.lines[place as usize];
            let some = line.lengths.iter().take_while(|length| **length > 0).count();
            give(&line.lengths[..some]);
            self.free.push(place);
            place = line.next;
        }
    }

    /// Lines that are taken.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lines.len() - self.free.len()
    }
}
