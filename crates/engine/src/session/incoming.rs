//! Handles incoming messages. [`Session::handle_ack`] determines the order in which the parts of a session learn from
//! an acknowledgement.

use anabranch_wire::{Ack, Frame, Message, Packet, PathId, Payload, ResetToken, Span, StreamFrame, Time};

use super::Session;
use super::coupling::Acked;
use super::flight::AckFact;
use super::handshake::Handshake;
use super::lateness::{LONGEST, note_call, note_silence};
use super::liveness::Echo;
use super::reports;
use crate::control::Control;
use crate::event::{CloseReason, Event, ProtocolError};
use crate::path::{PathState, Received};
use crate::route::Arrival;
use crate::state::{State, Trigger};

impl<P: Payload> Session<P> {
    /// Handles a received message. Packets are already authenticated.
    pub fn handle_message(&mut self, now: Time, arrival: &Arrival, mut message: Message<P>) {
        self.take_in(now, arrival, &mut message);
    }

    /// Handles a received message, and leaves its emptied lists to the caller.
    pub fn take_in(&mut self, now: Time, arrival: &Arrival, message: &mut Message<P>) {
        let (flight, control) = (&mut self.flight, &mut self.control);
        note_call(now, arrival.waited, flight);
        match message {
            Message::Init(_) => Handshake::handle_init(now, flight, control, arrival.route),
            Message::InitAck(params) => {
                self.handshake.handle_init_ack(now, flight, control, (arrival, params));
            }
            Message::Packet(packet) => self.handle_packet(now, arrival, packet),
            Message::Reset(token) => self.handle_stateless_reset(now, *token),
        }
        self.handshake.stop_if_over(self.flight.state());
    }

    fn handle_stateless_reset(&mut self, now: Time, token: ResetToken) {
        let mut known = self.flight.paths.iter().filter_map(|path| path.proof().reset_token());
        if known.any(|known| known == token) {
            self.flight.end(now, CloseReason::Reset);
        }
    }

    /// Handles a packet. Takes frames out of it in place, to avoid moving them.
    fn handle_packet(&mut self, now: Time, arrival: &Arrival, packet: &mut Packet<P>) {
        match self.flight.state() {
            State::Closed => return self.handle_while_closed(now, arrival, packet),
            State::InitSent => return self.flight.stats.packets_ignored += 1,
            State::InitRecv => {
                Handshake::handle_first_packet(now, &mut self.flight, &mut self.control, arrival);
            }
            _ => {}
        }
        let Some(mut index) = self.control.path_of_packet(now, &mut self.flight, packet.path, arrival) else {
            self.flight.stats.packets_ignored += 1;
            return;
        };
        let known = self.flight.paths[index].receipt().is_known(packet.fsn);
        let Some(eliciting) = (!known).then(|| self.look_at_frames(&packet.frames)).flatten() else {
            self.flight.stats.packets_ignored += 1;
            return;
        };
        let strays = self.flight.paths[index].route() != arrival.route;
        if strays && !self.control.live.rules.allow(arrival.route) {
            // Rules forbid this way, or its cap is used up: it would not count there.
            self.flight.stats.packets_ignored += 1;
            return;
        }
        note_silence(now, &mut self.flight);
        self.flight.clock.last_heard = now;
        self.note_arrival(now, index, arrival, packet, eliciting);
        for frame in &mut packet.frames {
            // A frame may have closed the session, or moved or removed the path.
            if !self.flight.paths.is_at(index, packet.path) {
                let Some(place) = self.flight.paths.place_of(packet.path) else { return };
                index = place;
            }
            if self.flight.state() == State::Closed {
                return;
            }
            if let Err(error) = self.handle_frame(now, index, arrival, frame) {
                return self.flight.end(now, CloseReason::Protocol(error));
            }
        }
        self.advance_shutdown();
    }

    /// Answers a packet for a closed session with its CLOSE, now and then.
    fn handle_while_closed(&mut self, now: Time, arrival: &Arrival, packet: &Packet<P>) {
        let flight = &mut self.flight;
        let Some(index) = flight.paths.place_of(packet.path) else { return };
        let received = Received { fsn: packet.fsn, size: arrival.size, eliciting: false, ecn: arrival.ecn };
        if let Some(is_newest) = flight.paths.on_received_late(index, now, received, &flight.config) {
            flight.life.on_late_packet(&flight.paths[index], arrival, is_newest);
        }
    }

    /// Whether frames ask for an acknowledgement. `None` if their data would need too many pieces for reassembly, or
    /// there is no room for a stream: then the packet counts as lost.
    fn look_at_frames(&mut self, frames: &[Frame<P>]) -> Option<bool> {
        let streams = &mut self.flight.streams;
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
        packet: &Packet<P>,
        eliciting: bool,
    ) {
        let flight = &mut self.flight;
        let received = Received { fsn: packet.fsn, size: arrival.size, eliciting, ecn: arrival.ecn };
        let newest = flight.paths.on_received(index, now - arrival.waited, received, &flight.config);
        if eliciting {
            self.lulls.on_received(now, flight, (index, arrival.size));
        }
        let path = &flight.paths[index];
        let moved = path.route() != arrival.route;
        if !moved && !path.allowance().is_proven() {
            flight.paths.edit(index).allowance_mut().on_received(arrival.size as u64);
        } else if moved && newest && !is_answer(packet) {
            self.control.notice_route(now, flight, index, arrival, is_challenge(packet));
        }
        if flight.paths[index].usage().is_metered() && flight.paths.meter_received(index) {
            self.control.live.rules.on_slice(flight, index);
        }
        self.reports.on_received(arrival.size);
    }

    fn handle_frame(
        &mut self,
        now: Time,
        index: usize,
        arrival: &Arrival,
        frame: &mut Frame<P>,
    ) -> Result<(), ProtocolError> {
        match frame {
            Frame::Ack(ack) => self.handle_ack(now, (index, arrival.waited), ack),
            Frame::Stream(frame) => self.handle_stream(index, frame),
            other => self.handle_rare_frame(now, index, arrival, std::mem::replace(other, Frame::Ping)),
        }
    }

    fn handle_stream(&mut self, index: usize, frame: &mut StreamFrame<P>) -> Result<(), ProtocolError> {
        let flight = &mut self.flight;
        let length = frame.data.len() as u64;
        let out = (&mut flight.out.events, &mut flight.out.control);
        let inserted = flight.streams.on_frame(frame, out)?;
        flight.paths.count_received_data(index, inserted.new, length - inserted.new);
        if inserted.ignorant {
            self.repeat_on = Some(flight.paths[index].id());
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
        let (flight, control) = (&mut self.flight, &mut self.control);
        let (streams, events) = (&mut flight.streams, &mut flight.out.events);
        match frame {
            Frame::Ping | Frame::Padding(_) | Frame::Ack(_) | Frame::Stream(_) => {}
            Frame::ResetStream { stream, code, final_size } => {
                streams.on_reset(stream, code, final_size, (events, &mut flight.out.control))?;
            }
            Frame::StopSending { stream, code } => {
                streams.on_stop(stream, code, (events, &mut flight.out.control))?;
            }
            Frame::MaxData { limit } => streams.on_max_data(limit),
            Frame::MaxStreamData { stream, limit, received } => {
                let out = (events, &mut flight.out.control);
                streams.on_max_stream_data(stream, (limit, received), out)?;
            }
            Frame::MaxStreams { limit } => streams.on_max_streams(limit, events),
            Frame::Datagram(datagram) => self.datagrams.handle_datagram(now, flight, index, datagram)?,
            Frame::Marked(marked) => self.datagrams.handle_marked(now, flight, index, marked)?,
            Frame::Parity(parity) => self.datagrams.handle_parity(now, flight, parity)?,
            Frame::PathChallenge { token } => {
                let path = flight.paths.edit(index);
                // On a path that was given up, late packets are only received.
                if !path.is_closing() {
                    path.proof_mut().owe_answer(token, arrival.route);
                }
            }
            Frame::PathResponse { token } => control.handle_path_response(now, flight, token),
            Frame::NewPid(new) => {
                let on = flight.paths[index].id();
                control.ids.handle_new_pid(flight, on, new)?;
            }
            Frame::PathAbandon { path, reason } => control.handle_path_abandon(now, flight, path, reason)?,
            Frame::PathStatus(status) => control.handle_path_status(flight, status),
            Frame::MaxPathData { path, limit } => control.handle_max_path_data(flight, path, limit),
            Frame::MaxPathRate(rate) => control.handle_max_path_rate(now, flight, rate),
            Frame::AckPath(wish) => flight.acks.hear(wish),
            Frame::AddAddress(added) => self.addresses.handle_add(&mut flight.out, added),
            Frame::RemoveAddress { id } => self.addresses.handle_remove(&mut flight.out, id),
            Frame::ObservedAddress { path, address } => flight.observe(path, address),
            Frame::KeyExchange(half) => self.exchanges.handle(half),
            Frame::Report(report) => reports::handle_report(flight, &report),
            Frame::Shutdown => self.handle_shutdown(),
            Frame::ShutdownAck => self.handle_shutdown_ack(now),
            Frame::Close(close) => {
                let finished = close.code == 0 && flight.state() == State::ShutdownAckSent;
                let peer = CloseReason::Peer { code: close.code, reason: close.reason.into() };
                flight.end(now, if finished { CloseReason::Finished } else { peer });
            }
        }
        Ok(())
    }

    /// Handles an acknowledgement that arrived on the path at `via`. Its facts are used in this order:
    ///
    /// 1. streams and path ids: data, resets and abandons that arrived;
    /// 2. the path: round trip, ECN marks, packet size; coupling: the packet's delay;
    /// 3. congestion control: bytes, rate, marks;
    /// 4. liveness: a suspect path may have recovered;
    /// 5. losses: queued again, then coupling, then congestion control, since coupling decides which windows they
    ///    reduce;
    /// 6. liveness: a path that answers may be useless;
    /// 7. reviews of pacing, send limit, groups and paths left out.
    fn handle_ack(
        &mut self,
        now: Time,
        (via, waited): (usize, Span),
        ack: &Ack,
    ) -> Result<(), ProtocolError> {
        let (flight, control) = (&mut self.flight, &mut self.control);
        let Some(index) = flight.paths.place_of(ack.path) else { return Ok(()) };
        let via = flight.paths[via].id();
        let (mut outcome, resized) = flight.take_ranges(now, index, &ack.ranges)?;
        // The time in the socket is no delay of the path.
        outcome.rtt = outcome.rtt.map(|rtt| rtt.saturating_sub(waited).max(rtt / 4));
        let facts = flight.take_facts();
        for fact in &facts {
            let out = (&mut flight.out.events, &mut flight.out.control);
            match fact {
                AckFact::Arrived(run) => flight.streams.on_acked(run, out),
                AckFact::ResetKnown(stream) => flight.streams.on_reset_acked(*stream, out.1),
                AckFact::AbandonKnown(path) => control.ids.on_abandon_known(*path),
            }
        }
        flight.return_facts(facts);
        if outcome.packets == 0 {
            return Ok(());
        }
        if let Some(sample) = outcome.rtt {
            let most = flight.peer.as_ref().map_or(0, |peer| peer.max_ack_delay_us);
            let ack_delay = ack.delay.min(Span::from_micros(u64::from(most)));
            if flight.paths.edit(index).sample_rtt(now, via, sample, ack_delay) {
                flight.cc.on_return_path_changed(ack.path);
            }
            if flight.wants_evidence {
                let acked = Acked { sample, ack_delay, arrived: ack.arrived };
                control.live.coupling.on_delay(now, flight, index, acked);
            }
        }
        let marks = flight.paths.edit(index).marks_mut();
        let marks = marks.on_ack(outcome.packets, ack.ecn, outcome.rtt.is_some());
        if resized {
            flight.on_size_changed(now, index);
        }
        flight.feed_congestion_control(now, index, &outcome, marks);
        let live = &mut control.live;
        let least = flight.paths[index].returns().least();
        // A longer delay than agreed means that the peer did not run.
        let agreed = flight.peer.as_ref().map_or(0, |peer| peer.max_ack_delay_us);
        let paused = ack.delay.saturating_sub(Span::from_micros(u64::from(agreed))).min(LONGEST);
        let echo = |sample: Span| Echo { sample: sample.saturating_sub(paused).max(least).min(sample), via };
        live.revive(now, flight, index, outcome.rtt.map(echo));
        live.detect_losses(now, flight, index);
        live.watch(now, flight, index, &outcome);
        let path = flight.paths.edit(index);
        // A failed path that has not recovered is still probed.
        if path.state() != PathState::Failed {
            let (more_out, rtt) = (path.board().pipe() > 0, path.rtt().smoothed());
            path.health_mut().learn_patience(now, rtt, outcome.rtt);
            path.health_mut().on_ack(now, more_out);
        }
        if ack.path == PathId::FIRST {
            control.stay(flight);
        }
        flight.update_pacing(now, index);
        flight.update_send_limit();
        if flight.wants_evidence {
            control.live.coupling.review_in_time(now, flight);
        }
        if flight.has_rules {
            let live = &mut control.live;
            live.rules.review_suppression(now, flight, &live.coupling);
        }
        Ok(())
    }

    /// Continues a shutdown when all written data has been acknowledged.
    pub(super) fn advance_shutdown(&mut self) {
        let flight = &mut self.flight;
        let state = flight.state();
        if !matches!(state, State::ShutdownPending | State::ShutdownRecv) {
            return;
        }
        if !flight.streams.is_drained() || self.datagrams.wait() {
            return;
        }
        flight.life.trigger(Trigger::Drained);
        let is_first = state == State::ShutdownPending;
        flight.out.want(if is_first { Control::Shutdown } else { Control::ShutdownAck });
    }

    fn handle_shutdown(&mut self) {
        let flight = &mut self.flight;
        let before = flight.state();
        if flight.life.trigger(Trigger::Shutdown) && flight.state() != before {
            if before == State::ShutdownSent {
                flight.out.want(Control::ShutdownAck);
            } else {
                flight.out.events.push_back(Event::PeerClosing);
            }
        }
    }

    fn handle_shutdown_ack(&mut self, now: Time) {
        if self.flight.state().next(Trigger::ShutdownAck).is_some() {
            self.flight.end(now, CloseReason::Finished);
        }
    }
}

/// True for an answer to a challenge. It goes to the challenge's source, so its route does not show the peer's address.
fn is_answer<P>(packet: &Packet<P>) -> bool {
    packet.frames.iter().any(|frame| matches!(frame, Frame::PathResponse { .. }))
}

/// True for a packet that asks whether an address can be used.
fn is_challenge<P>(packet: &Packet<P>) -> bool {
    packet.frames.iter().any(|frame| matches!(frame, Frame::PathChallenge { .. }))
}
