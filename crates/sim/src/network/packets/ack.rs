//! A packet with one acknowledgement, packed as numbers: up to four ranges in one cache line, more in further lines.

use std::ops::Range;

use anabranch_prefetch::prefetch_item;
use anabranch_wire::{Ack, Frame, Fsn, Message, Packet, PathId, Ranges, Span};
use smallvec::{SmallVec, smallvec};

use super::super::load::Load;

/// Lengths in the packet's own line.
const FIRST: usize = 7;
const FURTHER: usize = 15;

/// Ranges that a message stores inline.
const IN_PLACE: usize = 2;

/// All lengths of one acknowledgement; those of 32 ranges are stored inline.
type Lengths = SmallVec<[u32; 64]>;

/// A packet with one acknowledgement whose numbers are small enough.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckPacket {
    fsn: u32,
    largest: u32,
    /// In nanoseconds.
    delay: u32,
    /// Downwards from the largest number: the count of acknowledged packets, of missing ones, and so on; 0 at the end.
    /// The last entry of a long acknowledgement is the number of its next line.
    lengths: [u32; FIRST],
    /// The path that carries it, and the path that it acknowledges.
    paths: [u16; 2],
}

impl AckPacket {
    /// Packs a message whose ranges fit into one line.
    pub(super) fn of(message: &Message<Load>) -> Option<Self> {
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

    /// Packs a message whose ranges need further lines.
    #[inline(never)]
    pub(super) fn of_many(message: &Message<Load>, lines: &mut Lines) -> Option<Self> {
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

    /// The packet without its lengths, and the ranges.
    fn head(message: &Message<Load>) -> Option<(Self, &Ranges)> {
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

    /// True when a message stores some of its ranges in a list.
    pub(super) fn has_list(&self) -> bool {
        self.lengths[IN_PLACE * 2] > 0
    }

    /// The path that it acknowledges.
    pub(super) fn about(&self) -> PathId {
        PathId(u32::from(self.paths[1]))
    }

    /// Unpacks it; ranges that are not stored inline use the list `room`.
    pub(super) fn into_message(self, room: &mut Vec<Range<u64>>) -> Message<Load> {
        self.with(&self.lengths, room)
    }

    /// Unpacks one with further lines, and frees these.
    #[inline(never)]
    pub(super) fn into_long_message(self, lines: &mut Lines, room: &mut Vec<Range<u64>>) -> Message<Load> {
        let mut lengths = Lengths::from_slice(&self.lengths[..FIRST - 1]);
        lines.take(self.lengths[FIRST - 1], |further| lengths.extend_from_slice(further));
        self.with(&lengths, room)
    }

    /// Prefetches the next line of a long one.
    pub(super) fn prefetch(&self, lines: &Lines) {
        prefetch_item(&lines.lines, self.lengths[FIRST - 1] as usize);
    }

    /// Frees the lines of a long one.
    pub(super) fn discard(&self, lines: &mut Lines) {
        lines.take(self.lengths[FIRST - 1], |_| {});
    }

    fn with(&self, lengths: &[u32], room: &mut Vec<Range<u64>>) -> Message<Load> {
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

/// Calls `take` with the lengths of ranges and of the gaps between them; `None` if one is too large or refused.
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
    /// The next line; [`NOWHERE`] at the end.
    next: u32,
}

const NOWHERE: u32 = u32::MAX;

impl Lines {
    /// Stores lengths; returns the number of the first line.
    fn keep(&mut self, lengths: &[u32]) -> u32 {
        let mut next = NOWHERE;
        for part in lengths.rchunks(FURTHER) {
            let mut line = Line { lengths: [0; FURTHER], next };
            line.lengths[..part.len()].copy_from_slice(part);
            next = super::put(&mut self.lines, &mut self.free, line);
        }
        next
    }

    /// Calls `give` with the lengths from a line on, part by part, and frees the lines.
    fn take(&mut self, mut place: u32, mut give: impl FnMut(&[u32])) {
        while place != NOWHERE {
            let line = self.lines[place as usize];
            let some = line.lengths.iter().take_while(|length| **length > 0).count();
            give(&line.lengths[..some]);
            self.free.push(place);
            place = line.next;
        }
    }

    /// Number of lines in use.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lines.len() - self.free.len()
    }
}
