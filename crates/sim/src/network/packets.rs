//! Packets on their way, each in a place of its own; only the place's number travels from link to link.
//!
//! Most packets carry one run of a stream, and most of a network's memory is packets in queues: such a packet is kept
//! as the few numbers that it says, in one cache line. Whatever else sessions say to each other is kept as
//! it is.

use anabranch_wire::{Frame, Fsn, Length, Message, Packet, PathId, StreamFrame, StreamId};
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

/// A packet on its way.
#[derive(Debug)]
pub(crate) struct Flying {
    /// UDP payload in bytes.
    pub size: u32,
    pub to: Destination,
    /// `None` for a packet of no session.
    pub message: Option<Message<Length>>,
}

/// A packet as it is kept: in one cache line, since it is most often fetched from afar.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Kept {
    size: u32,
    pub to: Destination,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    /// A packet of no session, or nothing at all.
    Empty,
    Run(Run),
    /// The place of a message.
    Other(u32),
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
    messages: Vec<Option<Message<Length>>>,
    free_messages: Vec<u32>,
}

impl Packets {
    pub(crate) fn insert(&mut self, packet: Flying) -> u32 {
        let Flying { size, to, message } = packet;
        let body = message.map_or(Body::Empty, |message| match Run::of(&message) {
            Some(run) => Body::Run(run),
            None => Body::Other(put(&mut self.messages, &mut self.free_messages, Some(message))),
        });
        put(&mut self.kept, &mut self.free, Kept { size, to, body })
    }

    /// Frees a packet's place; what it carried is the caller's.
    pub(crate) fn remove(&mut self, place: u32) -> Flying {
        let kept = self.fetch(place);
        self.open(kept)
    }

    /// Frees a packet's place, for [`Self::open`] to follow. To fetch many before the first is opened costs
    /// little more than to fetch one: they are most often far away, and come side by side.
    pub(crate) fn fetch(&mut self, place: u32) -> Kept {
        self.free.push(place);
        self.kept[place as usize]
    }

    /// What a packet carried that was fetched.
    pub(crate) fn open(&mut self, kept: Kept) -> Flying {
        let Kept { size, to, body } = kept;
        let message = match body {
            Body::Empty => None,
            Body::Run(run) => Some(run.into_message()),
            Body::Other(message) => {
                self.free_messages.push(message);
                self.messages[message as usize].take()
            }
        };
        Flying { size, to, message }
    }

    /// Packets on their way now.
    #[cfg(test)]
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

    fn flying(frames: &[Frame<Length>]) -> Flying {
        let packet = Packet { path: PathId(3), fsn: Fsn(1 << 40), frames: frames.into() };
        Flying { size: 1472, to: Destination::default(), message: Some(Message::Packet(packet)) }
    }

    #[test]
    fn a_packet_with_one_run_takes_one_cache_line() {
        assert_eq!(size_of::<Kept>(), 64);
    }

    #[test]
    fn what_is_kept_comes_back_as_it_was_and_leaves_its_place() {
        let data = Length(1400);
        let run = Frame::Stream(StreamFrame { stream: StreamId(4), offset: 1 << 50, fin: true, data });
        let mut packets = Packets::default();
        for frames in [vec![run.clone()], vec![Frame::Ping], vec![Frame::Ping, run.clone()], vec![run]] {
            let sent = flying(&frames);
            let place = packets.insert(flying(&frames));
            let other = packets.insert(Flying { message: None, ..flying(&frames) });
            assert_eq!(packets.remove(other).message, None);
            let arrived = packets.remove(place);
            assert_eq!((arrived.size, arrived.to, arrived.message), (sent.size, sent.to, sent.message));
        }
        assert_eq!((packets.count(), packets.kept.len(), packets.messages.len()), (0, 2, 1));
    }
}
