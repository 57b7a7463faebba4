//! Packets in: numbers, proof of addresses, frames.

use std::mem::offset_of;
use std::ops::Range;

use anabranch_prefetch::prefetch;
use anabranch_wire::{
    Frame, Message, Packet, PathId, PathStatus, Payload, ResetToken, StreamFrame, StreamId, Time, VARINT_MAX,
};

use super::Session;
use crate::event::{CloseReason, ProtocolError};
use crate::path::Path;
use crate::route::Arrival;
use crate::state::State;
use crate::stream::Streams;

impl<P: Payload> Session<P> {
    /// Takes in a message that arrived. A packet has been authenticated before.
    pub fn handle_message(&mut self, now: Time, arrival: &Arrival, mut message: Message<P>) {
        self.take_in(now, arrival, &mut message);
    }

    /// The same, out of a message whose lists are left to the caller: what it says is gone then.
    pub fn take_in(&mut self, now: Time, arrival: &Arrival, message: &mut Message<P>) {
        self.next_timeout.set(None);
        match message {
            Message::Init(_) => self.handle_init(now, arrival.route),
            Message::InitAck(params) => self.handle_init_ack(now, arrival, params.clone()),
            Message::Packet(packet) => self.handle_packet(now, arrival, packet),
            Message::Reset(token) => self.handle_stateless_reset(now, *token),
        }
    }

    /// The bytes of a session, in up to two ranges, that a packet asks for: one that may acknowledge something, or one that does not.
    #[must_use]
    pub fn at_hand(acknowledges: bool) -> [Range<usize>; 2] {
        let (run, streams) = (offset_of!(Self, run), offset_of!(Self, streams));
        let (sending, arriving) = (Streams::<P>::FOR_ACKS, Streams::<P>::FOR_DATA);
        if acknowledges {
            [0..streams + sending.end, 0..0]
        } else {
            [0..run, streams + arriving.start..streams + arriving.end]
        }
    }

    /// Has fetched what is kept of a path, and a stream, for a packet that comes soon and may acknowledge some of it. The session
    /// itself is at hand.
    pub fn prefetch(&self, path: PathId, acknowledges: bool) {
        if let Some(path) = self.path(path) {
            prefetch(path, 0..if acknowledges { Path::FOR_ACKS } else { Path::FOR_DATA });
        }
        self.streams.prefetch();
        if acknowledges {
            self.cc.prefetch(path);
        }
    }

    /// Has fetched which packets are in flight on a path and what has arrived of the stream, for a packet that comes soon and may
    /// acknowledge some, or else which packets have arrived. The path and the first stream are at hand.
    pub fn prefetch_flight(&self, path: PathId, acknowledges: bool) {
        let Some(path) = self.path(path) else { return };
        if acknowledges {
            path.board.prefetch();
            self.streams.prefetch_acked();
        } else {
            path.receipt.prefetch();
        }
    }

    /// Has fetched where the place of a piece of a stream that comes soon is looked for. The first stream is at hand.
    pub fn prefetch_held(&self, stream: StreamId) {
        self.streams.prefetch_held(stream);
    }

    /// Has fetched what a piece of a stream that comes soon is kept beside, once [`Self::prefetch_held`] is done.
    pub fn prefetch_place(&self, stream: StreamId, offset: u64) {
        self.streams.prefetch_place(stream, offset);
    }

    fn handle_stateless_reset(&mut self, now: Time, token: ResetToken) {
        if self.paths.iter().filter_map(|path| path.remote_reset).any(|known| known == token) {
            self.end(now, CloseReason::Reset);
        }
    }

    /// Takes in a packet, and out of it what is kept: what comes with every packet is not worth moving about.
    fn handle_packet(&mut self, now: Time, arrival: &Arrival, packet: &mut Packet<P>) {
        match self.state {
            State::Closed => return self.handle_while_closed(now, arrival, (packet.path, packet.fsn)),
            State::InitSent => return self.stats.packets_ignored += 1,
            State::InitRecv => self.handle_first_packet(now, arrival),
            _ => {}
        }
        let Some(mut index) = self.path_of_packet(now, packet.path, arrival) else {
            self.stats.packets_ignored += 1;
            return;
        };
        let known = self.paths[index].receipt.is_known(packet.fsn);
        let Some(eliciting) = (!known).then(|| self.look_at_frames(&packet.frames)).flatten() else {
            self.stats.packets_ignored += 1;
            return;
        };
        self.last_heard = now;
        self.note_arrival(now, index, arrival, (packet, eliciting));
        for frame in &mut packet.frames {
            // A frame may have closed the session or moved or removed the path.
            if !self.paths.is_at(index, packet.path) {
                let Some(place) = self.path_index(packet.path) else { return };
                index = place;
            }
            if self.state == State::Closed {
                return;
            }
            if let Err(error) = self.handle_frame(now, index, arrival, frame) {
                return self.fail(now, error);
            }
        }
        self.advance_shutdown();
    }

    /// Whether frames ask for an acknowledgement; `None` for data that would make reassembly hold too many pieces, and for streams
    /// that there is no room for: the packet counts as lost then.
    fn look_at_frames(&mut self, frames: &[Frame<P>]) -> Option<bool> {
        let streams = &mut self.streams;
        let mut eliciting = false;
        for frame in frames {
            let is_taken = match frame {
                Frame::Stream(frame) => streams.admits(frame) && streams.has_room_for(frame.stream),
                Frame::ResetStream { stream, .. }
                | Frame::StopSending { stream, .. }
                | Frame::MaxStreamData { stream, .. } => streams.has_room_for(*stream),
                _ => true,
            };
            if !is_taken {
                return None;
            }
            eliciting |= frame.is_ack_eliciting();
        }
        Some(eliciting)
    }

    fn note_arrival(
        &mut self,
        now: Time,
        index: usize,
        arrival: &Arrival,
        (packet, eliciting): (&Packet<P>, bool),
    ) {
        let fsn = packet.fsn;
        let config = &self.config;
        let (newest, moved) = self.paths.change_receipt(index, |path| {
            let newest = path.receipt.largest().is_none_or(|largest| fsn.0 > largest);
            path.receipt.on_packet(now, fsn, (eliciting, arrival.ecn), config);
            path.receipt.packets += 1;
            path.receipt.bytes += arrival.size as u64;
            (newest, path.route != arrival.route)
        });
        if !moved && !self.paths[index].allowance.is_proven() {
            self.paths[index].allowance.on_received(arrival.size as u64);
        } else if moved && newest && !is_answer(packet) {
            self.notice_route(now, index, arrival, is_challenge(packet));
        }
        if self.paths[index].meter.is_some() {
            self.note_received(index);
        }
        if let Some(reporter) = &mut self.reporter {
            reporter.on_received(arrival.size as u64);
        }
    }

    fn handle_frame(
        &mut self,
        now: Time,
        index: usize,
        arrival: &Arrival,
        frame: &mut Frame<P>,
    ) -> Result<(), ProtocolError> {
        match frame {
            Frame::Ack(ack) => self.handle_ack(now, index, ack),
            Frame::Stream(frame) => self.handle_stream(index, frame),
            other => self.handle_rare_frame(now, index, arrival, std::mem::replace(other, Frame::Ping)),
        }
    }

    fn handle_stream(&mut self, index: usize, frame: &mut StreamFrame<P>) -> Result<(), ProtocolError> {
        let length = frame.data.len() as u64;
        let inserted = self.streams.on_frame(frame, (&mut self.events, &mut self.control))?;
        let path = self.paths.aside(index);
        path.stats.data_received += inserted.new;
        path.stats.data_duplicate += length - inserted.new;
        if inserted.ignorant {
            self.repeat_on = Some(path.id);
        }
        Ok(())
    }

    fn handle_rare_frame(
        &mut self,
        now: Time,
        index: usize,
        arrival: &Arrival,
        frame: Frame<P>,
    ) -> Result<(), ProtocolError> {
        match frame {
            Frame::Ping | Frame::Padding(_) | Frame::Ack(_) | Frame::Stream(_) => {}
            Frame::ResetStream { stream, code, final_size } => {
                let out = (&mut self.events, &mut self.control);
                self.streams.on_reset(stream, code, final_size, out)?;
            }
            Frame::StopSending { stream, code } => {
                self.streams.on_stop(stream, code, (&mut self.events, &mut self.control))?;
            }
            Frame::MaxData { limit } => self.streams.on_max_data(limit),
            Frame::MaxStreamData { stream, limit, received } => {
                let out = (&mut self.events, &mut self.control);
                self.streams.on_max_stream_data(stream, (limit, received), out)?;
            }
            Frame::MaxStreams { limit } => self.streams.on_max_streams(limit, &mut self.events),
            Frame::Datagram(datagram) => self.handle_datagram((now, index), datagram)?,
            Frame::Marked(marked) => self.handle_marked((now, index), marked)?,
            Frame::Parity(parity) => self.handle_parity(now, parity)?,
            Frame::PathChallenge { token } => self.paths[index].owe_answer(token, arrival.route),
            Frame::PathResponse { token } => self.handle_path_response(now, token),
            Frame::NewPid(new) => self.handle_new_pid(self.paths[index].id, new)?,
            Frame::PathAbandon { path, reason } => {
                self.handle_path_abandon(now, path, reason)?;
            }
            Frame::PathStatus(status) => self.handle_path_status(status),
            Frame::MaxPathData { path, limit } => self.handle_max_path_data(path, limit),
            Frame::AckPath(wish) => {
                if wish.sequence > self.ack_path.1 {
                    self.ack_path = (wish.path, wish.sequence);
                }
            }
            Frame::AddAddress(added) => self.handle_add_address(added.id, added.address),
            Frame::RemoveAddress { id } => self.handle_remove_address(id),
            Frame::ObservedAddress { path, address } => {
                self.handle_observed_address(path, address);
            }
            Frame::Report(report) => self.handle_report(&report),
            Frame::Shutdown => self.handle_shutdown(),
            Frame::ShutdownAck => self.handle_shutdown_ack(now),
            Frame::Close(close) => self.handle_close(now, close),
        }
        Ok(())
    }

    fn handle_path_status(&mut self, status: PathStatus) {
        let known = match self.path_index(status.path) {
            Some(index) => &mut self.paths[index].peer_usage,
            // It overtook the packet that opens the path.
            None if self.is_awaited(status.path) => {
                &mut self.early_wishes.entry(status.path).or_default().usage
            }
            None => return,
        };
        if status.sequence > known.1 {
            *known = (status.usage, status.sequence);
            self.run = None;
            self.review_standings();
        }
    }

    fn handle_max_path_data(&mut self, path: PathId, limit: u64) {
        let limit = if limit >= VARINT_MAX { u64::MAX } else { limit };
        if let Some(index) = self.path_index(path) {
            self.paths[index].allowance.limit_there(limit);
        } else if self.is_awaited(path) {
            let known = &mut self.early_wishes.entry(path).or_default().limit;
            *known = Some(known.map_or(limit, |known| known.max(limit)));
        }
    }
}

/// True for a packet that says nothing of where the peer is: an answer comes from where the challenge went.
fn is_answer<P>(packet: &Packet<P>) -> bool {
    packet.frames.iter().any(|frame| matches!(frame, Frame::PathResponse { .. }))
}

/// True for a packet that asks whether an address can be used.
fn is_challenge<P>(packet: &Packet<P>) -> bool {
    packet.frames.iter().any(|frame| matches!(frame, Frame::PathChallenge { .. }))
}

#[cfg(test)]
mod tests {
    use anabranch_wire::Length;

    use super::*;

    #[test]
    fn what_a_packet_asks_for_lies_side_by_side() {
        type Any = Session<Length>;
        let common = [offset_of!(Any, config), offset_of!(Any, events), offset_of!(Any, paths)];
        let sending = [offset_of!(Any, run), offset_of!(Any, cc), offset_of!(Any, streams)];
        let rare = offset_of!(Any, stats);
        assert!([&common[..], &sending, &[rare]].concat().is_sorted());
        let ([acks, _], [first, second]) = (Any::at_hand(true), Any::at_hand(false));
        assert!(acks.end > offset_of!(Any, streams) && first.end == sending[0], "{acks:?}, {first:?}");
        assert!(
            second.start < acks.end && acks.end < second.end && second.end < rare,
            "{acks:?}, {second:?}"
        );
    }
}
