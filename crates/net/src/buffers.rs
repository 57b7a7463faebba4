//! Memory for received datagrams, reused when no slice of it is left.
//!
//! Bytes reach the application without a copy: a stream returns slices of the buffer that the system filled. A slice
//! keeps its whole buffer alive. A peer that sends little into each buffer could therefore occupy 64 KiB for every
//! byte.
//!
//! [`thrifty`] and [`thriftier`] decide which slices stay: only long contiguous runs of one stream, of which at least half is
//! new. Everything else is copied out. Memory then stays within three times the bytes held, which flow control bounds: twice
//! for the runs, and once for bytes that replace a run before it is released.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;

use anabranch_wire::{Frame, MarkedFrame, Packet, Span, StreamId, Time};
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

/// Room for the largest batch that the system delivers at once.
pub(crate) const BUFFER_LEN: usize = 1 << 16;

/// Most buffers kept for reuse. With several paths, that many wait for data still under way on another path.
const MOST_LENT: usize = 512;
/// Buffers kept while little is received.
const FEW_LENT: usize = 32;
/// After this long with little received data, the other buffers are freed.
const CALM: Span = Span::from_secs(1);

/// A run of stream bytes in one buffer stays there when it is at least this long.
const SHORTEST_RUN: usize = BUFFER_LEN / 2;

/// Buffers of [`BUFFER_LEN`] bytes, for all sockets of an endpoint. Creating one costs as much as receiving into it:
/// its memory is cleared, and often new from the system.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(Mutex<Pool>);

#[derive(Debug, Default)]
struct Pool {
    free: Vec<BytesMut>,
    lent: VecDeque<Bytes>,
    /// Since when each receive has filled at most one buffer.
    calm_since: Option<Time>,
}

impl BufferPool {
    /// Fills `buffers` up to `count`. Their contents are whatever they held before.
    pub(crate) fn take(&self, buffers: &mut Vec<BytesMut>, count: usize) {
        let mut pool = self.0.lock().expect("no panic while held");
        while buffers.len() < count {
            buffers.push(pool.take());
        }
    }

    /// Returns the buffers that one receive has filled to the pool. Slices of them may be in use.
    pub(crate) fn put(&self, now: Time, buffers: impl ExactSizeIterator<Item = Bytes>) {
        let mut pool = self.0.lock().expect("no panic while held");
        let is_calm = buffers.len() <= 1;
        // The last returned is used first, so that few are in use and stay in the cache.
        pool.take_back(2 * buffers.len());
        buffers.for_each(|buffer| pool.put(buffer));
        if !is_calm {
            pool.calm_since = None;
        } else if now.since(*pool.calm_since.get_or_insert(now)) >= CALM {
            pool.free.clear();
            let spare = pool.lent.len().saturating_sub(FEW_LENT);
            pool.lent.drain(..spare);
        }
    }
}

impl Pool {
    fn take(&mut self) -> BytesMut {
        if self.free.is_empty() {
            self.take_back(2);
        }
        self.free.pop().unwrap_or_else(|| BytesMut::zeroed(BUFFER_LEN))
    }

    /// Checks some of the buffers lent out longest for ones without a slice in use.
    fn take_back(&mut self, most: usize) {
        for _ in 0..most.min(self.lent.len()) {
            let Some(oldest) = self.lent.pop_front() else { break };
            match oldest.try_into_mut() {
                Ok(buffer) => self.free.push(buffer),
                Err(still_used) => self.lent.push_back(still_used),
            }
        }
    }

    fn put(&mut self, buffer: Bytes) {
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
    let copy = |data: &mut Bytes| *data = Bytes::copy_from_slice(data);
    for_runs(
        packets,
        |run| {
            if run.len() < SHORTEST_RUN {
                run.copy();
            }
        },
        copy,
    );
}

/// As [`thrifty`], for long runs of which few bytes are `missing`: the bytes already here are dropped, and the few
/// others would keep the buffer.
pub(crate) fn thriftier<'a>(
    packets: impl Iterator<Item = &'a mut Packet<Bytes>>,
    missing: impl Fn(StreamId, Range<u64>) -> u64,
) {
    let judge = |run: &mut Run<'_>| {
        if run.len() >= SHORTEST_RUN && missing(run.stream, run.start..run.end) < SHORTEST_RUN as u64 {
            run.copy();
        }
    };
    for_runs(packets, judge, |_| {});
}

/// Calls `each` for the runs of stream bytes in `packets`, and `datagram` for the bytes of datagrams.
fn for_runs<'a>(
    packets: impl Iterator<Item = &'a mut Packet<Bytes>>,
    mut each: impl FnMut(&mut Run<'_>),
    mut datagram: impl FnMut(&mut Bytes),
) {
    let mut run = Run::default();
    for frame in packets.flat_map(|packet| packet.frames.iter_mut()) {
        match frame {
            Frame::Stream(stream) if !stream.data.is_empty() => {
                if run.stream != stream.stream || run.end != stream.offset {
                    each(&mut run);
                    run.pieces.clear();
                    (run.stream, run.start) = (stream.stream, stream.offset);
                }
                run.end = stream.offset + stream.data.len() as u64;
                run.pieces.push(&mut stream.data);
            }
            Frame::Datagram(frame) | Frame::Marked(MarkedFrame { datagram: frame, .. }) => {
                datagram(&mut frame.data);
            }
            _ => {}
        }
    }
    each(&mut run);
}

/// Bytes of one stream that follow each other.
#[derive(Default)]
struct Run<'a> {
    stream: StreamId,
    start: u64,
    end: u64,
    pieces: SmallVec<[&'a mut Bytes; 48]>,
}

impl Run<'_> {
    fn len(&self) -> usize {
        if self.pieces.is_empty() { 0 } else { (self.end - self.start) as usize }
    }

    fn copy(&mut self) {
        for piece in &mut self.pieces {
            **piece = Bytes::copy_from_slice(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{DatagramFrame, Frames, Fsn, PathId, StreamFrame};

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
            (0..40).map(|at| packet(&buffer, at * 1000, 1000, 5000 + at as u64 * 1000)).collect();
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
    fn datagrams_never_keep_the_buffer() {
        let buffer = Bytes::from(vec![1; BUFFER_LEN]);
        let frame = DatagramFrame { class: 0, flow: 0, data: buffer.slice(..1000) };
        let marked = MarkedFrame { datagram: frame.clone(), number: None, place: None };
        let frames = Frames::from_iter([Frame::Datagram(frame), Frame::Marked(marked)]);
        let mut packet = Packet { path: PathId(0), fsn: Fsn(0), frames };
        thrifty(std::iter::once(&mut packet));
        for frame in &packet.frames {
            let (Frame::Datagram(frame) | Frame::Marked(MarkedFrame { datagram: frame, .. })) = frame else {
                unreachable!()
            };
            assert!(!buffer.as_ptr_range().contains(&frame.data.as_ptr()) && frame.data.len() == 1000);
        }
    }

    #[test]
    fn a_long_run_that_is_mostly_here_already_does_not_keep_its_buffer() {
        let buffer = Bytes::from(vec![1; BUFFER_LEN]);
        let kept = |new: u64| {
            let mut packets: Vec<_> =
                (0..40).map(|at| packet(&buffer, at * 1024, 1024, at as u64 * 1024)).collect();
            thrifty(packets.iter_mut());
            assert!(packets.iter().all(|packet| shares(packet, &buffer)), "it is long");
            thriftier(packets.iter_mut(), |stream, range| {
                assert_eq!((stream, range), (StreamId(0), 0..40 * 1024));
                new
            });
            packets.iter().all(|packet| shares(packet, &buffer))
        };
        assert_eq!([257, SHORTEST_RUN as u64 - 1, SHORTEST_RUN as u64].map(kept), [false, false, true]);
    }

    #[test]
    fn a_run_that_fills_less_than_half_a_buffer_does_not_keep_it() {
        let buffer = Bytes::from(vec![1; BUFFER_LEN]);
        let run = |len: usize| {
            let mut packets: Vec<_> =
                (0..len).map(|at| packet(&buffer, at * 1024, 1024, at as u64 * 1024)).collect();
            thrifty(packets.iter_mut());
            packets.iter().all(|packet| shares(packet, &buffer))
        };
        assert_eq!([31, 32].map(run), [false, true]);
    }

    fn take(pool: &BufferPool) -> Bytes {
        let mut taken = Vec::new();
        pool.take(&mut taken, 1);
        taken.remove(0).freeze()
    }

    #[test]
    fn a_buffer_is_used_again_once_its_slices_are_gone() {
        let pool = BufferPool::default();
        let shared = take(&pool);
        let (address, slice) = (shared.as_ptr(), shared.slice(3..9));
        pool.put(Time::ZERO, [shared].into_iter());
        assert_ne!(take(&pool).as_ptr(), address);
        drop(slice);
        assert_eq!(take(&pool).as_ptr(), address);
    }

    #[test]
    fn after_a_second_with_little_to_receive_most_buffers_are_let_go() {
        let pool = BufferPool::default();
        let mut taken = Vec::new();
        pool.take(&mut taken, 200);
        let shared: Vec<Bytes> = taken.into_iter().map(BytesMut::freeze).collect();
        let slices: Vec<Bytes> = shared.iter().map(|buffer| buffer.slice(..9)).collect();
        pool.put(Time::ZERO, shared.into_iter());
        drop(slices);
        let little = |at| pool.put(at, [take(&pool)].into_iter());
        little(Time::ZERO);
        assert!(pool.0.lock().unwrap().lent.len() > 190);
        little(Time::ZERO + CALM);
        let kept = pool.0.lock().unwrap();
        assert!(kept.lent.len() + kept.free.len() <= FEW_LENT, "{kept:?}");
    }
}
