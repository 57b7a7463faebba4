//! Packets in flight. Each is in a slot; only the slot's number travels from link to link.
//!
//! Most of a network's memory is packets in queues, and most packets carry one run of a stream or one acknowledgement.
//! These are packed as a few numbers, in one or a few cache lines. Other messages are stored unpacked, in slots whose
//! lists are reused, so that nothing is allocated.

mod ack;

use std::ops::Range;

use anabranch_prefetch::prefetch_item;
use anabranch_wire::{Frame, Fsn, Message, Packet, PathId, Payload, ResetToken, StreamFrame, StreamId};
use smallvec::smallvec;

use super::load::Load;
use ack::{AckPacket, Lines};

/// The end of a list of hops.
pub(crate) const LAST_HOP: u32 = u32::MAX;

/// A message without content.
pub(crate) const NO_MESSAGE: Message<Load> = Message::Reset(ResetToken([0; 16]));

/// The receiver of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The slot of its flow.
    pub flow: u32,
    /// Number of the session in that slot.
    pub generation: u32,
    /// The end: 0 for the client, 1 for the server.
    pub end: u8,
    /// The flow's path that it took.
    pub path: u8,
    /// Whether it is capable of ECN.
    pub ecn: bool,
}

/// A packed packet: in one cache line, because it is usually not in the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct PackedPacket {
    /// UDP payload in bytes.
    pub size: u32,
    pub to: Destination,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    /// A plain packet without content.
    Empty,
    Stream(StreamPacket),
    Ack(AckPacket),
    /// An acknowledgement with further lines.
    LongAck(AckPacket),
    /// The slot of a message, and whether it has several frames.
    Other(u32, bool),
}

impl PackedPacket {
    /// The path that it acknowledges (with `true`), or its own path.
    pub(crate) fn path(&self) -> Option<(PathId, bool)> {
        match &self.body {
            Body::Stream(run) => Some((run.path, false)),
            Body::Ack(ack) | Body::LongAck(ack) => Some((ack.about(), true)),
            Body::Empty | Body::Other(..) => None,
        }
    }

    /// The stream of its bytes, and their offset.
    pub(crate) fn run_start(&self) -> Option<(StreamId, u64)> {
        if let Body::Stream(run) = &self.body { Some((run.stream, run.offset)) } else { None }
    }
}

/// A packet with one run of a stream.
#[derive(Clone, Copy, Debug)]
struct StreamPacket {
    path: PathId,
    len: u32,
    fsn: Fsn,
    stream: StreamId,
    offset: u64,
    fin: bool,
}

impl StreamPacket {
    fn of(message: &Message<Load>) -> Option<Self> {
        let Message::Packet(Packet { path, fsn, frames }) = message else { return None };
        let [Frame::Stream(frame)] = frames.as_slice() else { return None };
        let len = u32::try_from(frame.data.len()).ok()?;
        let (stream, offset, fin) = (frame.stream, frame.offset, frame.fin);
        Some(Self { path: *path, len, fsn: *fsn, stream, offset, fin })
    }

    fn into_message(self) -> Message<Load> {
        let Self { path, len, fsn, stream, offset, fin } = self;
        let frame = Frame::Stream(StreamFrame { stream, offset, fin, data: Load::of(len.into()) });
        Message::Packet(Packet { path, fsn, frames: smallvec![frame] })
    }
}

/// All packets in flight.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    packed: Vec<PackedPacket>,
    free: Vec<u32>,
    lines: Lines,
    /// A free slot holds its last message with its lists.
    messages: Vec<Message<Load>>,
    /// Free slots of messages with one frame and with several, because their lists differ.
    free_messages: [Vec<u32>; 2],
    /// A list for ranges, to be reused.
    room: Vec<Range<u64>>,
    /// Lost packets of each source of plain packets.
    lost: Vec<u64>,
}

impl Packets {
    /// Stores a packet of `size` bytes of UDP payload; a plain packet has no message. Afterwards only the lists in `message` are
    /// of use.
    pub(crate) fn insert(&mut self, to: Destination, size: u32, message: Option<&mut Message<Load>>) -> u32 {
        let body = match message {
            None => Body::Empty,
            Some(message) => self.body(message),
        };
        put(&mut self.packed, &mut self.free, PackedPacket { size, to, body })
    }

    /// Packs a message. Nearly all become a few numbers, so the message is not moved.
    fn body(&mut self, message: &mut Message<Load>) -> Body {
        if let Some(run) = StreamPacket::of(message) {
            Body::Stream(run)
        } else if let Some(ack) = AckPacket::of(message) {
            Body::Ack(ack)
        } else if let Some(ack) = AckPacket::of_many(message, &mut self.lines) {
            Body::LongAck(ack)
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

    /// Frees a packet's slot and its content.
    pub(crate) fn discard(&mut self, place: u32) {
        let packed = self.fetch(place);
        match packed.body {
            Body::Empty => self.note_lost(packed.to.flow as usize),
            Body::Stream(_) | Body::Ack(_) => {}
            Body::LongAck(ack) => ack.discard(&mut self.lines),
            Body::Other(message, several) => self.free_messages[usize::from(several)].push(message),
        }
    }

    fn note_lost(&mut self, source: usize) {
        if source >= self.lost.len() {
            self.lost.resize(source + 1, 0);
        }
        self.lost[source] += 1;
    }

    /// Lost packets of a source of plain packets so far.
    pub(crate) fn lost_of(&self, source: usize) -> u64 {
        self.lost.get(source).copied().unwrap_or_default()
    }

    /// Frees a packet's slot; [`Self::open`] follows. Packets are rarely in the cache, but loads overlap: fetching many
    /// before opening the first costs little more than fetching one.
    pub(crate) fn fetch(&mut self, place: u32) -> PackedPacket {
        self.free.push(place);
        let packed = self.packed[place as usize];
        if let Body::LongAck(ack) = &packed.body {
            ack.prefetch(&self.lines);
        }
        packed
    }

    pub(crate) fn prefetch(&self, place: u32) {
        prefetch_item(&self.packed, place as usize);
    }

    /// The content of a fetched packet; `None` for a plain packet.
    pub(crate) fn open(&mut self, packed: &PackedPacket) -> Option<Message<Load>> {
        match packed.body {
            Body::Empty => None,
            Body::Stream(run) => Some(run.into_message()),
            Body::Ack(ack) => Some(ack.into_message(&mut self.room)),
            Body::LongAck(ack) => Some(ack.into_long_message(&mut self.lines, &mut self.room)),
            Body::Other(message, several) => {
                self.free_messages[usize::from(several)].push(message);
                Some(std::mem::replace(&mut self.messages[message as usize], NO_MESSAGE))
            }
        }
    }

    /// Returns the lists of an opened packet for reuse.
    #[inline]
    pub(crate) fn close(&mut self, packed: &PackedPacket, message: &mut Message<Load>) {
        let has_lists = match &packed.body {
            Body::Empty | Body::Stream(_) => false,
            Body::Ack(ack) => ack.has_list(),
            Body::LongAck(_) | Body::Other(..) => true,
        };
        if has_lists {
            self.keep_lists(packed, message);
        }
    }

    #[inline(never)]
    fn keep_lists(&mut self, packed: &PackedPacket, message: &mut Message<Load>) {
        if let Body::Other(place, _) = packed.body {
            std::mem::swap(&mut self.messages[place as usize], message);
        } else if let Message::Packet(packet) = message
            && let Some(Frame::Ack(ack)) = packet.frames.first_mut()
            && ack.ranges.spilled()
        {
            self.room = std::mem::take(&mut ack.ranges).into_vec();
            self.room.clear();
        }
    }

    /// Number of packets in flight.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.packed.len() - self.free.len()
    }
}

/// Stores an item in a free slot, or in a new one; returns its number.
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

    fn message(fsn: u64, frames: &[Frame<Load>]) -> Message<Load> {
        Message::Packet(Packet { path: PathId(3), fsn: Fsn(fsn), frames: frames.into() })
    }

    #[test]
    fn a_packet_takes_one_cache_line() {
        assert_eq!(size_of::<PackedPacket>(), 64);
    }

    /// Inserts and removes each packet; returns how many messages were stored unpacked.
    fn keep(cases: &[(u64, Vec<Frame<Load>>)]) -> usize {
        let mut packets = Packets::default();
        let mut kept_whole = 0;
        let free = |packets: &Packets| packets.free_messages.iter().map(Vec::len).sum::<usize>();
        let to = Destination { flow: 7, ..Destination::default() };
        for (fsn, frames) in cases {
            let sent = message(*fsn, frames);
            let place = packets.insert(to, 1472, Some(&mut sent.clone()));
            kept_whole += packets.messages.len() - free(&packets);
            let other = packets.insert(to, 40, None);
            let packed = packets.fetch(other);
            assert_eq!((packed.size, packets.open(&packed)), (40, None));
            let lost = packets.insert(to, 1472, Some(&mut sent.clone()));
            packets.discard(lost);
            let packed = packets.fetch(place);
            let mut opened = packets.open(&packed).unwrap();
            assert_eq!((packed.size, packed.to, &opened), (1472, to, &sent));
            packets.close(&packed, &mut opened);
            assert_eq!(packets.messages.len(), free(&packets));
        }
        assert_eq!((packets.count(), packets.packed.len(), packets.lines.count()), (0, 2, 0));
        kept_whole
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was_and_leaves_its_place() {
        let data = Load::of(1400);
        let run = Frame::Stream(StreamFrame { stream: StreamId(4), offset: 1 << 50, fin: true, data });
        assert_eq!(keep(&[(1 << 40, vec![run.clone()])]), 0);
        assert_eq!(keep(&[(5, vec![Frame::Ping]), (1 << 40, vec![Frame::Ping, run])]), 2);
    }

    #[test]
    fn an_acknowledgement_of_small_numbers_is_kept_as_these_however_many_ranges_it_has() {
        let ack = |fsn, ranges: &[std::ops::Range<u64>], delay| {
            let (ranges, delay) = (ranges.iter().cloned().collect(), Span::from_millis(delay));
            (fsn, vec![Frame::Ack(Ack { path: PathId(9), delay, arrived: None, ranges, ecn: None })])
        };
        let most = u64::from(u32::MAX);
        let many = |count: u64| (0..count).rev().map(|at| at * 9..at * 9 + 4).collect::<Vec<_>>();
        let small = [
            ack(0, &[0..1], 0),
            ack(most, &[most..most + 1, 70..90, 0..50], 4_000),
            ack(7, &[90..91, 70..80, 60..65, 0..50], 25),
            ack(7, &[90..91, 70..80, 60..65, 30..50, 0..20], 25),
            ack(7, &many(11), 25),
            ack(7, &many(12), 25),
            ack(7, &many(32), 25),
            ack(7, &many(100), 25),
        ];
        assert_eq!(keep(&small), 0);
        let others = [
            ack(most + 1, &[0..1], 0),
            ack(7, &[most + 1..most + 2], 0),
            ack(7, &[most + 9..most + 10, 0..1], 25),
            ack(7, &[3..4], 5_000),
            ack(7, &[], 1),
        ];
        assert_eq!(keep(&others), others.len());
    }
}
