//! All streams of a session, the order in which they send, and the credit they share.
//!
//! Session credit is the sum of all streams' highest offsets, backed by one shared receive buffer (mTCP [M1], MPTCP §2
//! [P3]). Limits are absolute, so acknowledgements that overtake each other on different paths are unambiguous.

mod budget;
mod credit;
mod offset_map;
mod out_of_order;
mod receiving;
mod recv;
mod redundant;
mod send;
mod sending;
mod sparse;
mod table;

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_wire::{Payload, Side, StreamId};

pub(crate) use budget::next_turn;
pub use budget::{MemoryBudget, Reservation};
pub use recv::Read;
pub(crate) use recv::{Inserted, RecvHalf, Window};
pub(crate) use redundant::Carried;
pub(crate) use send::SendHalf;
use sending::{Blocked, Ready};
pub(crate) use sending::{Pick, Turn};
use table::Table;

use crate::control::{Control, ControlQueue};
use crate::event::Event;

/// Why a call on a stream was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It never existed, or both halves have ended.
    #[error("there is no such stream, or it is over")]
    Unknown,
    /// It was finished or reset here, or stopped by the peer.
    #[error("the stream takes no more bytes")]
    Ended,
}

/// Most pieces that may wait in reassembly over all streams; an arrival beyond it counts as lost. It limits the memory that
/// a peer can use up by sending every other byte.
const MAX_PIECES: usize = 1 << 16;
/// A window of this many bytes admits one piece: the memory of a piece in addition to its bytes.
const PIECE_COST: u64 = 128;

/// The memory of a stream in addition to its bytes.
const STREAM_COST: u64 = 1 << 10;
/// Streams that a peer may have open even with an empty budget.
const FREE_STREAMS: u64 = 4;

#[derive(Debug)]
struct Stream<P> {
    send: SendHalf<P>,
    recv: RecvHalf<P>,
    queued: bool,
    credit_blocked: bool,
    /// Whether its data is sent on every path.
    redundant: bool,
    /// Code for STOP_SENDING, after the application asked for it.
    stop_code: Option<u64>,
}

impl<P: Payload> Stream<P> {
    /// True when nothing more is sent or received on it.
    fn is_over(&self) -> bool {
        self.send.is_finished() && self.recv.is_finished()
    }
}

/// The part of a stream that a packet carried. Kept for everything in flight, so it is small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentRun {
    pub stream: StreamId,
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    pub fin: bool,
}

impl SentRun {
    /// A run of at most a packet's bytes.
    pub(crate) fn new(stream: StreamId, range: Range<u64>, fin: bool) -> Self {
        debug_assert!(range.end - range.start <= u64::from(u32::MAX), "{range:?} is more than a packet");
        Self { stream, offset: range.start, length: (range.end - range.start) as u32, fin }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.end()
    }

    /// The run without the bytes before `offset`, which lies in it.
    pub(crate) fn from(&self, offset: u64) -> Self {
        Self::new(self.stream, offset..self.end(), self.fin)
    }

    /// Appends the run that follows; false if `next` does not follow, or the result would be too long.
    pub(crate) fn extend(&mut self, next: &Self) -> bool {
        let follows = self.stream == next.stream && self.end() == next.offset && !self.fin;
        let Some(length) = self.length.checked_add(next.length).filter(|_| follows) else { return false };
        (self.length, self.fin) = (length, next.fin);
        true
    }
}

/// The fields are ordered by access: sending, both, receiving, and last the rare ones.
#[repr(C)]
pub(crate) struct Streams<P> {
    limits: Limits,
    sent: u64,
    peer_limit: u64,
    buffered: u64,
    /// How many streams are redundant.
    redundant: u32,
    room_blocked: Blocked,
    // From here on receiving needs the fields, too.
    ready: Ready,
    /// Streams whose new data waits for session credit.
    credit_blocked: VecDeque<StreamId>,
    table: Table<P>,
    unsent: u64,
    // Up to here sending needs the fields.
    received: u64,
    read: u64,
    window: Window,
    granted: Granted,
    waiting: Waiting,
    opened_there: u64,
    side: Side,
    /// Whether the application waits for a stream.
    wants_stream: bool,
    // Up to here receiving needs the fields.
    opening: Opening,
    reservation: Reservation,
}

/// Pieces and bytes of all streams that wait for earlier bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    pieces: usize,
    bytes: u64,
}

/// Credit beyond the first windows.
#[derive(Clone, Copy, Debug, Default)]
struct Granted {
    /// The session's limit when credit for unread bytes was last asked for.
    asked_at: u64,
    /// Bytes by which streams' windows have grown, over all open streams.
    growth: u64,
}

/// The streams that each end has opened and may open.
struct Opening {
    opened_here: u64,
    may_open_here: u64,
    may_open_there: u64,
    /// The peer's streams that are not over, and the memory reserved for them.
    open_there: u64,
    reserved_there: Reservation,
    incoming: VecDeque<StreamId>,
}

/// Sizes in bytes, see [`crate::config::MemoryConfig`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub initial_window: u64,
    pub max_window: u64,
    pub independent_streams: bool,
    pub send_buffer: u64,
    /// Unsent bytes at which the application has to wait; follows the paths' windows.
    pub unsent: u64,
    /// The credit that the peer granted for each new stream.
    pub peer_stream: u64,
}

impl<P: Payload> Streams<P> {
    /// The bytes of this struct that a packet with acknowledgements needs.
    pub(crate) const FOR_ACKS: Range<usize> = 0..std::mem::offset_of!(Self, received);
    /// The bytes that a packet without acknowledgements needs.
    pub(crate) const FOR_DATA: Range<usize> =
        std::mem::offset_of!(Self, ready)..std::mem::offset_of!(Self, opening);

    pub(crate) fn new(side: Side, limits: Limits, max_streams: u64, mut reservation: Reservation) -> Self {
        let granted = reservation.reserve_first(limits.initial_window);
        Self {
            side,
            table: Table::new(),
            opening: Opening {
                opened_here: 0,
                may_open_here: 0,
                may_open_there: max_streams,
                open_there: 0,
                reserved_there: reservation.sibling(),
                incoming: VecDeque::new(),
            },
            wants_stream: false,
            opened_there: 0,
            ready: Ready::default(),
            credit_blocked: VecDeque::new(),
            room_blocked: Blocked::default(),
            limits,
            sent: 0,
            peer_limit: 0,
            received: 0,
            read: 0,
            window: Window::new(granted),
            granted: Granted::default(),
            reservation,
            buffered: 0,
            unsent: 0,
            waiting: Waiting::default(),
            redundant: 0,
        }
    }

    /// Prefetches the first stream, often the only one.
    pub(crate) fn prefetch(&self) {
        self.table.prefetch();
    }

    /// Prefetches the acknowledged ranges of the first stream, which must be in the cache.
    pub(crate) fn prefetch_acked(&self) {
        if let Some(stream) = self.table.first() {
            stream.send.prefetch_acked();
        }
    }

    /// Prefetches the index in which a piece's position is looked up. The stream must be in the cache.
    pub(crate) fn prefetch_held(&self, id: StreamId) {
        if let Some(stream) = self.table.get(id) {
            stream.recv.prefetch();
        }
    }

    /// Prefetches the segment before a piece at `offset`, after [`Self::prefetch_held`] has taken effect.
    pub(crate) fn prefetch_place(&self, id: StreamId, offset: u64) {
        if let Some(stream) = self.table.get(id) {
            stream.recv.prefetch_segment_before(offset);
        }
    }

    /// Frees unused memory.
    pub(crate) fn rest(&mut self) {
        self.table.shrink_to_fit();
        self.opening.incoming.shrink_to_fit();
        self.ready.line.shrink_to_fit();
        self.credit_blocked.shrink_to_fit();
        self.room_blocked.line.shrink_to_fit();
    }

    /// Frees, because the session is over, written bytes that will never be sent and the room for more. Received bytes
    /// can still be read.
    pub(crate) fn end(&mut self) {
        self.table.iter_mut().for_each(|stream| stream.send.forget_written());
        let unread = self.received.saturating_sub(self.read);
        self.reservation.hold(unread.min(self.reservation.held()));
    }

    /// True when the peer has reset the stream and the application has not read that yet.
    pub(crate) fn is_reset(&self, id: StreamId) -> bool {
        self.table.get(id).is_some_and(|stream| stream.recv.is_reset())
    }

    /// True while the application may write, and the peer wants it.
    pub(crate) fn is_writable(&self, id: StreamId) -> bool {
        self.table.get(id).is_some_and(|stream| stream.send.is_open())
    }

    /// The session window granted at the start, in bytes.
    pub(crate) fn initial_window(&self) -> u64 {
        self.window.size()
    }

    pub(crate) fn on_peer_params(&mut self, max_data: u64, max_stream_data: u64, max_streams: u64) {
        self.peer_limit = max_data;
        self.limits.peer_stream = max_stream_data;
        self.opening.may_open_here = max_streams;
        for stream in self.table.iter_mut() {
            stream.send.raise_limit(max_stream_data);
        }
        self.requeue_all();
    }

    fn id(&self, opener: Side, index: u64) -> StreamId {
        StreamId(index * 2 + u64::from(opener == Side::Server))
    }

    fn insert(&mut self, id: StreamId) {
        let recv = RecvHalf::new(self.limits.initial_window.min(self.window.size()));
        let send = SendHalf::new(self.limits.peer_stream);
        let stream =
            Stream { send, recv, queued: false, credit_blocked: false, redundant: false, stop_code: None };
        self.table.insert(id, stream);
        // With another stream, the session's window may grow again.
        self.granted.asked_at = 0;
    }

    pub(crate) fn open(&mut self) -> Option<StreamId> {
        if self.opening.opened_here >= self.opening.may_open_here {
            self.wants_stream = true;
            return None;
        }
        let id = self.id(self.side, self.opening.opened_here);
        self.opening.opened_here += 1;
        self.insert(id);
        Some(id)
    }

    /// Bytes that were written and are not acknowledged yet.
    pub(crate) fn buffered(&self) -> u64 {
        self.buffered
    }

    pub(crate) fn accept(&mut self) -> Option<StreamId> {
        self.opening.incoming.pop_front()
    }

    // Calls of the application.

    pub(crate) fn write(&mut self, id: StreamId, data: &mut P) -> Result<usize, StreamError> {
        let (unsent_room, buffer_room) = (
            self.limits.unsent.saturating_sub(self.unsent),
            self.limits.send_buffer.saturating_sub(self.buffered),
        );
        let share = self.fair_share();
        let stream = self.table.get_mut(id).ok_or(StreamError::Unknown)?;
        if !stream.send.is_open() {
            return Err(StreamError::Ended);
        }
        let unsent_room = unsent_room.min(share.saturating_sub(stream.send.unsent()));
        // Bytes without credit of their own would take the room of other streams.
        let credit = if self.limits.independent_streams { stream.send.credit_left() } else { u64::MAX };
        let taken = (data.len() as u64).min(unsent_room).min(buffer_room).min(credit);
        if taken < data.len() as u64 && !stream.send.wants_room {
            stream.send.wants_room = true;
            // A stream without credit is woken by more of it.
            if taken < credit {
                self.room_blocked.line.push_back(id);
            }
        }
        if taken > 0 {
            stream.send.write(data.split_to(taken as usize));
            (self.unsent, self.buffered) = (self.unsent + taken, self.buffered + taken);
            self.enqueue(id);
        }
        Ok(taken as usize)
    }

    pub(crate) fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        let stream = self.table.get_mut(id).ok_or(StreamError::Unknown)?;
        if !stream.send.is_open() {
            return Err(StreamError::Ended);
        }
        stream.send.finish();
        self.enqueue(id);
        Ok(())
    }

    pub(crate) fn reset(
        &mut self,
        id: StreamId,
        code: u64,
        (events, out): (&mut VecDeque<Event>, &mut ControlQueue),
    ) -> Result<(), StreamError> {
        let stream = self.table.get_mut(id).ok_or(StreamError::Unknown)?;
        let (buffered, unsent) = (stream.send.buffered(), stream.send.unsent());
        if stream.send.reset(code) {
            self.buffered -= buffered;
            self.unsent -= unsent;
            out.push(Control::ResetStream(id));
            self.wake_writers(events);
        }
        Ok(())
    }

    pub(crate) fn stop(
        &mut self,
        id: StreamId,
        code: u64,
        out: &mut ControlQueue,
    ) -> Result<(), StreamError> {
        let stream = self.table.get_mut(id).ok_or(StreamError::Unknown)?;
        let before = stream.recv.read_offset();
        stream.recv.stop();
        stream.stop_code = Some(code);
        self.read += stream.recv.read_offset() - before;
        if stream.recv.wants_credit() {
            out.push(Control::StopSending(id));
        }
        if self.is_credit_due() {
            out.push(Control::MaxData);
        }
        self.forget_if_over(id, out);
        Ok(())
    }

    /// Bytes of `range` not yet received; all of them for an unknown stream.
    pub(crate) fn not_arrived(&self, id: StreamId, range: Range<u64>) -> u64 {
        let all = range.end.saturating_sub(range.start);
        self.table.get(id).map_or(all, |stream| stream.recv.not_arrived(range))
    }

    pub(crate) fn read(
        &mut self,
        id: StreamId,
        most: usize,
        out: &mut ControlQueue,
    ) -> Result<Read<P>, StreamError> {
        let stream = self.table.get_mut(id).ok_or(StreamError::Unknown)?;
        let result = stream.recv.read(most);
        match &result {
            Read::Data(data) => {
                self.read += data.len() as u64;
                if stream.recv.wants_credit() && stream.recv.window.is_due(stream.recv.read_offset()) {
                    out.push(Control::MaxStreamData(id));
                }
                if self.is_credit_due() {
                    out.push(Control::MaxData);
                }
            }
            Read::Blocked => stream.recv.announced = false,
            Read::Finished | Read::Reset(_) => self.forget_if_over(id, out),
        }
        Ok(result)
    }

    fn forget_if_over(&mut self, id: StreamId, out: &mut ControlQueue) {
        if !self.table.get(id).is_some_and(Stream::is_over) {
            return;
        }
        let removed = self.table.remove(id);
        self.redundant -= u32::from(removed.as_ref().is_some_and(|stream| stream.redundant));
        self.granted.growth -= removed.map_or(0, |stream| self.growth_of(&stream.recv));
        if id.opener() != self.side {
            self.opening.may_open_there += 1;
            self.opening.open_there -= 1;
            let needed = self.opening.open_there.saturating_sub(FREE_STREAMS) * STREAM_COST;
            self.opening.reserved_there.give_back(self.opening.reserved_there.held().saturating_sub(needed));
            out.push(Control::MaxStreams);
        }
    }

    pub(crate) fn stream_limit(&self) -> u64 {
        self.opening.may_open_there
    }

    pub(crate) fn reset_frame(&self, id: StreamId) -> Option<(u64, u64)> {
        let send = &self.table.get(id)?.send;
        send.reset_code().map(|code| (code, send.sent_end()))
    }

    pub(crate) fn stop_code(&self, id: StreamId) -> Option<u64> {
        self.table.get(id).filter(|stream| stream.recv.wants_credit())?.stop_code
    }

    /// True if all written data has been acknowledged.
    pub(crate) fn is_drained(&self) -> bool {
        self.table
            .iter()
            .all(|stream| stream.send.buffered() == 0 && (stream.send.is_open() || stream.send.is_finished()))
    }

    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting.bytes
    }

    pub(crate) fn highest_received(&self) -> u64 {
        self.received
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.read
    }
}
