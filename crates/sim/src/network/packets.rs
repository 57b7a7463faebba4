//! Packets on their way, each in a place of its own; only the place's number travels from link to link.
//!
//! Most packets carry one run of a stream or one acknowledgement, and most of a network's memory is packets in queues: such a
//! packet is kept as the few numbers that it says, in one cache line. Whatever else sessions say to each other is kept
//! as it is.

use anabranch_wire::{
    Ack, Frame, Fsn, Length, Message, Packet, PathId, Ranges, Span, StreamFrame, StreamId, prefetch_item,
};
use smallvec::smallvec;

/// The end of a list of hops.
pub(crate) const LAST_HOP: u32 = u32::MAX;

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
    /// The place of a message.
    Other(u32),
}

impl Kept {
    /// The path whose packets it acknowledges, or with `false` the one that it travels.
    pub(crate) fn path(&self) -> Option<(PathId, bool)> {
        match &self.body {
            Body::Run(run) => Some((run.path, false)),
            Body::Told(told) => Some((PathId(u32::from(told.paths[1])), true)),
            Body::Empty | Body::Other(_) => None,
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

/// A packet with one acknowledgement of up to four ranges, in numbers that are small enough.
#[derive(Clone, Copy, Debug)]
struct Told {
    fsn: u32,
    largest: u32,
    /// Nanoseconds.
    delay: u32,
    /// From the largest number down: how many are told, how many are not, and so on; 0 from where nothing more is told.
    lengths: [u32; 7],
    /// The path that carries it, and the one that it is about.
    paths: [u16; 2],
}

impl Told {
    fn of(message: &Message<Length>) -> Option<Self> {
        let Message::Packet(Packet { path, fsn, frames }) = message else { return None };
        let [Frame::Ack(Ack { path: about, delay, ranges, arrived: None, ecn: None })] = frames.as_slice()
        else {
            return None;
        };
        let largest = ranges.first()?.end.checked_sub(1)?;
        let (mut lengths, mut place, mut end) = ([0; 7], 0, largest + 1);
        for range in ranges {
            if place > 0 {
                *lengths.get_mut(place)? = u32::try_from(end - range.end).ok()?;
                place += 1;
            }
            *lengths.get_mut(place)? = u32::try_from(range.end - range.start).ok()?;
            (place, end) = (place + 1, range.start);
        }
        let paths = [u16::try_from(path.0).ok()?, u16::try_from(about.0).ok()?];
        let delay = u32::try_from(delay.as_nanos()).ok()?;
        let (fsn, largest) = (u32::try_from(fsn.0).ok()?, u32::try_from(largest).ok()?);
        Some(Self { fsn, largest, delay, lengths, paths })
    }

    fn into_message(self) -> Message<Length> {
        let [path, about] = self.paths.map(|path| PathId(u32::from(path)));
        let mut end = u64::from(self.largest) + 1;
        let mut ranges = Ranges::new();
        for (place, length) in self.lengths.into_iter().take_while(|length| *length > 0).enumerate() {
            let start = end - u64::from(length);
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

/// All packets on their way.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    kept: Vec<Kept>,
    free: Vec<u32>,
    messages: Vec<Option<Message<Length>>>,
    free_messages: Vec<u32>,
}

impl Packets {
    /// Takes over a packet of `size` bytes of UDP payload; one of no session has no message.
    pub(crate) fn insert(&mut self, to: Destination, size: u32, message: Option<&Message<Length>>) -> u32 {
        let body = match message {
            None => Body::Empty,
            Some(message) => self.body(message),
        };
        put(&mut self.kept, &mut self.free, Kept { size, to, body })
    }

    /// What is kept of a message. Nearly all become a few numbers, so it is looked at where it lies.
    fn body(&mut self, message: &Message<Length>) -> Body {
        if let Some(run) = Run::of(message) {
            Body::Run(run)
        } else if let Some(told) = Told::of(message) {
            Body::Told(told)
        } else {
            Body::Other(put(&mut self.messages, &mut self.free_messages, Some(message.clone())))
        }
    }

    /// Frees a packet's place and all that it carried.
    pub(crate) fn discard(&mut self, place: u32) {
        if let Body::Other(message) = self.fetch(place).body {
            self.free_messages.push(message);
            self.messages[message as usize] = None;
        }
    }

    /// Frees a packet's place, for [`Self::open`] to follow. To fetch many before the first is opened costs
    /// little more than to fetch one: they are most often far away, and come side by side.
    pub(crate) fn fetch(&mut self, place: u32) -> Kept {
        self.free.push(place);
        self.kept[place as usize]
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
            Body::Told(told) => Some(told.into_message()),
            Body::Other(message) => {
                self.free_messages.push(message);
                self.messages[message as usize].take()
            }
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
        let to = Destination { flow: 7, ..Destination::default() };
        for (fsn, frames) in cases {
            let sent = message(*fsn, frames);
            let place = packets.insert(to, 1472, Some(&sent));
            kept_whole += packets.messages.iter().flatten().count();
            let other = packets.insert(to, 40, None);
            let kept = packets.fetch(other);
            assert_eq!((kept.size, packets.open(&kept)), (40, None));
            let lost = packets.insert(to, 1472, Some(&sent));
            packets.discard(lost);
            let kept = packets.fetch(place);
            assert_eq!((kept.size, kept.to, packets.open(&kept)), (1472, to, Some(sent)));
            assert_eq!(packets.messages.iter().flatten().count(), 0);
        }
        assert_eq!((packets.count(), packets.kept.len()), (0, 2));
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
    fn an_acknowledgement_of_few_ranges_and_small_numbers_is_kept_as_these() {
        let told = |fsn, ranges: &[std::ops::Range<u64>], delay| {
            let (ranges, delay) = (ranges.iter().cloned().collect(), Span::from_millis(delay));
            (fsn, vec![Frame::Ack(Ack { path: PathId(9), delay, arrived: None, ranges, ecn: None })])
        };
        let most = u64::from(u32::MAX);
        let few = [
            told(0, &[0..1], 0),
            told(most, &[most..most + 1, 70..90, 0..50], 4_000),
            told(7, &[90..91, 70..80, 60..65, 0..50], 25),
        ];
        assert_eq!(keep(&few), 0);
        let others = [
            told(most + 1, &[0..1], 0),
            told(7, &[most + 1..most + 2], 0),
            told(7, &[90..91, 70..80, 60..65, 30..50, 0..20], 25),
            told(7, &[3..4], 5_000),
            told(7, &[], 1),
        ];
        assert_eq!(keep(&others), others.len());
    }
}
