//! Spare lists for the few packets with more than one frame, or with an acknowledgement of more ranges than fit inline.
//!
//! A packet takes its lists along, so each such packet would allocate. The driver returns a packet after it was
//! encoded, and the next packet of that kind uses its lists.

use std::ops::Range;

use anabranch_wire::{Frame, Frames, Message, Payload};

/// Empty lists with room.
pub(in super::super) struct SpareLists<P> {
    frames: Vec<Frame<P>>,
    ranges: Vec<Range<u64>>,
}

impl<P> Default for SpareLists<P> {
    fn default() -> Self {
        Self { frames: Vec::new(), ranges: Vec::new() }
    }
}

impl<P> SpareLists<P> {
    /// Makes room for a second frame, which most packets do not have.
    #[inline]
    pub(in super::super) fn for_another(&mut self, frames: &mut Frames<P>) {
        if frames.len() == 1 {
            self.for_second(frames);
        }
    }

    #[inline(never)]
    fn for_second(&mut self, frames: &mut Frames<P>) {
        if self.frames.capacity() > 1 && !frames.spilled() {
            let mut list = std::mem::take(&mut self.frames);
            list.extend(frames.pop());
            *frames = Frames::from_vec(list);
        }
    }

    /// An empty list for ranges that do not fit in place.
    pub(in super::super) fn for_ranges(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.ranges)
    }

    /// Keeps a packet's lists if they have more room than the spare ones.
    #[inline(never)]
    fn keep(&mut self, frames: &mut Frames<P>) {
        for frame in frames.iter_mut() {
            if let Frame::Ack(ack) = frame
                && ack.ranges.spilled()
                && ack.ranges.capacity() > self.ranges.capacity()
            {
                self.ranges = std::mem::take(&mut ack.ranges).into_vec();
                self.ranges.clear();
            }
        }
        if frames.spilled() && frames.capacity() > self.frames.capacity() {
            self.frames = std::mem::take(frames).into_vec();
            self.frames.clear();
        }
    }
}

impl<P: Payload> SpareLists<P> {
    /// Takes the lists out of a message that is no longer needed.
    #[inline]
    pub(in super::super) fn reclaim(&mut self, message: &mut Message<P>) {
        let Message::Packet(packet) = message else { return };
        let has_ranges = |frame: &Frame<P>| matches!(frame, Frame::Ack(ack) if ack.ranges.spilled());
        if packet.frames.spilled() || packet.frames.first().is_some_and(has_ranges) {
            self.keep(&mut packet.frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Ack, Fsn, Length, Packet, PathId, Span};

    use super::*;

    #[test]
    fn the_lists_of_a_packet_serve_the_next() {
        let mut spare = SpareLists::<Length>::default();
        let ranges = (0..9).rev().map(|at| at * 9..at * 9 + 4).collect();
        let ack = Ack { path: PathId(1), delay: Span::ZERO, arrived: None, ranges, ecn: None };
        let frames = [Frame::Ack(ack), Frame::Ping].into_iter().collect();
        let mut packet = Packet { path: PathId(0), fsn: Fsn(0), frames };
        let places = (packet.frames.as_ptr(), 9);
        spare.keep(&mut packet.frames);
        let list = spare.for_ranges();
        assert!(list.is_empty() && list.capacity() >= places.1);
        let mut next = Frames::from_iter([Frame::Ping]);
        spare.for_another(&mut next);
        next.push(Frame::Padding(1));
        assert_eq!((next.as_ptr(), &next[..]), (places.0, &[Frame::Ping, Frame::Padding(1)][..]));
    }
}
