//! Packets on their way, each in a place of its own; only the place's number travels from link to link.
//!
//! Most packets carry one run of a stream or one acknowledgement, and most of a network's memory is packets in queues: such a
//! packet is kept as the few numbers that it says, in one cache line or few. Whatever else sessions say to each other is kept
//! as it is, in a place whose last message leaves its lists to those who send: so nobody allocates.

mod told;

use std::ops::Range;

use anabranch_prefetch::prefetch_item;
use anabranch_wire::{Frame, Fsn, Length, Message, Packet, PathId, ResetToken, StreamFrame, StreamId};
use smallvec::smallvec;

use told::{Lines, Told};

/// The end of a list of hops.
pub(crate) const LAST_HOP: u32 = u32::MAX;

/// A message that says nothing and has no lists.
pub(crate) const NO_MESSAGE: Message<Length> = Message::Reset(ResetToken([0; 16]));

/// Who gets a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The place of its flow.
    pub flow: u32,
    /// Which of the sessions that had this place.
    pub generation: u32,
    /// Which end: 0 the client, 1 the server.
    pub end: u8,
    /// Which of the flow's paths it took.
    pub path: u8,
    /// Whether it is capable of ECN.
    pub ecn: bool,
}

/// A packet as it is kept: in one cache line, since it is most often fetched from afar.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Kept {
    /// UDP payload in bytes.
    pub size: u32,
    pub to: Destination,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    /// A packet of no session, or nothing at all.
    Empty,
    Run(Run),
    Told(Told),
    /// One that goes on in further lines.
    Long(Told),
    /// The place of a message, and whether it has several frames.
    Other(u32, bool),
}

impl Kept {
    /// The path whose packets it acknowledges, or with `false` the one that it travels.
    pub(crate) fn path(&self) -> Option<(PathId, bool)> {
        match &self.body {
            Body::Run(run) => Some((run.path, false)),
            Body::Told(told) | Body::Long(told) => Some((told.about(), true)),
            Body::Empty | Body::Other(..) => None,
        }
    }

    /// The stream that it has bytes of, and where they begin.
    pub(crate) fn run_start(&self) -> Option<(StreamId, u64)> {
        if let Body::Run(run) = &self.body { Some((run.stream, run.offset)) } else { None }
    }
}

/// A packet with one run of a stream.
#[derive(Clone, Copy, Debug)]
struct Run {
    path: PathId,
    len: u32,
    fsn: Fsn,
    stream: StreamId,
    offset: u64,
    fin: bool,
}

impl Run {
    fn of(message: &Message<Length>) -> Option<Self> {
        let Message::Packet(Packet { path, fsn, frames }) = message else { return None };
        let [Frame::Stream(frame)] = frames.as_slice() else { return None };
        let len = u32::try_from(frame.data.0).ok()?;
        let (stream, offset, fin) = (frame.stream, frame.offset, frame.fin);
        Some(Self { path: *path, len, fsn: *fsn, stream, offset, fin })
    }

    fn into_message(self) -> Message<Length> {
        let Self { path, len, fsn, stream, offset, fin } = self;
        let frame = Frame::Stream(StreamFrame { stream, offset, fin, data: Length(len as usize) });
        Message::Packet(Packet { path, fsn, frames: smallvec![frame] })
    }
}

/// All packets on their way.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    kept: Vec<Kept>,
    free: Vec<u32>,
    lines: Lines,
    /// A free place has a message that was there, with its lists.
    messages: Vec<Message<Length>>,
    /// Those that had one frame and those that had several: each of a kind leaves what another needs.
    free_messages: [Vec<u32>; 2],
    /// Room for ranges.
    room: Vec<Range<u64>>,
    /// Of each source of plain packets, how many were lost.
    lost: Vec<u64>,
}

impl Packets {
    /// Takes over a packet of `size` bytes of UDP payload; one of no session has no message. What is left in the message is there
    /// for its lists only.
    pub(crate) fn insert(
        &mut self,
        to: Destination,
        size: u32,
        message: Option<&mut Message<Length>>,
    ) -> u32 {
        let body = match message {
            None => Body::Empty,
            Some(message) => self.body(message),
        };
        put(&mut self.kept, &mut self.free, Kept { size, to, body })
    }

    /// What is kept of a message. Nearly all become a few numbers, so it is looked at where it lies.
    fn body(&mut self, message: &mut Message<Length>) -> Body {
        if let Some(run) = Run::of(message) {
            Body::Run(run)
        } else if let Some(told) = Told::of(message) {
            Body::Told(told)
        } else if let Some(told) = Told::of_many(message, &mut self.lines) {
            Body::Long(told)
        } else {
            let several = message.packet().is_some_and(|packet| packet.frames.len() > 1);
            let place = self.free_messages[usize::from(several)].pop().unwrap_or_else(|| {
                self.messages.push(NO_MESSAGE);
                self.messages.len() as u32 - 1
            });
            std::mem::swap(&mut self.messages[place as usize], message);
            Body::Other(place, several)
        }
    }

    /// Frees a packet's place and all that it carried.
    pub(crate) fn discard(&mut self, place: u32) {
        let kept = self.fetch(place);
        match kept.body {
            Body::Empty => self.note_lost(kept.to.flow as usize),
            Body::Run(_) | Body::Told(_) => {}
            Body::Long(told) => told.discard(&mut self.lines),
            Body::Other(message, several) => self.free_messages[usize::from(several)].push(message),
        }
    }

    fn note_lost(&mut self, source: usize) {
        if source >= self.lost.len() {
            self.lost.resize(source + 1, 0);
        }
        self.lost[source] += 1;
    }

    /// Packets of a source of plain packets that were lost so far.
    pub(crate) fn lost_of(&self, source: usize) -> u64 {
        self.lost.get(source).copied().unwrap_or_default()
    }

    /// Frees a packet's place, for [`Self::open`] to follow. To fetch many before the first is opened costs
    /// little more than to fetch one: they are most often far away, and come side by side.
    pub(crate) fn fetch(&mut self, place: u32) -> Kept {
        self.free.push(place);
        let kept = self.kept[place as usize];
        if let Body::Long(told) = &kept.body {
            told.prefetch(&self.lines);
        }
        kept
    }

    /// Has a packet fetched that is soon asked for.
    pub(crate) fn prefetch(&self, place: u32) {
        prefetch_item(&self.kept, place as usize);
    }

    /// What a packet carried that was fetched; nothing when it is of no session.
    pub(crate) fn open(&mut self, kept: &Kept) -> Option<Message<Length>> {
        match kept.body {
            Body::Empty => None,
            Body::Run(run) => Some(run.into_message()),
            Body::Told(told) => Some(told.into_message(&mut self.room)),
            Body::Long(told) => Some(told.into_long_message(&mut self.lines, &mut self.room)),
            Body::Other(message, several) => {
                self.free_messages[usize::from(several)].push(message);
                Some(std::mem::replace(&mut self.messages[message as usize], NO_MESSAGE))
            }
        }
    }

    /// Takes the lists back of what was opened, before another packet is put in.
    #[inline]
    pub(crate) fn close(&mut self, kept: &Kept, message: &mut Message<Length>) {
        let has_lists = match &kept.body {
            Body::Empty | Body::Run(_) => false,
            Body::Told(told) => told.has_list(),
            Body::Long(_) | Body::Other(..) => true,
        };
        if has_lists {
            self.keep_lists(kept, message);
        }
    }

    #[inline(never)]
    fn keep_lists(&mut self, kept: &Kept, message: &mut Message<Length>) {
        if let Body::Other(place, _) = kept.body {
            std::mem::swap(&mut self.messages[place as usize], message);
        } else if let Message::Packet(packet) = message
            && let Some(Frame::Ack(ack)) = packet.frames.first_mut()
            && ack.ranges.spilled()
        {
            self.room = std::mem::take(&mut ack.ranges).into_vec();
            self.room.clear();
        }
    }

    /// Packets on their way now.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.kept.len() - self.free.len()
    }
}

/// Puts a thing into a free place, or into a new one; returns its number.
fn put<T>(places: &mut Vec<T>, free: &mut Vec<u32>, thing: T) -> u32 {
    if let Some(place) = free.pop() {
        places[place as usize] = thing;
        place
    } else {
        places.push(thing);
        places.len() as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Ack, Span};

    use super::*;

    fn message(fsn: u64, frames: &[Frame<Length>]) -> Message<Length> {
        Message::Packet(Packet { path: PathId(3), fsn: Fsn(fsn), frames: frames.into() })
    }

    #[test]
    fn a_packet_takes_one_cache_line() {
        assert_eq!(size_of::<Kept>(), 64);
    }

    /// Puts each packet in and takes it out again; returns how many messages were kept as they are.
    fn keep(cases: &[(u64, Vec<Frame<Length>>)]) -> usize {
        let mut packets = Packets::default();
        let mut kept_whole = 0;
        let free = |packets: &Packets| packets.free_messages.iter().map(Vec::len).sum::<usize>();
        let to = Destination { flow: 7, ..Destination::default() };
        for (fsn, frames) in cases {
            let sent = message(*fsn, frames);
            let place = packets.insert(to, 1472, Some(&mut sent.clone()));
            kept_whole += packets.messages.len() - free(&packets);
            let other = packets.insert(to, 40, None);
            let kept = packets.fetch(other);
            assert_eq!((kept.size, packets.open(&kept)), (40, None));
            let lost = packets.insert(to, 1472, Some(&mut sent.clone()));
            packets.discard(lost);
            let kept = packets.fetch(place);
            let mut opened = packets.open(&kept).unwrap();
            assert_eq!((kept.size, kept.to, &opened), (1472, to, &sent));
            packets.close(&kept, &mut opened);
            assert_eq!(packets.messages.len(), free(&packets));
        }
        assert_eq!((packets.count(), packets.kept.len(), packets.lines.count()), (0, 2, 0));
        kept_whole
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was_and_leaves_its_place() {
        let data = Length(1400);
        let run = Frame::Stream(StreamFrame { stream: StreamId(4), offset: 1 << 50, fin: true, data });
        assert_eq!(keep(&[(1 << 40, vec![run.clone()])]), 0);
        assert_eq!(keep(&[(5, vec![Frame::Ping]), (1 << 40, vec![Frame::Ping, run])]), 2);
    }

    #[test]
    fn an_acknowledgement_of_small_numbers_is_kept_as_these_however_many_ranges_it_has() {
        let told = |fsn, ranges: &[std::ops::Range<u64>], delay| {
            let (ranges, delay) = (ranges.iter().cloned().collect(), Span::from_millis(delay));
            (fsn, vec![Frame::Ack(Ack { path: PathId(9), delay, arrived: None, ranges, ecn: None })])
        };
        let most = u64::from(u32::MAX);
        let many = |count: u64| (0..count).rev().map(|at| at * 9..at * 9 + 4).collect::<Vec<_>>();
        let small = [
            told(0, &[0..1], 0),
            told(most, &[most..most + 1, 70..90, 0..50], 4_000),
            told(7, &[90..91, 70..80, 60..65, 0..50], 25),
            told(7, &[90..91, 70..80, 60..65, 30..50, 0..20], 25),
            told(7, &many(11), 25),
            told(7, &many(12), 25),
            told(7, &many(32), 25),
            told(7, &many(100), 25),
        ];
        assert_eq!(keep(&small), 0);
        let others = [
            told(most + 1, &[0..1], 0),
            told(7, &[most + 1..most + 2], 0),
            told(7, &[most + 9..most + 10, 0..1], 25),
            told(7, &[3..4], 5_000),
            told(7, &[], 1),
        ];
        assert_eq!(keep(&others), others.len());
    }
}
