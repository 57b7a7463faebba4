//! A packet under construction: its frames, and the record of them for the sender.

use anabranch_wire::{
    Frame, Frames, MAX_FRAMES, PACKET_OVERHEAD as OVERHEAD, Payload, StreamFrame, packet_encoded_len,
    stream_frame_overhead_last, varint_len,
};

use crate::path::{Content, Contents, Paths};
use crate::route::Route;
use crate::stream::SentRun;

/// A packet being built. It is large, so it is built in place and moved once.
pub(in super::super) struct Draft<P> {
    /// The path's route, except for proofs of other routes and closing messages.
    pub(in super::super) route: Route,
    pub(in super::super) frames: Frames<P>,
    pub(in super::super) contents: Contents,
    /// Bytes available for frames.
    pub(in super::super) whole: usize,
    /// Bytes of its frames, each encoded as if another followed.
    filled: usize,
    /// Bytes that the last frame saves if no other follows.
    spare: usize,
    /// Bytes of streams.
    pub(in super::super) data: u64,
    /// It asks for an acknowledgement.
    pub(in super::super) eliciting: bool,
    /// It carries application data.
    pub(in super::super) paced: bool,
}

impl<P: Payload> Draft<P> {
    pub(in super::super) fn new(whole: usize, route: Route) -> Self {
        let (frames, contents) = (Frames::new(), Contents::default());
        Self { route, frames, contents, whole, filled: 0, spare: 0, data: 0, eliciting: false, paced: false }
    }

    /// Adds a frame if it fits together with its length.
    pub(in super::super) fn push(&mut self, frame: Frame<P>) -> bool {
        let length = frame.encoded_len();
        if length > self.room() || self.is_full() {
            return false;
        }
        self.filled += length;
        self.spare = frame.length_len();
        self.eliciting |= frame.is_ack_eliciting();
        self.paced |=
            matches!(frame, Frame::Stream(_) | Frame::Datagram(_) | Frame::Marked(_) | Frame::Parity(_));
        self.frames.push(frame);
        true
    }

    /// Adds a stream frame cut to fit as the last one, which needs no length.
    pub(in super::super) fn add_stream(
        &mut self,
        frame: StreamFrame<P>,
        paths: &mut Paths,
        index: usize,
    ) -> SentRun {
        let length = frame.data.len();
        let end = frame.offset + length as u64;
        let run = SentRun::new(frame.stream, frame.offset..end, frame.fin);
        let last = stream_frame_overhead_last(frame.stream, frame.offset) + length;
        self.spare = varint_len(length as u64);
        self.filled += last + self.spare;
        self.data += length as u64;
        (self.eliciting, self.paced) = (true, true);
        self.frames.push(Frame::Stream(frame));
        paths.add_content(index, &mut self.contents, Content::Run(run.clone()));
        run
    }

    /// Bytes left for frames.
    pub(in super::super) fn room(&self) -> usize {
        self.whole.saturating_sub(self.filled)
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(in super::super) fn is_full(&self) -> bool {
        self.frames.len() + 1 >= MAX_FRAMES
    }

    /// Bytes of the sealed packet; the last frame is encoded without its length.
    pub(in super::super) fn size(&self) -> usize {
        let size = OVERHEAD + self.filled - self.spare;
        debug_assert_eq!(size, OVERHEAD + packet_encoded_len(&self.frames));
        size
    }
}
