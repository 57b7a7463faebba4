//! All streams of a session, the order in which they send, and the credit they share.
//!
//! Session credit is the sum of all streams' highest offsets, with one shared receive buffer behind it
//! (mTCP [M1], MPTCP §2 [P3]). Limits are absolute, so acknowledgements that overtake each other between
//! paths cannot be misread.

mod arriving;
mod budget;
mod held;
mod leaving;
mod recv;
mod redundant;
mod runs;
mod send;
mod table;

use std::collections::VecDeque;
use std::ops::Range;

use anabranch_wire::{Payload, Side, Span, StreamId, Time};

pub(crate) use budget::next_turn;
pub use budget::{MemoryBudget, Reservation};
pub(crate) use leaving::{Pick, Turn};
pub use recv::Read;
pub(crate) use recv::{Inserted, RecvHalf, Window};
pub(crate) use redundant::Carried;
pub(crate) use send::SendHalf;
use table::Table;

use crate::control::{Control, ControlQueue};
use crate::event::Event;

/// Why a call on a stream was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It never existed, or both halves are over.
    #[error("there is no such stream, or it is over")]
    Unknown,
    /// It was finished or reset here, or stopped by the peer.
    #[error("the stream takes no more bytes")]
    Ended,
}

/// Most pieces that may wait in reassembly over all streams; an arrival beyond it counts as lost.
/// It bounds what a peer that sends one byte in two can make us hold.
const MAX_PIECES: usize = 1 << 16;
/// A window of this many bytes admits one piece: what keeping a piece takes beside its bytes.
const PIECE_COST: u64 = 128;

/// What keeping a stream takes beside its bytes.
const STREAM_COST: u64 = 1 << 10;
/// Streams that a peer may have open whatever is left in the budget.
const FREE_STREAMS: u64 = 4;

#[derive(Debug)]
struct Stream<P> {
    send: SendHalf<P>,
    recv: RecvHalf<P>,
    queued: bool,
    /// In `credit_blocked`.
    credit_blocked: bool,
    /// What is written leaves on every path.
    redundant: bool,
    /// Code for STOP_SENDING, once the application asked for it.
    stop_code: Option<u64>,
}

impl<P: Payload> Stream<P> {
    /// True when nothing more comes or goes on it.
    fn is_over(&self) -> bool {
        self.send.is_finished() && self.recv.is_finished()
    }
}

/// What of a stream's data a packet carried. Everything in flight is remembered by one, so it is small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentRun {
    pub stream: StreamId,
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    pub fin: bool,
}

impl SentRun {
    /// A run of no more bytes than a packet has.
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

    /// The same without what comes before `offset`, which lies in it.
    pub(crate) fn from(&self, offset: u64) -> Self {
        Self::new(self.stream, offset..self.end(), self.fin)
    }

    /// Takes in the run that follows; false for one that does not, or that is too much.
    pub(crate) fn extend(&mut self, next: &Self) -> bool {
        let follows = self.stream == next.stream && self.end() == next.offset && !self.fin;
        let Some(length) = self.length.checked_add(next.length).filter(|_| follows) else { return false };
        (self.length, self.fin) = (length, next.fin);
        true
    }
}

/// The fields lie by who asks for them: who sends, both, who receives, and last what few packets ask for.
#[repr(C)]
pub(crate) struct Streams<P> {
    limits: Limits,
    sent: u64,
    peer_limit: u64,
    buffered: u64,
    /// How many streams are redundant.
    redundant: usize,
    /// Streams whose application was refused and waits.
    room_blocked: VecDeque<StreamId>,
    // From here on who receives asks, too.
    /// Streams with something to send, in turn.
    ready: VecDeque<StreamId>,
    /// Streams whose new data waits for session credit.
    credit_blocked: VecDeque<StreamId>,
    table: Table<P>,
    unsent: u64,
    // Up to here who sends asks.
    received: u64,
    read: u64,
    window: Window,
    pieces: usize,
    waiting_bytes: u64,
    opened_there: u64,
    side: Side,
    /// The application was refused a stream and waits.
    wants_stream: bool,
    // Up to here who receives asks.
    opened_here: u64,
    may_open_here: u64,
    may_open_there: u64,
    /// Streams of the peer that are not over, and what is reserved for them.
    open_there: u64,
    reserved_there: Reservation,
    incoming: VecDeque<StreamId>,
    reservation: Reservation,
}

/// Sizes in bytes, see [`crate::config::MemoryConfig`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub initial_window: u64,
    pub max_window: u64,
    pub send_buffer: u64,
    /// Unsent bytes at which the application is refused; follows the paths' windows.
    pub unsent: u64,
    /// What the peer granted for each new stream.
    pub peer_stream: u64,
}

impl<P: Payload> Streams<P> {
    /// The bytes in it that a packet asks for that may acknowledge something.
    pub(crate) const FOR_ACKS: Range<usize> = 0..std::mem::offset_of!(Self, received);
    /// And those that one asks for that does not.
    pub(crate) const FOR_DATA: Range<usize> =
        std::mem::offset_of!(Self, ready)..std::mem::offset_of!(Self, opened_here);

    pub(crate) fn new(side: Side, limits: Limits, max_streams: u64, mut reservation: Reservation) -> Self {
        let granted = reservation.reserve_first(limits.initial_window);
        Self {
            side,
            table: Table::new(),
            opened_here: 0,
            may_open_here: 0,
            wants_stream: false,
            opened_there: 0,
            may_open_there: max_streams,
            open_there: 0,
            reserved_there: reservation.beside(),
            incoming: VecDeque::new(),
            ready: VecDeque::new(),
            credit_blocked: VecDeque::new(),
            room_blocked: VecDeque::new(),
            limits,
            sent: 0,
            peer_limit: 0,
            received: 0,
            read: 0,
            window: Window::new(granted),
            reservation,
            buffered: 0,
            unsent: 0,
            pieces: 0,
            waiting_bytes: 0,
            redundant: 0,
        }
    }

    /// Has the first stream fetched, which is often the only one.
    pub(crate) fn prefetch(&self) {
        self.table.prefetch();
    }

    /// Has fetched what was acknowledged of the first stream, which is at hand.
    pub(crate) fn prefetch_acked(&self) {
        if let Some(stream) = self.table.first() {
            stream.send.prefetch_acked();
        }
    }

    /// Has fetched where the place of a piece of a stream is looked for. The first stream is at hand.
    pub(crate) fn prefetch_held(&self, id: StreamId) {
        if let Some(stream) = self.table.get(id) {
            stream.recv.prefetch();
        }
    }

    /// Has fetched what a piece of a stream at `offset` is kept beside, once [`Self::prefetch_held`] is done.
    pub(crate) fn prefetch_place(&self, id: StreamId, offset: u64) {
        if let Some(stream) = self.table.get(id) {
            stream.recv.prefetch_place(offset);
        }
    }

    /// Gives back what memory is not in use.
    pub(crate) fn rest(&mut self) {
        self.table.shrink_to_fit();
        self.incoming.shrink_to_fit();
        self.ready.shrink_to_fit();
        self.credit_blocked.shrink_to_fit();
        self.room_blocked.shrink_to_fit();
    }

    /// The session window granted at the start, in bytes.
    pub(crate) fn initial_window(&self) -> u64 {
        self.window.size()
    }

    pub(crate) fn on_peer_params(&mut self, max_data: u64, max_stream_data: u64, max_streams: u64) {
        self.peer_limit = max_data;
        self.limits.peer_stream = max_stream_data;
        self.may_open_here = max_streams;
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
    }

    pub(crate) fn open(&mut self) -> Option<StreamId> {
        if self.opened_here >= self.may_open_here {
            self.wants_stream = true;
            return None;
        }
        let id = self.id(self.side, self.opened_here);
        self.opened_here += 1;
        self.insert(id);
        Some(id)
    }

    /// Bytes that were written and are not acknowledged yet.
    pub(crate) fn buffered(&self) -> u64 {
        self.buffered
    }

    pub(crate) fn accept(&mut self) -> Option<StreamId> {
        self.incoming.pop_front()
    }

    // What the application does.

    pub(crate) fn write(&mut self, id: StreamId, data: &mut P) -> Result<usize, StreamError> {
        let (unsent_room, buffer_room) = (
            self.limits.unsent.saturating_sub(self.unsent),
            self.limits.send_buffer.saturating_sub(self.buffered),
        );
        let stream = self.table.get_mut(id).ok_or(StreamError::Unknown)?;
        if !stream.send.is_open() {
            return Err(StreamError::Ended);
        }
        let taken = (data.len() as u64).min(unsent_room).min(buffer_room);
        if taken < data.len() as u64 && !stream.send.wants_room {
            stream.send.wants_room = true;
            self.room_blocked.push_back(id);
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
        if self.window.is_due(self.read) {
            out.push(Control::MaxData);
        }
        self.forget_if_over(id, out);
        Ok(())
    }

    /// How many bytes of a range are not here; of a stream that nobody has heard of, all.
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
                if self.window.is_due(self.read) {
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
        self.redundant -= usize::from(removed.is_some_and(|stream| stream.redundant));
        if id.opener() != self.side {
            self.may_open_there += 1;
            self.open_there -= 1;
            let needed = self.open_there.saturating_sub(FREE_STREAMS) * STREAM_COST;
            self.reserved_there.give_back(self.reserved_there.held().saturating_sub(needed));
            out.push(Control::MaxStreams);
        }
    }

    /// The session's limit to tell, grown when the application takes more than the window allows for.
    pub(crate) fn renew_data(&mut self, now: Time, rtt: Span) -> u64 {
        let wanted = self.window.wanted(now, self.read, rtt).min(self.limits.max_window);
        let more = wanted.saturating_sub(self.window.size());
        if more > 0 {
            let size = self.window.size() + self.reservation.reserve_more(more);
            self.window.grow(size);
        }
        self.window.renew(self.read)
    }

    /// A stream's limit to tell, and how far it has arrived; `None` when nothing more can come on it.
    pub(crate) fn renew_stream(&mut self, id: StreamId, now: Time, rtt: Span) -> Option<(u64, u64)> {
        let most = self.window.size().max(self.limits.initial_window);
        let stream = self.table.get_mut(id).filter(|stream| stream.recv.is_receiving())?;
        let read = stream.recv.read_offset();
        let wanted = stream.recv.window.wanted(now, read, rtt).min(most);
        stream.recv.window.grow(wanted);
        Some((stream.recv.window.renew(read), stream.recv.tell_received()))
    }

    pub(crate) fn stream_limit(&self) -> u64 {
        self.may_open_there
    }

    pub(crate) fn reset_frame(&self, id: StreamId) -> Option<(u64, u64)> {
        let send = &self.table.get(id)?.send;
        send.reset_code().map(|code| (code, send.sent_end()))
    }

    pub(crate) fn stop_code(&self, id: StreamId) -> Option<u64> {
        self.table.get(id).filter(|stream| stream.recv.wants_credit())?.stop_code
    }

    /// True when everything written has been acknowledged.
    pub(crate) fn is_drained(&self) -> bool {
        self.table
            .iter()
            .all(|stream| stream.send.buffered() == 0 && (stream.send.is_open() || stream.send.is_finished()))
    }

    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub(crate) fn highest_received(&self) -> u64 {
        self.received
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.read
    }
}
