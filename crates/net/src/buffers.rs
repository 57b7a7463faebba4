//! Memory for received datagrams, used again as soon as nobody holds a piece of it.
//!
//! A datagram's bytes go to the application without being copied: what a stream hands out are slices of
//! the buffer that the system wrote. A slice keeps its whole buffer alive, so a peer that sends little
//! into each buffer, or lets little of it be read, could hold sixty-four kilobytes for every byte.
//! [`thrifty`] says which slices may stay: only long contiguous runs of one stream, which are kept and
//! released together; all else is copied out. So memory held stays within a small factor of the bytes
//! held, which flow control bounds.

use std::collections::VecDeque;

use anabranch_wire::{Frame, Packet, StreamId};
use bytes::{Bytes, BytesMut};

/// Room for the largest batch that the system puts together.
pub(crate) const BUFFER_LEN: usize = 1 << 16;

/// Buffers given out that are remembered to be used again.
const MOST_LENT: usize = 64;

/// A run of stream bytes in one buffer stays there when it is at least this long.
const SHORTEST_RUN: usize = BUFFER_LEN / 4;

/// Buffers of [`BUFFER_LEN`] bytes.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    free: Vec<BytesMut>,
    lent: VecDeque<Bytes>,
}

impl BufferPool {
    /// A buffer, full of whatever was in it before.
    pub(crate) fn take(&mut self) -> BytesMut {
        if let Some(buffer) = self.free.pop() {
            return buffer;
        }
        for _ in 0..self.lent.len().min(2) {
            let Some(oldest) = self.lent.pop_front() else { break };
            match oldest.try_into_mut() {
                Ok(buffer) if buffer.len() == BUFFER_LEN => return buffer,
                Ok(_) => {}
                Err(still_used) => self.lent.push_back(still_used),
            }
        }
        BytesMut::zeroed(BUFFER_LEN)
    }

    /// Remembers a buffer of which others may hold slices.
    pub(crate) fn put_shared(&mut self, buffer: Bytes) {
        match buffer.try_into_mut() {
            Ok(buffer) => self.free.push(buffer),
            Err(shared) => {
                if self.lent.len() >= MOST_LENT {
                    self.lent.pop_front();
                }
                self.lent.push_back(shared);
            }
        }
    }
}

/// Copies the payloads of `packets`, all from one buffer, that are not part of a long run.
pub(crate) fn thrifty<'a>(packets: impl Iterator<Item = &'a mut Packet<Bytes>>) {
    let mut run = Run::default();
    for frame in packets.flat_map(|packet| packet.frames.iter_mut()) {
        match frame {
            Frame::Stream(stream) if !stream.data.is_empty() => {
                if run.stream != stream.stream || run.end != stream.offset {
                    run.finish();
                    run.stream = stream.stream;
                }
                run.end = stream.offset + stream.data.len() as u64;
                run.len += stream.data.len();
                run.pieces.push(&mut stream.data);
            }
            Frame::Datagram(datagram) => datagram.data = Bytes::copy_from_slice(&datagram.data),
            _ => {}
        }
    }
    run.finish();
}

#[derive(Default)]
struct Run<'a> {
    stream: StreamId,
    end: u64,
    len: usize,
    pieces: Vec<&'a mut Bytes>,
}

impl Run<'_> {
    fn finish(&mut self) {
        if self.len < SHORTEST_RUN {
            for piece in self.pieces.drain(..) {
                *piece = Bytes::copy_from_slice(piece);
            }
        }
        self.pieces.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Frames, Fsn, PathId, StreamFrame};

    use super::*;

    fn packet(buffer: &Bytes, at: usize, len: usize, offset: u64) -> Packet<Bytes> {
        let data = buffer.slice(at..at + len);
        let frame = Frame::Stream(StreamFrame { stream: StreamId(0), offset, fin: false, data });
        Packet { path: PathId(0), fsn: Fsn(0), frames: Frames::from_iter([frame]) }
    }

    fn shares(packet: &Packet<Bytes>, buffer: &Bytes) -> bool {
        let Frame::Stream(frame) = &packet.frames[0] else { unreachable!() };
        buffer.as_ptr_range().contains(&frame.data.as_ptr())
    }

    #[test]
    fn a_long_run_keeps_its_buffer_and_nothing_is_copied() {
        let buffer = Bytes::from(vec![1; BUFFER_LEN]);
        let mut packets: Vec<_> =
            (0..20).map(|at| packet(&buffer, at * 1000, 1000, 5000 + at as u64 * 1000)).collect();
        thrifty(packets.iter_mut());
        assert!(packets.iter().all(|packet| shares(packet, &buffer)));
    }

    #[test]
    fn a_peer_that_sends_pieces_far_apart_holds_only_their_bytes() {
        let buffer = Bytes::from(vec![1; BUFFER_LEN]);
        let mut packets: Vec<_> =
            (0..40).map(|at| packet(&buffer, at * 1400, 1400, at as u64 * 1_000_000)).collect();
        thrifty(packets.iter_mut());
        assert!(packets.iter().all(|packet| !shares(packet, &buffer)));
    }

    #[test]
    fn a_buffer_is_used_again_once_its_slices_are_gone() {
        let mut pool = BufferPool::default();
        let shared = pool.take().freeze();
        let (address, slice) = (shared.as_ptr(), shared.slice(3..9));
        pool.put_shared(shared);
        assert_ne!(pool.take().as_ptr(), address);
        drop(slice);
        assert_eq!(pool.take().as_ptr(), address);
    }
}
