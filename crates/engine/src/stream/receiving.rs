//! The receiving side of streams: the peer's bytes, resets and credit.

use std::collections::VecDeque;

use anabranch_wire::{Payload, StreamFrame, StreamId};

use super::{FREE_STREAMS, Inserted, MAX_PIECES, PIECE_COST, STREAM_COST, Stream, Streams};
use crate::control::{Control, ControlQueue};
use crate::event::{Event, ProtocolError};

impl<P: Payload> Streams<P> {
    /// False when the frame would add a waiting piece although their number is at its limit.
    pub(crate) fn admits(&self, frame: &StreamFrame<P>) -> bool {
        self.waiting.pieces < MAX_PIECES.min((self.window.size() / PIECE_COST) as usize)
            || self.table.get(frame.stream).is_some_and(|stream| frame.offset <= stream.recv.received())
    }

    /// False if the budget has no room for the streams that a frame on this one opens, including all lower ones.
    pub(crate) fn has_room_for(&mut self, id: StreamId) -> bool {
        let index = id.0 / 2;
        // Streams beyond the limit are refused when the frame is handled.
        let opens =
            id.opener() != self.side && (self.opened_there..self.opening.may_open_there).contains(&index);
        if !opens {
            return true;
        }
        let open = self.opening.open_there + index + 1 - self.opened_there;
        let needed = open.saturating_sub(FREE_STREAMS) * STREAM_COST;
        let more = needed.saturating_sub(self.opening.reserved_there.held());
        more == 0 || self.opening.reserved_there.reserve_all(more)
    }

    /// Finds the stream of a peer's frame, and opens the streams up to it; `None` if it is over.
    fn of_peer(
        &mut self,
        id: StreamId,
        events: &mut VecDeque<Event>,
    ) -> Result<Option<&mut Stream<P>>, ProtocolError> {
        let index = id.0 / 2;
        if id.opener() == self.side {
            if index >= self.opening.opened_here {
                return Err(ProtocolError::StreamState);
            }
        } else if index >= self.opened_there {
            self.open_there_until(index, events)?;
        }
        Ok(self.table.get_mut(id))
    }

    /// Opens the peer's streams up to this one.
    fn open_there_until(&mut self, index: u64, events: &mut VecDeque<Event>) -> Result<(), ProtocolError> {
        if index >= self.opening.may_open_there {
            return Err(ProtocolError::StreamLimit);
        }
        while self.opened_there <= index {
            let new = self.id(self.side.peer(), self.opened_there);
            self.opened_there += 1;
            self.opening.open_there += 1;
            self.insert(new);
            self.opening.incoming.push_back(new);
            events.push_back(Event::StreamOpened(new));
        }
        Ok(())
    }

    /// Handles a frame and takes its bytes.
    pub(crate) fn on_frame(
        &mut self,
        frame: &mut StreamFrame<P>,
        (events, out): (&mut VecDeque<Event>, &mut ControlQueue),
    ) -> Result<Inserted, ProtocolError> {
        let id = frame.stream;
        let session_left = self.window.limit - self.received;
        let Some(stream) = self.of_peer(id, events)? else { return Ok(Inserted::default()) };
        let (bytes_before, pieces_before) = stream.recv.waiting();
        let read_before = stream.recv.read_offset();
        let end = frame.offset.saturating_add(frame.data.len() as u64);
        let mut inserted = stream.recv.insert(frame.offset, std::mem::take(&mut frame.data), frame.fin)?;
        if inserted.new == 0 && stream.recv.is_ignorant_repeat(end) {
            inserted.ignorant = true;
            out.push(Control::MaxStreamData(id));
        }
        if inserted.advance > session_left {
            return Err(ProtocolError::FlowControl);
        }
        let (bytes, pieces) = stream.recv.waiting();
        let read_now = stream.recv.read_offset();
        let over = stream.is_over();
        if inserted.readable && !stream.recv.announced {
            stream.recv.announced = true;
            events.push_back(Event::StreamReadable(id));
        }
        self.waiting.bytes = self.waiting.bytes + bytes - bytes_before;
        self.waiting.pieces = self.waiting.pieces + pieces - pieces_before;
        self.received += inserted.advance;
        if self.limits.independent_streams && self.is_short_of_credit() {
            self.granted.asked_at = self.window.limit;
            out.push(Control::MaxData);
        }
        if read_now > read_before {
            // The stream was stopped: its bytes are dropped, and their credit is returned.
            self.read += read_now - read_before;
            if self.is_credit_due() {
                out.push(Control::MaxData);
            }
        }
        if over {
            self.forget_if_over(id, out);
        }
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
        // An application that leaves bytes unread is informed, too.
        stream.recv.announced = true;
        events.push_back(Event::StreamReadable(id));
        self.waiting.bytes = self.waiting.bytes + bytes - bytes_before;
        self.waiting.pieces = self.waiting.pieces + pieces - pieces_before;
        self.received += advance;
        self.read += read_now - read_before;
        if self.is_credit_due() {
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
            // The stream was just found, so it cannot be unknown.
            let _ = self.reset(id, code, (events, out));
        }
        Ok(())
    }

    pub(crate) fn on_max_data(&mut self, limit: u64) {
        if limit > self.peer_limit {
            self.peer_limit = limit;
            self.wake_blocked();
        }
    }

    pub(crate) fn on_max_stream_data(
        &mut self,
        id: StreamId,
        (limit, received): (u64, u64),
        (events, out): (&mut VecDeque<Event>, &mut ControlQueue),
    ) -> Result<(), ProtocolError> {
        let Some(stream) = self.of_peer(id, events)? else { return Ok(()) };
        if received > stream.send.sent_end() {
            return Err(ProtocolError::AckOfUnsent);
        }
        stream.send.raise_limit(limit);
        if self.limits.independent_streams
            && let Some(stream) = self.table.get_mut(id)
            && stream.send.credit_left() > 0
            && std::mem::take(&mut stream.send.wants_room)
        {
            events.push_back(Event::StreamWritable(id));
        }
        self.acked(id, 0..received, false, events);
        self.enqueue(id);
        self.forget_if_over(id, out);
        Ok(())
    }

    pub(crate) fn on_max_streams(&mut self, limit: u64, events: &mut VecDeque<Event>) {
        if limit > self.opening.may_open_here {
            self.opening.may_open_here = limit;
            if std::mem::take(&mut self.wants_stream) {
                events.push_back(Event::StreamsAvailable);
            }
        }
    }
}
