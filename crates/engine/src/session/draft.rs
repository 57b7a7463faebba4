//! A packet in the making: its frames, and what of them is remembered.

use anabranch_wire::{
    Frame, Frames, MAX_FRAMES, Payload, StreamFrame, packet_encoded_len, stream_frame_overhead_last,
    varint_len,
};

use super::OVERHEAD;
use crate::path::{Content, Contents, Scoreboard};
use crate::route::Route;
use crate::stream::SentRun;

/// A packet in the making. It is large: it is built where it lies, and moved once.
pub(super) struct Draft<P> {
    /// Where it goes: the path's route, but for proofs of others and last words.
    pub(super) route: Route,
    pub(super) frames: Frames<P>,
    pub(super) contents: Contents,
    /// Bytes for frames, and how many those take that are in it, each as if another followed.
    pub(super) whole: usize,
    filled: usize,
    /// Bytes by which the last frame gets shorter if none follows.
    spare: usize,
    /// Bytes of streams.
    pub(super) data: u64,
    /// It asks for an acknowledgement.
    pub(super) eliciting: bool,
    /// It carries bytes of applications.
    pub(super) paced: bool,
}

impl<P: Payload> Draft<P> {
    pub(super) fn new(whole: usize, route: Route) -> Self {
        let (frames, contents) = (Frames::new(), Contents::default());
        Self { route, frames, contents, whole, filled: 0, spare: 0, data: 0, eliciting: false, paced: false }
    }

    /// Adds a frame if there is room for it with its length.
    pub(super) fn push(&mut self, frame: Frame<P>) -> bool {
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
    pub(super) fn add_stream(&mut self, frame: StreamFrame<P>, board: &mut Scoreboard) -> SentRun {
        let length = frame.data.len();
        let end = frame.offset + length as u64;
        let run = SentRun::new(frame.stream, frame.offset..end, frame.fin);
        let last = stream_frame_overhead_last(frame.stream, frame.offset) + length;
        self.spare = varint_len(length as u64);
        self.filled += last + self.spare;
        self.data += length as u64;
        (self.eliciting, self.paced) = (true, true);
        self.frames.push(Frame::Stream(frame));
        board.add(&mut self.contents, Content::Run(run.clone()));
        run
    }

    /// Bytes left for frames.
    pub(super) fn room(&self) -> usize {
        self.whole.saturating_sub(self.filled)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.frames.len() + 1 >= MAX_FRAMES
    }

    /// Bytes of the sealed packet, in which the last frame goes without its length.
    pub(super) fn size(&self) -> usize {
        let size = OVERHEAD + self.filled - self.spare;
        debug_assert_eq!(size, OVERHEAD + packet_encoded_len(&self.frames));
        size
    }
}
