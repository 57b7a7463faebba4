//! All streams of a session, the order in which they send, and the credit they share.
//!
//! Session credit is the sum of all streams' highest offsets, with one shared receive buffer behind it
//! (mTCP [M1], MPTCP §2 [P3]). Limits are absolute, so acknowledgements that overtake each other between
//! paths cannot be misread.

mod budget;
mod recv;
mod send;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use anabranch_wire::{Payload, Side, Span, StreamFrame, StreamId, Time};

pub use budget::MemoryBudget;
pub(crate) use budget::Reservation;
pub use recv::Read;
pub(crate) use recv::{Inserted, RecvHalf, Window};
pub(crate) use send::SendHalf;

use crate::control::{Control, ControlQueue};
use crate::event::{Event, ProtocolError};

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

#[derive(Debug)]
struct Stream<P> {
    send: SendHalf<P>,
    recv: RecvHalf<P>,
    queued: bool,
    /// In `credit_blocked`.
    credit_blocked: bool,
    /// Code for STOP_SENDING, once the application asked for it.
    stop_code: Option<u64>,
}

/// What of a stream's data a packet carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentRun {
    pub stream: StreamId,
    pub range: Range<u64>,
    pub fin: bool,
}

pub(crate) struct Streams<P> {
    side: Side,
    map: BTreeMap<StreamId, Stream<P>>,
    opened_here: u64,
    may_open_here: u64,
    /// The application was refused a stream and waits.
    wants_stream: bool,
    opened_there: u64,
    may_open_there: u64,
    incoming: VecDeque<StreamId>,
    /// Streams with something to send, in turn.
    ready: VecDeque<StreamId>,
    /// Streams whose new data waits for session credit.
    credit_blocked: Vec<StreamId>,
    /// Streams whose application was refused and waits.
    room_blocked: VecDeque<StreamId>,
    limits: Limits,
    sent: u64,
    peer_limit: u64,
    received: u64,
    read: u64,
    window: Window,
    reservation: Reservation,
    buffered: u64,
    unsent: u64,
    pieces: usize,
    waiting_bytes: u64,
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
    pub(crate) fn new(side: Side, limits: Limits, max_streams: u64, mut reservation: Reservation) -> Self {
        let granted = reservation.reserve_first(limits.initial_window);
        Self {
            side,
            map: BTreeMap::new(),
            opened_here: 0,
            may_open_here: 0,
            wants_stream: false,
            opened_there: 0,
            may_open_there: max_streams,
            incoming: VecDeque::new(),
            ready: VecDeque::new(),
            credit_blocked: Vec::new(),
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
        }
    }

    /// The session window granted at the start, in bytes.
    pub(crate) fn initial_window(&self) -> u64 {
        self.window.size()
    }

    pub(crate) fn on_peer_params(&mut self, max_data: u64, max_stream_data: u64, max_streams: u64) {
        self.peer_limit = max_data;
        self.limits.peer_stream = max_stream_data;
        self.may_open_here = max_streams;
        for stream in self.map.values_mut() {
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
        self.map.insert(id, Stream { send, recv, queued: false, credit_blocked: false, stop_code: None });
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

    pub(crate) fn accept(&mut self) -> Option<StreamId> {
        self.incoming.pop_front()
    }

    // What the application does.

    pub(crate) fn write(&mut self, id: StreamId, data: &mut P) -> Result<usize, StreamError> {
        let (unsent_room, buffer_room) = (
            self.limits.unsent.saturating_sub(self.unsent),
            self.limits.send_buffer.saturating_sub(self.buffered),
        );
        let stream = self.map.get_mut(&id).ok_or(StreamError::Unknown)?;
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
        let stream = self.map.get_mut(&id).ok_or(StreamError::Unknown)?;
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
        let stream = self.map.get_mut(&id).ok_or(StreamError::Unknown)?;
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
        let stream = self.map.get_mut(&id).ok_or(StreamError::Unknown)?;
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

    pub(crate) fn read(
        &mut self,
        id: StreamId,
        most: usize,
        out: &mut ControlQueue,
    ) -> Result<Read<P>, StreamError> {
        let stream = self.map.get_mut(&id).ok_or(StreamError::Unknown)?;
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
        let over =
            self.map.get(&id).is_some_and(|stream| stream.send.is_finished() && stream.recv.is_finished());
        if !over {
            return;
        }
        self.map.remove(&id);
        if id.opener() != self.side {
            self.may_open_there += 1;
            out.push(Control::MaxStreams);
        }
    }

    // What the peer sends.

    /// False when the frame would add a waiting piece to what is full of them already.
    pub(crate) fn admits(&self, frame: &StreamFrame<P>) -> bool {
        self.pieces < MAX_PIECES.min((self.window.size() / PIECE_COST) as usize)
            || self.map.get(&frame.stream).is_some_and(|stream| frame.offset <= stream.recv.received())
    }

    /// Finds the stream of a frame from the peer, opening those it opens; `None` when it is over already.
    fn of_peer(
        &mut self,
        id: StreamId,
        events: &mut VecDeque<Event>,
    ) -> Result<Option<&mut Stream<P>>, ProtocolError> {
        let index = id.0 / 2;
        if id.opener() == self.side {
            if index >= self.opened_here {
                return Err(ProtocolError::StreamState);
            }
        } else if index >= self.may_open_there {
            return Err(ProtocolError::StreamLimit);
        }
        while id.opener() != self.side && self.opened_there <= index {
            let new = self.id(self.side.peer(), self.opened_there);
            self.opened_there += 1;
            self.insert(new);
            self.incoming.push_back(new);
            events.push_back(Event::StreamOpened(new));
        }
        Ok(self.map.get_mut(&id))
    }

    pub(crate) fn on_frame(
        &mut self,
        frame: StreamFrame<P>,
        (events, out): (&mut VecDeque<Event>, &mut ControlQueue),
    ) -> Result<Inserted, ProtocolError> {
        let id = frame.stream;
        let session_left = self.window.limit - self.received;
        let Some(stream) = self.of_peer(id, events)? else { return Ok(Inserted::default()) };
        let (bytes_before, pieces_before) = stream.recv.waiting();
        let read_before = stream.recv.read_offset();
        let inserted = stream.recv.insert(frame.offset, frame.data, frame.fin)?;
        if inserted.advance > session_left {
            return Err(ProtocolError::FlowControl);
        }
        let (bytes, pieces) = stream.recv.waiting();
        let read_now = stream.recv.read_offset();
        if inserted.readable && !stream.recv.announced {
            stream.recv.announced = true;
            events.push_back(Event::StreamReadable(id));
        }
        self.waiting_bytes = self.waiting_bytes + bytes - bytes_before;
        self.pieces = self.pieces + pieces - pieces_before;
        self.received += inserted.advance;
        if read_now > read_before {
            // The stream was stopped: what comes is dropped, its credit is not.
            self.read += read_now - read_before;
            if self.window.is_due(self.read) {
                out.push(Control::MaxData);
            }
        }
        self.forget_if_over(id, out);
        Ok(inserted)
    }

    pub(crate) fn on_reset(
        &mut self,
        id: StreamId,
        code: u64,
        size: u64,
        (events, out): (&mut VecDeque<Event>, &mut ControlQueue),
    ) -> Result<(), ProtocolError> {
        let session_left = self.window.limit - self.received;
        let Some(stream) = self.of_peer(id, events)? else { return Ok(()) };
        let (bytes_before, pieces_before) = stream.recv.waiting();
        let read_before = stream.recv.read_offset();
        let advance = stream.recv.on_reset(code, size)?;
        if advance > session_left {
            return Err(ProtocolError::FlowControl);
        }
        let (bytes, pieces) = stream.recv.waiting();
        let read_now = stream.recv.read_offset();
        if !stream.recv.announced {
            stream.recv.announced = true;
            events.push_back(Event::StreamReadable(id));
        }
        self.waiting_bytes = self.waiting_bytes + bytes - bytes_before;
        self.pieces = self.pieces + pieces - pieces_before;
        self.received += advance;
        self.read += read_now - read_before;
        if self.window.is_due(self.read) {
            out.push(Control::MaxData);
        }
        self.forget_if_over(id, out);
        Ok(())
    }

    pub(crate) fn on_stop(
        &mut self,
        id: StreamId,
        code: u64,
        (events, out): (&mut VecDeque<Event>, &mut ControlQueue),
    ) -> Result<(), ProtocolError> {
        let stream = self.of_peer(id, events)?;
        if stream.is_some_and(|stream| !stream.send.is_over()) {
            events.push_back(Event::StreamStopped { stream: id, code });
            // Unknown is impossible here: the stream was just found.
            let _ = self.reset(id, code, (events, out));
        }
        Ok(())
    }

    pub(crate) fn on_max_data(&mut self, limit: u64) {
        if limit > self.peer_limit {
            self.peer_limit = limit;
            for id in std::mem::take(&mut self.credit_blocked) {
                if let Some(stream) = self.map.get_mut(&id) {
                    stream.credit_blocked = false;
                }
                self.enqueue(id);
            }
        }
    }

    pub(crate) fn on_max_stream_data(
        &mut self,
        id: StreamId,
        (limit, received): (u64, u64),
        events: &mut VecDeque<Event>,
    ) -> Result<(), ProtocolError> {
        let Some(stream) = self.of_peer(id, events)? else { return Ok(()) };
        if received > stream.send.sent_end() {
            return Err(ProtocolError::AckOfUnsent);
        }
        stream.send.raise_limit(limit);
        self.acked(id, 0..received, false, events);
        self.enqueue(id);
        Ok(())
    }

    pub(crate) fn on_max_streams(&mut self, limit: u64, events: &mut VecDeque<Event>) {
        if limit > self.may_open_here {
            self.may_open_here = limit;
            if std::mem::take(&mut self.wants_stream) {
                events.push_back(Event::StreamsAvailable);
            }
        }
    }

    // What becomes of what was sent.

    pub(crate) fn on_acked(
        &mut self,
        run: &SentRun,
        (events, out): (&mut VecDeque<Event>, &mut ControlQueue),
    ) {
        self.acked(run.stream, run.range.clone(), run.fin, events);
        self.forget_if_over(run.stream, out);
    }

    fn acked(&mut self, id: StreamId, range: Range<u64>, fin: bool, events: &mut VecDeque<Event>) {
        let Some(stream) = self.map.get_mut(&id) else { return };
        if stream.send.is_finished() {
            return;
        }
        let before = stream.send.buffered();
        stream.send.on_acked(range, fin);
        self.buffered -= before - stream.send.buffered();
        if stream.send.is_finished() {
            events.push_back(Event::StreamFinished(id));
        }
        self.wake_writers(events);
    }

    pub(crate) fn on_reset_acked(&mut self, id: StreamId, out: &mut ControlQueue) {
        if let Some(stream) = self.map.get_mut(&id) {
            stream.send.on_reset_acked();
        }
        self.forget_if_over(id, out);
    }

    pub(crate) fn on_lost(&mut self, run: &SentRun) {
        if let Some(stream) = self.map.get_mut(&run.stream) {
            stream.send.on_lost(run.range.clone(), run.fin);
            self.enqueue(run.stream);
        }
    }

    // What is sent next.

    fn credit(&self) -> u64 {
        self.peer_limit.saturating_sub(self.sent)
    }

    /// The receive window that the peer keeps for the next stream to send: what is admitted now, and what is
    /// on its way or waits there.
    pub(crate) fn peer_window(&self) -> u64 {
        let session = self.credit() + self.buffered - self.unsent;
        let next = self.ready.front().and_then(|id| self.map.get(id));
        next.map_or(session, |stream| session.min(stream.send.window()))
    }

    fn enqueue(&mut self, id: StreamId) {
        let credit = self.credit();
        let Some(stream) = self.map.get_mut(&id) else { return };
        if !stream.queued && stream.send.has_work(credit) {
            stream.queued = true;
            self.ready.push_back(id);
        } else if !stream.queued && credit == 0 && stream.send.unsent() > 0 && !stream.credit_blocked {
            stream.credit_blocked = true;
            self.credit_blocked.push(id);
        }
    }

    fn requeue_all(&mut self) {
        let ids: Vec<_> = self.map.keys().copied().collect();
        for id in ids {
            self.enqueue(id);
        }
    }

    /// True when some stream has bytes to send; then [`Self::next_is_resend`] tells of what kind.
    pub(crate) fn has_work(&mut self) -> bool {
        while let Some(id) = self.ready.front().copied() {
            let credit = self.credit();
            if self.map.get(&id).is_some_and(|stream| stream.send.has_work(credit)) {
                return true;
            }
            self.ready.pop_front();
            if let Some(stream) = self.map.get_mut(&id) {
                stream.queued = false;
                self.enqueue(id);
            }
        }
        false
    }

    pub(crate) fn next_is_resend(&self) -> bool {
        self.ready.front().and_then(|id| self.map.get(id)).is_some_and(|stream| stream.send.has_lost())
    }

    /// Bytes of the next stream that have to be sent again.
    pub(crate) fn missing(&self) -> u64 {
        self.ready.front().and_then(|id| self.map.get(id)).map_or(0, |stream| stream.send.lost())
    }

    /// Bytes never sent so far, of all streams.
    pub(crate) fn unsent(&self) -> u64 {
        self.unsent
    }

    /// True when an application waits for room: more follows the backlog.
    pub(crate) fn more_expected(&self) -> bool {
        !self.room_blocked.is_empty()
    }

    /// Gives the next stream its turn.
    pub(crate) fn rotate(&mut self) {
        if self.ready.len() > 1 {
            self.ready.rotate_left(1);
        }
    }

    /// Cuts the next run into a frame of at most `room` bytes, its header included.
    pub(crate) fn next_frame(
        &mut self,
        room: usize,
        events: &mut VecDeque<Event>,
    ) -> Option<(StreamFrame<P>, bool)> {
        if !self.has_work() {
            return None;
        }
        let id = *self.ready.front()?;
        let credit = self.credit();
        let stream = self.map.get_mut(&id)?;
        let overhead = anabranch_wire::stream_frame_overhead_last(id, stream.send.next_offset());
        let run = stream.send.next_run(room.checked_sub(overhead)? as u64, credit)?;
        if !run.resend {
            self.sent += run.data.len() as u64;
            self.unsent -= run.data.len() as u64;
            self.wake_writers(events);
        }
        Some((StreamFrame { stream: id, offset: run.offset, fin: run.fin, data: run.data }, run.resend))
    }

    /// The bytes of a run again, while the peer is not known to have any of them.
    pub(crate) fn copy_of(&self, run: &SentRun, room: usize) -> Option<StreamFrame<P>> {
        let stream = self.map.get(&run.stream)?;
        let overhead = anabranch_wire::stream_frame_overhead_last(run.stream, run.range.start);
        let data = stream.send.copy_of(run.range.clone(), room.checked_sub(overhead)? as u64)?;
        let whole = data.len() as u64 == run.range.end - run.range.start;
        Some(StreamFrame { stream: run.stream, offset: run.range.start, fin: run.fin && whole, data })
    }

    fn wake_writers(&mut self, events: &mut VecDeque<Event>) {
        while self.unsent < self.limits.unsent / 2 + 1 && self.buffered < self.limits.send_buffer {
            let Some(id) = self.room_blocked.pop_front() else { return };
            if let Some(stream) = self.map.get_mut(&id) {
                stream.send.wants_room = false;
                if stream.send.is_open() {
                    events.push_back(Event::StreamWritable(id));
                }
            }
        }
    }

    /// Sets how many unsent bytes are taken from applications: enough to keep all paths busy.
    pub(crate) fn set_unsent_limit(&mut self, bytes: u64) {
        self.limits.unsent = bytes;
    }

    // Credit for the peer.

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
        let stream = self.map.get_mut(&id).filter(|stream| stream.recv.wants_credit())?;
        let read = stream.recv.read_offset();
        let wanted = stream.recv.window.wanted(now, read, rtt).min(most);
        stream.recv.window.grow(wanted);
        Some((stream.recv.window.renew(read), stream.recv.received()))
    }

    pub(crate) fn stream_limit(&self) -> u64 {
        self.may_open_there
    }

    pub(crate) fn reset_frame(&self, id: StreamId) -> Option<(u64, u64)> {
        let send = &self.map.get(&id)?.send;
        send.reset_code().map(|code| (code, send.sent_end()))
    }

    pub(crate) fn stop_code(&self, id: StreamId) -> Option<u64> {
        self.map.get(&id).filter(|stream| stream.recv.wants_credit())?.stop_code
    }

    /// True when everything written has been acknowledged.
    pub(crate) fn is_drained(&self) -> bool {
        self.map
            .values()
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
